"""Nearest neighbours against scikit-learn's."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from digit_features import digits
from vitlab.evaluation import knn as knn_module
from vitlab.evaluation import labeled_features as examples_module
from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.knn import Weights, knn, knn_accuracy, neighbours, top_k, vote
from vitlab.evaluation.labeled_features import Array, Examples


def theirs(data: tuple[Array, Array, Array, Array], k: int, weights: Weights, temperature: float) -> float:
    x, y, test, labels = data
    rule: Any = weights if weights != "similarity" else lambda distance: np.exp((1 - distance) / temperature)
    return float(KNeighborsClassifier(k, weights=rule, metric="cosine").fit(x, y).score(test, labels))


@pytest.mark.parametrize("weights", ["similarity", "uniform", "distance"])
@pytest.mark.parametrize("temperature", [0.07, 0.005])
def test_accuracies_are_scikit_learns(weights: Weights, temperature: float) -> None:
    data, ks = digits(), (20, 1, 5, 300)
    found = knn_accuracy(*data, ks=ks, weights=weights, temperature=temperature)
    np.testing.assert_allclose(found, [theirs(data, k, weights, temperature) for k in ks], rtol=0, atol=1e-12)
    assert 0.5 < found.min() < found.max() < 1


def test_small_blocks_and_memory_maps_change_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = digits()
    expected = knn_accuracy(*data, ks=(1, 20, 200))
    mapped: list[Array] = []
    for place, values in enumerate(data):
        np.save(tmp_path / f"{place}.npy", values.astype(np.float16) if values.ndim == 2 else values)
        mapped.append(np.load(tmp_path / f"{place}.npy", mmap_mode="r"))
    monkeypatch.setattr(examples_module, "BLOCK_BYTES", 20_000)
    monkeypatch.setattr(knn_module, "QUERIES", 13)
    monkeypatch.setattr(knn_module, "BANK", 50)
    found = knn_accuracy(mapped[0], mapped[1], mapped[2], mapped[3], ks=(1, 20, 200))
    np.testing.assert_allclose(found, expected, atol=1 / len(data[3]) + 1e-9)  # in float32: a vote may turn


@pytest.mark.parametrize("bank", [1, 7, 1000])
def test_equal_neighbours_come_in_the_order_of_the_bank(monkeypatch: pytest.MonkeyPatch, bank: int) -> None:
    monkeypatch.setattr(knn_module, "BANK", bank)
    features = np.tile(np.eye(4), (25, 1))  # every row 25 times
    similarities, rows = neighbours(Examples.of(features, np.zeros(100, int), "train"), torch.eye(4).double(), 30)
    for i in range(4):
        same, other = np.arange(i, 100, 4), np.setdiff1d(np.arange(100), np.arange(i, 100, 4))
        np.testing.assert_array_equal(rows[i], np.concatenate([same, other[:5]]))
        assert similarities[i].tolist() == [1.0] * 25 + [0.0] * 5


def test_top_k_is_a_stable_sort() -> None:
    values = torch.randint(0, 6, (50, 40), generator=torch.Generator().manual_seed(0)).float()
    for k in (1, 3, 17, 39, 40, 99):
        expected = np.argsort(-values.numpy(), axis=1, kind="stable")[:, :k]
        found, places = top_k(values, k)
        np.testing.assert_array_equal(places, expected)
        np.testing.assert_array_equal(found, np.take_along_axis(values.numpy(), expected, axis=1))


def test_equal_votes_go_to_the_lower_class() -> None:
    similarities, labels = torch.tensor([[0.9, 0.8, 0.7, 0.6]]), torch.tensor([[2, 1, 1, 2]])
    found = vote(similarities, labels, 3, (1, 2, 3, 4), "uniform", 1.0)
    assert [int(predicted) for predicted in found] == [2, 1, 1, 1]


def test_an_exact_copy_outweighs_all_by_distance() -> None:
    found = vote(torch.tensor([[1.0, 0.999, 0.999]]), torch.tensor([[1, 0, 0]]), 2, (3,), "distance", 1.0)
    assert int(found[0]) == 1


def test_a_low_temperature_does_not_overflow() -> None:
    data = digits()
    nearest, cold = knn_accuracy(*data, ks=(1,))[0], knn_accuracy(*data, ks=(50,), temperature=1e-5)[0]
    assert cold == pytest.approx(nearest, abs=2e-3)


def test_k_is_chosen_on_held_out_training_images() -> None:
    data = digits()
    outcome = knn(*data)
    choice = outcome.selected["k"]
    assert choice["on"].endswith("held out of train")
    assert list(choice["scores"]) == ["1", "5", "10", "20", "100", "200"]
    assert choice["scores"][str(choice["value"])] == max(choice["scores"].values())
    assert outcome.metrics["top-1"] == outcome.metrics[f"top-1, k = {choice['value']}"]
    assert outcome.metrics["top-1"].value == pytest.approx(theirs(data, choice["value"], "similarity", 0.07))
    alone = knn(*data, ks=(5,))
    assert alone.selected == {}
    assert list(alone.metrics) == ["top-1"]


def test_features_of_length_zero_have_similarity_zero() -> None:
    x, y = np.array([[0.0, 0.0], [1.0, 0.0]]), np.array([0, 1])
    assert knn_accuracy(x, y, np.array([[2.0, 1.0]]), np.array([1]), ks=(1,)).tolist() == [1.0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ks": (1001,)}, "1001 neighbours were asked for, but the train split has 1000 images"),
        ({"ks": (0,)}, "1 or more"),
        ({"ks": ()}, "1 or more"),
        ({"ks": (1,), "temperature": 0.0}, "temperature"),
        ({"ks": (1,), "weights": "gaussian"}, "similarity, uniform, distance"),
        ({"ks": (1,), "num_classes": 9}, "label 9, but there are 9 classes"),
    ],
)
def test_bad_settings_are_one_sentence(settings: dict[str, object], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        knn_accuracy(*digits(), **settings)  # pyright: ignore[reportArgumentType]


def test_bad_features_are_refused() -> None:
    x, y, test, labels = digits()
    with pytest.raises(EvaluationError, match="not finite"):
        knn_accuracy(x, y, np.where(test == 3, np.nan, test), labels, ks=(1,))
    with pytest.raises(EvaluationError, match="Class 4 has images in the test split but none in the train split"):
        knn_accuracy(x[y != 4], y[y != 4], test, labels, ks=(1,))
