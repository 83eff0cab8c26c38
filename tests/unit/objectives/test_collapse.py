"""Measures of collapse against hand-worked cases and NumPy, and the sentences that they call for."""

import math

import numpy as np
import pytest
import torch

from vitlab.objectives import collapse


def features(num: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num, width, generator=torch.Generator().manual_seed(seed))


def test_std_by_hand() -> None:
    assert collapse.feature_std(torch.ones(5, 3)) == pytest.approx(0, abs=1e-7)
    assert collapse.feature_std(torch.tensor([[2.0, 0.0], [-5.0, 0.0]])) == pytest.approx(1)  # opposite directions
    right_angle = torch.tensor([[3.0, 0.0], [0.0, 1.0]])  # the mean is (1/2, 1/2)
    assert collapse.feature_std(right_angle) == pytest.approx(math.sqrt(0.5))
    assert collapse.feature_std(features(4000, 64)) == pytest.approx(1, abs=1e-3)


def test_std_is_half_the_mean_squared_distance_of_images() -> None:
    """And the channels' standard deviations by NumPy, summed in squares."""
    values = features(50, 8) + 2
    unit = values.double().numpy()
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    distances = ((unit[:, None] - unit[None]) ** 2).sum(axis=2).mean()
    found = collapse.feature_std(values)
    assert found**2 == pytest.approx(distances / 2)
    assert found == pytest.approx(math.sqrt((unit.std(axis=0) ** 2).sum()))
    assert collapse.feature_std(7 * values) == pytest.approx(found)


@pytest.mark.parametrize("k", [1, 3, 8])
def test_rank_counts_directions(k: int) -> None:
    """Orthogonal directions of equal variance: the rank is their number, wherever the features lie."""
    signs = torch.tensor([[1.0, -1.0][i % 2] for i in range(2 * k)])
    values = torch.zeros(2 * k, 12)
    values[torch.arange(2 * k), torch.arange(2 * k) // 2] = signs
    assert collapse.effective_rank(values) == pytest.approx(k)
    assert collapse.effective_rank(10 * values + 3) == pytest.approx(k, rel=1e-5)


def test_rank_is_that_of_numpy_and_none_where_nothing_varies() -> None:
    values = features(40, 10) * torch.linspace(0.01, 3, 10)
    centred = values.double().numpy() - values.double().numpy().mean(axis=0)
    singular = np.linalg.svd(centred, compute_uv=False)
    share = singular / singular.sum()
    assert collapse.effective_rank(values) == pytest.approx(np.exp(-(share * np.log(share)).sum()), rel=1e-6)
    assert collapse.effective_rank(torch.full((6, 5), 0.1)) == 0.0
    assert collapse.effective_rank(torch.zeros(6, 5)) == 0.0


def test_teacher_entropy_by_hand() -> None:
    sure = collapse.teacher_entropy(torch.eye(4))  # each image its own answer
    assert sure["teacher entropy"].item() == pytest.approx(0, abs=1e-6)
    assert sure["teacher diversity"].item() == pytest.approx(1)
    same = collapse.teacher_entropy(torch.eye(4)[[2, 2, 2]])
    assert same["teacher diversity"].item() == pytest.approx(0, abs=1e-6)
    nothing = collapse.teacher_entropy(torch.full((3, 4), 0.25))
    assert nothing["teacher entropy"].item() == pytest.approx(1)
    halves = collapse.teacher_entropy(torch.tensor([[0.5, 0.5, 0, 0]]))
    assert halves["teacher entropy"].item() == pytest.approx(0.5)  # ln 2 / ln 4


WELL = {"feature std": 0.6, "feature rank": 20.0, "kNN accuracy": 0.8, "kNN chance": 0.1, "count": 500.0}
TAUGHT = {"teacher entropy": 0.4, "teacher diversity": 0.9}


@pytest.mark.parametrize(
    ("wrong", "measure", "said"),
    [
        (
            {"feature std": 0.01, "feature rank": 1.0},
            "feature std",
            "nearly the same (their standard deviation is 0.01",
        ),
        ({"feature rank": 1.4}, "feature rank", "differ in a single direction (effective rank 1.4)"),
        ({"teacher diversity": 0.01}, "teacher diversity", "says the same of every image"),
        ({"teacher entropy": 0.999}, "teacher entropy", "says nothing of any image"),
        ({"kNN accuracy": 0.12}, "kNN accuracy", "right on 12.0% of held-out images, no more than chance (10.0%)"),
    ],
)
def test_each_measure_has_its_sentence(wrong: dict[str, float], measure: str, said: str) -> None:
    assert collapse.alarms({**WELL, **TAUGHT}) == {}
    found = collapse.alarms({**WELL, **TAUGHT, **wrong})
    assert list(found) == [measure]
    assert said in found[measure]
    assert found[measure].endswith(".")


def test_chance_has_its_error() -> None:
    """15% of 500 images is more than chance of 10% makes; of 50 it is not."""
    assert collapse.alarms({**WELL, "kNN accuracy": 0.15}) == {}
    assert list(collapse.alarms({**WELL, "kNN accuracy": 0.15, "count": 50.0})) == ["kNN accuracy"]


def test_few_images_raise_no_alarm_that_they_cannot_tell() -> None:
    """Three images differ in two directions at most; half of ten by two classes is what chance gives, but so is 90%."""
    assert list(collapse.alarms({"feature rank": 1.9, "count": 8.0})) == ["feature rank"]
    assert collapse.alarms({"feature rank": 1.9, "count": 3.0}) == {}
    assert list(collapse.alarms({"feature std": 0.0, "count": 2.0})) == ["feature std"]
    assert collapse.alarms({"feature std": 0.0, "count": 1.0}) == {}  # one image is like itself
    two = {"kNN accuracy": 0.5, "kNN chance": 0.5}
    assert list(collapse.alarms({**two, "count": 100.0})) == ["kNN accuracy"]
    assert collapse.alarms({**two, "count": 10.0}) == {}


def test_words() -> None:
    assert collapse.words({**WELL, **TAUGHT}) == "feature std 0.60, rank 20.0, kNN 80.0%, teacher entropy 0.40"
    assert collapse.words({"loss": 1.0}) == ""
    assert collapse.alarms({"loss": 1.0, "score": -1.0}) == {}
    told = " ".join(collapse.described({**WELL, **TAUGHT}))
    assert all(part in told for part in ("0.60", "20 directions", "80.0%", "10.0%", "90%"))
    assert collapse.described({"loss": 1.0}) == []
