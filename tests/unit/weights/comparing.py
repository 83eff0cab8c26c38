"""A model's answers beside reference ones, and small models of which no parameter is what initialisation made it."""

from typing import Any

import numpy as np
import torch
from torch import nn

from vitlab.models.vit import ViT, ViTConfig

Array = np.ndarray[Any, Any]
IMAGES = np.random.default_rng(7).standard_normal((3, 32, 32, 3)).astype(np.float32)  # [B, H, W, C]
SMALL = {"image_size": (32, 32), "patch_size": 8, "width": 32, "depth": 2, "mlp_dim": 48, "heads": 4, "num_classes": 5}


def random_model(**changes: Any) -> ViT:
    """A small ViT with every parameter random."""
    model = ViT(ViTConfig(**{**SMALL, **changes}))
    generator = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.eval()


def answers(model: nn.Module, images: Array = IMAGES) -> Array:
    """A model's output for images [B, H, W, C], in the model's precision."""
    with torch.inference_mode():
        return model(torch.from_numpy(images).permute(0, 3, 1, 2).to(next(model.parameters()).dtype)).numpy()


def assert_same(model: nn.Module, expected: Array, images: Array = IMAGES, *, exactly: bool = True) -> None:
    """To 1e-5 in float32; in float64, where only the formulas count, to 1e-10, if all weights are float32 `exactly`."""
    scale = np.abs(expected).max()
    assert np.ptp(expected, axis=0).max() > 1e-3 * scale, "the images make no difference"
    np.testing.assert_allclose(answers(model, images), expected, rtol=0, atol=1e-5 * scale)
    if exactly:
        np.testing.assert_allclose(answers(model.double(), images), expected, rtol=0, atol=1e-10 * scale)
        model.float()
