"""NT-Xent against NumPy in float64."""

from typing import Any

import numpy as np
import pytest
import torch

from vitlab.core.errors import ConfigError
from vitlab.objectives.contrastive import Simclr, SimclrOptions, nt_xent


def test_the_loss_is_the_papers_sum_over_ordered_pairs() -> None:
    z = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0))
    rows = z.double().numpy().reshape(10, 4)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    similarity = unit @ unit.T / 0.3
    losses, right = [], []
    for i in range(10):
        j = i + 1 if i % 2 == 0 else i - 1
        others = [k for k in range(10) if k != i]
        losses.append(-similarity[i, j] + np.log(sum(np.exp(similarity[i, k]) for k in others)))
        right.append(max(others, key=lambda k, i=i: similarity[i, k]) == j)
    loss, found = nt_xent(z, 0.3)
    assert loss.item() == pytest.approx(np.mean(losses), rel=1e-6)
    assert found.item() == pytest.approx(np.mean(right))


def test_equal_projections_are_a_guess_among_the_others() -> None:
    loss, _ = nt_xent(torch.ones(4, 2, 3), 0.5)
    assert loss.item() == pytest.approx(np.log(7), rel=1e-6)


def test_a_batch_of_one_has_nobody_to_be_compared_with() -> None:
    model: Any = type("M", (), {"num_features": 4})()
    plan: Any = type("Plan", (), {"batch_size": 1})()
    with pytest.raises(ConfigError, match="batch_size must be 2 at least"):
        Simclr(SimclrOptions(hidden=4, out_dim=2), model).streams(plan)
