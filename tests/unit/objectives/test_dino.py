"""DINO's losses against NumPy in float64, and its averages by hand."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tiny_vits import SIZES, random_vit
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch, Stream
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.dino import Dino, DinoOptions, cross_views, koleo
from vitlab.training.learner import Learner

SMALL: dict[str, Any] = {"num_small": 2, "out_dim": 12, "hidden": 8, "bottleneck": 4, "momentum": 0.9}
MADE, SKIPPED = torch.tensor(True), torch.tensor(False)


def tiny(seed: int = 0, **fields: Any) -> ViT:
    return random_vit(ViTConfig(**{**SIZES, "num_classes": 0, **fields}), seed=seed).train()


def dino(model: ViT, **options: Any) -> Dino:
    torch.manual_seed(1)
    objective = Dino(DinoOptions(**{**SMALL, **options}), model)
    with torch.no_grad():  # a teacher of its own, and heads whose answers differ
        for own in (*objective.head.layers.parameters(), *objective.ema_head.parameters()):
            own.copy_(torch.randn_like(own))
        for own in objective.ema_model.parameters():
            own.add_(0.5 * torch.randn_like(own))
        objective.centers.normal_()
    return objective


def views(num: int = 6, num_small: int = 2) -> Batch:
    generator = torch.Generator().manual_seed(3)
    images = [torch.randn(num, 3, side, side, generator=generator) for side in [8] * 2 + [4] * num_small]
    return Batch({"train": Stream(tuple(images), {}, torch.arange(num) + 100)})


def softmax(x: Any) -> Any:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def numpy(x: Tensor) -> Any:
    return x.detach().double().numpy()


def test_pairs_of_views_are_the_authors_double_loop() -> None:
    generator = torch.Generator().manual_seed(0)
    teacher, student = (torch.randn(v, 5, 7, generator=generator, dtype=torch.float64) for v in (2, 6))
    expected, terms = 0.0, 0
    for t in range(2):
        for s in range(6):
            if s != t:
                expected += (-softmax(numpy(teacher[t])) * np.log(softmax(numpy(student[s])))).sum(axis=-1).mean()
                terms += 1
    found = cross_views(teacher.log_softmax(dim=-1), student.log_softmax(dim=-1))
    assert found.item() == pytest.approx(expected / terms, rel=1e-9)


def test_the_loss_is_the_cross_entropy_to_the_centred_sharpened_teacher() -> None:
    """View by view, each by a call of its own, at three points of the temperature's warm-up."""
    model = tiny()
    objective, batch = dino(model), views()
    for progress, temp in ((0.0, 0.04), (0.15, 0.055), (0.8, 0.07)):
        student = [numpy(objective.head(model.pooled(view))) / 0.1 for view in batch.first.views]
        teacher = [numpy(objective.ema_head(objective.ema_model.pooled(view))) for view in batch.first.views[:2]]
        wanted = [softmax((answer - numpy(objective.centers[0])) / temp) for answer in teacher]
        terms = [
            -(wanted[t] * np.log(softmax(student[s]))).sum(axis=-1).mean()
            for t in range(2) for s in range(4) if s != t
        ]  # fmt: skip
        loss, metrics = objective.loss(model, batch, torch.tensor(progress))
        assert loss.item() == pytest.approx(np.mean(terms), rel=1e-5)
        entropy = np.mean([-(p * np.log(p + 1e-300)).sum(axis=-1).mean() for p in wanted])
        assert metrics["teacher entropy"].item() == pytest.approx(entropy / np.log(12), rel=1e-4, abs=1e-5)
        mean = np.concatenate(wanted).mean(axis=0)
        diversity = -(mean * np.log(mean + 1e-300)).sum() / np.log(12)
        assert metrics["teacher diversity"].item() == pytest.approx(diversity, rel=1e-4)


@pytest.mark.parametrize("fields", [{}, {"distill_token": True}], ids=["shared head", "own head"])
def test_masked_patches_are_compared_with_the_teachers_that_sees_them(fields: dict[str, Any]) -> None:
    """The patches' part of the loss is iBOT's: each image's mean over its hidden patches, and the mean over images."""
    model = tiny(patch_size=2, **fields)
    objective, batch = dino(model, patch_weight=1.0, mask_prob=0.7, num_small=0), views(num_small=0)
    of_images: list[float] = []
    masked, _, hidden = objective._seen_by_student(model, torch.cat(batch.first.views), batch)
    assert masked is not None
    head, taught = objective.patch_head or objective.head, objective.ema_patch_head or objective.ema_head
    seen = masked.take(objective.ema_model.encode(objective.ema_model.embed(torch.cat(batch.first.views))).patches)
    wanted = softmax((numpy(taught(seen)) - numpy(objective.centers[1])) / 0.07)
    each = -(wanted * np.log(softmax(numpy(head(hidden)) / 0.1))).sum(axis=-1)
    for row, weights in zip(each, numpy(masked.weights), strict=True):
        count = (weights > 0).sum()
        of_images.append(row[:count].mean() if count else 0.0)
    with_patches, metrics = objective.loss(model, batch, torch.tensor(0.5))
    assert metrics["patch loss"].item() == pytest.approx(np.mean(of_images), rel=1e-5)
    assert {(weights > 0).sum().item() > 0 for weights in masked.weights} == {True, False}
    objective.options = replace(objective.options, patch_weight=3.0)
    more, _ = objective.loss(model, batch, torch.tensor(0.5))
    assert (more - with_patches).item() == pytest.approx(2 * np.mean(of_images), rel=1e-4)


def test_hidden_pixels_do_not_reach_the_student() -> None:
    model = tiny(patch_size=2)
    objective, batch = dino(model, patch_weight=1.0, mask_prob=1.0, num_small=0), views(num_small=0)
    images = torch.cat(batch.first.views).requires_grad_()
    masks, features, _ = objective._seen_by_student(model, images, batch)
    assert masks is not None
    features.square().sum().backward()
    assert images.grad is not None
    seen = images.grad.unfold(2, 2, 2).unfold(3, 2, 2).abs().sum(dim=(1, 4, 5)).flatten(1) > 0
    for row, patches, weights in zip(seen, masks.patches, masks.weights, strict=True):
        assert set((~row).nonzero()[:, 0].tolist()) == set(patches[weights > 0].tolist())


def test_koleo_is_minus_the_log_of_the_nearest_distance() -> None:
    x = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    unit = numpy(x) / np.linalg.norm(numpy(x), axis=1, keepdims=True)
    nearest = [min(np.linalg.norm(a - b) for j, b in enumerate(unit) if j != i) for i, a in enumerate(unit)]
    assert koleo(x).item() == pytest.approx(-np.log(nearest).mean(), rel=1e-6)
    assert koleo(torch.ones(3, 5)).item() == pytest.approx(-math.log(1e-8 * (1 + 5**0.5)), rel=1e-3)  # still finite


def test_koleo_is_added_for_each_large_view_of_the_student() -> None:
    """DINOv2's 0.1 is of the sum over the two, and between images of one view alone."""
    model = tiny()
    plain, spread = dino(model), dino(model, koleo=0.1)
    batch, progress = views(), torch.tensor(0.5)
    expected = sum(koleo(model.pooled(view)).item() for view in batch.first.views[:2])
    without, (with_it, metrics) = plain.loss(model, batch, progress)[0], spread.loss(model, batch, progress)
    assert (with_it - without).item() == pytest.approx(0.1 * expected, rel=1e-4)
    assert metrics["koleo"].item() == pytest.approx(expected, rel=1e-5)


def test_the_centre_and_the_teacher_move_after_a_step_alone() -> None:
    """centre <- .9 centre + .1 mean; teacher <- m teacher + (1 - m) student.

    A third into the run m = 1 - .1 (1 + cos(pi / 3)) / 2 = .925.
    """
    model = tiny()
    objective, batch = dino(model), views()
    weights = [p.clone() for p in objective.ema_model.parameters()]
    last, center = objective.ema_head.last.clone(), objective.centers.clone()
    large = torch.cat(batch.first.views[:2])
    mean = objective.ema_head(objective.ema_model.pooled(large)).mean(dim=0)
    objective.loss(model, batch, torch.tensor(1 / 3))
    assert torch.equal(objective.centers, center)
    objective.after_step(model, SKIPPED)
    assert torch.equal(objective.centers, center)
    assert all(torch.equal(a, b) for a, b in zip(weights, objective.ema_model.parameters(), strict=True))
    objective.after_step(model, MADE)
    torch.testing.assert_close(objective.centers[0], 0.9 * center[0] + 0.1 * mean)
    torch.testing.assert_close(objective.ema_head.last.data, 0.925 * last + 0.075 * objective.head.last.data)
    for old, new, own in zip(weights, objective.ema_model.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(new.data, 0.925 * old + 0.075 * own.data)
    assert objective.product(model) is objective.ema_model


def test_parts_of_a_batch_give_the_loss_and_the_centre_of_the_whole() -> None:
    model = tiny(patch_size=2)
    whole, parts = (dino(model, patch_weight=1.0) for _ in range(2))
    assert not whole.whole_batch
    batch, progress = views(), torch.tensor(0.5)
    expected, _ = whole.loss(model, batch, progress)
    other = Batch({"train": replace(batch.first, views=tuple(-view for view in batch.first.views))})
    parts.loss(model, other, progress * 0.9)
    found = [parts.loss(model, part, progress)[0] / 3 for part in batch.parts(3)]  # the step before is forgotten
    torch.testing.assert_close(sum(found), expected)
    whole.after_step(model, MADE)
    parts.after_step(model, MADE)
    torch.testing.assert_close(parts.centers, whole.centers)


def test_a_step_that_was_not_finite_leaves_nothing_behind() -> None:
    model = tiny()
    objective, batch = dino(model), views()
    broken = Batch({"train": replace(batch.first, views=tuple(view * torch.nan for view in batch.first.views))})
    objective.loss(model, broken, torch.tensor(0.1))
    objective.after_step(model, SKIPPED)
    objective.loss(model, batch, torch.tensor(0.2))
    objective.after_step(model, MADE)
    assert objective.centers.isfinite().all()
    assert all(parameter.isfinite().all() for parameter in objective.ema_model.parameters())


def test_evaluating_changes_nothing() -> None:
    model = tiny()
    objective, batch = dino(model), views()
    objective.loss(model, batch, torch.tensor(0.3))
    before = objective.seen.clone(), objective.seen_at.clone()
    Learner(model, objective).eval()
    objective.loss(model, batch, torch.tensor(1.0))
    assert torch.equal(objective.seen, before[0])
    assert torch.equal(objective.seen_at, before[1])


def test_the_last_layer_waits() -> None:
    model = tiny()
    objective, batch = dino(model, freeze_last=0.2), views()
    for progress, moves in ((0.19, False), (0.2, True)):
        objective.zero_grad()
        objective.loss(model, batch, torch.tensor(progress))[0].backward()
        gradient = objective.head.last.grad
        assert gradient is not None
        assert bool(gradient.any()) is moves
        others = [parameter.grad for parameter in objective.head.layers.parameters()]
        assert all(other is not None and bool(other.any()) for other in others)
    decays = {id(p): group.get("weight_decay") for group in objective.param_groups() for p in group["params"]}
    assert decays[id(objective.head.last)] == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mask_ratio": (0.5, 0.1)}, "objective.mask_ratio is a range of fractions"),
        ({"small_area": (0.0, 0.4)}, "objective.small_area is a range of fractions"),
        ({"teacher_temp": 0.0}, "objective.teacher_temp must be above 0"),
        ({"momentum": 1.5}, "objective.momentum must be at least 0 and at most 1"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DinoOptions(**options)


def test_koleo_needs_two_images() -> None:
    objective = dino(tiny(), koleo=0.1)
    plan: Any = type("Plan", (), {"batch_size": 1})()
    with pytest.raises(ConfigError, match="batch_size must be 2 at least"):
        objective.streams(plan)
    assert objective.whole_batch
