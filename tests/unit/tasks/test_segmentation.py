"""Segmentation's loss and scores beside torch's and beside a case worked by hand."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.data.contract import IGNORED
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks.segmentation import PixelCrossEntropy, Segmentation, SegmentationScorer, iou

# Of nine pixels the last is ignored. Class 0: 3 in both, 4 true and 4 predicted, so 3 / 5. Class 1: 2 in both, 4 true
# and 3 predicted, so 2 / 5. Class 2: predicted once and never there, 0 / 1. Class 3: neither.
TRUTH = torch.tensor([[0, 0, 0], [0, 1, 1], [1, 1, IGNORED]])
SAID = torch.tensor([[0, 0, 0], [1, 1, 1], [0, 2, 2]])
NUM = 4


def outputs_of(said: Tensor) -> Tensor:
    """Logits [1, K, H, W] whose largest is at the class that is said."""
    return 4 * F.one_hot(said, NUM).permute(2, 0, 1)[None].float()


def test_iou_by_hand_without_ignored_pixels_and_absent_classes() -> None:
    scorer = SegmentationScorer(NUM)
    scores = scorer.scores(scorer.sums(outputs_of(SAID), TRUTH[None], torch.ones(1, dtype=torch.bool)))
    assert scores["mIoU"] == scores["score"] == pytest.approx((3 / 5 + 2 / 5 + 0) / 3)
    assert scores["pixel accuracy"] == pytest.approx(5 / 8)
    assert scores["count"] == 1


def test_a_class_that_is_nowhere_has_no_iou() -> None:
    confusion = torch.tensor([[3.0, 1, 0], [1, 2, 0], [0, 0, 0]])
    found = iou(confusion).tolist()
    assert found[:2] == pytest.approx([3 / 5, 2 / 4])
    assert math.isnan(found[2])


def test_sums_of_parts_add_up_and_rows_that_do_not_count_are_left_out() -> None:
    torch.manual_seed(0)
    outputs, target = torch.randn(5, NUM, 6, 7), torch.randint(0, NUM, (5, 6, 7))
    target[:, 0] = IGNORED
    scorer, every = SegmentationScorer(NUM), torch.ones(5, dtype=torch.bool)
    whole = scorer.sums(outputs, target, every)
    parts = scorer.sums(outputs[:2], target[:2], every[:2]) + scorer.sums(outputs[2:], target[2:], every[2:])
    torch.testing.assert_close(parts, whole)
    some = torch.tensor([True, False, True, True, False])
    torch.testing.assert_close(scorer.sums(outputs, target, some), scorer.sums(outputs[some], target[some], every[:3]))
    said, kept = outputs.argmax(dim=1), target != IGNORED
    each = [
        float(((said == k) & (target == k)).sum() / (((said == k) & kept) | (target == k)).sum()) for k in range(NUM)
    ]
    assert scorer.scores(whole)["mIoU"] == pytest.approx(sum(each) / NUM)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_of_an_image_is_the_mean_cross_entropy_of_its_pixels(smoothing: float) -> None:
    torch.manual_seed(0)
    outputs, target = torch.randn(3, NUM, 4, 5), torch.randint(0, NUM, (3, 4, 5))
    target[0, 1:3], target[2] = IGNORED, IGNORED
    losses = PixelCrossEntropy(smoothing).losses(outputs, target)
    for i in (0, 1):
        expected = F.cross_entropy(
            outputs[i : i + 1], target[i : i + 1], ignore_index=IGNORED, label_smoothing=smoothing
        )
        torch.testing.assert_close(losses[i], expected)
    assert losses[2] == 0  # an image without a known pixel teaches nothing
    scorer = SegmentationScorer(NUM)
    loss = scorer.scores(scorer.sums(outputs, target, torch.ones(3, dtype=torch.bool)))["loss"]
    assert loss == pytest.approx(PixelCrossEntropy().losses(outputs, target).mean().item())


def test_training_measures_the_share_of_known_pixels() -> None:
    found = PixelCrossEntropy().measures(outputs_of(SAID), TRUTH[None])["pixel accuracy"]
    assert found.tolist() == pytest.approx([5 / 8])


def test_words_are_of_what_there_is() -> None:
    task = Segmentation()
    assert task.words({"mIoU": 0.4321, "pixel accuracy": 0.9, "loss": 1.0}) == "mIoU 43.21%, pixel accuracy 90.00%"
    assert task.words({"pixel accuracy": 0.9}) == "pixel accuracy 90.00%"
    assert task.words({"loss": 1.0}) == ""


def test_losses_of_classification_are_refused() -> None:
    with pytest.raises(ConfigError, match="only label_smoothing applies"):
        Segmentation().criterion(Loss(kind="sigmoid"), None, None)  # pyright: ignore[reportArgumentType]
