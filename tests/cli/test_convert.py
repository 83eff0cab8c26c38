import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import vitlab
from vitlab.cli import main
from vitlab.core.config import parse_assignments
from vitlab.core.errors import Error
from vitlab.models.vit import ViT, ViTConfig


@pytest.fixture
def source(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = ViTConfig(image_size=(32, 32), patch_size=16, width=64, depth=1, mlp_dim=128, heads=1, num_classes=5)
    model = ViT(config)
    model.initialize()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    vitlab.save(model, tmp_path / "native")
    return tmp_path / "native"


def test_to_googles_format_by_its_documented_names(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "a file.npz"
    assert main(["convert", str(source), str(target), "--format", "google"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == f"Read {source}: 32 x 32 px, 5 classes, 0.08 M parameters."
    assert out[-1] == f"Wrote {target} in the google format."
    with np.load(target) as arrays:
        assert arrays["embedding/kernel"].shape == (16, 16, 3, 64)
        kernel = vitlab.load(source).get_parameter("head.weight").detach().numpy()
        np.testing.assert_array_equal(arrays["head/kernel"], kernel.T)


def test_as_json(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "a file.npz"
    assert main(["convert", str(source), str(target), "--format", "google", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["source"], told["path"], told["format"]) == (str(source), str(target), "google")
    assert (told["image_size"], told["num_classes"]) == ([32, 32], 5)
    assert told["parameters"] == sum(value.numel() for value in vitlab.load(source).parameters())


def test_half_the_bytes(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(source), str(tmp_path / "half"), "--dtype", "float16", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "float16"
    whole, half = ((path / "model.safetensors").stat().st_size for path in (source, tmp_path / "half"))
    assert half < 0.55 * whole
    stored = vitlab.load(source).get_parameter("head.weight").detach().numpy().astype(np.float16)
    np.testing.assert_array_equal(vitlab.load(tmp_path / "half").get_parameter("head.weight").detach().numpy(), stored)
    assert main(["convert", str(source), str(tmp_path / "x.npz"), "--dtype", "float16", "--format", "google"]) == 2
    assert "google format is written in the model's own precision" in capsys.readouterr().err


def test_overrides_change_what_is_written(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "adapted"
    arguments = [
        "convert",
        str(source),
        str(target),
        "--set",
        "num_classes=3",
        "image_size=48,64",
        "--set",
        "dropout=0.1",
    ]
    assert main(arguments) == 0
    config = json.loads((target / "config.json").read_text())["config"]
    assert (config["num_classes"], config["image_size"], config["dropout"]) == (3, [48, 64], 0.1)
    said = capsys.readouterr().err
    assert "Head for 5 classes replaced by a fresh one for 3" in said
    assert "resized from 2 x 2 to 3 x 4" in said
    assert vitlab.load(target)(torch.zeros(1, 3, 48, 64)).shape == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--set", "num_clases=3"], "Did you mean num_classes"),
        (["--set", "num_classes"], "FIELD=VALUE"),
        (["--set", "num_classes=many"], "num_classes"),
        (["--set", "image_size=33"], "do not divide"),
        (["--format", "onnx"], "onnx"),
    ],
)
def test_mistakes_leave_nothing_behind(
    source: Path, tmp_path: Path, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert main(["convert", str(source), str(tmp_path / "out"), *arguments]) == 2
    printed = capsys.readouterr()
    assert word in printed.err
    assert "Traceback" not in printed.err
    assert sorted(tmp_path.rglob("*")) == before


def test_a_missing_source(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(tmp_path / "gone.npz"), str(tmp_path / "out")]) == 2
    assert "gone.npz" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("0.1", 0.1),
        ("1e-6", 1e-6),
        ("true", True),
        ("null", None),
        ("tanh", "tanh"),
        ('"3"', "3"),
        ("224,384", (224, 384)),
        ("[224, 384]", (224, 384)),
        ("(224,384)", (224, 384)),
        ("NaN", "NaN"),
        ("", ""),
        ("a=b", "a=b"),
    ],
)
def test_values_are_read_as_json_lists_or_names(text: str, value: Any) -> None:
    parsed = parse_assignments([f"field={text}"], where="--set")
    assert parsed == {"field": value}
    assert type(parsed["field"]) is type(value)


@pytest.mark.parametrize("items", [["field"], ["=3"], ["a b=3"], ["a=1", "a=2"]])
def test_malformed_overrides_are_refused(items: list[str]) -> None:
    with pytest.raises(Error, match="--set"):
        parse_assignments(items, where="--set")


def test_what_only_fresh_weights_need_keeps_no_model_from_another_format(tmp_path: Path) -> None:
    model = vitlab.create("vit-digits", positions_std=0.5, residual_scale=0.0)
    vitlab.save(model, tmp_path / "model")
    assert main(["convert", str(tmp_path / "model"), str(tmp_path / "model.npz"), "--format", "google"]) == 0
