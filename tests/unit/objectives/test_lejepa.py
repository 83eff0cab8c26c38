"""LeJEPA's parts against NumPy in float64, and what a Gaussian is known to give."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from tiny_vits import SIZES, random_vit
from vitlab.data.batch import Batch, Stream
from vitlab.models.vit import ViTConfig
from vitlab.objectives.lejepa import Lejepa, LejepaOptions, directions, sigreg


def epps_pulley(x: Any) -> float:
    """n times the integral over both sides of |phi_n - phi|^2 phi, with twice the knots less one."""
    t = np.linspace(-3, 3, 33)
    phi = np.exp(-(t**2) / 2)
    error = np.abs(np.exp(1j * np.outer(t, x)).mean(axis=1) - phi) ** 2
    return len(x) * float(np.trapezoid(error * phi, t))


def test_sigreg_is_the_mean_statistic_of_the_projections() -> None:
    z = torch.randn(3, 20, 5, generator=torch.Generator().manual_seed(0)) * 1.5 + 0.2
    along = directions(7, torch.tensor(0.25), 5, 6)
    np.testing.assert_allclose(along.norm(dim=0), 1, rtol=1e-6)
    projected = z.double().numpy() @ along.double().numpy()
    expected = np.mean([epps_pulley(projected[v, :, s]) for v in range(3) for s in range(6)])
    assert sigreg(z, along).item() == pytest.approx(expected, rel=2e-6)


def test_a_gaussian_gives_its_expectation_and_a_collapse_grows_with_the_batch() -> None:
    """E n |phi_n - phi|^2 = 1 - phi^2 for samples of the normal distribution; equal ones give n (1 - phi)^2."""
    z = torch.randn(1, 4096, 8, generator=torch.Generator().manual_seed(0))
    along = directions(3, torch.tensor(0.5), 8, 512)
    whole = math.sqrt(2 * math.pi) * math.erf(3 / math.sqrt(2))
    expected = whole - math.sqrt(2 * math.pi / 3) * math.erf(3 * math.sqrt(1.5))
    assert sigreg(z, along).item() == pytest.approx(expected, rel=0.1)
    for num in (64, 256):
        t = np.linspace(-3, 3, 33)
        phi = np.exp(-(t**2) / 2)
        collapsed = num * np.trapezoid((1 - phi) ** 2 * phi, t)
        assert sigreg(torch.zeros(1, num, 8), along).item() == pytest.approx(collapsed, rel=1e-5)


def test_directions_are_uniform_and_follow_the_run() -> None:
    many = directions(1, torch.tensor(0.125), 3, 4000)
    assert torch.equal(many, directions(1, torch.tensor(0.125), 3, 4000))
    later = directions(1, torch.tensor(0.125 + 2**-20), 3, 4000)
    assert (many * later).sum(dim=0).mean().abs() < 0.05  # 5 deviations
    torch.testing.assert_close(many @ many.T / 4000, torch.eye(3) / 3, atol=0.02, rtol=0)
    assert many.mean(dim=1).abs().max() < 0.05


def test_the_loss_by_its_parts() -> None:
    """Views agree with the mean of the large ones; both terms are over all views."""
    model = random_vit(ViTConfig(**{**SIZES, "num_classes": 0}))
    torch.manual_seed(0)
    options = LejepaOptions(num_large=2, num_small=1, hidden=6, out_dim=4, slices=5, weight=0.25)
    objective = Lejepa(options, model)
    with torch.no_grad():
        for parameter in objective.projector.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    images = tuple(torch.randn(6, 3, side, side) for side in (8, 8, 4))
    batch = Batch({"train": Stream(images, {}, torch.arange(6))})
    loss, metrics = objective.loss(model, batch, torch.tensor(0.5))
    x = torch.cat([model.pooled(view) for view in images]).detach().double().numpy()
    own = {name: value.detach().double().numpy() for name, value in objective.projector.named_parameters()}
    for i in (0, 3):  # linear, norm over the batch, ReLU
        x = x @ own[f"{i}.weight"].T
        x = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5)
        x = np.maximum(x * own[f"{i + 1}.weight"] + own[f"{i + 1}.bias"], 0)
    x = x @ own["6.weight"].T + own["6.bias"]
    z = x.reshape(3, 6, 4)
    agreement = ((z - z[:2].mean(axis=0)) ** 2).mean()
    projected = z @ directions(objective.seed, torch.tensor(0.5), 4, 5).double().numpy()
    spread = np.mean([epps_pulley(projected[v, :, s]) for v in range(3) for s in range(5)])
    assert metrics["agreement"].item() == pytest.approx(agreement, rel=1e-5)
    assert loss.item() == pytest.approx(0.75 * agreement + 0.25 * spread, rel=1e-5)
