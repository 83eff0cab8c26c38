"""Accuracy and its relatives against scikit-learn's and torchmetrics'."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import (
    average_precision_score,
    balanced_accuracy_score,
    confusion_matrix,
    log_loss,
    top_k_accuracy_score,
)
from torch import Tensor
from torchmetrics.functional.classification import multiclass_calibration_error, multilabel_average_precision

from vitlab.evaluation.accuracy import Accuracy, ranks
from vitlab.evaluation.average_precision import MultiLabelAccuracy
from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.labeled_features import wilson


def predictions(num: int = 500, classes: int = 12) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (num,), generator=generator)
    logits = 2 * torch.randn(num, classes, generator=generator)
    logits[torch.arange(num), labels] += 2.5
    return logits, labels


def measured(logits: Tensor, labels: Tensor, batch: int = 64) -> Accuracy:
    accuracy = Accuracy(logits.shape[1])
    for x, y in zip(logits.split(batch), labels.split(batch), strict=True):
        accuracy.add(x, y)
    return accuracy


def test_metrics_are_scikit_learns() -> None:
    logits, labels = predictions()
    outcome = measured(logits, labels).outcome()
    probabilities, predicted = logits.double().softmax(1).numpy(), logits.argmax(1).numpy()
    values = {name: metric.value for name, metric in outcome.metrics.items()}
    assert next(iter(values)) == "top-1"
    assert 0.3 < values["top-1"] < 0.9
    assert values["top-1"] == pytest.approx((predicted == labels.numpy()).mean())
    assert values["top-5"] == pytest.approx(top_k_accuracy_score(labels, probabilities, k=5))
    assert values["balanced accuracy"] == pytest.approx(balanced_accuracy_score(labels, predicted))
    assert values["log loss"] == pytest.approx(log_loss(labels, probabilities))
    np.testing.assert_array_equal(outcome.details["confusion"], confusion_matrix(labels, predicted))
    np.testing.assert_allclose(
        outcome.details["per class"], np.diag(confusion_matrix(labels, predicted, normalize="true"))
    )
    assert outcome.metrics["top-1"].count == len(labels)


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_calibration_is_torchmetrics(sharpness: float) -> None:
    logits, labels = predictions()
    logits = logits.double() * sharpness
    error = measured(logits, labels).outcome().metrics["calibration error"].value
    expected = multiclass_calibration_error(logits.softmax(1), labels, num_classes=12, n_bins=15, norm="l1")
    assert error == pytest.approx(float(expected), abs=1e-6)
    assert error > 0.02


@pytest.mark.parametrize("sharpness", [0.3, 1.0, 4.0])
def test_spreads_are_those_of_images_drawn_again(sharpness: float) -> None:
    """Against a bootstrap over the images themselves; for balanced accuracy within classes, whose sizes are given."""
    logits, labels = predictions(num=400, classes=6)
    logits = logits.double() * sharpness
    metrics = measured(logits, labels).outcome().metrics
    found: dict[str, list[float]] = {"balanced accuracy": [], "calibration error": [], "log loss": []}
    generator = torch.Generator().manual_seed(1)
    of_class = [torch.nonzero(labels == k)[:, 0] for k in range(6)]
    for _ in range(300):
        rows = torch.randint(0, 400, (400,), generator=generator)
        drawn = measured(logits[rows], labels[rows], batch=400).calibration.error()
        found["calibration error"].append(drawn)
        found["log loss"].append(float(torch.nn.functional.cross_entropy(logits[rows], labels[rows])))
        rows = torch.cat([part[torch.randint(0, len(part), (len(part),), generator=generator)] for part in of_class])
        found["balanced accuracy"].append(
            balanced_accuracy_score(labels[rows].numpy(), logits[rows].argmax(dim=1).numpy())
        )
    for name, values in found.items():
        assert metrics[name].spread == pytest.approx(1.96 * np.std(values), rel=0.15), name
        assert "95% interval" in metrics[name].spread_of


@pytest.mark.parametrize(
    ("classes", "images", "low", "high"),
    [(500, 1, 0, 0.05), (2, 2, 0, 1), (10, 1, 0.5, 1), (100, 2, 0.3, 0.9), (5, 200, 0.6, 0.95)],
)
def test_the_spread_of_balanced_accuracy_holds_for_classes_of_few_images(
    classes: int, images: int, low: float, high: float
) -> None:
    """Between shares that are known, how often is the true mean within it?"""
    random, held = np.random.default_rng(0), 0
    labels = torch.arange(classes).repeat_interleave(images)
    for _ in range(100):
        shares = random.uniform(low, high, classes)
        right = torch.from_numpy(random.random((classes, images)) < shares[:, None]).flatten()
        said = torch.where(right, labels, (labels + 1) % classes)
        metric = measured(torch.nn.functional.one_hot(said, classes).double(), labels, batch=1000).outcome().metrics
        found = metric["balanced accuracy"]
        assert found.spread is not None
        held += abs(found.value - shares.mean()) <= found.spread
    assert held >= 88  # of 95 that are meant; the shares are never all but certain


def test_spreads_by_hand() -> None:
    """Two classes, right 3 of 4 and 1 of 2; one image has no spread of its loss."""
    logits = torch.tensor([[0.1, 0], [0.1, 0], [0.1, 0], [0, 0.1], [0, 0.1], [0.1, 0]])
    metrics = measured(logits, torch.tensor([0, 0, 0, 0, 1, 1])).outcome().metrics
    more = 1.959964**2
    together = (4 + more / 2) / (6 + more)
    first, second = (3 + more * together) / (4 + more), (1 + more * together) / (2 + more)
    variance = first * (1 - first) / 4 + second * (1 - second) / 2
    assert metrics["balanced accuracy"].spread == pytest.approx(1.959964 * math.sqrt(variance) / 2)
    one = measured(logits[:1], torch.tensor([0])).outcome().metrics
    assert one["log loss"].spread is None


def test_reliability_bins_hold_every_image() -> None:
    logits, labels = predictions()
    logits[0], labels[0] = torch.eye(12)[3] * 1000, 3  # a confidence of exactly 1
    bins = measured(logits, labels).outcome().details["reliability"]
    assert [len(bins), sum(item["count"] for item in bins)] == [15, len(labels)]
    confidence, right = logits.double().softmax(1).amax(1), logits.argmax(1) == labels
    inside = (confidence >= 14 / 15) & (confidence <= 1)
    assert bins[-1]["count"] == int(inside.sum())
    assert bins[-1]["accuracy"] == pytest.approx(float(right[inside].double().mean()))
    assert bins[-1]["confidence"] == pytest.approx(float(confidence[inside].mean()))
    assert bins[0]["count"] == 0  # below 1/15 no confidence over 12 classes can be
    assert bins[0]["accuracy"] is None


def test_parts_merge_to_the_same() -> None:
    logits, labels = predictions()
    whole, left = measured(logits, labels), measured(logits[:123], labels[:123])
    right = measured(logits[123:], labels[123:], batch=7)
    summed = {name: value + right.tensors()[name] for name, value in left.tensors().items()}
    left.merge(right)
    for name, value in whole.tensors().items():
        torch.testing.assert_close(left.tensors()[name], value, rtol=1e-12, atol=0)
        torch.testing.assert_close(summed[name], value, rtol=1e-12, atol=0)


def test_ties_go_to_the_lower_class() -> None:
    logits = torch.tensor([[1.0, 1.0, 0.0, 1.0]]).expand(4, 4)
    assert ranks(logits, torch.arange(4)).tolist() == [0, 1, 3, 2]
    outcome = measured(torch.zeros(12, 12), torch.arange(12)).outcome()
    assert [outcome.metrics[name].value for name in ("top-1", "top-5")] == pytest.approx([1 / 12, 5 / 12])
    assert np.array(outcome.details["confusion"])[:, 0].tolist() == [1] * 12


@pytest.mark.parametrize(("num", "has"), [(3, False), (5, False), (6, True)])
def test_a_top_that_all_classes_are_in_is_not_told(num: int, *, has: bool) -> None:
    outcome = measured(torch.eye(num), torch.arange(num)).outcome()
    assert [name for name in outcome.metrics if name.startswith("top-")] == ["top-1", *["top-5"] * has]


def test_absent_classes_have_no_accuracy_and_are_named() -> None:
    logits, labels = torch.eye(3)[[0, 0, 2]], torch.tensor([0, 2, 2])
    outcome = measured(logits, labels).outcome(("cat", "dog", "eel"))
    assert outcome.details["per class"] == [1.0, None, 0.5]
    assert outcome.details["absent classes"] == ["dog"]
    assert outcome.metrics["balanced accuracy"].value == 0.75
    assert outcome.counts == {"images": 3, "classes": 3, "classes with images": 2}


def test_many_classes_list_the_largest_confusions() -> None:
    logits = torch.zeros(5, 300)
    logits[torch.arange(5), torch.tensor([7, 7, 7, 2, 1])] = 1
    details = measured(logits, torch.tensor([9, 9, 7, 2, 0])).outcome().details
    assert "confusion" not in details
    assert details["most confused"] == [
        {"truth": "9", "predicted": "7", "count": 2},
        {"truth": "0", "predicted": "1", "count": 1},
    ]


@pytest.mark.parametrize(("right", "num"), [(0, 10), (7, 10), (10, 10), (437, 500)])
def test_the_interval_is_wilsons(right: int, num: int) -> None:
    expected = binomtest(right, num).proportion_ci(0.95, method="wilson")
    assert wilson(right, num) == pytest.approx((expected.low, expected.high), abs=1e-12)
    low, high = wilson(right, num)
    assert 0 <= low <= right / num <= high <= 1


@pytest.mark.parametrize(
    ("logits", "labels", "message"),
    [
        (torch.zeros(2, 3), torch.tensor([0, 3]), "label 3, but there are 3 classes"),
        (torch.zeros(2, 3), torch.tensor([-1, 0]), "label -1"),
        (torch.tensor([[0, math.nan, 0]]), torch.tensor([0]), "not finite"),
        (torch.tensor([[0, math.inf, 0]]), torch.tensor([0]), "not finite"),
        (torch.zeros(2, 4), torch.tensor([0, 0]), r"must be \[2, 3\]"),
    ],
)
def test_bad_input_is_one_sentence(logits: Tensor, labels: Tensor, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        Accuracy(3).add(logits, labels)


def test_an_empty_split_is_refused() -> None:
    for empty in (Accuracy(3), MultiLabelAccuracy(3)):
        with pytest.raises(EvaluationError, match="empty"):
            empty.outcome()


def several_labels() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    scores = (3 * torch.randn(200, 6, generator=generator)).round() / 2  # many ties
    return scores, (scores + 2 * torch.randn(200, 6, generator=generator) > 2).long()


def test_average_precision_is_scikit_learns_and_torchmetrics() -> None:
    scores, labels = several_labels()
    first, second = MultiLabelAccuracy(6), MultiLabelAccuracy(6)
    first.add(scores[150:], labels[150:])
    second.add(scores[:150], labels[:150])
    first.merge(second)  # in another order: it does not matter
    outcome = first.outcome()
    np.testing.assert_allclose(
        outcome.details["per class"], [average_precision_score(labels[:, k], scores[:, k]) for k in range(6)]
    )
    theirs = multilabel_average_precision(scores.double().sigmoid(), labels, num_labels=6)
    assert outcome.metrics["mAP"].value == pytest.approx(float(theirs), abs=1e-6)
    assert 0.3 < outcome.metrics["mAP"].value < 0.9
    rng, drawn = np.random.default_rng(1), list[float]()
    for _ in range(100):
        rows = rng.integers(0, len(labels), len(labels))
        drawn.append(float(average_precision_score(labels[rows], scores[rows], average="macro")))
    assert outcome.metrics["mAP"].spread == pytest.approx(1.96 * np.std(drawn), rel=0.25)


def test_a_label_without_images_is_left_out_of_the_mean() -> None:
    scores, labels = several_labels()
    labels[:, 2] = 0
    accuracy = MultiLabelAccuracy(6)
    accuracy.add(scores, labels)
    outcome = accuracy.outcome(tuple("abcdef"))
    assert outcome.details["per class"][2] is None
    assert outcome.details["absent classes"] == ["c"]
    others = [k for k in range(6) if k != 2]
    expected = average_precision_score(labels[:, others], scores[:, others], average="macro")
    assert outcome.metrics["mAP"].value == pytest.approx(expected)


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([[0.0, math.nan]], [[0, 1]], "not finite"),
        ([[0.0, 1.0]], [[0, 2]], "0 or 1"),
        ([[0.0, 1.0, 2.0]], [[0, 1, 0]], r"\[images, 2\]"),
    ],
)
def test_bad_multi_label_input_is_one_sentence(
    scores: list[list[float]], labels: list[list[int]], message: str
) -> None:
    with pytest.raises(EvaluationError, match=message):
        MultiLabelAccuracy(2).add(scores, labels)


def test_images_without_any_label_are_nothing_to_measure() -> None:
    accuracy = MultiLabelAccuracy(2)
    accuracy.add([[0.0, 1.0]], [[0, 0]])
    with pytest.raises(EvaluationError, match="None of the 1 images"):
        accuracy.outcome()
