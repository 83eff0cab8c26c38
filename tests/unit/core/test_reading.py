"""Files that are made to stop whoever reads them."""

import json
import os
import socket
from pathlib import Path

import pytest

from vitlab.core.errors import CheckpointError, Error
from vitlab.core.reading import MAX_BYTES, MAX_DEPTH, check_regular, parse_json, read_text
from vitlab.core.record import read_json


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 900, 10**6])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_json_is_refused_by_name(tmp_path: Path, depth: int, opening: str, closing: str) -> None:
    inner = "1" if opening != "[" else ""
    path = tmp_path / "config.json"
    path.write_text('{"config": ' + opening * depth + inner + closing * depth + "}", encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"config\.json: cannot be read as JSON \(nested (too|more than)"):
        read_json(path, CheckpointError)


def test_json_of_the_largest_depth_is_read() -> None:
    text = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    assert parse_json(text) == json.loads(text)
    with pytest.raises(ValueError, match="nested more than"):
        parse_json(f"[{text}]")


def test_a_json_file_of_gigabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    with path.open("wb") as stream:
        stream.truncate(MAX_BYTES + 1)  # sparse: it takes no room
    with pytest.raises(Error, match=r"labels\.json: cannot be read \(larger than 64 MiB\)"):
        read_json(path)


def test_pipes_sockets_and_devices_are_refused_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the name of a socket may not be long
    os.mkfifo("pipe.json")
    listening = socket.socket(socket.AF_UNIX)
    listening.bind("socket.json")
    listening.close()
    Path("device.json").symlink_to("/dev/zero")
    for name in ("pipe", "socket", "device"):
        with pytest.raises(Error, match=rf"{name}\.json: cannot be read \(a {name}, not a file\)"):
            read_json(Path(f"{name}.json"))
        with pytest.raises(OSError, match=f"a {name}, not a file"):
            check_regular(f"{name}.json")
    with pytest.raises(OSError, match="a folder, not a file"):
        read_text(tmp_path)


@pytest.mark.parametrize("text", ['{"a": "\\ud800"}', b'["\\uDFFF"]', '{"\\udc00": 1}'])
def test_halves_of_characters_are_refused(text: str | bytes) -> None:
    with pytest.raises(ValueError, match="a text in it is not Unicode"):
        parse_json(text)


def test_characters_in_two_halves_are_read() -> None:
    assert parse_json('"\\ud83d\\ude00 \\u00e9"') == "\N{GRINNING FACE} é"
