"""Losses against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.objectives.contract import Batch
from vitlab.objectives.supervised import Supervised, one_hot


def given(targets: Tensor) -> tuple[Batch, Tensor]:
    torch.manual_seed(0)
    return Batch(torch.randn(6, 3, 2, 2), targets), torch.randn(6, 4)


LABELS = torch.tensor([0, 1, 2, 3, 3, 3])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_is_torchs(smoothing: float) -> None:
    batch, logits = given(one_hot(LABELS, 4))
    loss, metrics = Supervised(label_smoothing=smoothing).loss(lambda _: logits, batch, 0)
    torch.testing.assert_close(loss, F.cross_entropy(logits, LABELS, label_smoothing=smoothing))
    assert metrics["accuracy"].item() == pytest.approx((logits.argmax(1) == LABELS).float().mean().item())


def test_soft_targets_are_torchs() -> None:
    targets = torch.rand(6, 4).softmax(1)
    batch, logits = given(targets)
    loss, _ = Supervised().loss(lambda _: logits, batch, 0)
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets))


def test_class_weights_are_torchs() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 0.5])
    batch, logits = given(one_hot(LABELS, 4))
    loss, _ = Supervised(class_weights=weights).loss(lambda _: logits, batch, 0)
    torch.testing.assert_close(loss, F.cross_entropy(logits, LABELS, weight=weights, reduction="none").mean())


def test_sigmoid_is_a_sum_over_classes() -> None:
    targets = (torch.rand(6, 4) > 0.5).float()
    batch, logits = given(targets)
    loss, metrics = Supervised("sigmoid", multi_label=True).loss(lambda _: logits, batch, 0)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits, targets) * 4)
    assert metrics["accuracy"].item() == pytest.approx(
        ((logits.sigmoid() > 0.5) == targets.bool()).float().mean().item()
    )


def test_sigmoid_of_one_label_counts_the_largest_logit() -> None:
    """Not each class's own decision, which is right for most classes of a model that knows nothing."""
    batch, _ = given(one_hot(LABELS, 4))
    logits = torch.full((6, 4), -10.0)
    logits[:, 1] = -9.0
    _, metrics = Supervised("sigmoid").loss(lambda _: logits, batch, 0)
    assert metrics["accuracy"].item() == pytest.approx((LABELS == 1).float().mean().item())


def test_sigmoid_as_a_mean_over_classes_is_torchs() -> None:
    targets = torch.rand(6, 4)
    batch, logits = given(targets)
    loss, _ = Supervised("sigmoid", class_mean=True).loss(lambda _: logits, batch, 0)
    torch.testing.assert_close(loss, torch.nn.BCEWithLogitsLoss()(logits, targets))


def test_whole_targets_are_one_for_both_classes_of_a_mixed_image() -> None:
    """As DeiT III's code has it: targets that are above 0."""
    batch, logits = given(torch.tensor([[0.7, 0.3, 0, 0], [0, 1, 0, 0]]).repeat(3, 1))
    loss, _ = Supervised("sigmoid", class_mean=True, whole=True).loss(lambda _: logits, batch, 0)
    right = torch.tensor([[1.0, 1, 0, 0], [0, 1, 0, 0]]).repeat(3, 1)
    torch.testing.assert_close(loss, torch.nn.BCEWithLogitsLoss()(logits, right))


def test_smoothing_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="label_smoothing"):
        Supervised(label_smoothing=1.0)


def test_one_hot_is_torchs() -> None:
    assert torch.equal(one_hot(LABELS, 4), F.one_hot(LABELS, 4).float())
    rows = torch.rand(3, 4)
    assert torch.equal(one_hot(rows, 4), rows)
