"""Losses against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from batches import labelled
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.objectives.contract import Metrics
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised


def given(targets: Tensor) -> tuple[Batch, Tensor]:
    torch.manual_seed(0)
    return labelled(torch.randn(6, 3, 2, 2), targets), torch.randn(6, 4)


def loss_of(criterion: CrossEntropy, batch: Batch, logits: Tensor) -> tuple[Tensor, Metrics]:
    return Supervised(criterion).loss(lambda _: logits, batch, torch.zeros(()))  # pyright: ignore[reportArgumentType]


LABELS = torch.tensor([0, 1, 2, 3, 3, 3])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_softmax_is_torchs(smoothing: float) -> None:
    batch, logits = given(F.one_hot(LABELS, 4).float())
    loss, metrics = loss_of(CrossEntropy(label_smoothing=smoothing), batch, logits)
    torch.testing.assert_close(loss, F.cross_entropy(logits, LABELS, label_smoothing=smoothing))
    assert metrics["accuracy"].item() == pytest.approx((logits.argmax(1) == LABELS).float().mean().item())


def test_soft_targets_are_torchs() -> None:
    targets = torch.rand(6, 4).softmax(1)
    batch, logits = given(targets)
    loss, _ = loss_of(CrossEntropy(), batch, logits)
    torch.testing.assert_close(loss, F.cross_entropy(logits, targets))


def test_class_weights_are_torchs() -> None:
    weights = torch.tensor([1.0, 2.0, 3.0, 0.5])
    batch, logits = given(F.one_hot(LABELS, 4).float())
    loss, _ = loss_of(CrossEntropy(class_weights=weights), batch, logits)
    torch.testing.assert_close(loss, F.cross_entropy(logits, LABELS, weight=weights, reduction="none").mean())


def test_sigmoid_is_a_sum_over_classes() -> None:
    targets = (torch.rand(6, 4) > 0.5).float()
    batch, logits = given(targets)
    loss, metrics = loss_of(CrossEntropy("sigmoid", several=True), batch, logits)
    torch.testing.assert_close(loss, F.binary_cross_entropy_with_logits(logits, targets) * 4)
    assert metrics["accuracy"].item() == pytest.approx(
        ((logits.sigmoid() > 0.5) == targets.bool()).float().mean().item()
    )


def test_sigmoid_of_one_label_counts_the_largest_logit() -> None:
    """Not each class's own decision, which is right for most classes of a model that knows nothing."""
    batch, _ = given(F.one_hot(LABELS, 4).float())
    logits = torch.full((6, 4), -10.0)
    logits[:, 1] = -9.0
    _, metrics = loss_of(CrossEntropy("sigmoid"), batch, logits)
    assert metrics["accuracy"].item() == pytest.approx((LABELS == 1).float().mean().item())


def test_sigmoid_as_a_mean_over_classes_is_torchs() -> None:
    targets = torch.rand(6, 4)
    batch, logits = given(targets)
    loss, _ = loss_of(CrossEntropy("sigmoid", class_mean=True), batch, logits)
    torch.testing.assert_close(loss, torch.nn.BCEWithLogitsLoss()(logits, targets))


def test_whole_targets_are_one_for_both_classes_of_a_mixed_image() -> None:
    """As DeiT III's code has it: targets that are above 0."""
    batch, logits = given(torch.tensor([[0.7, 0.3, 0, 0], [0, 1, 0, 0]]).repeat(3, 1))
    loss, _ = loss_of(CrossEntropy("sigmoid", class_mean=True, binarize=True), batch, logits)
    right = torch.tensor([[1.0, 1, 0, 0], [0, 1, 0, 0]]).repeat(3, 1)
    torch.testing.assert_close(loss, torch.nn.BCEWithLogitsLoss()(logits, right))


def test_smoothing_out_of_range_is_refused() -> None:
    with pytest.raises(ConfigError, match="label_smoothing"):
        CrossEntropy(label_smoothing=1.0)
