"""`vitlab finetune DIR`: photos by class folders, and pictures with masks."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.cli import main
from vitlab.models.create import create
from vitlab.weights.load import load, save


@pytest.mark.parametrize("named", [True, False])
def test_the_folder_may_be_the_first_word(named: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(create("vit-digits"), tmp_path / "model")
    assert main(["finetune", *(["--data"] if named else []), "gone/", "--model", str(tmp_path / "model")]) == 2
    assert capsys.readouterr().err.startswith("vitlab: There is no data set named 'gone'")


def test_masks_are_learned_and_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Squares on black ground are found where they are, after some steps from weights that classified digits."""
    rng = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (tmp_path / "squares" / folder).mkdir(parents=True)
    for i in range(60):
        mask = np.zeros((16, 16), np.uint8)
        top, left = rng.integers(0, 9, 2)
        mask[top : top + 8, left : left + 8] = 1
        Image.fromarray(mask * 200).convert("RGB").save(tmp_path / "squares" / "images" / f"{i}.png")
        Image.fromarray(mask).save(tmp_path / "squares" / "masks" / f"{i}.png")
    save(create("vit-digits", image_size=16), tmp_path / "model")
    arguments = [str(tmp_path / "squares"), "--model", str(tmp_path / "model"), "--task", "segmentation"]
    arguments += ["--steps", "40", "--lr", "0.1", "--out", str(tmp_path / "run"), "--device", "cpu"]
    assert main(["finetune", *arguments]) == 0
    assert "best val score: " in capsys.readouterr().out
    assert load(tmp_path / "run").task == "segmentation"
    assert (
        main(
            [
                "predict",
                str(tmp_path / "squares" / "images"),
                "--model",
                str(tmp_path / "run"),
                "--out",
                str(tmp_path / "found"),
            ]
        )
        == 0
    )
    both, either = 0, 0
    for i in range(60):
        found = np.asarray(Image.open(tmp_path / "found" / f"{i}.png"))
        true = np.asarray(Image.open(tmp_path / "squares" / "masks" / f"{i}.png"))
        both, either = both + ((found == 1) & (true == 1)).sum(), either + ((found == 1) | (true == 1)).sum()
    assert both / either > 0.6
