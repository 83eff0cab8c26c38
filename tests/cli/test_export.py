"""`vitlab export`, and what 8 bits cost a model that knows its digits."""

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import vitlab
from vitlab.cli import main
from vitlab.data.open import open_data
from vitlab.models.vit import ViT, ViTConfig

BOUND = 0.02  # of top-1 on the 400 test digits: eight images


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Random features of a wide ViT and a head by least squares: 95% of the digits, in a second."""
    config = ViTConfig(
        image_size=(8, 8),
        patch_size=2,
        width=256,
        depth=1,
        mlp_dim=256,
        heads=4,
        num_classes=10,
        pool="mean",
        positions_std=1.0,
    )
    torch.manual_seed(0)
    model = ViT(config)
    model.initialize()
    model.eval()
    dataset = open_data("digits")
    train = dataset.splits["train"]
    pictures = [np.asarray(train.images.read(i)) for i in range(len(train))]
    with torch.no_grad():
        features = model.pool(model.encode(model.embed(model.preprocess(pictures)))).numpy().astype(np.float64)
        mean = features.mean(axis=0)
        targets = np.eye(10)[train.labels]
        solved = np.linalg.lstsq(features - mean, targets - 0.1, rcond=1e-2)[0]
        assert isinstance(model.head, torch.nn.Linear)
        model.head.weight.copy_(torch.from_numpy(solved.T))
        model.head.bias.copy_(torch.from_numpy(0.1 - mean @ solved))
    model.labels = dataset.classes
    vitlab.save(model, tmp_path / "digits")
    return tmp_path / "digits"


@pytest.mark.slow
@pytest.mark.compiled
def test_in_8_bits(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out" / "digits.onnx"
    assert main(["export", str(digits), str(target), "--int8", "--data", "digits", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert sorted(file.name for file in target.parent.iterdir()) == ["digits.onnx", "digits.onnx.json"]
    record = json.loads((target.parent / "digits.onnx.json").read_text())
    assert {name: value for name, value in record.items() if name != "environment"} == printed

    assert record["products"] == 6  # patches, qkv, out, up, down, head
    assert record["bytes"]["int8"] == target.stat().st_size < 0.4 * record["bytes"]["float32"]
    assert record["times as fast"] > 0
    assert 0 < record["difference on noise"] < 0.2
    found = record["accuracy"]
    assert (found["data"], found["split"], found["images"]) == ("digits", "test", 400)
    assert found["top-1 float32"] > 0.9
    assert abs(found["difference"]) <= BOUND
    assert found["same class"] >= 400 * (1 - 2 * BOUND)
    assert found["difference"] == pytest.approx(found["top-1 int8"] - found["top-1 float32"])

    session = onnxruntime.InferenceSession(target, providers=["CPUExecutionProvider"])
    assert session.get_modelmeta().custom_metadata_map["quantised"].startswith("int8")
    test = open_data("digits").splits["test"]
    model = vitlab.load(digits)
    images = model.preprocess([np.asarray(test.images.read(i)) for i in range(len(test))])
    singly = images.split(1)  # inputs have one scale a batch: what an image is told must not depend on others
    logits = np.concatenate([np.asarray(session.run(None, {"images": image.numpy()})[0]) for image in singly])
    assert float((logits.argmax(axis=1) == test.labels).mean()) == pytest.approx(found["top-1 int8"])
    with torch.inference_mode():
        own = float((model(images).argmax(dim=1).numpy() == test.labels).mean())
    assert own == pytest.approx(found["top-1 float32"])


@pytest.mark.slow
@pytest.mark.compiled
def test_what_is_told(digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "digits.pt2"
    assert main(["export", str(digits), str(target)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[:4]] == [
        f"Checked {batch} x {size} px" for size in ("8 x 8", "10 x 12") for batch in (1, 3)
    ]
    assert lines[4].startswith(f"Wrote {target} (torch.export, ")
    assert lines[4].endswith("it takes images [batch, 3, 2*rows, 2*columns].")

    target = tmp_path / "pixels.onnx"
    assert main(["export", str(digits), str(target), "--int8", "--pixels", "--data", "digits", "--sizes", "own"]) == 0
    told = capsys.readouterr().out
    assert "it takes images [batch, 8, 8, 3]" in told
    assert "Top-1 on 400 images of digits (test): " in told
    assert main(["export", str(digits), str(target), "--int8", "--sizes", "own", "--image-size", "16"]) == 0
    assert "Its accuracy was not measured: give --data." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["out.tflite"], "ends in .onnx or .pt2"),
        (["out.onnx", "--data", "digits"], "add --int8, or leave them out"),
        (["out.onnx", "--int8", "--precision", "float16"], "--int8 starts from float32"),
        (["out.pt2", "--int8"], "int8 is for ONNX files"),
        (["out.onnx", "--opset", "3"], "opset must be 18 to 23"),
        (["out.onnx", "--int8", "--data", "no such data"], "no such data"),
    ],
)
def test_mistakes_leave_nothing_behind(
    arguments: list[str],
    says: str,
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(digits), *arguments]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert "Traceback" not in said
    assert [file.name for file in tmp_path.iterdir()] == ["digits"]
