"""`vitlab finetune DIR`: photos by class folders, and pictures with masks."""

import json
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


def test_every_field_of_a_recipe_is_an_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of ten images of each of two classes eight are train, and half of these are trained on."""
    for name, value in (("dark", 20), ("light", 220)):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(10):
            Image.new("RGB", (8, 8), (value + i, value, value)).save(tmp_path / "photos" / name / f"{i}.png")
    save(create("vit-digits"), tmp_path / "model")
    given = ["finetune", str(tmp_path / "photos"), "--model", str(tmp_path / "model"), "--out", str(tmp_path / "run")]
    given += ["--epochs", "1.5", "--batch-size", "4", "--augment", "strong", "--balanced", "--device", "cpu"]
    given += ["--data.fraction", "0.5", "--optimiser.momentum", "0.5"]
    assert main([*given, "--log-every", "1 step"]) == 0
    assert capsys.readouterr().err.count("--optimiser.momentum is now --optimizer.momentum.") == 1
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert recipe["optimizer"]["momentum"] == 0.5
    assert recipe["log_every"] == "1 step"
    assert recipe["data"]["balanced"] is True
    assert (recipe["augmentation"]["policy"], recipe["augmentation"]["erase"]) == ("randaugment", 0.25)
    assert recipe["schedule"]["total"] == "3 steps"  # 1.5 times 8 images in batches of 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--steps", "3", "--epochs", "2"], "Give steps or epochs, not both."),
        (["--lr", "1e-3", "--optimizer.lr=1e-4"], "Give --lr or --optimizer.lr, not both."),
        (["--lr", "auto", "--optimizer.lr", "1e-4"], "Give --lr or --optimizer.lr, not both."),
        (["--steps", "3", "--schedule.total", "9 steps"], "Give --steps or --schedule.total, not both."),
        (["--image-size", "8", "--model.image-size", "9"], "Give --image-size or --model.image-size, not both."),
        (["--model.source", "x"], "Give --model instead of --model.source"),
        (["--data.source=x"], "Give --data instead of --data.source"),
        (["--epochs", "-1"], "epochs must be a number above 0"),
        (["--optimizer.weight-deacy", "1"], "--optimizer.weight-deacy"),
        (["stray"], "stray"),
        (["--batch-size", "0"], "batch_size must be at least 1"),
    ],
)
def test_mistakes_are_said_before_anything_is_read(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["finetune", "gone/", "--model", "gone.npz", *options])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert sentence in capsys.readouterr().err


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
    assert "best validation mIoU: " in capsys.readouterr().out
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
