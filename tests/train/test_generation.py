"""A generator that learns to make digits, and broken ones that do not reach the same bar."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from batches import stepping
from vitlab.data.batch import Batch, Stream
from vitlab.data.open import open_data
from vitlab.evaluation.frechet import frechet_distance, gaussian, moments
from vitlab.models.contract import Model, evaluating
from vitlab.models.transgan import TransGAN as Generator
from vitlab.models.transgan import TransGANConfig
from vitlab.objectives.contract import Metrics, Phase
from vitlab.objectives.transgan import TransGAN, TransGANOptions
from vitlab.training.optimizers import Optimizer

BATCH, STEPS = 32, 120


@functools.cache
def digits(part: str) -> Tensor:
    split = open_data("digits").splits[part]
    pixels = torch.stack([torch.as_tensor(split.images.read(i)) for i in range(len(split))])
    return (pixels.float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1)


class Digits:
    """Training batches."""

    def __init__(self) -> None:
        self.damaged = dict[int, str]()

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        images = digits("train")
        chosen = torch.randint(len(images), (BATCH,), generator=generator)
        return Batch({"train": Stream((images[chosen],), {}, torch.arange(BATCH) + step * BATCH)})

    def close(self) -> None: ...


@functools.cache
def distance(broken: str = "", **options: Any) -> float:
    """The Frechet distance of pixels to test images after some steps; without a word, of sound players."""
    torch.manual_seed(0)
    model = Generator(TransGANConfig(image_size=(8, 8), depths=(1, 1), width=64, heads=2, latent_dim=16))
    model.initialize()
    critic = {"critic_patch": 2, "critic_width": 32, "critic_depth": 2, "critic_heads": 2, "n_critic": 1}
    objective = TransGAN(TransGANOptions(**{**critic, "augment": (), **options}), model)
    first, last = objective.phases(model)

    def turned(model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, Metrics]:
        loss, metrics = last.loss(model, batch, progress)
        return -loss, metrics

    def phases(_: Model) -> tuple[Phase, ...]:
        trains = (lambda name: name == "model.to_rgb.bias") if broken == "frozen" else last.trains
        return first, Phase("generator", turned if broken == "sign" else last.loss, trains)

    objective.phases = phases  # pyright: ignore[reportAttributeAccessIssue]
    spec = Optimizer(lr=2e-3, betas=(0.0, 0.99), clip=5.0)
    state, stepper = stepping(model, objective, spec, Digits(), ema=0.95)
    for step in range(STEPS):
        assert stepper(step, 1.0)
    assert state.ema is not None
    state.ema.swap()
    return measured(model)


def measured(model: Generator) -> float:
    with torch.no_grad(), evaluating(model):
        made = model(model.latents(1, torch.arange(400))).clamp(-1, 1)
    return frechet_distance(*(gaussian(moments(each[:, 0].flatten(1))) for each in (made, digits("test"))))


def test_it_learns_what_broken_ones_cannot() -> None:
    sound = distance()
    fresh = Generator(TransGANConfig(image_size=(8, 8), depths=(1, 1), width=64, heads=2, latent_dim=16))
    torch.manual_seed(0)
    fresh.initialize()
    print(sound, measured(fresh), distance("frozen"), distance("sign"))
    assert sound < 0.5 * min(measured(fresh), distance("frozen"), distance("sign"))


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["hinge", "nonsaturating"])
def test_it_learns_by_other_losses(loss: str) -> None:
    assert distance(loss=loss, gradient_penalty=1.0) < 0.6 * min(distance("frozen"), distance("sign"))
