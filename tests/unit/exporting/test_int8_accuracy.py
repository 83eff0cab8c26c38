"""What 8 bits cost, with programs that are functions of numpy."""

import logging

import numpy as np
import pytest

from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Array, DataSet, Split
from vitlab.evaluation.contract import EvaluationError
from vitlab.exporting.int8_accuracy import accuracy_difference
from vitlab.inference.embed import GivenImages

PREPROCESS = Preprocess(size=(2, 2))


def colors(*classes: str) -> DataSet:
    """Red, green and blue pictures, four of each."""
    labels = np.arange(12) % 3
    pictures = [np.full((2, 2, 3), np.eye(3, dtype=np.uint8)[label] * 255, np.uint8) for label in labels]
    return DataSet("colours", classes, {"test": Split.labelled(GivenImages(pictures), labels)}, "fingerprint")


def channels(images: Array) -> Array:
    return images.mean(axis=(2, 3))


def green_is_red(images: Array) -> Array:
    assert len(images) == 1  # a scale is for a whole batch
    return channels(images)[:, [1, 1, 2]] - [0, 1, 0]


def test_both_programs_over_the_same_images() -> None:
    found = accuracy_difference(
        channels, green_is_red, colors("a", "b", "c"), split=None, preprocess=PREPROCESS, labels=("a", "b", "c")
    )
    assert found["images"] == 12
    assert (found["top-1 float32"], found["top-1 int8"], found["same class"]) == (1, pytest.approx(2 / 3), 8)


def test_classes_are_matched_once_for_both(caplog: pytest.LogCaptureFixture) -> None:
    data = colors("x", "y", "z")
    with caplog.at_level(logging.WARNING, "vitlab"):
        accuracy_difference(channels, green_is_red, data, split=None, preprocess=PREPROCESS, labels=("a", "b", "c"))
    assert [record.getMessage() for record in caplog.records] == [
        "The class names of The model are not the data's ('a', the data's 'x'): matched by number."
    ]


def test_classes_that_do_not_fit_are_one_sentence() -> None:
    data = colors("a", "b", "c", "d")
    with pytest.raises(EvaluationError) as caught:
        accuracy_difference(channels, green_is_red, data, split=None, preprocess=PREPROCESS, labels=("a", "b", "c"))
    assert str(caught.value) == (
        "The model tells 3 classes and the data has 4, among them 'd', which the model does not know: fine-tune it on"
        " this data, or leave the data out."
    )
