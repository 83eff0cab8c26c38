"""Losses of views are lightly's on the same tensors, and so are their gradients; docs/views.md says how near.

lightly is no dependency of the project: it brings a trainer and a configuration system. Where it is installed, as by
`pip install --no-deps --target DIR lightly` and DIR in PYTHONPATH, these tests run.
"""

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tiny_vits import SIZES, random_vit
from vitlab.core.peers import import_torchvision
from vitlab.data.batch import Batch, Stream
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.contrastive import nt_xent
from vitlab.objectives.dino import Dino, DinoOptions, koleo
from vitlab.objectives.lejepa import directions, sigreg

CLOSE = 1e-6  # of a loss's or a gradient's size
MADE = torch.tensor(True)


@pytest.fixture(scope="module")
def lightly() -> Any:
    import_torchvision()  # which lightly needs, and a CPU torch makes difficult
    pytest.importorskip("lightly", reason="lightly is not installed")
    return importlib.import_module("lightly.loss")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def compare(ours: Callable[[Tensor], Tensor], theirs: Callable[[Tensor], Tensor], given: Tensor) -> None:
    """The loss of both, and its gradient."""
    own, other = (given.clone().requires_grad_() for _ in range(2))
    mine, yours = ours(own), theirs(other)
    torch.testing.assert_close(mine, yours, rtol=CLOSE, atol=0)
    [found], [wanted] = torch.autograd.grad(mine, own), torch.autograd.grad(yours, other)
    assert wanted.norm() > 0
    assert (found - wanted).norm() <= CLOSE * wanted.norm()


@pytest.mark.parametrize("temperature", [0.1, 0.2, 0.5])
def test_nt_xent(lightly: Any, temperature: float) -> None:
    loss = lightly.NTXentLoss(temperature=temperature)
    compare(lambda z: nt_xent(z, temperature)[0], lambda z: loss(z[:, 0], z[:, 1]), normal(12, 2, 16))


def test_koleo(lightly: Any) -> None:
    compare(koleo, lightly.KoLeoLoss(), normal(24, 16))


def test_sigreg(lightly: Any) -> None:
    along = directions(3, torch.tensor(0.25), 8, 64)
    theirs = lightly.SIGReg(num_vectors=64)
    theirs._generate_unit_vectors = lambda *_: along
    compare(lambda z: sigreg(z, along), theirs, 1.5 * normal(4, 32, 8) + 0.3)


@pytest.fixture
def dino() -> tuple[ViT, Dino, Batch]:
    """A student, a teacher of its own, and two large views and three small ones of each of six images."""
    sizes: dict[str, Any] = {**SIZES, "num_classes": 0, "patch_size": 2}
    model = random_vit(ViTConfig(**sizes)).train()
    torch.manual_seed(1)
    options = DinoOptions(num_small=3, out_dim=24, hidden=16, bottleneck=8, patch_weight=1.0, mask_prob=0.7)
    objective = Dino(options, model)
    with torch.no_grad():
        for parameter in (*objective.head.layers.parameters(), *objective.ema_head.parameters()):
            parameter.copy_(torch.randn_like(parameter))
        for parameter in objective.ema_model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
        objective.centers.normal_()
    views = tuple(normal(6, 3, side, side, seed=i) for i, side in enumerate([8, 8, 4, 4, 4]))
    return model, objective, Batch({"train": Stream(views, {}, torch.arange(6) + 40)})


@pytest.mark.parametrize(("progress", "temp"), [(0.0, 0.04), (0.15, 0.055), (0.8, 0.07)])
def test_dino_and_ibot(lightly: Any, dino: tuple[ViT, Dino, Batch], progress: float, temp: float) -> None:
    """The whole objective, and the centres that follow: of both kinds of tokens, after a step."""
    model, objective, batch = dino
    large = torch.cat(batch.first.views[:2])
    masks, features, hidden = objective._seen_by_student(model, large, batch)
    assert masks is not None
    student = [*objective.head(features).chunk(2), *(objective.head(model.pooled(v)) for v in batch.first.views[2:])]
    with torch.no_grad():
        encoded = objective.ema_model.encode(objective.ema_model.embed(large))
        teacher = list(objective.ema_head(objective.ema_model.pool(encoded)).chunk(2))
        patches = objective.ema_head(masks.take(encoded.patches))
    chosen = masks.weights > 0
    grid = torch.zeros(len(large), 4 * 4, dtype=torch.bool)
    for row, places, which in zip(grid, masks.patches, chosen, strict=True):
        row[places[which]] = True
    order = masks.patches.masked_fill(~chosen, 99).argsort(dim=1)  # they list masked patches by their places

    def by_place(values: Tensor) -> Tensor:
        there = chosen.gather(1, order)
        return values.gather(1, order[:, :, None].expand_as(values))[there]

    of_views, of_patches = lightly.DINOLoss(output_dim=24), lightly.IBOTPatchLoss(output_dim=24)
    of_views.center.copy_(objective.centers[0])
    of_patches.center.value.copy_(objective.centers[1])
    theirs = of_views(teacher, student, teacher_temp=temp)
    theirs = theirs + of_patches(by_place(patches), by_place(objective.head(hidden)), grid.view(-1, 4, 4), temp)
    parameters = [*model.parameters(), *objective.head.parameters()]
    wanted = torch.autograd.grad(theirs, parameters, allow_unused=True)
    ours, _ = objective.loss(model, batch, torch.tensor(progress))
    torch.testing.assert_close(ours, theirs, rtol=CLOSE, atol=0)
    found = torch.autograd.grad(ours, parameters, allow_unused=True)
    for own, other in zip(found, wanted, strict=True):
        assert (own is None) == (other is None)
        if own is not None and other is not None and progress >= objective.options.freeze_last:
            assert (own - other).norm() <= 1e-5 * other.norm() + 1e-9
    objective.after_step(model, MADE)
    torch.testing.assert_close(objective.centers[0], of_views.center.flatten(), rtol=CLOSE, atol=1e-7)
