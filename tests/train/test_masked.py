"""Masked patches and masked autoencoders learn what broken ones cannot, and the way from a run to its uses works."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from batches import stepping
from vitlab.cli import main
from vitlab.data.batch import Batch, Stream
from vitlab.models.create import create
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.mae import MAEOptions, MaskedAutoencoder
from vitlab.objectives.masked_patches import MaskedPatches, MaskedPatchesOptions
from vitlab.objectives.patches import PatchObjective
from vitlab.training.optimizers import Optimizer

SIDE, STEPS, SIZE = 16, 120, 32


def slopes(num: int, seed: int) -> Tensor:
    """Grey pictures that change evenly in a direction of their own: what is hidden follows from what is not."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE] / (SIDE - 1) - 0.5
    middle, (down, right) = rng.uniform(0.2, 0.8, (num, 1, 1, 1)), rng.uniform(-0.8, 0.8, (2, num, 1, 1, 1))
    grey = np.round(255 * (middle + down * y + right * x)).clip(0, 255)
    return torch.from_numpy(grey).to(torch.uint8).expand(-1, 3, -1, -1)


class Pictures:
    """Batches of pictures that are new in every step."""

    damaged: dict[int, str] = {}  # noqa: RUF012  a feed's

    def __init__(self, model: ViT) -> None:
        self.images = model.preprocess.normalize(slopes(2048, 0))

    def batch(self, step: int) -> Batch:
        places = torch.arange(step * SIZE, (step + 1) * SIZE)
        return Batch({"train": Stream((self.images[places % len(self.images)],), {}, places)})

    def close(self) -> None:
        pass


def colors(model: ViT) -> MaskedPatches:
    return MaskedPatches(MaskedPatchesOptions(), model)


def pixels(model: ViT) -> MaskedPatches:
    return MaskedPatches(MaskedPatchesOptions(target="pixels"), model)


def autoencoder(model: ViT) -> MaskedAutoencoder:
    options = MAEOptions(decoder_width=32, decoder_depth=1, decoder_heads=2, normalized=False)
    return MaskedAutoencoder(options, model)


def whole(_: ViT, __: PatchObjective) -> None:
    pass


def frozen(model: ViT, objective: PatchObjective) -> None:
    """The model stays as it is; what belongs to the objective learns."""
    del objective
    model.requires_grad_(False)


def shuffled(model: ViT, objective: PatchObjective) -> None:
    """What is sought belongs to other images."""
    del model
    found: Any = objective
    if isinstance(objective, MaskedAutoencoder):
        sought = objective.target
        found.target = lambda values: sought(values.roll(1, 0))
    elif objective.options.target == "color":
        classes = objective.classes
        found.classes = lambda model, images: classes(model, images.roll(1, 0))


@functools.cache
def held_out_loss(build: Callable[[ViT], PatchObjective], breaks: Callable[[ViT, PatchObjective], None]) -> float:
    """The loss on pictures that were not learned from, by targets that are right."""
    torch.manual_seed(0)
    sizes = {"image_size": (SIDE, SIDE), "patch_size": 4, "width": 32, "depth": 2, "mlp_dim": 64, "heads": 4}
    model = ViT(ViTConfig(**sizes, num_classes=0, pool="mean", class_token=False))
    model.initialize()
    objective = build(model)
    breaks(model, objective)
    _, step = stepping(model, objective, Optimizer(lr=3e-3, clip=1.0), Pictures(model))
    for number in range(STEPS):
        step(number, min((number + 1) / 30, 1.0))
    right = build(model)
    right.load_state_dict(objective.state_dict())
    held = Batch({"train": Stream((model.preprocess.normalize(slopes(256, 1)),), {}, torch.arange(256))})
    with torch.no_grad():
        return right.loss(model.eval(), held, torch.zeros(()))[0].item()
