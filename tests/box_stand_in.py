"""A stand-in for the model in the package: its form, with weights of no use, so that tests need no trained ones."""

from pathlib import Path
from typing import Any

import pytest
import torch

from vitlab.core.imagenet import imagenet_classes
from vitlab.models.vit import ViT, ViTConfig
from vitlab.weights import box
from vitlab.weights.load import save

FULL: dict[str, Any] = {"width": 256, "depth": 9, "heads": 4, "mlp_dim": 1024}
SMALL: dict[str, Any] = {"width": 32, "depth": 2, "heads": 2, "mlp_dim": 32}
TERMS = "For tests | only.\nNot for <profit>."
LICENSE = f"{TERMS}\n\nA second paragraph.\n"


def write_stand_in(folder: Path, **sizes: Any) -> ViT:
    """A native folder as the package's: 96 px in patches of 8, 200 classes in words, float16, a licence of its own."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=(96, 96), patch_size=8, num_classes=200, **sizes))
    model.initialize()
    torch.nn.init.normal_(model.head.weight)  # pyright: ignore[reportArgumentType]
    model.labels = tuple(f"{name.partition(',')[0]} ({key})" for key, name in imagenet_classes()[:200])
    model.license = LICENSE
    save(model, folder, dtype="float16")
    return model.eval()


@pytest.fixture
def boxed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ViT:
    """vitlab/tiny, small and in a folder of the test's own."""
    monkeypatch.setattr(box, "FOLDER", tmp_path / "box")
    return write_stand_in(tmp_path / "box" / "tiny", **SMALL)


@pytest.fixture
def unboxed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without it."""
    (tmp_path / "box").mkdir()
    monkeypatch.setattr(box, "FOLDER", tmp_path / "box")
