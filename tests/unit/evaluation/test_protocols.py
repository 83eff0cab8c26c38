"""Protocols over a made-up data set whose pictures are their features."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score, top_k_accuracy_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from vitlab.core.errors import UnknownNameError
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import DataSet, Split
from vitlab.data.sources.holdout import fraction_of_train
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.features import Reading
from vitlab.evaluation.protocols.fewshot import FewshotOptions
from vitlab.evaluation.protocols.knn import KnnOptions
from vitlab.evaluation.protocols.linear import LinearOptions
from vitlab.evaluation.request import measure
from vitlab.evaluation.results import read_result, write_result
from vitlab.evaluation.subject import subject_from
from vitlab.inference.embed import GivenImages

K = 6
WEIGHTS = torch.randn(12, K, generator=torch.Generator().manual_seed(5))


def subject(logits: bool = True) -> Subject:
    return subject_from(
        lambda images: images.flatten(1),
        logits=(lambda images: images.flatten(1) @ WEIGHTS) if logits else None,
        name="a function",
        preprocess=Preprocess(size=(2, 2)),
    )


def split(num: int, seed: int, *, several: bool = False) -> Split:
    """Pictures of 2 x 2 that lean towards the colour of their class."""
    generator = np.random.default_rng(seed)
    labels = np.arange(num) % K
    means = np.random.default_rng(0).integers(60, 196, (K, 2, 2, 3))
    pictures = np.clip(means[labels] + generator.normal(0, 45, (num, 2, 2, 3)), 0, 255).astype(np.uint8)
    if several:
        return Split.labelled(GivenImages(list(pictures)), (generator.random((num, K)) < 0.4).astype(int), "several")
    return Split.labelled(GivenImages(list(pictures)), labels)


def dataset(*names: str, several: bool = False, num: int = 120) -> DataSet:
    splits = {name: split(num, seed, several=several) for seed, name in enumerate(names)}
    return DataSet("made up", tuple("abcdef"), splits, "fingerprint")


def features(part: Split) -> np.ndarray[Any, Any]:
    pixels = np.stack([np.asarray(part.images.read(i)) for i in range(len(part))]).transpose(0, 3, 1, 2)
    return ((pixels.astype(np.float64) - 127.5) / 127.5).reshape(len(part), -1)


def test_accuracy_is_scikit_learns() -> None:
    data = dataset("train", "test")
    found = measure("accuracy", subject(), data, reading=Reading(batch_size=7))
    scores = features(data.splits["test"]) @ WEIGHTS.double().numpy()
    truth = data.splits["test"].labels
    assert found.metrics["top-1"].value == pytest.approx((scores.argmax(1) == truth).mean())
    assert found.metrics["top-5"].value == pytest.approx(top_k_accuracy_score(truth, scores, k=5))
    assert found.counts["test"] == 120
    assert found.settings["split"] == "test"


def test_several_labels_an_image_give_scikit_learns_average_precision() -> None:
    data = dataset("train", "val", several=True)
    found = measure("accuracy", subject(), data)
    scores = features(data.splits["val"]) @ WEIGHTS.double().numpy()
    assert found.metrics["mAP"].value == pytest.approx(average_precision_score(data.splits["val"].labels, scores))
    assert found.settings["split"] == "val"
    with pytest.raises(EvaluationError, match="several labels per image"):
        measure("knn", subject(), data)


def test_classes_that_do_not_fit_data_of_several_labels_leave_fine_tuning() -> None:
    """Its features cannot be measured either: the protocols that do so send people to accuracy."""
    data = dataclasses.replace(dataset("train", "val", several=True), classes=tuple("abcde"))
    with pytest.raises(EvaluationError, match=r"fine-tune it on this data\.$"):
        measure("accuracy", subject(), data)
    with pytest.raises(EvaluationError, match="measure it with accuracy"):
        measure("knn", subject(), data)


def test_a_linear_probe_is_scikit_learns_and_chooses_on_val() -> None:
    data = dataset("train", "val", "test")
    found = measure("linear", subject(), data, options=LinearOptions(l2s=(0.01, 100.0)))
    assert found.selected["l2"]["on"].startswith("val")
    both = [features(data.splits[name]) for name in ("train", "val")]
    labels = np.concatenate([data.splits[name].labels for name in ("train", "val")])
    scaler = StandardScaler().fit(np.concatenate(both))
    chosen = found.selected["l2"]["value"]
    theirs = LogisticRegression(C=1 / (chosen * len(labels)), tol=1e-8, max_iter=2000)
    theirs.fit(scaler.transform(np.concatenate(both)), labels)
    score = theirs.score(scaler.transform(features(data.splits["test"])), data.splits["test"].labels)
    assert found.metrics["top-1"].value == pytest.approx(score, abs=1 / 120)


def test_part_of_the_labels_is_the_part_that_training_takes() -> None:
    """And no labels of val beside it."""
    data = dataset("train", "val", "test", num=240)
    part = fraction_of_train(data, 0.25)
    train, test = part.splits["train"], data.splits["test"]
    found = measure("knn", subject(), data, options=KnnOptions(ks=(3,), weights="uniform", fraction=0.25))
    assert found.counts == {"train": 60, "test": 240, "classes": K}
    neighbours = KNeighborsClassifier(3, metric="cosine").fit(features(train), train.labels)
    assert next(iter(found.metrics.values())).value == pytest.approx(
        neighbours.score(features(test), test.labels), abs=0.02
    )
    few = measure("linear", subject(), data, options=LinearOptions(l2s=(0.01,), fraction=0.25))
    scaler = StandardScaler().fit(features(train))
    theirs = LogisticRegression(C=1 / (0.01 * len(train)), tol=1e-8, max_iter=2000)
    theirs.fit(scaler.transform(features(train)), train.labels)
    score = theirs.score(scaler.transform(features(test)), test.labels)
    assert few.metrics["top-1"].value == pytest.approx(score, abs=1 / 240)
    other = fraction_of_train(data, 0.25, 1).splits["train"]
    neighbours.fit(features(other), other.labels)
    options = KnnOptions(ks=(3,), weights="uniform", fraction=0.25, subset_seed=1)
    assert next(iter(measure("knn", subject(), data, options=options).metrics.values())).value == pytest.approx(
        neighbours.score(features(test), test.labels), abs=0.02
    )
    with pytest.raises(EvaluationError, match="must be above 0 and at most 1, not 0"):
        measure("knn", subject(), data, options=KnnOptions(fraction=0.0))


def test_the_measured_split_is_named_in_the_counts(tmp_path: Path) -> None:
    found = measure("knn", subject(logits=False), dataset("train", "val", num=60))
    assert found.counts == {"train": 60, "val": 60, "classes": K}
    write_result(found, tmp_path / "result.json")
    again = read_result(tmp_path / "result.json")
    assert (again.metrics, again.counts, again.selected) == (found.metrics, found.counts, found.selected)


def test_unreadable_images_are_counted() -> None:
    data = dataset("train", "test", num=60)
    test = data.splits["test"]
    images: list[Any] = [test.images.read(i) for i in range(60)]
    images[3] = "gone.png"
    broken = DataSet(
        "made up", data.classes, {**data.splits, "test": Split.labelled(GivenImages(images), test.labels)}, "f"
    )
    for protocol in ("accuracy", "knn"):
        found = measure(protocol, subject(), broken)
        assert (found.counts["test"], found.counts["unreadable"]) == (59, 1)


def with_label(label: int) -> DataSet:
    data = dataset("train", "test", num=60)
    labels = data.splits["test"].labels.copy()
    labels[5] = label
    return DataSet(
        "made up", data.classes, {**data.splits, "test": Split.labelled(data.splits["test"].images, labels)}, "f"
    )


@pytest.mark.parametrize("protocol", ["accuracy", "knn", "fewshot", "linear"])
@pytest.mark.parametrize("label", [-1, K])
def test_labels_out_of_range_are_one_sentence(protocol: str, label: int) -> None:
    with pytest.raises(EvaluationError, match=f"made up has the label {label} in test, but 6 classes"):
        measure(protocol, subject(), with_label(label))


@pytest.mark.parametrize(
    ("protocol", "names", "chosen", "sentence"),
    [
        ("accuracy", ("train", "test"), "val", "made up has no split 'val': it has train, test"),
        ("accuracy", ("train",), None, "has neither a test nor a val part"),
        ("knn", ("test",), None, "has no train part to learn from"),
        ("knn", ("train", "test"), "train", "cannot be measured on train"),
    ],
)
def test_a_missing_split_is_one_sentence(
    protocol: str, names: tuple[str, ...], chosen: str | None, sentence: str
) -> None:
    with pytest.raises(EvaluationError, match=sentence):
        measure(protocol, subject(), dataset(*names), split=chosen)


def unfit(**counts: int) -> tuple[Subject, DataSet]:
    """A data set with so many training images of some classes, and a subject that must not be called."""
    data = dataset("train", "test")
    train, chosen = data.splits["train"], np.ones(120, bool)
    for name, count in counts.items():
        chosen[np.flatnonzero(train.labels == "abcdef".index(name))[count:]] = False
    images = [np.asarray(train.images.read(i)) for i in np.flatnonzero(chosen).tolist()]
    few = Split.labelled(GivenImages(images), train.labels[chosen])

    def never(images: torch.Tensor) -> torch.Tensor:
        raise AssertionError(len(images))

    splits = {**data.splits, "train": few}
    return (
        subject_from(never, name="never", preprocess=Preprocess(size=(2, 2))),
        DataSet("made up", data.classes, splits, "f", fixed_classes=True),
    )


@pytest.mark.parametrize(
    ("protocol", "counts", "options", "sentence"),
    [
        ("fewshot", {"b": 3}, FewshotOptions(shots=(1, 5)), "class 'b' has 3 training images, fewer than the 5 shots"),
        ("fewshot", {"b": 1}, FewshotOptions(shots=(2,)), "class 'b' has 1 training image, fewer than the 2 shots"),
        ("fewshot", {"b": 0, "c": 0}, None, "test has images of the class 'b' and 1 more, but train has none"),
        ("knn", {"f": 0}, None, "test has images of the class 'f', but train has none"),
        ("linear", {"a": 0}, None, "test has images of the class 'a', but train has none"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_anything_is_computed(
    protocol: str, counts: dict[str, int], options: Any, sentence: str
) -> None:
    never, data = unfit(**counts)
    with pytest.raises(EvaluationError, match=sentence):
        measure(protocol, never, data, options=options)


def test_the_usual_shots_are_those_that_every_class_allows(caplog: pytest.LogCaptureFixture) -> None:
    _, data = unfit(b=7)
    found = measure("fewshot", subject(), data)
    assert list(found.metrics) == ["1-shot", "5-shot"]
    assert found.settings["shots"] == [1, 5]
    assert "10 and 25 shots are left out: the class 'b' has 7 training images" in caplog.text


def test_a_class_without_any_image_has_no_shots() -> None:
    _, data = unfit(b=0)
    kept = data.splits["test"].labels != 1
    images = [np.asarray(data.splits["test"].images.read(int(i))) for i in np.flatnonzero(kept)]
    test = Split.labelled(GivenImages(images), data.splits["test"].labels[kept])
    bare = DataSet("made up", data.classes, {**data.splits, "test": test}, "f")
    with pytest.raises(EvaluationError, match="class 'b' has no training image"):
        measure("fewshot", subject(), bare)


@pytest.mark.parametrize(
    ("protocol", "options", "last"),
    [
        ("fewshot", FewshotOptions(shots=(1, 5), seeds=(0, 1, 2)), (6, 6)),
        ("linear", LinearOptions(l2s=(0.01, 1.0)), (3, 3)),
        ("linear", LinearOptions(l2s=(0.01,)), (2, 2)),
        ("knn", KnnOptions(ks=(1, 5)), (120, 120)),
    ],
)
def test_progress_is_told_of_what_follows_the_features(protocol: str, options: Any, last: tuple[int, int]) -> None:
    seen: list[tuple[int, int]] = []
    measure(protocol, subject(), dataset("train", "test"), options=options, progress=lambda *both: seen.append(both))
    assert (120, 120) in seen  # the features of a split
    assert seen[-1] == last
    assert all(done <= total for done, total in seen)


def test_an_unknown_protocol_is_one_sentence() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean fewshot"):
        measure("fewshots", subject(), dataset("train", "test"))
