"""A generator that learns to make pictures, and broken ones that do not reach the same bar."""

import functools
from typing import Any, Literal, TypeAlias

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

Set: TypeAlias = Literal["halves", "digits"]
BATCH = 32
STEPS: dict[Set, int] = {"halves": 160, "digits": 600}
ENOUGH = {"frozen": 20, "sign": 30}  # steps that show what they come to
SIZES: dict[Set, dict[str, Any]] = {
    "halves": {"image_size": (4, 4), "depths": (1, 1), "width": 32, "heads": 2, "latent_dim": 4},
    "digits": {"image_size": (8, 8), "depths": (2, 1), "width": 64, "latent_dim": 16},
}


@functools.cache
def pictures(kind: Set, part: str) -> Tensor:
    """Pictures with a bright half and a dark one, which differ in how much; or the digits."""
    if kind == "halves":
        amount = 0.5 + 0.5 * torch.rand(400, generator=torch.Generator().manual_seed(int(part == "test")))
        return amount[:, None, None, None] * torch.tensor([1.0, 1.0, -1.0, -1.0]).expand(400, 3, 4, 4)
    split = open_data("digits").splits[part]
    pixels = torch.stack([torch.as_tensor(split.images.read(i)) for i in range(len(split))])
    return (pixels.float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1)


class Batches:
    """Training batches."""

    def __init__(self, images: Tensor) -> None:
        self.images, self.damaged = images, dict[int, str]()

    def batch(self, step: int) -> Batch:
        chosen = torch.randint(len(self.images), (BATCH,), generator=torch.Generator().manual_seed(step))
        return Batch({"train": Stream((self.images[chosen],), {}, torch.arange(BATCH) + step * BATCH)})

    def close(self) -> None: ...


def fresh(kind: Set) -> Generator:
    torch.manual_seed(0)
    model = Generator(TransGANConfig(**SIZES[kind]))
    model.initialize()
    return model


@functools.cache
def distance(kind: Set, broken: str = "", **options: Any) -> float:
    """The Frechet distance of pixels to test pictures after some steps; without a word, of sound players."""
    model = fresh(kind)
    critic = {"critic_patch": 2, "critic_width": 64, "critic_depth": 2, "critic_heads": 2, "n_critic": 1}
    small = {"critic_width": 16, "critic_depth": 1, "loss": "hinge", "gradient_penalty": 1.0, "critic_lr": 4e-3}
    own = small if kind == "halves" else {"critic_lr": 1e-3}
    chosen: dict[str, Any] = {**critic, **own, "augment": (), **options}
    objective = TransGAN(TransGANOptions(**chosen), model)
    first, last = objective.phases(model)

    def turned(model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, Metrics]:
        loss, metrics = last.loss(model, batch, progress)
        return -loss, metrics

    def phases(_: Model) -> tuple[Phase, ...]:
        trains = (lambda name: name == "model.to_rgb.bias") if broken == "frozen" else last.trains
        return first, Phase("generator", turned if broken == "sign" else last.loss, trains)

    objective.phases = phases  # pyright: ignore[reportAttributeAccessIssue]
    lr, betas = (1e-3, (0.5, 0.99)) if kind == "halves" else (5e-4, (0.0, 0.99))
    spec = Optimizer(lr=lr, betas=betas, clip=5.0)
    state, stepper = stepping(model, objective, spec, Batches(pictures(kind, "train")), ema=0.9)
    for step in range(ENOUGH.get(broken, STEPS[kind])):
        assert stepper(step, 1.0)
    assert state.ema is not None
    state.ema.swap()
    return measured(model, kind)


def measured(model: Generator, kind: Set) -> float:
    with torch.no_grad(), evaluating(model):
        made = model(model.latents(1, torch.arange(400))).clamp(-1, 1)
    return frechet_distance(*(gaussian(moments(each.flatten(1))) for each in (made, pictures(kind, "test"))))


@pytest.mark.parametrize("kind", ["halves", pytest.param("digits", marks=pytest.mark.slow)])
def test_it_learns_what_broken_ones_cannot(kind: Set) -> None:
    """Not so where all but the mean colour is frozen, or the generator shuns what the critic takes for real."""
    found = {broken: distance(kind, broken) for broken in ("", "frozen", "sign")}
    sound = found.pop("")
    assert sound < 0.5 * min(measured(fresh(kind), kind), *found.values())


@pytest.mark.slow
def test_it_learns_by_the_cross_entropy_of_telling_apart() -> None:
    assert distance("halves", loss="nonsaturating", gradient_penalty=0.1) < 0.5 * distance("halves", "frozen")
