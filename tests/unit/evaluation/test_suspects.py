"""Confident learning against cleanlab and by hand, held-out probabilities against scikit-learn."""

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from vitlab.evaluation.suspects import assign_folds, held_out_probabilities, suspicions


def digits() -> tuple[Any, Any]:
    x, y = load_digits(return_X_y=True)
    return x.astype(np.float32), y.astype(np.int64)


def test_a_case_worked_by_hand() -> None:
    # thresholds: of class 0 (0.9 + 0.8 + 0.1 + 0.3) / 4 = 0.525, of 1 (0.7 + 0.4 + 0.7) / 3 = 0.6, of 2 0.8
    probabilities = np.array(
        [
            [0.90, 0.05, 0.05],
            [0.80, 0.10, 0.10],
            [0.10, 0.65, 0.25],  # labelled 0, reaches the threshold of 1: margin 0.10 - 0.65
            [0.30, 0.50, 0.20],  # labelled 0, rather 1, but below its threshold
            [0.20, 0.70, 0.10],
            [0.53, 0.40, 0.07],  # labelled 1, reaches the threshold of 0: margin 0.40 - 0.53
            [0.25, 0.70, 0.05],
            [0.10, 0.10, 0.80],
        ]
    )
    labels = np.array([0, 0, 0, 0, 1, 1, 1, 2])
    first, second = suspicions(probabilities, labels)  # two are counted, and two have the lowest margins
    assert (first.row, first.predicted, first.given_probability, first.predicted_probability) == (2, 1, 0.10, 0.65)
    assert (first.margin, second.margin) == pytest.approx((-0.55, -0.20))
    assert second.row == 3  # its margin is lower than that of row 5
    assert suspicions(probabilities, labels, judged=labels == 2) == []


def test_rows_that_are_not_judged_set_no_threshold() -> None:
    probabilities, labels = np.array([[0.9, 0.1], [0.28, 0.72], [0.2, 0.8], [0.3, 0.7]]), np.array([0, 0, 1, 1])
    assert suspicions(probabilities, labels) == []  # the threshold of 1 is 0.75
    judged = np.array([True, True, False, True])  # now it is 0.7
    assert [each.row for each in suspicions(probabilities, labels, judged)] == [1]


@pytest.mark.parametrize("num_classes", [2, 5, 20])
def test_cleanlab_suspects_the_same_in_the_same_order(num_classes: int) -> None:
    filtering = pytest.importorskip("cleanlab.filter")
    rng = np.random.default_rng(num_classes)
    labels = np.concatenate([np.arange(num_classes), rng.integers(0, num_classes, 2000)])
    truth = np.where(rng.random(len(labels)) < 0.8, labels, rng.integers(0, num_classes, len(labels)))
    concentration = np.full((len(labels), num_classes), 0.2)
    concentration[np.arange(len(labels)), truth] += 2.0
    probabilities = np.stack([rng.dirichlet(row) for row in concentration])
    found = suspicions(probabilities, labels)
    theirs = filtering.find_label_issues(
        labels,
        probabilities,
        filter_by="low_normalized_margin",
        return_indices_ranked_by="normalized_margin",
        n_jobs=1,
    )
    assert [each.row for each in found] == theirs.tolist()
    assert len(found) > 20


def test_probabilities_are_those_of_scikit_learn() -> None:
    x, y = digits()
    x, y, l2 = x[:600, ::2], y[:600], 0.1
    fold = assign_folds(y, None, 5)
    ours = held_out_probabilities(x, y, 10, l2s=(l2,))
    theirs = np.zeros((len(y), 10))
    for place in range(5):
        held, rest = fold == place, fold != place
        regression = LogisticRegression(C=1 / (l2 * rest.sum()), tol=1e-8, max_iter=2000)
        fitted = make_pipeline(StandardScaler(), regression).fit(x[rest].astype(np.float64), y[rest])
        theirs[held] = fitted.predict_proba(x[held].astype(np.float64))
    np.testing.assert_allclose(ours.probabilities, theirs, atol=2e-3)
    assert ours.l2 == l2


def test_the_l2_with_the_lowest_loss_is_taken() -> None:
    x, y = digits()
    assert held_out_probabilities(x[:300], y[:300], 10, l2s=(1000.0, 0.01)).l2 == 0.01
    assert held_out_probabilities(x[:300], y[:300], 10, l2s=(0.01, 1000.0)).l2 == 0.01


def test_folds_hold_groups_together_and_classes_apart() -> None:
    labels = np.repeat(np.arange(3), 50)
    groups = np.arange(150)
    groups[[3, 77, 140]] = 3
    fold = assign_folds(labels, groups.tolist(), 5)
    assert fold[3] == fold[77] == fold[140]
    assert set(fold.tolist()) == set(range(5))
    for label in range(3):
        counts = np.bincount(fold[labels == label], minlength=5)
        assert counts.min() >= 8
        assert counts.max() <= 12


def test_changed_labels_of_digits_are_found() -> None:
    x, y = digits()
    rng = np.random.default_rng(0)
    changed = rng.choice(len(y), len(y) // 20, replace=False)
    given = y.copy()
    given[changed] = (y[changed] + rng.integers(1, 10, len(changed))) % 10
    held = held_out_probabilities(x, given, 10)
    found = suspicions(held.probabilities, given)
    rows = {each.row for each in found}
    assert len(rows & set(changed.tolist())) / len(changed) > 0.65
    assert len(rows & set(changed.tolist())) / len(rows) > 0.85
    right = [each for each in found if each.row in set(changed.tolist())]
    assert np.mean([each.predicted == y[each.row] for each in right]) > 0.9
