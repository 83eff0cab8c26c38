"""`vitlab sample`."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.cli import main


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("a model") / "made"
    vitlab.save(vitlab.create("transgan-digits", depths=(1, 1), width=32), path)
    return str(path)


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", "--help"]) == 0
    text = capsys.readouterr().out
    for words in ("vitlab sample runs/transgan-digits samples", "--num", "--seed", "--json", "RUN", "OUT"):
        assert words in text
    assert main(["--help"]) == 0
    assert "generate pictures with a run's generator" in capsys.readouterr().out


def test_pictures_are_written_and_told_of(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "two words"
    assert main(["sample", source, str(out), "--num", "3", "--seed", "9", "--device", "cpu", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"out": str(out), "grid": str(out / "grid.png"), "pictures": 3, "size": [8, 8], "seed": 9}
    assert sorted(file.name for file in out.iterdir()) == ["000.png", "001.png", "002.png", "grid.png"]
    expected = vitlab.sample(source, num=3, seed=9, device="cpu")
    assert np.array_equal(np.asarray(Image.open(out / "001.png")), expected[1])
    assert main(["sample", source, str(tmp_path / "again"), "--num", "3", "--seed", "9", "--device", "cpu"]) == 0
    assert capsys.readouterr().out == f"3 pictures of 8 x 8 px: see {tmp_path / 'again' / 'grid.png'}\n"
    for file in out.iterdir():
        assert file.read_bytes() == (tmp_path / "again" / file.name).read_bytes()


def test_mistakes_are_one_sentence(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    vitlab.save(vitlab.create("vit-digits", depth=1), tmp_path / "vit")
    mistakes = {
        "makes no images: give a run that trained a generator": [str(tmp_path / "vit"), str(tmp_path / "out")],
        "number of pictures must be at least 1, not 0": [source, str(tmp_path / "out"), "--num", "0"],
        "The seed must be a whole number from 0": [source, str(tmp_path / "out"), "--seed", "-1"],
        "holds other things": [source, str(tmp_path)],
        "nowhere": [str(tmp_path / "nowhere"), str(tmp_path / "out")],
        "There is no option '--numb'": [source, str(tmp_path / "out"), "--numb", "3"],
    }
    for words, arguments in mistakes.items():
        assert main(["sample", *arguments]) == 2
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
