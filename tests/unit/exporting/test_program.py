"""Exported programs beside the models: onnxruntime and torch.export at other sizes than they were traced at."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from contract.test_models import build
from tiny_vits import random_vit
from vitlab.core.config import from_dict
from vitlab.core.errors import Error, MissingDependencyError
from vitlab.core.preprocess import Preprocess
from vitlab.exporting import onnx_file
from vitlab.exporting import program as exporting
from vitlab.exporting.int8 import quantize
from vitlab.exporting.program import Form, export
from vitlab.models import FAMILIES
from vitlab.models.contract import Model
from vitlab.models.create import create
from vitlab.models.vit import ViTConfig

SIZES: dict[str, Any] = {"image_size": (16, 24), "patch_size": 8, "width": 16, "depth": 2, "mlp_dim": 24, "heads": 2}
ONE_SIZE = {"coatnet", "timm"}  # biases resized in a way that is traced for one size; timm's small ViT


def vit(**changes: Any) -> ViTConfig:
    fields: dict[str, Any] = SIZES | {"num_classes": 5} | changes
    return ViTConfig(**fields)


def agrees(model: Model, path: Path, batch: int, height: int, width: int) -> None:
    images = torch.randn(batch, 3, height, width, generator=torch.Generator().manual_seed(7))
    with torch.inference_mode():
        wanted = model(images).numpy()
    if path.suffix == ".onnx":
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        got = np.asarray(session.run(["logits"], {"images": images.numpy()})[0])
    else:
        got = torch.export.load(path).module()(images).detach().numpy()
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


@pytest.mark.compiled
def test_vit_as_onnx(tmp_path: Path) -> None:
    """Everything about one file, for the export itself takes most of the time."""
    model = random_vit(vit(), preprocess=Preprocess(size=(16, 24), mean=(0.1, 0.2, 0.3)))
    model.labels = ("Käfer", "cat", "dog", 'a "quoted"\nname', "e")
    path = tmp_path / "a folder" / "vit.onnx"
    made = export(model, path)

    assert [file.name for file in path.parent.iterdir()] == ["vit.onnx"]
    assert made.input == ("batch", 3, "8*rows", "8*columns")
    assert made.bytes == path.stat().st_size
    assert {(check.batch, check.size) for check in made.checks} == {
        (batch, size) for batch in (1, 3) for size in ((16, 24), (24, 40))
    }
    assert 0 < made.error < 1e-5
    for batch, height, width in ((1, 16, 24), (4, 32, 16), (2, 8, 48), (3, 64, 64)):
        agrees(model, path, batch, height, width)

    file = onnx.load(path)
    onnx.checker.check_model(file, full_check=True)
    (images,), (logits,) = file.graph.input, file.graph.output
    shape = images.type.tensor_type.shape.dim
    assert [each.dim_param or each.dim_value for each in shape] == ["batch", 3, "8*rows", "8*columns"]
    assert [each.dim_param or each.dim_value for each in logits.type.tensor_type.shape.dim] == ["batch", 5]
    assert file.opset_import[0].version == 20
    notes = onnxruntime.InferenceSession(path).get_modelmeta().custom_metadata_map
    assert json.loads(notes["labels"]) == list(model.labels)
    assert from_dict(Preprocess, json.loads(notes["preprocess"]), where="notes") == model.preprocess
    assert from_dict(ViTConfig, json.loads(notes["config"]), where="notes") == vit()
    assert onnx_file.read_notes(path) == notes

    eighth = path.with_name("int8.onnx")  # measured on digits in tests/cli/test_export.py
    assert quantize(path, eighth) == 11  # patches, four in the first layer, five in the last (q apart), head
    assert onnx_file.read_notes(eighth).items() >= notes.items()
    images = torch.randn(64, 3, 32, 16, generator=torch.Generator().manual_seed(0)).numpy()
    rounded, wanted = onnx_file.runner(eighth)(images), onnx_file.runner(path)(images)
    assert 0.9 < np.corrcoef(rounded.ravel(), wanted.ravel())[0, 1] < 1  # random weights make much of rounding


@pytest.mark.slow
@pytest.mark.compiled
def test_vit_as_torchs_program_from_bytes(tmp_path: Path) -> None:
    spec = Preprocess(size=(16, 24), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    model = random_vit(vit(), preprocess=spec)
    made = export(model, tmp_path / "vit.pt2", Form(pixels=True))
    assert made.input == ("batch", "8*rows", "8*columns", 3)
    files: dict[str, Any] = {"vitlab.json": ""}
    module = torch.export.load(tmp_path / "vit.pt2", extra_files=files).module()
    assert json.loads(files["vitlab.json"])["family"] == "vit"
    for height, width in ((16, 24), (32, 16)):
        pixels = np.random.default_rng(0).integers(0, 256, (2, height, width, 3), dtype=np.uint8)
        wanted = model(spec.with_size((height, width))(list(pixels)))
        torch.testing.assert_close(module(torch.from_numpy(pixels)), wanted, rtol=1e-4, atol=1e-4)
    with pytest.raises(Exception, match="Guard failed"):  # a side that the patch does not divide
        module(torch.zeros(1, 20, 24, 3, dtype=torch.uint8))


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("suffix", ["onnx", "pt2"])
@pytest.mark.parametrize("family", [family.name for family in FAMILIES if not family.generates])
def test_every_family(family: str, suffix: str, tmp_path: Path) -> None:
    model, path = build(family), tmp_path / f"model.{suffix}"
    made = export(model, path)
    assert made.any_size == (family not in ONE_SIZE)
    sizes = ((1, 32, 48), (4, 64, 32), (2, 96, 96)) if made.any_size else ((1, 32, 48), (4, 32, 48))
    for batch, height, width in sizes:
        agrees(model, path, batch, height, width)


@pytest.mark.slow
@pytest.mark.compiled
def test_efficientnet(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = create("timm:test_efficientnet", num_classes=5, image_size=64).eval()
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    export(model, tmp_path / "net.onnx", Form(sizes="any"))
    for size in ((64, 64), (96, 32)):
        agrees(model, tmp_path / "net.onnx", 2, *size)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize(
    ("positions", "rule"),
    [
        *(("learned", rule) for rule in ("official", "timm", "hf", "torchvision")),
        *((kind, "official") for kind in ("learned2d", "sincos1d", "sincos2d", "relative", "relative2d", "none")),
    ],
)
def test_every_kind_of_positions_at_any_size(positions: Any, rule: Any, tmp_path: Path) -> None:
    model = random_vit(vit(positions=positions, resize_rule=rule))
    export(model, tmp_path / "vit.onnx", Form(sizes="any"))
    for height, width in ((16, 24), (8, 40), (48, 32)):
        agrees(model, tmp_path / "vit.onnx", 2, height, width)


@pytest.mark.slow
@pytest.mark.compiled
def test_half_precision(tmp_path: Path) -> None:
    model = random_vit(vit())
    full, half = (
        export(model, tmp_path / f"{precision}.onnx", Form(precision=precision, opset=18))
        for precision in ("float32", "float16")
    )
    assert half.bytes < full.bytes
    assert 1e-5 < half.error < 2e-2
    types = {value.data_type for value in onnx.load(half.path).graph.initializer}
    assert onnx.TensorProto.FLOAT16 in types
    assert onnx.load(half.path).graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.FLOAT


@pytest.mark.slow
@pytest.mark.compiled
def test_what_cannot_take_any_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A size of its own where that is allowed, and a refusal that leaves nothing where it is not."""
    models = {
        "pads images": random_vit(vit(image_size=(15, 24), indivisible="pad")),
        "is not what it computes at other sizes": build("coatnet"),
        "takes images of one size": build("timm"),
    }
    for says, model in models.items():
        with pytest.raises(exporting.ExportError, match=says) as caught:
            export(model, tmp_path / "model.pt2", Form(sizes="any"))
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []
        height, width = model.config.image_size
        made = export(model, tmp_path / "model.pt2")
        assert made.input == ("batch", 3, height, width)
        assert f"The program takes images of {height} x {width} px only." in caplog.messages[-1]
        agrees(model, tmp_path / "model.pt2", 4, height, width)
        (tmp_path / "model.pt2").unlink()


@pytest.mark.slow
@pytest.mark.compiled
def test_what_onnx_cannot_say_for_any_size(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A range between a number and an unknown size, whose file onnx's checker refuses."""
    model = build("coatnet", relative="mlp")
    made = export(model, tmp_path / "model.onnx")
    assert made.input == ("batch", 3, 32, 48)
    assert "cannot be translated to ONNX" in caplog.messages[-1]
    agrees(model, tmp_path / "model.onnx", 2, 32, 48)


@pytest.mark.slow
@pytest.mark.compiled
def test_a_program_that_is_off_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vit.onnx").write_text("the one before")
    run = onnx_file.runner
    monkeypatch.setattr(onnx_file, "runner", lambda path: lambda images: 1.001 * run(path)(images))
    with pytest.raises(exporting.ExportError, match=r"is off by 1\.0e-03 of the largest logit at .* it is not kept"):
        export(random_vit(vit()), tmp_path / "vit.onnx", Form(sizes="own"))
    assert [file.name for file in tmp_path.iterdir()] == ["vit.onnx"]
    assert (tmp_path / "vit.onnx").read_text() == "the one before"


@pytest.mark.slow
@pytest.mark.compiled
def test_a_large_model_has_its_weights_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "LARGEST", 10_000)
    model = random_vit(vit())
    made = export(model, tmp_path / "vit.onnx", Form(sizes="own"))
    assert sorted(file.name for file in tmp_path.iterdir()) == ["vit.onnx", "vit.onnx.data"]
    assert made.bytes == sum(file.stat().st_size for file in tmp_path.iterdir())
    agrees(model, tmp_path / "vit.onnx", 2, 16, 24)


@pytest.mark.parametrize(
    ("name", "form", "says"),
    [
        ("vit.tflite", Form(), "ends in .onnx or .pt2"),
        ("vit", Form(), "ends in .onnx or .pt2"),
        ("folder.onnx", Form(), "is a folder"),
        ("vit.onnx", Form(opset=17), "opset must be 18 to 23, not 17"),
        ("vit.onnx", Form(opset=99), "opset must be 18 to 23, not 99"),
    ],
)
def test_what_is_refused_at_once(name: str, form: Form, says: str, tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(Error, match=says):
        export(random_vit(vit()), tmp_path / name, form)
    assert [file.name for file in tmp_path.iterdir()] == ["folder.onnx"]


def test_bytes_need_three_channels(tmp_path: Path) -> None:
    with pytest.raises(Error, match="the model takes 1"):
        export(random_vit(vit(channels=1)), tmp_path / "vit.onnx", Form(pixels=True))


def test_the_quantiser_gets_no_say_in_how_we_log(tmp_path: Path) -> None:
    """In a process of its own: pytest has handlers at the root, and onnxruntime is asked once."""
    code = """
import logging, sys
from pathlib import Path
import numpy as np
from onnx import TensorProto, checker, helper, numpy_helper, save
from vitlab.exporting.int8 import quantize

folder = Path(sys.argv[1])
weight = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, n]) for name, n in (("x", 3), ("y", 4))]
graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9), folder / "a.onnx")
assert quantize(folder / "a.onnx", folder / "b.onnx") == 1
assert not logging.root.handlers, logging.root.handlers
"""
    run = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")


@pytest.mark.parametrize("package", ["onnx", "onnxruntime", "onnxscript"])
def test_packages_that_are_missing(package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"need the package {package}: pip install 'vitlab\[export\]'"):
        export(random_vit(vit()), tmp_path / "vit.onnx")
