"""Files that are not what they should be: each a sentence that names the file, and nothing in them runs."""

import argparse
import contextlib
import json
import pickle
import random
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

import vitlab
from unit.weights import numpy_vit as reference
from unit.weights.comparing import random_model
from vitlab.core.errors import CheckpointError
from vitlab.weights.files.container import unwrapped
from vitlab.weights.files.npz import NpzFile, write_npz
from vitlab.weights.files.tensors import open_folder, open_tensors
from vitlab.weights.load import load, save

SUFFIXES = (".npz", ".safetensors", ".pth", ".pt", ".bin")
STATE = {"layer.weight": torch.arange(12.0).reshape(3, 4), "layer.bias": torch.ones(4), "step": torch.tensor(3)}


def write_state(path: Path, *, legacy: bool = False) -> Path:
    """A small good file of the kind that the suffix says."""
    if path.suffix == ".npz":
        reference.save(path, {name: value.numpy() for name, value in STATE.items()})
    elif path.suffix == ".safetensors":
        save_file(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=not legacy)
    return path


def complaint(call: Callable[[], Any], path: Path) -> str:
    """The one sentence of the error that the call raises, which names the file."""
    with pytest.raises(vitlab.Error) as caught:
        call()
    text = str(caught.value)
    assert str(path) in text
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


def read_all(path: Path) -> dict[str, Tensor]:
    return dict(open_tensors(path).items())


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_good_file_is_read(tmp_path: Path, suffix: str) -> None:
    path = write_state(tmp_path / f"good{suffix}")
    file, found = open_tensors(path), read_all(path)
    assert {name: tuple(value.shape) for name, value in STATE.items()} == file.shapes
    assert set(found) == set(STATE)
    assert all(torch.equal(found[name], value) and found[name].dtype == value.dtype for name, value in STATE.items())
    assert torch.equal(file.part("layer.weight", 1), STATE["layer.weight"][1])
    with pytest.raises(KeyError):
        file["nothing"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_missing_empty_and_folders(tmp_path: Path, suffix: str) -> None:
    missing, empty, folder = (tmp_path / f"{name}{suffix}" for name in ("missing", "empty", "folder"))
    empty.touch()
    folder.mkdir()
    for opened in (open_tensors, load):
        complaint(lambda opened=opened: opened(missing), missing)
        assert "empty" in complaint(lambda opened=opened: opened(empty), empty)
        complaint(lambda opened=opened: opened(folder), folder)


@pytest.mark.parametrize("suffix", SUFFIXES)
@pytest.mark.parametrize(
    "content", [b"\x00" * 64, b"GIF89a" + b"\x01" * 500, b"<!DOCTYPE html><title>404</title>", b"{"]
)
def test_wrong_magic_bytes(tmp_path: Path, suffix: str, content: bytes) -> None:
    path = tmp_path / f"wrong{suffix}"
    path.write_bytes(content)
    complaint(lambda: load(path), path)


def test_unknown_suffixes(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x07" * 40)
    assert ".npz" in complaint(lambda: load(path), path)


@pytest.mark.parametrize("legacy", [False, True], ids=["", "legacy"])
@pytest.mark.parametrize("suffix", SUFFIXES[:3])
@pytest.mark.parametrize("kept", [0.02, 0.3, 0.6, 0.9, 0.999])
def test_truncated(tmp_path: Path, suffix: str, kept: float, legacy: bool) -> None:
    whole = write_state(tmp_path / f"whole{suffix}", legacy=legacy).read_bytes()
    path = tmp_path / f"cut{suffix}"
    path.write_bytes(whole[: min(len(whole) - 1, int(len(whole) * kept))])
    complaint(lambda: read_all(path), path)


@pytest.mark.parametrize("kind", ["npz", "compressed", "safetensors", "pth", "legacy"])
@given(st.randoms(use_true_random=False))
def test_no_damage_makes_a_traceback(
    kind: str, tmp_path_factory: pytest.TempPathFactory, chance: random.Random
) -> None:
    suffix = {"compressed": "npz", "legacy": "pth"}.get(kind, kind)
    path = write_state(tmp_path_factory.mktemp("damage") / f"a.{suffix}", legacy=kind == "legacy")
    if kind == "compressed":
        reference.save(path, {name: value.numpy() for name, value in STATE.items()}, compressed=True)
    content = bytearray(path.read_bytes())
    for _ in range(chance.randint(1, 4)):
        content[chance.randrange(len(content))] = chance.randrange(256)
    path.write_bytes(content)
    with contextlib.suppress(CheckpointError):
        assert all(isinstance(value, Tensor) for value in read_all(path).values())


@pytest.mark.parametrize("size", [12, 100_000])
def test_a_flipped_bit_in_an_npz_is_noticed(tmp_path: Path, size: int) -> None:
    path, array = tmp_path / "a.npz", np.random.default_rng(0).random(size)
    reference.save(path, {"a": array})
    content = bytearray(path.read_bytes())
    content[content.index(array.tobytes()) + array.nbytes - 3] ^= 4
    path.write_bytes(content)
    assert "damaged" in complaint(lambda: read_all(path), path)


class Dangerous:
    """Pickled, it creates a file when it is read."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.mark,)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin"])
@pytest.mark.parametrize("container", ["zip", "legacy", "pickle"])
def test_a_pickle_that_wants_to_run_code_does_not(tmp_path: Path, suffix: str, container: str) -> None:
    path, mark = tmp_path / f"trap{suffix}", tmp_path / "ran"
    content = {"weight": torch.ones(2), "trap": Dangerous(mark)}
    if container == "pickle":
        path.write_bytes(pickle.dumps(content))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=container == "zip")
    torch.load(path, weights_only=False) if container != "pickle" else pickle.loads(path.read_bytes())
    assert mark.exists()  # the trap works
    mark.unlink()
    complaint(lambda: load(path), path)
    assert not mark.exists()


@pytest.mark.parametrize("compressed", [False, True])
def test_an_npz_of_objects_does_not_run_code(tmp_path: Path, compressed: bool) -> None:
    path, mark = tmp_path / "trap.npz", tmp_path / "ran"
    weights = reference.random_weights(dialect="vit_jax", positions=17)
    weights["head/bias"] = np.array([Dangerous(mark)], dtype=object)
    reference.save(path, weights, compressed=compressed)
    with np.load(path, allow_pickle=True) as file:
        assert file["head/bias"] is not None
    assert mark.exists()  # the trap works
    mark.unlink()
    assert "Python objects" in complaint(lambda: load(path), path)
    assert not mark.exists()


def test_torchs_own_zip_is_not_an_npz(tmp_path: Path) -> None:
    path = tmp_path / "renamed.npz"
    write_state(tmp_path / "a.pth").rename(path)
    assert "no arrays" in complaint(lambda: load(path), path)
    complaint(lambda: load(write_state(tmp_path / "a.npz").rename(path.with_suffix(".pth"))), path.with_suffix(".pth"))


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.array(["a", "b"]), "not numbers"),
        (np.ones(3, complex), None),
        (np.ones(3, [("x", "u1"), ("y", "u1")]), "not numbers"),
        (np.ones(3, "V4"), "not numbers"),
        (np.ones(3, np.longdouble), "not numbers"),
    ],
    ids=["text", "complex", "record", "raw", "long double"],
)
def test_arrays_that_are_no_weights(tmp_path: Path, array: np.ndarray[Any, Any], words: str | None) -> None:
    path = tmp_path / "odd.npz"
    reference.save(path, {"odd": array})
    if words is None:
        assert read_all(path)["odd"].is_complex()
    else:
        assert words in complaint(lambda: read_all(path), path)


def raw_npz(path: Path, content: bytes, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("a.npy", content)
    return path


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode("latin1") + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize("compression", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not an array at all",
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,)}", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-2, -2)}", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", b"\0" * 16),
        npy("{'descr': '<f4', 'fortran_order': False, 'shape': (5,)}", b"\0" * 16),
        npy("{'descr': '<q9', 'fortran_order': False, 'shape': (5,)}", b"\0" * 20),
        npy("__import__('os').abort()", b"\0" * 20),
        npy("{" * 9000, b"\0" * 20),
    ],
    ids=["nothing", "text", "huge", "negative", "long", "short", "type", "code", "deep"],
)
def test_arrays_whose_headers_lie(tmp_path: Path, content: bytes, compression: int) -> None:
    path = raw_npz(tmp_path / "lie.npz", content, compression)
    complaint(lambda: read_all(path), path)


def test_npz_headers_of_the_later_versions(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    for version in ((1, 0), (2, 0), (3, 0)):
        with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive, archive.open("a.npy", "w") as stream:
            np.lib.format.write_array(stream, array, version)
        assert np.array_equal(read_all(tmp_path / "a.npz")["a"].numpy(), array)


def test_npz_parts_of_every_layout(tmp_path: Path) -> None:
    array = np.arange(24, dtype=np.float32).reshape(4, 3, 2)
    for name, value in {"c": array, "f": np.asfortranarray(array), "big": array.astype(">f4")}.items():
        for compressed in (False, True):
            reference.save(tmp_path / "a.npz", {name: value}, compressed=compressed)
            file = NpzFile(tmp_path / "a.npz")
            for i in range(4):
                assert np.array_equal(file.part(name, i).numpy(), array[i])
            assert np.array_equal(file[name].numpy(), array)


@given(
    st.lists(st.integers(0, 4), max_size=4), st.sampled_from([torch.float32, torch.float16, torch.int64, torch.bool])
)
def test_npz_written_is_what_numpy_reads(
    tmp_path_factory: pytest.TempPathFactory, shape: list[int], dtype: torch.dtype
) -> None:
    path = tmp_path_factory.mktemp("npz") / "a.npz"
    value = (torch.rand(shape) * 9).to(dtype)
    write_npz(path, iter([("some/name", value.transpose(0, -1) if shape else value)]))
    expected = value.numpy().swapaxes(0, -1) if shape else value.numpy()
    with np.load(path, allow_pickle=False) as file:
        assert np.array_equal(file["some/name"], expected)
        assert file["some/name"].dtype == expected.dtype
    assert np.array_equal(read_all(path)["some/name"].numpy(), expected)


def test_the_same_model_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("a.npz", "b.npz"):
        save(random_model(), tmp_path / name, format="google")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {"optimizer": {"x": torch.ones(1)}}, torch.ones(3)], ids=str)
def test_pickles_without_a_state_dict(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "odd.pth"
    torch.save(content, path)
    assert "no state dict" in complaint(lambda: read_all(path), path)


@pytest.mark.parametrize("key", ["state_dict", "model", "module", "teacher", "model_state_dict", "net"])
def test_nested_state_dicts_are_found(tmp_path: Path, key: str) -> None:
    torch.save({"epoch": 3, key: STATE}, tmp_path / "run.pth")
    found = read_all(tmp_path / "run.pth")
    assert all(torch.equal(found[name], value) for name, value in STATE.items())


def test_a_training_scripts_checkpoint(tmp_path: Path) -> None:
    """What lies beside the state dict: options, the best score as a tensor, the optimizer's state."""
    content = {
        "epoch": 3,
        "args": argparse.Namespace(lr=0.1, data="photos"),
        "best_acc1": torch.tensor(71.2),
        "state_dict": STATE,
        "optimizer": {"state": {0: {"momentum_buffer": torch.ones(3, 4)}}, "param_groups": []},
    }
    torch.save(content, tmp_path / "checkpoint.pth.tar")
    assert read_all(tmp_path / "checkpoint.pth.tar").keys() == STATE.keys()


def test_of_several_state_dicts_the_average_is_taken_and_said(tmp_path: Path) -> None:
    average = {name: value + 1 for name, value in STATE.items()}
    torch.save({"model": {"state_dict": STATE}, "model_ema": {"state_dict": average}}, tmp_path / "run.pth")
    file = open_tensors(tmp_path / "run.pth")
    assert all(torch.equal(file[name], value) for name, value in average.items())
    (said,) = file.assumed
    assert "'model_ema.state_dict' is taken" in said
    assert "not model.state_dict" in said


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "model."])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_wrappers_names_are_taken_off(tmp_path: Path, prefix: str, suffix: str) -> None:
    state = {f"{prefix}{name}": value for name, value in STATE.items() if "." in name} | {"n_averaged": torch.ones(())}
    path = tmp_path / f"vit{suffix}"
    torch.save(state, path) if suffix == ".pth" else save_file(state, path)
    found = unwrapped(open_tensors(path))
    assert found.shapes.keys() == {"layer.weight", "layer.bias", "n_averaged"}
    assert torch.equal(found["layer.weight"], STATE["layer.weight"])


@pytest.mark.parametrize("names", [["module.a.b", "head.c"], ["module.a", "a"], ["step"]])
def test_what_not_all_names_begin_with_is_no_wrappers(tmp_path: Path, names: list[str]) -> None:
    save_file({name: torch.ones(2) for name in names}, tmp_path / "vit.safetensors")
    assert unwrapped(open_tensors(tmp_path / "vit.safetensors")).shapes.keys() == set(names)


@pytest.mark.parametrize("format", ["hf", "torchvision"])
def test_a_compiled_and_wrapped_models_state_dict_loads(tmp_path: Path, format: str) -> None:
    rule: Any = format
    model = random_model(resize_rule=rule, gelu="exact", norm_eps=1e-12 if format == "hf" else 1e-6)
    save(model, tmp_path / ("out" if format == "hf" else "out.safetensors"), format=format)
    saved = tmp_path / "out/model.safetensors" if format == "hf" else tmp_path / "out.safetensors"
    torch.save({f"module._orig_mod.{name}": value for name, value in load_file(saved).items()}, tmp_path / "vit.pth")
    read = load(tmp_path / "vit.pth", heads=model.config.heads)
    assert read.load_report.unused == []
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in read.state_dict().items())


def test_shards(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    save_file({"layer.weight": STATE["layer.weight"]}, tmp_path / "model-1.safetensors")
    save_file({"layer.bias": STATE["layer.bias"]}, tmp_path / "model-2.safetensors")
    places = {"layer.weight": "model-1.safetensors", "layer.bias": "model-2.safetensors"}
    index.write_text(json.dumps({"weight_map": places}))
    found = dict(open_folder(tmp_path).items())
    assert all(torch.equal(found[name], STATE[name]) for name in places)
    for spoiled, words in (
        ({"weight_map": {"layer.weight": "../model-1.safetensors"}}, "outside"),
        ({"weight_map": {"layer.weight": "model-2.safetensors"}}, "incomplete"),
        ({"weight_map": 3}, "weight_map"),
        ({}, "weight_map"),
    ):
        index.write_text(json.dumps(spoiled))
        assert words in complaint(lambda: open_folder(tmp_path), index)
    index.write_text("{")
    complaint(lambda: open_folder(tmp_path), index)
    index.write_text(json.dumps({"weight_map": {"a": "model-3.safetensors"}}))
    complaint(lambda: open_folder(tmp_path), tmp_path / "model-3.safetensors")


def no_bias(state: dict[str, Tensor]) -> None:
    del state["blocks.1.mlp.up.bias"]


def no_layer(state: dict[str, Tensor]) -> None:
    for name in [name for name in state if name.startswith("blocks.1.")]:
        del state[name]


def narrow(state: dict[str, Tensor]) -> None:
    state["head.weight"] = state["head.weight"][:, :31].contiguous()


def infinite(state: dict[str, Tensor]) -> None:
    state["norm.weight"][0] = torch.inf


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (no_bias, "'blocks.1.mlp.up.bias' is missing"),
        (no_layer, "'blocks.1."),
        (narrow, "'head.weight' has the shape [5, 31]"),
        (infinite, "'norm.weight' holds values that are not finite"),
    ],
)
def test_native_folders_with_bad_weights(
    tmp_path: Path, spoil: Callable[[dict[str, Tensor]], None], words: str
) -> None:
    save(random_model(), tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    state = load_file(path)
    spoil(state)
    save_file(state, path)
    (tmp_path / "model" / "checksums.json").unlink()  # which would say no more than that the file is damaged
    assert words in complaint(lambda: load(tmp_path / "model"), path)


def test_native_folders_with_bad_settings(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    save(random_model(), folder)
    good = json.loads((folder / "config.json").read_text())
    for content, words in (
        ("", "JSON"),
        ("[]", "object"),
        (json.dumps({**good, "version": 99}), "version"),
        (json.dumps({**good, "family": "resnt"}), "resnt"),
        (json.dumps({**good, "config": {**good["config"], "widht": 3}}), "width"),
        (json.dumps({**good, "config": {**good["config"], "width": "wide"}}), "whole number"),
    ):
        (folder / "config.json").write_text(content)
        with pytest.raises(vitlab.Error, match=words):
            load(folder)


def test_a_file_of_another_kind_of_model(tmp_path: Path) -> None:
    path = write_state(tmp_path / "resnet.npz")
    assert "layer.weight" in complaint(lambda: load(path), path)


def test_names_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"vit-b16-224"):
        load("vit-b16-22")
    with pytest.raises(CheckpointError, match=r"no file, folder"):
        load(tmp_path / "nothing" / "here.npz")
