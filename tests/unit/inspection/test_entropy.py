import numpy as np
import pytest
import torch
from scipy.stats import entropy

from vitlab.core.errors import Error
from vitlab.inspection.entropy import attention_entropy


def test_by_hand() -> None:
    one, all_alike, half = torch.eye(4), torch.full((4, 4), 0.25), torch.tensor([0.5, 0.5, 0, 0]).expand(4, 4)
    bits = attention_entropy(torch.stack([one, all_alike, half])[None])
    torch.testing.assert_close(bits, torch.tensor([0.0, 2.0, 1.0]))


def test_as_scipy_has_it() -> None:
    values = np.exp(3 * np.random.default_rng(0).standard_normal((2, 3, 5, 7)))
    attention = values / values.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(attention_entropy(attention), entropy(attention, base=2, axis=-1).mean(axis=(0, 2)))


def test_other_shapes_are_refused() -> None:
    with pytest.raises(Error, match="not \\(3, 3\\)"):
        attention_entropy(torch.zeros(3, 3))
