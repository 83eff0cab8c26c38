"""`vitlab pretrain PHOTOS`: from photos without labels to a fine-tuned classifier."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from box_stand_in import LICENSE, boxed
from vitlab.cli import main
from vitlab.cli.pretrain import DESCRIPTION
from vitlab.models.vit import ViT
from vitlab.recipes.unlabelled import METHODS, default_method
from vitlab.weights.load import load

__all__ = ["boxed"]  # a fixture


def write_photos(folder: Path, num: int, seed: int = 0) -> Path:
    """Pictures of noise, each with a colour of its own."""
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    for i in range(num):
        pixels = rng.integers(0, 80, (24, 32, 3)) + rng.integers(0, 170, 3)
        Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
    return folder


def without_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.import_module("vitlab.api.train"), "report", lambda *_, **__: None)


def test_from_photos_to_a_classifier(
    boxed: ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder of photos, one of which is damaged; then three classes by a head of their own, under the licence."""
    photos = write_photos(tmp_path / "photos", 12)
    (photos / "damaged.png").write_bytes(b"\x89PNG no more")
    out = tmp_path / "run"
    assert main(["pretrain", str(photos), "--steps", "2", "--out", str(out), "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "next: vitlab finetune DATA --model" in said.out
    assert json.loads((out / "recipe.json").read_text())["objective"]["name"] == "simclr"
    assert "kNN" not in said.out
    assert "12 photos are few" in said.err or "11 photos are few" in said.err
    assert "What its features are like" in (out / "report.html").read_text()
    model = load(out)
    assert (model.config.num_classes, model.license) == (0, LICENSE)
    assert (out / "model" / "LICENSE").read_text() == LICENSE
    before, after = boxed.state_dict(), model.state_dict()
    moved = {name for name in after if not np.allclose(after[name], before[name].half().float(), atol=1e-7)}
    assert moved  # it learned
    for name in ("a", "b", "c"):
        write_photos(tmp_path / "labelled" / name, 5, seed=ord(name))
    without_report(monkeypatch)
    given = ["finetune", str(tmp_path / "labelled"), "--model", str(out), "--steps", "2", "--device", "cpu"]
    assert main([*given, "--out", str(tmp_path / "tuned")]) == 0
    tuned = load(tmp_path / "tuned")
    assert (tuned.config.num_classes, tuned.labels, tuned.license) == (3, ("a", "b", "c"), LICENSE)
    recipe = json.loads((tmp_path / "tuned" / "recipe.json").read_text())
    assert recipe["optimizer"]["name"] == "adamw"  # as for vitlab/tiny itself
    capsys.readouterr()


def test_class_folders_measure_and_options_change_the_recipe(
    boxed: ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    del boxed
    without_report(monkeypatch)
    for name in ("a", "b"):
        write_photos(tmp_path / "photos" / name, 10, seed=ord(name))
    out = tmp_path / "run"
    given = ["pretrain", "--data", str(tmp_path / "photos"), "--method", "mae", "--epochs", "1", "--batch-size", "8"]
    options = ["--objective.mask-ratio", "0.5", "--optimizer.weight-decay", "0.2", "--log-every", "1 step", "--json"]
    assert main([*given, *options, "--out", str(out), "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 2  # 16 photos of 20 by 8
    recipe = json.loads((out / "recipe.json").read_text())
    assert recipe["objective"]["mask_ratio"] == 0.5
    assert recipe["optimizer"]["weight_decay"] == 0.2
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "val kNN accuracy" in line] == [0, 1, 2]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--steps", "3", "--epochs", "2"], "Give steps or epochs, not both."),
        (["--epochs", "-1"], "epochs must be a number above 0"),
        (["--optimizer.weight-deacy", "1"], "--optimizer.weight-decay"),
        (["stray"], "stray"),
        (["--batch-size", "0"], "batch_size must be at least 1"),
        (["--method", "dimo"], "There is no method named 'dimo'. Did you mean dino?"),
        (["--method", "supervised"], "'supervised' trains a model that answers a task; without one there are dino"),
        (["--method", "simclr", "--objective.mask-ratio", "0.5"], "There is no option '--objective.mask-ratio'"),
        (["--objective", "mae"], "Name the objective as --method"),
        (["--model", "vitlab/tinny"], "vitlab/tiny"),
    ],
)
def test_mistakes_are_said_before_anything_is_read(
    options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status: object = main(["pretrain", "gone/", *options])
    except SystemExit as ended:
        status = ended.code
    assert status == 2
    assert sentence in capsys.readouterr().err


def test_a_folder_that_is_not_there(boxed: ViT, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    del boxed
    write_photos(tmp_path / "photos", 1)
    assert main(["pretrain", str(tmp_path / "potos")]) == 2
    assert f"Did you mean {tmp_path / 'photos'}?" in capsys.readouterr().err
    assert main(["pretrain", str(tmp_path / "photos")]) == 2
    assert "has 1 photo to learn from: give 2 at least" in capsys.readouterr().err
    assert main(["pretrain"]) == 2
    assert "Name a folder of photos: vitlab pretrain PHOTOS." in capsys.readouterr().err


def test_help_names_every_method() -> None:
    assert all(name in DESCRIPTION for name in METHODS)
    assert [default_method(on_gpu=on_gpu) for on_gpu in (True, False)] == ["dino", "simclr"]
