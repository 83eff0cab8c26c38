"""The filter and the copies of Noisy Student by hand, a teacher without noise, and labels that stay what they were."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tiny_vits import SIZES, random_vit
from vitlab.core.errors import CheckpointError, ConfigError
from vitlab.data.contract import DataSet, Split
from vitlab.data.sources.pixels import Pixels
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives import pseudo_labels
from vitlab.objectives.pseudo_labels import COUNTS, FILE, Rule, answers, choose, labelled_by, thresholds

CPU = torch.device("cpu")


def chosen(confidence: list[float], **rule: Any) -> tuple[list[int], list[int]]:
    """The images and copies of one class."""
    images, copies = choose(np.array(confidence), np.zeros(len(confidence), np.int64), 1, Rule(**rule))
    return images.tolist(), copies.tolist()


def threshold(confidence: list[float], **rule: Any) -> float:
    return float(thresholds(np.array(confidence), np.zeros(len(confidence), np.int64), 1, Rule(**rule))[0])


def test_below_the_lowest_threshold_nothing_is_kept() -> None:
    assert chosen([0.2999, 0.3, 0.31]) == ([1, 2], [1, 1])
    assert chosen([0.2999, 0.3, 0.31], quota=3, several=False) == ([1, 2], [1, 1])
    assert chosen([0.1, 0.2]) == ([], [])


@pytest.mark.parametrize(
    ("quota", "found"),
    [(1, 0.99), (2, 0.9), (3, 0.9), (4, 0.55), (5, 0.3), (6, 0.3)],  # the fifth is at .31, and there is no sixth
)
def test_the_threshold_falls_until_the_quota_is_met(quota: int, found: float) -> None:
    """On multiples of .01: two images at .905 and .90 come in together."""
    assert threshold([0.995, 0.905, 0.9, 0.557, 0.305], quota=quota) == pytest.approx(found)


def test_the_threshold_by_the_authors_loop() -> None:
    """From 1.00 down in steps of .01, until so many reach it or the lowest is reached."""
    rng = np.random.default_rng(0)
    for quota in (1, 5, 20, 60):
        confidence = rng.beta(3, 1, 50)
        step = 100
        while step / 100 > 0.3 and (confidence >= step / 100).sum() < quota:
            step -= 1
        assert threshold(confidence.tolist(), quota=quota) == pytest.approx(step / 100)


def test_copies_fill_the_quota_in_the_mean() -> None:
    """Three images at a quota of 7 have two or three copies each, 7 in all in the mean over seeds."""
    totals: list[int] = []
    for seed in range(400):
        images, copies = chosen([0.9, 0.8, 0.7], quota=7, seed=seed)
        assert images == [0, 1, 2]
        assert set(copies) <= {2, 3}
        totals.append(sum(copies))
    assert len(set(totals)) > 1  # a coin for each, as in the authors' code, so that it is not exact
    assert np.mean(totals) == pytest.approx(7, abs=4 * np.sqrt(3 * 2 / 9 / 400))  # four standard errors
    assert chosen([0.9, 0.8, 0.7], quota=7, seed=5) == chosen([0.9, 0.8, 0.7], quota=7, seed=5)


def test_without_several_copies_a_class_has_what_it_has() -> None:
    assert chosen([0.9, 0.8, 0.7], quota=7, several=False) == ([0, 1, 2], [1, 1, 1])


def test_too_many_are_thinned_to_the_quota_in_the_mean() -> None:
    """Of 40 equally sure images, all of which reach the threshold together, a quarter."""
    totals = [len(chosen([0.9] * 40, quota=10, seed=seed)[0]) for seed in range(200)]
    assert np.mean(totals) == pytest.approx(10, abs=4 * np.sqrt(40 * 3 / 16 / 200))


def test_classes_have_thresholds_of_their_own() -> None:
    confidence, classes = np.array([0.9, 0.8, 0.5, 0.4, 0.35]), np.array([0, 0, 1, 1, 1])
    rule = Rule(quota=2)
    assert thresholds(confidence, classes, 3, rule).tolist() == pytest.approx([0.8, 0.4, 0.3])
    images, copies = choose(confidence, classes, 3, rule)
    assert (images.tolist(), copies.tolist()) == ([0, 1, 2, 3], [1, 1, 1, 1])


@pytest.fixture
def unlabelled() -> Split:
    values = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    return Split(Pixels(values, "them"))


@pytest.fixture
def dataset(unlabelled: Split) -> DataSet:
    return DataSet("set", tuple("abc"), {"unlabelled": unlabelled}, "print")


def teaching(seed: int = 0) -> ViT:
    """With dropout and stochastic depth, which are noise that only a student has."""
    return random_vit(ViTConfig(**SIZES, num_classes=3, dropout=0.5, drop_path=0.5), seed=seed)


def test_the_teacher_answers_without_noise_and_stays_as_it_was(unlabelled: Split) -> None:
    teacher = teaching().train()
    found, readable = answers(teacher, unlabelled, CPU, None)
    assert readable.all()
    assert teacher.training
    teacher.eval()
    pixels = np.stack([unlabelled.images.read(i) for i in range(30)]).transpose(0, 3, 1, 2)
    with torch.no_grad():
        wanted = teacher(teacher.preprocess.normalize(torch.from_numpy(pixels)))
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-5, atol=1e-5)
    turned, _ = answers(teacher, unlabelled, CPU, [2, 0, 1])
    np.testing.assert_array_equal(turned, found[:, [2, 0, 1]])


@pytest.mark.parametrize("soft", [True, False])
def test_labels_are_the_teachers_probabilities_or_its_class(dataset: DataSet, unlabelled: Split, soft: bool) -> None:
    teacher = teaching()
    logits, _ = answers(teacher, unlabelled, CPU, None)
    exact = np.exp(logits.astype(np.float64))
    probabilities = exact / exact.sum(axis=1, keepdims=True)
    middle = float(np.median(probabilities.max(axis=1)))  # between two of thirty
    images = np.flatnonzero(probabilities.max(axis=1) >= middle)
    assert len(images) == 15
    kept = labelled_by(teacher, dataset, unlabelled, Rule(lowest=middle, temperature=0.5), device=CPU)
    split = kept.split(unlabelled, soft=soft)
    assert [split.images.where(i) for i in range(len(split))] == [unlabelled.images.where(int(i)) for i in images]
    if soft:
        sharper = probabilities[images] ** 2  # 1 / temperature
        np.testing.assert_allclose(split.labels, sharper / sharper.sum(axis=1, keepdims=True), rtol=1e-5)
        assert split.label.kind == "soft"
    else:
        np.testing.assert_array_equal(split.labels, probabilities[images].argmax(axis=1))
        assert split.label.kind == "class"


def test_labels_are_computed_once_for_a_run(
    dataset: DataSet, unlabelled: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = Rule(lowest=0.2, quota=15)
    first = labelled_by(teaching(), dataset, unlabelled, rule, device=CPU, folder=tmp_path)
    told = json.loads((tmp_path / COUNTS).read_text())
    assert sum(each["copies"] for each in told["classes"].values()) == first.copies.sum()
    assert sum(each["images"] for each in told["classes"].values()) == len(first.images)
    with monkeypatch.context() as patch:
        patch.setattr(pseudo_labels, "answers", lambda *_: pytest.fail("they are there"))
        again = labelled_by(teaching(), dataset, unlabelled, rule, device=CPU, folder=tmp_path)
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    for other in (
        labelled_by(teaching(1), dataset, unlabelled, rule, device=CPU, folder=tmp_path),
        labelled_by(teaching(), dataset, unlabelled, dataclasses.replace(rule, seed=1), device=CPU, folder=tmp_path),
    ):
        assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("cut", [True, False])
def test_damaged_labels_are_not_learned(dataset: DataSet, unlabelled: Split, tmp_path: Path, cut: bool) -> None:
    labelled_by(teaching(), dataset, unlabelled, Rule(), device=CPU, folder=tmp_path)
    content = bytearray((tmp_path / FILE).read_bytes())
    content[-3] ^= 1
    (tmp_path / FILE).write_bytes(content[:-10] if cut else content)
    with pytest.raises(CheckpointError, match="delete it, and the teacher labels again"):
        labelled_by(teaching(), dataset, unlabelled, Rule(), device=CPU, folder=tmp_path)


def test_a_teacher_that_is_sure_of_nothing_is_refused(dataset: DataSet, unlabelled: Split) -> None:
    teacher = teaching()
    for parameter in teacher.head.parameters():
        torch.nn.init.zeros_(parameter)
    with pytest.raises(ConfigError, match="The teacher is 40% sure of none of the 30 unlabelled images"):
        labelled_by(teacher, dataset, unlabelled, Rule(lowest=0.4), device=CPU)
