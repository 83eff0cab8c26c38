"""Files that claim more than they hold, or hold what no model can have: a sentence, before time or memory is spent."""

import json
import os
import re
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from damaging import write_bomb
from vitlab.core.errors import CheckpointError, Error
from vitlab.models.create import fresh_model
from vitlab.models.vit import ViTConfig
from vitlab.weights.load import load, save

CONFIG = ViTConfig(image_size=(8, 8), patch_size=4, width=8, depth=2, mlp_dim=8, heads=2, num_classes=3)


@pytest.fixture
def native(tmp_path: Path) -> Path:
    save(fresh_model(CONFIG), tmp_path / "model")
    return tmp_path / "model"


@pytest.fixture
def timm(tmp_path: Path) -> Path:
    save(fresh_model(CONFIG), tmp_path / "model.safetensors", format="timm")
    return tmp_path / "model.safetensors"


def change_settings(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    settings = json.loads(path.read_text(encoding="utf-8"))
    change(settings)
    path.write_text(json.dumps(settings), encoding="utf-8")


@pytest.mark.parametrize("size", [10**5, 10**7, 10**9, 10**30])
@pytest.mark.parametrize("name", ["depth", "width", "image_size", "mlp_dim", "num_classes", "num_registers", "heads"])
def test_absurd_sizes_of_a_native_folder(native: Path, name: str, size: int) -> None:
    value = [size, size] if name == "image_size" else size
    change_settings(native / "config.json", lambda settings: settings["config"].update({name: value}))
    with pytest.raises(Error) as caught:
        load(native)
    assert str(native) in str(caught.value) or name in str(caught.value)
    assert "\n" not in str(caught.value)


def test_positions_that_are_computed_are_not_made_for_an_absurd_image(native: Path) -> None:
    save(fresh_model(ViTConfig(**{**CONFIG.__dict__, "positions": "sincos2d"})), native)
    change_settings(native / "config.json", lambda settings: settings["config"].update(image_size=[2**22, 2**22]))
    with pytest.raises(CheckpointError, match=r"image_size is 4\.19e\+06, which no model has"):
        load(native)


def test_an_absurd_size_to_resize_to(native: Path) -> None:
    change_settings(native / "preprocess.json", lambda settings: settings.update(size=[10**9, 10**9]))
    with pytest.raises(CheckpointError, match=r"size is 1e\+09, which no model has"):
        load(native)


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "image_size", "intermediate_size"])
def test_absurd_sizes_of_a_transformers_folder(tmp_path: Path, name: str) -> None:
    save(fresh_model(CONFIG), tmp_path / "hf", format="hf")
    change_settings(tmp_path / "hf/config.json", lambda settings: settings.update({name: 3 * 10**9}))
    with pytest.raises(CheckpointError, match=r"hf/(config\.json|model\.safetensors): "):
        load(tmp_path / "hf")


@pytest.mark.parametrize("number", ["1000000000", "9" * 5000])
def test_names_that_count_to_a_thousand_million(tmp_path: Path, timm: Path, number: str) -> None:
    state = load_file(timm)
    state[f"blocks.{number}.norm1.weight"] = torch.ones(8)
    torch.save(state, tmp_path / "far.pth")
    assert load(tmp_path / "far.pth", heads=2).config.depth == 2  # too many digits for a layer's number
    state["blocks.100000000.norm1.weight"] = torch.ones(8)
    torch.save(state, tmp_path / "far.pth")
    with pytest.raises(CheckpointError, match="layer 2 is missing"):
        load(tmp_path / "far.pth", heads=2)


def test_views_that_claim_more_than_their_file(tmp_path: Path, timm: Path) -> None:
    state = load_file(timm)
    state["blocks.0.mlp.fc1.weight"] = torch.zeros(1).expand(2**20, 2**20)
    torch.save(state, tmp_path / "views.pth")
    with pytest.raises(CheckpointError, match=r"views\.pth: its tensors claim 4\.4e\+12 bytes, and the file has"):
        load(tmp_path / "views.pth", heads=2)


def test_layers_that_share_their_storage(tmp_path: Path, timm: Path) -> None:
    state = load_file(timm)
    layer = {name: value for name, value in state.items() if name.startswith("blocks.0.")}
    for number in range(2, 300):
        state |= {name.replace(".0.", f".{number}.", 1): torch.zeros(1).expand(2**14) for name in layer}
    torch.save(state, tmp_path / "shared.pth")
    with pytest.raises(CheckpointError, match=r"shared\.pth: its tensors claim .* save it with"):
        load(tmp_path / "shared.pth", heads=2)


def test_many_real_layers_load(tmp_path: Path) -> None:
    config = ViTConfig(image_size=(4, 4), patch_size=4, width=2, depth=150, mlp_dim=2, heads=1, num_classes=2)
    model = fresh_model(config)
    save(model, tmp_path / "deep")
    loaded, expected = load(tmp_path / "deep").state_dict(), model.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], expected[name]) for name in expected)


KINDS = [torch.int32, torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize("container", [".safetensors", ".pth"])
def test_values_of_a_type_that_no_model_has(timm: Path, kind: torch.dtype, container: str) -> None:
    state = load_file(timm)
    state["blocks.0.mlp.fc1.weight"] = state["blocks.0.mlp.fc1.weight"].to(kind)
    path = timm.with_name(f"typed{container}")
    (save_file if container == ".safetensors" else torch.save)(state, path)
    short = re.escape(str(kind).removeprefix("torch."))
    with pytest.raises(CheckpointError, match=rf"'blocks\.0\.mlp\.fc1\.weight' is of {short}, where the model needs"):
        load(path, heads=2)


@pytest.mark.parametrize("kind", [np.int32, np.bool_, np.complex64, np.uint16], ids=str)
def test_arrays_of_a_type_that_no_model_has(tmp_path: Path, kind: type) -> None:
    save(fresh_model(CONFIG), tmp_path / "model.npz", format="google")
    with np.load(tmp_path / "model.npz") as file:
        arrays = dict(file)
    name = next(name for name in arrays if name.endswith("Dense_0/kernel"))
    arrays[name] = arrays[name].astype(kind)
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(CheckpointError, match=rf"'{name}' is of \w+, where the model needs one of float32"):
        load(tmp_path / "model.npz")


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_values_of_other_precisions_load_as_float32(timm: Path, kind: torch.dtype) -> None:
    state = {name: value.to(kind) for name, value in load_file(timm).items()}
    save_file(state, timm)
    assert {value.dtype for value in load(timm, heads=2).state_dict().values()} == {torch.float32}


def odd_tensors() -> dict[str, Tensor]:
    plain = torch.ones(8, 8)
    return {
        "sparse": plain.to_sparse(),
        "rows": plain.to_sparse_csr(),
        "quantised": torch.quantize_per_tensor(plain, 0.1, 0, torch.qint8),
        "meta": plain.to("meta"),
        "nested": torch.nested.nested_tensor([torch.ones(8), torch.ones(4)]),
    }


@pytest.mark.filterwarnings("ignore")  # torch's, of what is in beta or on its way out
@pytest.mark.parametrize("kind", ["sparse", "rows", "quantised", "meta", "nested"])
def test_tensors_that_are_not_plain(timm: Path, kind: str) -> None:
    torch.save(load_file(timm) | {"blocks.0.mlp.fc1.weight": odd_tensors()[kind]}, timm.with_suffix(".pth"))
    with pytest.raises(CheckpointError, match=r"model\.pth: .*(no plain tensor|more than tensors|damaged)"):
        load(timm.with_suffix(".pth"), heads=2)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "preprocess.json", "labels.json"])
def test_pipes_in_a_model_folder_are_not_waited_for(native: Path, name: str) -> None:
    (native / name).unlink(missing_ok=True)
    os.mkfifo(native / name)
    with pytest.raises(CheckpointError, match=rf"{name}: cannot be read \(a pipe, not a file\)"):
        load(native)
    with pytest.raises(CheckpointError, match=r"(cannot be read \(a pipe, not a file\))"):
        load(native / name)


def test_arrays_that_inflate_beyond_reason(tmp_path: Path) -> None:
    write_bomb(tmp_path / "bomb.npz", "a", 2 * 10**9)
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match=r"bomb\.npz: its arrays claim 2e\+09 bytes, and the file has"):
            load(tmp_path / "bomb.npz")
        assert tracemalloc.get_traced_memory()[1] < 10**7
    finally:
        tracemalloc.stop()
