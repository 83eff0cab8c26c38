"""Pictures of predictions, written and read."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from vitlab.core.errors import Error
from vitlab.objectives.shown import Shown, read_shown, write_shown


def shown() -> Shown:
    rng = np.random.default_rng(0)
    picture = lambda: rng.integers(0, 256, (6, 9, 3), dtype=np.uint8)  # noqa: E731
    rows = tuple((("left", picture()), ("filled in", picture())) for _ in range(3))
    return Shown(title="What it says", words="Of hidden patches.", rows=rows)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert read_shown(tmp_path) is None
    write_shown(shown(), tmp_path, 4)
    write_shown(shown(), tmp_path, 8)  # in its place
    found = read_shown(tmp_path)
    assert found is not None
    assert found[1] == 8
    assert (found[0].title, found[0].words, found[0].held_out) == ("What it says", "Of hidden patches.", True)
    for row, expected in zip(found[0].rows, shown().rows, strict=True):
        assert [words for words, _ in row] == [words for words, _ in expected]
        assert all(np.array_equal(a, b) for (_, a), (_, b) in zip(row, expected, strict=True))


def test_damage_is_one_sentence(tmp_path: Path) -> None:
    write_shown(shown(), tmp_path, 4)
    (tmp_path / "predictions" / "1-0.png").write_bytes(b"no picture")
    with pytest.raises(Error, match="the pictures cannot be read") as caught:
        read_shown(tmp_path)
    assert "\n" not in str(caught.value)
    (tmp_path / "predictions" / "predictions.json").write_text(json.dumps({"step": 1, "rows": 3}))
    with pytest.raises(Error, match="the pictures cannot be read"):
        read_shown(tmp_path)


def test_files_outside_its_folder_are_not_read(tmp_path: Path) -> None:
    write_shown(shown(), tmp_path, 4)
    about = tmp_path / "predictions" / "predictions.json"
    told = json.loads(about.read_text())
    told["rows"][0][0]["file"] = "../../secret.png"
    about.write_text(json.dumps(told))
    with pytest.raises(Error, match="the pictures cannot be read"):
        read_shown(tmp_path)


def test_pictures_that_are_of_no_image_say_so(tmp_path: Path) -> None:
    write_shown(dataclasses.replace(shown(), held_out=False), tmp_path, 4)
    found = read_shown(tmp_path)
    assert found is not None
    assert not found[0].held_out
    about = tmp_path / "predictions" / "predictions.json"
    about.write_text(
        json.dumps({name: value for name, value in json.loads(about.read_text()).items() if name != "held_out"})
    )
    earlier = read_shown(tmp_path)  # of a run that was made before there were others
    assert earlier is not None
    assert earlier[0].held_out
