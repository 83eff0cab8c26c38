"""Protocols on real photographs, where the sets are at hand; each that is not is skipped, and counted."""

import dataclasses
import json
import os
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier
from sklearn.preprocessing import StandardScaler

from vitlab.core.errors import Error
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import DataSet
from vitlab.data.decoding import decode
from vitlab.data.open import open_data
from vitlab.evaluation.protocols.fewshot import FewshotOptions
from vitlab.evaluation.protocols.knn import KnnOptions
from vitlab.evaluation.protocols.linear import LinearOptions
from vitlab.evaluation.protocols.real import RealOptions
from vitlab.evaluation.real import open_validation_images
from vitlab.evaluation.request import measure
from vitlab.evaluation.subject import subject_from

Array: TypeAlias = np.ndarray[Any, Any]

SIDE, CLASSES, TRAIN, TEST = 32, 10, 40, 10
SPEC = Preprocess(size=(SIDE, SIDE))
SETS = {  # classes, and the images of train and of test as their authors count them
    "cifar10": (10, 50_000, 10_000),
    "cifar100": (100, 50_000, 10_000),
    "flowers102": (102, 2_040, 6_149),  # train and val
    "pets": (37, 3_680, 3_669),
}


def opened(name: str) -> DataSet:
    try:
        return open_data(name)
    except Error:
        pytest.skip(f"{name} is not here: put it where docs/data.md says")


def few(dataset: DataSet) -> DataSet:
    """The set's first training and test images of each of ten classes, equally many of each."""
    parts = {}
    for part, num in (("train", TRAIN), ("test", TEST)):
        split = dataset.splits[part]
        places = [np.flatnonzero(split.labels == label) for label in range(CLASSES)]
        num = min(num, *map(len, places))
        parts[part] = split.take(np.concatenate([rows[:num] for rows in places]))
    name = f"{dataset.name} in part"
    return dataclasses.replace(dataset, splits=parts, classes=dataset.classes[:CLASSES], fingerprint=name)


def thumbnails(images: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


def by_hand(dataset: DataSet, part: str) -> tuple[Array, Array]:
    """The thumbnails of a split one after another, in float64, and its labels."""
    split = dataset.splits[part]
    pictures = [decode(split.images.read(i), split.images.where(i)) for i in range(len(split))]
    return np.concatenate([thumbnails(SPEC([picture])).double().numpy() for picture in pictures]), split.labels


@pytest.mark.parametrize("name", SETS)
def test_a_set_is_whole(name: str) -> None:
    dataset, (classes, train, test) = opened(name), SETS[name]
    sizes = {part: len(split) for part, split in dataset.splits.items()}
    assert (dataset.name, dataset.num_classes, sizes.pop("test")) == (name, classes, test)
    assert sum(sizes.values()) == train


@pytest.mark.parametrize("name", SETS)
def test_protocols_on_thumbnails_are_scikit_learns(name: str) -> None:
    """A count of a hundred test images may differ by one or two, where float32 settles a tie otherwise than float64."""
    dataset = few(opened(name))
    subject = subject_from(thumbnails, name="thumbnails", preprocess=SPEC)
    (train_x, train_y), (test_x, test_y) = by_hand(dataset, "train"), by_hand(dataset, "test")
    scaler = StandardScaler().fit(train_x)

    found = measure("knn", subject, dataset, options=KnnOptions(ks=(5,), weights="uniform"))
    neighbours = KNeighborsClassifier(5, metric="cosine").fit(train_x, train_y)
    assert found.metrics["top-1"].value == pytest.approx(neighbours.score(test_x, test_y), abs=0.021)

    found = measure("linear", subject, dataset, options=LinearOptions(l2s=(0.1,)))
    logistic = LogisticRegression(C=1 / (0.1 * len(train_y)), tol=1e-8, max_iter=5000)
    score = logistic.fit(scaler.transform(train_x), train_y).score(scaler.transform(test_x), test_y)
    assert found.metrics["top-1"].value == pytest.approx(score, abs=0.011)
    assert score > 0.15  # a tenth is chance

    all_of_them = len(train_y) // CLASSES
    found = measure("fewshot", subject, dataset, options=FewshotOptions(shots=(all_of_them,), seeds=(0,)))
    white = [(x - train_x.mean(axis=0)) / (train_x.std(axis=0) + 1e-5) for x in (train_x, test_x)]
    targets = 2 * np.eye(CLASSES)[train_y] - 1
    ridge = Ridge(alpha=1024.0).fit(white[0], targets)  # its bias is free; the protocol's nearly so
    expected = (ridge.predict(white[1]).argmax(axis=1) == test_y).mean()
    assert found.metrics[f"{all_of_them}-shot"].value == pytest.approx(expected, abs=0.011)
    assert expected > 0.15


def test_reassessed_labels_belong_to_the_real_images() -> None:
    """ImageNet's validation images, all or some, and real.json beside them; the model names one class, always."""
    places = [Path(part) for part in os.environ.get("VITLAB_DATA", "").split(os.pathsep) if part]
    place = next((p for p in places if (p / "real.json").is_file() and (p / "imagenet" / "val").is_dir()), None)
    if place is None:
        pytest.skip("imagenet/val and real.json are not in a folder of $VITLAB_DATA")
    dataset = open_validation_images(str(place / "imagenet"))
    val = dataset.splits["val"]
    val = val.take(np.arange(0, len(val), max(len(val) // 1000, 1)))
    labels = json.loads((place / "real.json").read_text())
    numbers = [int(Path(val.images.where(i)).stem.split("_")[2]) for i in range(len(val))]
    known = [labels[number - 1] for number in numbers]
    answer = torch.zeros(1, 1000)
    answer[0, 208] = 1  # a labrador
    subject = subject_from(
        thumbnails, logits=lambda images: answer.expand(len(images), -1), name="labrador", preprocess=SPEC
    )
    found = measure(
        "real",
        subject,
        dataclasses.replace(dataset, splits={"val": val}),
        options=RealOptions(labels=str(place / "real.json")),
    )
    with_labels = sum(bool(item) for item in known)
    assert found.counts == {"images": len(val), "with labels": with_labels, "without labels": len(val) - with_labels}
    assert 0.9 < with_labels / len(val) < 0.97  # 93.7% of all 50,000
    assert found.metrics["ReaL"].value == pytest.approx(sum(208 in item for item in known) / with_labels)
