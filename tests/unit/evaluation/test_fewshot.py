"""Few-shot least squares against the definition solved directly in float64, and scikit-learn's ridge."""

import math
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import Ridge

from digit_features import digits
from vitlab.evaluation import labeled_features as examples_module
from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.fewshot import SWEEP, LeastSquares, best_l2, draw_shots, fewshot, fewshot_accuracy
from vitlab.evaluation.labeled_features import Array, Examples


def blobs(num_classes: int, width: int, a_class: int = 12, seed: int = 0) -> tuple[Array, Array, Array, Array]:
    generator = np.random.default_rng(seed)
    centres = generator.normal(size=(num_classes, width))
    parts: list[Array] = []
    for _ in range(2):
        labels = generator.permutation(np.repeat(np.arange(num_classes), a_class))
        parts += [5 + centres[labels] + 2 * generator.normal(size=(len(labels), width)), labels]
    return parts[0], parts[1], parts[2], parts[3]


def drawn_directly(labels: Array, shots: int, seed: int) -> Array:
    """The official draw, word for word: permute each class's rows in class order, take the first."""
    generator = np.random.default_rng(seed)
    rows = [generator.permutation(np.where(labels == k)[0]) for k in range(labels.max() + 1)]
    return np.concatenate([each[:shots] for each in rows])


def scores_directly(x: Array, y: Array, test: Array, l2: float) -> Array:
    """The normal equations with the bias as a feature of 100, solved by elimination in float64."""
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5

    def whiten(values: Array) -> Array:
        return np.pad((values - mean) / std, ((0, 0), (0, 1)), constant_values=100.0)

    features, targets = whiten(x), 2.0 * np.eye(y.max() + 1)[y] - 1.0
    weights = np.linalg.solve(features.T @ features + l2 * np.eye(features.shape[1]), features.T @ targets)
    return whiten(test) @ weights


def directly(data: tuple[Array, Array, Array, Array], shots: int, seed: int, l2: float) -> float:
    x, y, test, labels = data
    rows = drawn_directly(y, shots, seed)
    return float((scores_directly(x[rows], y[rows], test, l2).argmax(axis=1) == labels).mean())


def test_digits_give_the_direct_solutions_accuracies() -> None:
    data, shots, seeds = digits(), (1, 5, 10, 25), (0, 1, 2)
    found = fewshot_accuracy(*data, shots=shots, seeds=seeds, l2=2.0**10)
    expected = [[directly(data, k, seed, 2.0**10) for k in shots] for seed in seeds]
    np.testing.assert_array_equal(found, expected)
    assert found.shape == (3, 4)
    assert found[:, 3].min() > 0.8  # and it does learn the digits


@pytest.mark.parametrize(("width", "shots"), [(7, 10), (40, 10), (41, 10), (300, 3), (2000, 2)])
@pytest.mark.parametrize("l2s", [(2.0**10,), (2.0**-10, 1.0, 2.0**19)])
def test_scores_are_exact_whichever_of_examples_and_features_are_more(
    width: int, shots: int, l2s: tuple[float, ...]
) -> None:
    x, y, test, _ = blobs(4, width)
    rows = np.sort(drawn_directly(y, shots, 0))
    problem = LeastSquares(Examples.of(x, y, "train").take(rows), 4)
    assert problem.primal == (4 * shots >= width)
    for l2, (weights, bias) in zip(l2s, problem.solve(l2s), strict=True):
        expected = scores_directly(x[rows], y[rows], test, l2)
        np.testing.assert_allclose(test @ weights.numpy() + bias.numpy(), expected, rtol=1e-9, atol=1e-9)


def test_it_is_scikit_learns_ridge() -> None:
    x, y, test, _ = blobs(5, 20)
    weights, bias = next(LeastSquares(Examples.of(x, y, "train").take(np.arange(len(y))), 5).solve((64.0,)))
    mean, std = x.mean(axis=0), x.std(axis=0) + 1e-5
    ridge = Ridge(alpha=64.0).fit((x - mean) / std, 2.0 * np.eye(5)[y] - 1)  # its bias is free of the penalty
    shrunk = ridge.intercept_ * (1e4 * len(y)) / (1e4 * len(y) + 64.0)  # ours, as a feature of 100, nearly
    expected = ridge.predict((test - mean) / std) - ridge.intercept_ + shrunk
    np.testing.assert_allclose(test @ weights.numpy() + bias.numpy(), expected, atol=1e-9)


def test_draws_are_the_official_ones_and_nested() -> None:
    labels = np.random.default_rng(0).integers(0, 6, 200)
    for seed in (0, 1, 2):
        ordered = draw_shots(labels, 6, seed)
        for shots in (1, 5, 10):
            taken = np.concatenate([rows[:shots] for rows in ordered])
            np.testing.assert_array_equal(taken, drawn_directly(labels, shots, seed))


@pytest.mark.parametrize("width", [12, 90])
def test_the_sweep_is_each_l2_alone(width: int) -> None:
    data = blobs(6, width)
    assert (SWEEP[0], SWEEP[-1], len(SWEEP)) == (2.0**-10, 2.0**19, 30)
    for seed in (0, 3):
        swept = fewshot(*data, shots=(2, 8), seeds=(seed,), l2=SWEEP).selected
        for k in (2, 8):
            expected = {str(l2): directly(data, k, seed, l2) for l2 in SWEEP}
            assert swept[f"l2 for {k} shots"]["scores"] == expected


def test_the_best_l2_is_by_mean_rank() -> None:
    # Ranks 0 1 2, 1 2 0 and 1 2 0: the mean accuracy would prefer the last, the mean rank takes the middle.
    assert best_l2(np.array([[0.1, 0.2, 0.9], [0.5, 0.6, 0.4], [0.5, 0.6, 0.4]])) == 1


def test_small_blocks_and_memory_maps_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = digits()
    expected = fewshot_accuracy(*data, shots=(1, 10), seeds=(0, 1), l2=16.0)
    mapped: list[Array] = []
    for place, values in enumerate(data):
        np.save(tmp_path / f"{place}.npy", values.astype(np.float16) if values.ndim == 2 else values)
        mapped.append(np.load(tmp_path / f"{place}.npy", mmap_mode="r"))
    monkeypatch.setattr(examples_module, "BLOCK_BYTES", 5000)
    found = fewshot_accuracy(mapped[0], mapped[1], mapped[2], mapped[3], shots=(1, 10), seeds=(0, 1), l2=16.0)
    np.testing.assert_array_equal(found, expected)


def test_the_outcome_has_mean_spread_and_what_was_selected() -> None:
    data = digits()
    single = fewshot(*data, shots=(1, 5), l2=2.0**10)
    by_seed = fewshot_accuracy(*data, shots=(1, 5), seeds=(0, 1, 2), l2=2.0**10)
    assert list(single.metrics) == ["1-shot", "5-shot"]
    assert single.metrics["5-shot"].value == pytest.approx(by_seed[:, 1].mean())
    assert single.metrics["5-shot"].spread == pytest.approx(np.std(by_seed[:, 1], ddof=1))
    assert single.metrics["5-shot"].count == len(data[3])
    assert single.seeds == (0, 1, 2)
    assert single.selected == {}
    swept = fewshot(*data, shots=(1, 5), l2=(2.0**-10, 2.0**10))
    choice = swept.selected["l2 for 5 shots"]
    assert choice["on"].startswith("test")
    assert choice["scores"]["1024.0"] == pytest.approx(by_seed[:, 1].mean())


def bad(**changes: Array) -> tuple[Array, Array, Array, Array]:
    x, y, test, labels = blobs(3, 5)
    parts = {"x": x, "y": y, "test": test, "labels": labels} | changes
    return parts["x"], parts["y"], parts["test"], parts["labels"]


X, Y, TEST, LABELS = blobs(3, 5)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (bad(x=X[Y != 1], y=Y[Y != 1]), "Class 1 has images in the test split but none in the train split"),
        (bad(x=X[Y != 1], y=Y[Y != 1], test=TEST[LABELS != 1], labels=LABELS[LABELS != 1]), "Class 1 has no image"),
        (bad(x=np.where(np.arange(36)[:, None] == 4, np.nan, X)), "image 4 of the train split are not finite"),
        (bad(test=np.where(np.arange(36)[:, None] == 7, np.inf, TEST)), "image 7 of the test split are not finite"),
        (bad(y=Y - 1), "below 0"),
        (bad(labels=LABELS + 0.5), "whole numbers"),
        (bad(y=np.eye(3)[Y]), "one class number per image"),
        (bad(x=X[:-1]), "35 rows of features and 36 labels"),
        (bad(test=TEST[:, :4]), "different widths: 5 and 4"),
        (bad(x=X[:, 0]), r"must be numbers \[images, width\]"),
        (bad(test=TEST[:0], labels=LABELS[:0]), "test split has no features"),
    ],
)
def test_bad_input_is_one_sentence(data: tuple[Array, Array, Array, Array], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        fewshot_accuracy(*data, shots=(1,), seeds=(0,), l2=1.0)


def test_too_few_examples_name_the_class() -> None:
    keep = (Y != 2) | (np.cumsum(Y == 2) <= 4)
    with pytest.raises(EvaluationError, match="Class 2 has 4 images in the train split, fewer than the 5 shots"):
        fewshot_accuracy(X[keep], Y[keep], TEST, LABELS, shots=(1, 5), seeds=(0,), l2=1.0)


def test_a_label_beyond_the_classes_is_refused() -> None:
    with pytest.raises(EvaluationError, match="label 2, but there are 2 classes"):
        fewshot_accuracy(X, Y, TEST, LABELS, shots=(1,), seeds=(0,), l2=1.0, num_classes=2)


@pytest.mark.parametrize(
    ("shots", "seeds", "l2"),
    [
        ((), (0,), 1.0),
        ((0,), (0,), 1.0),
        ((1,), (), 1.0),
        ((1,), (0, -1), 1.0),
        ((1,), (0,), 0.0),
        ((1,), (0,), math.inf),
        ((1,), (0,), math.nan),
    ],
)
def test_bad_settings_are_refused(shots: tuple[int, ...], seeds: tuple[int, ...], l2: float) -> None:
    with pytest.raises(EvaluationError, match="shots of 1 or more"):
        fewshot_accuracy(X, Y, TEST, LABELS, shots=shots, seeds=seeds, l2=l2)


def test_shots_and_seeds_may_be_arrays() -> None:
    found = fewshot_accuracy(X, Y, TEST, LABELS, shots=np.arange(1, 3), seeds=np.arange(2), l2=1.0)  # pyright: ignore[reportArgumentType]
    np.testing.assert_array_equal(found, fewshot_accuracy(X, Y, TEST, LABELS, shots=(1, 2), seeds=(0, 1), l2=1.0))
