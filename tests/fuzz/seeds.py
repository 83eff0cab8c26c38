"""Small valid files in every form that vitlab reads; each function writes folders of them, of which each is a case."""

import dataclasses
import gzip
import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.io import savemat
from torch import Tensor

from contract.test_sources import LABELS, MAKERS
from unit.weights.google.test_shards import write as write_shards
from unit.weights.google.test_vmoe import random_weights
from vitlab.core.config import from_dict
from vitlab.models import FAMILIES
from vitlab.models.contract import Model
from vitlab.models.create import fresh_model
from vitlab.models.vit import ViTConfig
from vitlab.weights.load import save

VIT = ViTConfig(image_size=(8, 8), patch_size=4, width=8, depth=2, mlp_dim=8, heads=2, num_classes=3)
WIDE = dataclasses.replace(VIT, width=64, heads=1, gelu="exact")  # whose heads are known without being told


def native(root: Path) -> None:
    """One family more than the plain ViT, with and without the checksums that would end most cases."""
    for family in ("vit", "coatnet", "vmoe"):
        save(_model(family), root / family)
        shutil.copytree(root / family, root / f"{family}-unchecked")
        (root / f"{family}-unchecked" / "checksums.json").unlink()


def google_npz(root: Path) -> None:
    for name in ("google", "big_vision"):
        save(_model(), _inside(root / name) / "model.npz", format=name)
    save(_model("bit"), _inside(root / "bit") / "model.npz", format="google")
    with np.load(root / "google" / "model.npz") as stored:
        np.savez_compressed(_inside(root / "compressed") / "model.npz", **stored)


def safetensors(root: Path) -> None:
    """timm's names in a single file: with our notes in its header, and without."""
    for family in ("vit", "bit", "hybrid"):
        save(_model(family), _inside(root / family) / "model.safetensors", format="timm")
    save_file(_bare(root), _inside(root / "bare") / "model.safetensors")


def pth(root: Path) -> None:
    save(fresh_model(WIDE), _inside(root / "torchvision") / "model.pth", format="torchvision")
    state = _bare(root)
    torch.save(state, _inside(root / "timm") / "model.pth")
    torch.save(
        {"state_dict": state, "epoch": 3}, _inside(root / "old") / "model.pth", _use_new_zipfile_serialization=False
    )


def hf(root: Path) -> None:
    for family, fields in (("vit", {}), ("bit", {"weight_eps": 1e-8}), ("cvt", {"gelu": "exact"})):
        save(_model(family, **fields), root / family, format="hf")
    shutil.copytree(root / "vit", root / "shards")
    state = load_file(root / "shards" / "model.safetensors")
    (root / "shards" / "model.safetensors").unlink()
    halves = {"model-1.safetensors": sorted(state)[::2], "model-2.safetensors": sorted(state)[1::2]}
    for file, names in halves.items():
        save_file({name: state[name] for name in names}, root / "shards" / file)
    index = {"metadata": {}, "weight_map": {name: file for file, names in halves.items() for name in names}}
    (root / "shards" / "model.safetensors.index.json").write_text(json.dumps(index))


def timm(root: Path) -> None:
    save(_model(), root / "vit", format="timm")
    save(_model(layer_scale=0.1, qk_norm=True), root / "scaled", format="timm")


def vmoe(root: Path) -> None:
    write_shards(_inside(root / "authors") / "model", random_weights((1, 3)))


def made(*names: str) -> Callable[[Path], None]:
    """Data sets as the tests of the sources' contract write them."""

    def write(root: Path) -> None:
        for name in names:
            MAKERS[name](root / name / "set", LABELS)
            shutil.rmtree(root / name / "set" / "made", ignore_errors=True)  # what a maker packed

    return write


def idx(root: Path) -> None:
    made("mnist", "fashion-mnist")(root)
    shutil.copytree(root / "mnist", root / "gzipped")
    for file in (root / "gzipped" / "set").iterdir():
        file.with_name(f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes(), mtime=0))
        file.unlink()


def arrays(root: Path) -> None:
    made("arrays")(root)
    with np.load(root / "arrays" / "set" / "set.npz") as stored:
        np.savez_compressed(
            _inside(root / "compressed" / "set") / "set.npz", **stored, classes=np.array(["cat", "dog"])
        )
        for name in ("images", "labels"):
            np.save(_inside(root / "files" / "set") / f"{name}.npy", stored[name])


def cifar(root: Path) -> None:
    made("cifar10", "cifar100")(root)
    folder = _inside(root / "pickled" / "set")
    content = {b"data": np.zeros((len(LABELS), 3072), np.uint8), b"labels": LABELS}
    for name in (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"):
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": [b"cat", b"dog"]}, protocol=2))


def mat(root: Path) -> None:
    made("svhn", "flowers102")(root)
    folder = _inside(root / "compressed" / "set")
    pixels = np.arange(32 * 32 * 3 * 4, dtype=np.uint8).reshape(32, 32, 3, 4)
    savemat(folder / "train_32x32.mat", {"X": pixels, "y": np.array([[1], [2], [1], [2]])}, do_compression=True)


def _model(family: str = "vit", **fields: Any) -> Model:
    known = {item.name: item for item in FAMILIES}[family]
    torch.manual_seed(0)
    example = {**known.example, "image_size": (32, 32), **fields}
    vit = dataclasses.replace(VIT, **fields) if family == "vit" else None
    model = fresh_model(vit or from_dict(known.config, example, where=family))
    model.labels = tuple(f"class {i}" for i in range(model.config.num_classes))
    return model


def _bare(root: Path) -> dict[str, Tensor]:
    """timm's tensors, without a word on them."""
    save(fresh_model(WIDE), root / "saved" / "model.safetensors", format="timm")
    state = load_file(root / "saved" / "model.safetensors")
    shutil.rmtree(root / "saved")
    return state


def _inside(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
