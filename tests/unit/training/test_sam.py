"""SAM, ASAM and GSAM against NumPy in float64, each other, and what their papers say of them."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from batches import labelled, stepping
from changing import before_step, changed
from short_runs import small_set
from vitlab.core.config import Choice, to_dict
from vitlab.data.batch import Batch
from vitlab.models.create import create
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.recipes import find_recipe
from vitlab.training import session
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import Recipe, read_recipe
from vitlab.training.sam import Perturbation
from vitlab.training.state import State
from vitlab.training.step import Stepper

__all__ = ["small_set"]
KINDS: dict[str, dict[str, Any]] = {
    "sam": {"sam": 0.5},
    "asam": {"sam": 0.5, "sam_kind": "asam", "sam_eta": 0.1},
    "gsam": {"sam": 0.5, "sam_kind": "gsam", "sam_rho_min": 0.2, "sam_alpha": 0.4},
}
every = pytest.mark.parametrize("kind", KINDS)


class Batches:
    """A feed of random batches, some of them spoilt."""

    def __init__(self, *spoilt: int) -> None:
        self.spoilt, self.damaged = spoilt, dict[int, str]()

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(8, 3, 8, 8, generator=generator)
        labels = torch.randint(0, 10, (8,), generator=generator)
        return labelled(images * (torch.nan if step in self.spoilt else 1), nn.functional.one_hot(labels, 10).float())

    def close(self) -> None:
        pass


def stepper(*spoilt: int, accumulate: int = 1, dropout: float = 0.0, **optimizer: Any) -> tuple[State, Stepper]:
    torch.manual_seed(0)
    model = create("vit-digits", depth=1, dropout=dropout)
    spec = Optimizer(**{"name": "sgd", "lr": 0.5, **optimizer})
    return stepping(model, Supervised(CrossEntropy()), spec, Batches(*spoilt), accumulate=accumulate)


def weights(state: State) -> Tensor:
    return torch.cat([value.detach().flatten() for value in state.model.parameters()])


def quartic(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The gradient of sum(c w^4) / 4, c = 1, 2, ...: by arithmetic alone."""
    return np.arange(1, len(values) + 1) * values**3


def by_hand(kind: str, w: np.ndarray[Any, Any], factor: float) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """e, and the gradient that the optimizer is given; the lowest factor of the lr is 0.1."""
    g = quartic(w)
    if kind == "asam":
        scale = np.abs(w) + 0.1
        e = 0.5 * scale**2 * g / np.linalg.norm(scale * g)
        return e, quartic(w + e)
    rho = 0.5 if kind == "sam" else 0.2 + 0.3 * (factor - 0.1) / 0.9
    e = rho * g / np.linalg.norm(g)
    perturbed = quartic(w + e)
    if kind == "sam":
        return e, perturbed
    unit = perturbed / np.linalg.norm(perturbed)
    across = g - (g @ unit) * unit
    return e, perturbed - 0.4 * across


@every
@pytest.mark.parametrize("factor", [0.1, 0.4, 1.0])
def test_against_numpy(kind: str, factor: float) -> None:
    w = np.array([0.3, -1.2, 0.0, 0.8, -0.05])
    parameters = [nn.Parameter(torch.tensor(part, dtype=torch.float32)) for part in (w[:2], w[2:])]
    idle = nn.Parameter(torch.ones(3))  # without a gradient: nothing of it moves
    perturbation = Perturbation([*parameters, idle], Optimizer(**KINDS[kind]), lowest=0.1)
    coefficients = torch.arange(1.0, 6).split([2, 3])

    def differentiate() -> None:
        for p, c in zip(parameters, coefficients, strict=True):
            p.grad = c * p.detach() ** 3

    e, expected = by_hand(kind, w, factor)
    perturbation.set_radius(factor)
    differentiate()
    perturbation.uphill()
    moved = torch.cat([p.detach() for p in parameters]).double().numpy() - w
    np.testing.assert_allclose(moved, e, rtol=1e-5, atol=1e-7)
    differentiate()
    perturbation.back()
    assert torch.equal(torch.cat([p.detach() for p in parameters]), torch.tensor(w, dtype=torch.float32))
    assert torch.equal(idle.detach(), torch.ones(3))
    found = torch.cat([p.grad for p in parameters if p.grad is not None])
    np.testing.assert_allclose(found.double().numpy(), expected, rtol=2e-5, atol=1e-6)


def test_the_step_takes_the_gradient_of_the_perturbed_weights() -> None:
    """By autograd alone, over a whole model."""
    state, step = stepper(sam=0.5, momentum=0.0, lr=1.0)
    plain, _ = stepper()
    batch, parameters, now = Batches().batch(0), list(plain.model.parameters()), torch.zeros(())
    start = [p.detach().clone() for p in parameters]
    gradients = torch.autograd.grad(plain.objective.loss(plain.model, batch, now)[0], parameters)
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    with torch.no_grad():
        for p, g in zip(parameters, gradients, strict=True):
            p.add_(g, alpha=0.5 / norm.item())
    uphill = torch.autograd.grad(plain.objective.loss(plain.model, batch, now)[0], parameters)
    step(0, 1.0)
    for p, origin, g in zip(state.model.parameters(), start, uphill, strict=True):
        torch.testing.assert_close(p, origin - g, rtol=1e-4, atol=1e-5)


def test_gsam_of_one_radius_and_no_alpha_is_sam_to_the_bit() -> None:
    """And nothing less: another radius or an alpha is another run."""
    runs = list[Tensor]()
    special: dict[str, Any] = {"sam": 0.5, "sam_kind": "gsam", "sam_rho_min": 0.5, "sam_alpha": 0.0}
    cases: list[dict[str, Any]] = [
        {"sam": 0.5},
        special,
        {**special, "sam_rho_min": 0.4},
        {**special, "sam_alpha": 0.1},
    ]
    for fields in cases:
        state, step = stepper(dropout=0.1, clip=1.0, **fields)
        for number, factor in enumerate((0.3, 1.0, 0.7)):
            assert step(number, factor)
        runs.append(weights(state))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert not torch.equal(runs[0], runs[3])


@pytest.mark.parametrize(
    ("lowest", "factor", "rho"),
    [(0.01, 1.0, 0.6), (0.01, 0.01, 0.1), (0.01, 0.505, 0.35), (0.0, 0.5, 0.35), (0.01, 0.0, 0.1), (0.0, 1e4, 0.6)],
)
def test_gsams_radius_follows_the_lr(lowest: float, factor: float, rho: float) -> None:
    """As big_vision's config has it; never beyond its ends, in warm-up and in a search for the lr."""
    spec = Optimizer(sam=0.6, sam_kind="gsam", sam_rho_min=0.1)
    perturbation = Perturbation([nn.Parameter(torch.ones(1))], spec, lowest)
    perturbation.set_radius(factor)
    assert perturbation.rho.item() == pytest.approx(rho)


def test_all_turns_of_a_player_have_the_same_radius(
    small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its ends by the schedule's lowest lr, also in the turns that come again."""
    critic = {"critic_patch": 2, "critic_width": 8, "critic_depth": 1, "critic_heads": 2, "n_critic": 3}
    recipe = changed(
        find_recipe("transgan-digits"),
        **{"data.source": str(small_set), "schedule.total": "1 steps", "schedule.end": 0.2},
        objective=Choice("transgan", {**critic, "gradient_penalty": 0.0}),
        **{"optimizer.sam": 0.5, "optimizer.sam_kind": "gsam", "optimizer.sam_rho_min": 0.1},
    )
    found: list[float] = []

    def look(stepper: Stepper) -> None:
        for turn in stepper.turns:
            turn.set_factor(0.6)
            assert turn.perturbation is not None
            found.append(turn.perturbation.rho.item())

    before_step(0, look, monkeypatch, Stepper)
    session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert found == pytest.approx([0.3] * 4)


@pytest.mark.parametrize("factor", [0.1, 1.0])
def test_a_schedule_that_never_falls_has_the_largest_radius(factor: float) -> None:
    spec = Optimizer(sam=0.6, sam_kind="gsam", sam_rho_min=0.1)
    perturbation = Perturbation([nn.Parameter(torch.ones(1))], spec, lowest=1.0)
    perturbation.set_radius(factor)
    assert perturbation.rho.item() == pytest.approx(0.6)


def test_asam_does_not_see_the_scale_of_layers_that_cancel() -> None:
    """(u v - 1)^2 is the same for (c u, v / c); ASAM's sharpness is too, SAM's is not."""
    found: dict[str, list[float]] = {"sam": [], "asam": []}
    for scale in (1.0, 5.0):
        for kind, losses in found.items():
            u, v = nn.Parameter(torch.tensor(0.5 * scale)), nn.Parameter(torch.tensor(0.7 / scale))
            perturbation = Perturbation([u, v], Optimizer(sam=0.3, sam_kind=kind, sam_eta=0.0))  # pyright: ignore[reportArgumentType]
            ((u * v - 1) ** 2).backward()
            perturbation.uphill()
            losses.append(((u * v - 1) ** 2).item())
    assert found["asam"][0] == pytest.approx(found["asam"][1], rel=1e-5)
    assert abs(found["sam"][0] - found["sam"][1]) > 0.05


@every
@pytest.mark.parametrize("parts", [3, 4])
def test_parts_of_a_batch_are_perturbed_together(kind: str, parts: int) -> None:
    (whole, step_whole), (cut, step_cut) = stepper(**KINDS[kind]), stepper(accumulate=parts, **KINDS[kind])
    plain, step_plain = stepper()
    for number in range(3):
        for step in (step_whole, step_cut, step_plain):
            step(number, 1.0)
    torch.testing.assert_close(weights(cut), weights(whole), rtol=1e-4, atol=1e-5)
    assert (weights(plain) - weights(whole)).abs().max() > 1e-2


@every
def test_both_passes_see_the_same_dropout(kind: str) -> None:
    """With no radius worth the name the second gradient is the first."""
    (plain, step_plain), (tiny, step_tiny) = (
        stepper(dropout=0.3),
        stepper(dropout=0.3, **{**KINDS[kind], "sam": 1e-7, **({"sam_rho_min": 1e-7} if kind == "gsam" else {})}),
    )
    for number in range(3):
        step_plain(number, 1.0)
        step_tiny(number, 1.0)
    torch.testing.assert_close(weights(tiny), weights(plain), rtol=1e-3, atol=1e-4)


@every
def test_what_is_not_finite_changes_nothing(kind: str) -> None:
    state, step = stepper(1, **KINDS[kind])
    assert step(0, 1.0)
    before = weights(state)
    assert not step(1, 1.0)
    assert torch.equal(weights(state), before)
    assert step(2, 1.0)
    assert not torch.equal(weights(state), before)


def test_a_gradient_of_zero_is_no_direction() -> None:
    for fields in KINDS.values():
        p = nn.Parameter(torch.tensor([1.0, -2.0]))
        p.grad = torch.zeros(2)
        perturbation = Perturbation([p], Optimizer(**fields))
        perturbation.uphill()
        perturbation.back()
        assert torch.equal(p.detach(), torch.tensor([1.0, -2.0]))
        assert torch.equal(p.grad, torch.zeros(2))


def test_a_recipe_that_knew_only_the_radius_still_loads() -> None:
    content = to_dict(Recipe(optimizer=Optimizer(sam=0.05)))
    for name in [name for name in content["optimizer"] if name.startswith("sam_")]:
        del content["optimizer"][name]
    optimizer = read_recipe(content, where="test").optimizer
    assert (optimizer.sam, optimizer.sam_kind, optimizer.sam_rho_min) == (0.05, "sam", None)
