"""Protocols on real photographs, where the sets are at hand; each that is not is skipped, and counted."""

import dataclasses

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from vitlab.core.errors import Error
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import DataSet
from vitlab.data.decoding import decode
from vitlab.data.open import open_data
from vitlab.evaluation.options import FewshotOptions, KnnOptions
from vitlab.evaluation.protocols import measure
from vitlab.evaluation.subject import subject_from

SIDE = 32


def few(name: str) -> DataSet:
    """The set's first 40 training and 5 test images of each of ten classes, or a skip."""
    try:
        dataset = open_data(name)
    except Error:
        pytest.skip(f"{name} is not here: put it where docs/data.md says")
    parts = {}
    for part, num in (("train", 40), ("test", 5)):
        split = dataset.splits[part]
        chosen = [np.flatnonzero(split.labels == label)[:num] for label in range(10)]
        parts[part] = split.take(np.concatenate(chosen))
    return dataclasses.replace(dataset, splits=parts, classes=dataset.classes[:10], fingerprint=f"{name} in part")


def thumbnails(images: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.adaptive_avg_pool2d(images, 4).flatten(1)


@pytest.mark.parametrize("name", ["cifar10", "cifar100", "flowers102", "pets"])
def test_thumbnails_as_features(name: str) -> None:
    dataset = few(name)
    spec = Preprocess(size=(SIDE, SIDE))
    subject = subject_from(thumbnails, name="thumbnails", preprocess=spec)
    found = measure("knn", subject, dataset, options=KnnOptions(ks=(5,), weights="uniform"))

    def features(part: str) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
        split = dataset.splits[part]
        pictures = [decode(split.images.read(i), split.images.where(i)) for i in range(len(split))]
        return np.concatenate([thumbnails(spec([picture])).numpy() for picture in pictures])

    train, test = dataset.splits["train"], dataset.splits["test"]
    reference = KNeighborsClassifier(5, metric="cosine").fit(features("train"), train.labels)
    expected = reference.score(features("test"), test.labels)
    assert next(iter(found.metrics.values())).value == pytest.approx(expected, abs=0.021)  # one tie of fifty images
    shots = measure("fewshot", subject, dataset, options=FewshotOptions(shots=(10,), seeds=(0, 1, 2)))
    assert next(iter(shots.metrics.values())).value > 0.1  # better than chance on ten classes
