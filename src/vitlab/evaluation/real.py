"""ImageNet with the reassessed labels (arXiv 2006.07159): several an image, and none for some.

An image without labels is left out; a prediction is right if it is among the labels. The labels are class numbers in
the order of ImageNet-1k, and belong to the validation images by their number: ILSVRC2012_val_00000001 is the first.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vitlab.core.reading import parse_json, read_text
from vitlab.data.contract import DataSet, Images
from vitlab.data.open import open_data
from vitlab.data.sources.files import Files, list_folders, list_images
from vitlab.data.sources.published.imagenet import KAGGLE
from vitlab.data.sources.source import SPLIT_WORDS, make
from vitlab.evaluation.contract import EvaluationError, Outcome
from vitlab.evaluation.labeled_features import share, wilson

NUM_CLASSES = 1000
NAME = re.compile(r"(?<![a-z0-9])val_([0-9]{8})(?![0-9])", re.IGNORECASE)  # with or without 'ILSVRC2012_' before it


@final
@dataclass(frozen=True)
class RealLabels:
    """The classes of each validation image, by its number less one."""

    labels: tuple[frozenset[int], ...]
    source: str = "real.json"

    @classmethod
    def read(cls, path: Path) -> "RealLabels":
        """The public real.json: a list with a list of class numbers for each of the 50,000 images."""
        try:
            found = parse_json(read_text(path))
        except OSError as error:
            raise EvaluationError(
                f"Cannot read {path}: {error.strerror or error}. The labels are real.json of"
                " github.com/google-research/reassessed-imagenet."
            ) from error
        except ValueError as error:
            raise EvaluationError(f"{path} is not JSON: {error}.") from error
        if not isinstance(found, list) or not found or not all(map(_is_labels, found)):
            raise EvaluationError(
                f"{path} is not what the public real.json is: a list of lists of class numbers from 0 to"
                f" {NUM_CLASSES - 1}."
            )
        return cls(tuple(frozenset(labels) for labels in found), str(path))

    def number(self, name: str) -> int:
        """The number less one of the image with this file name, in a class folder or not, whatever its ending."""
        matches = NAME.findall(name)
        if not matches:
            raise EvaluationError(
                f"'{name}' is not named as ImageNet's validation images are (ILSVRC2012_val_00000001.JPEG), and the"
                " reassessed labels belong to these names."
            )
        number = int(matches[-1])
        if not 1 <= number <= len(self.labels):
            raise EvaluationError(f"{self.source} holds the labels of {len(self.labels)} images; '{name}' is not one.")
        return number - 1

    def check(self, images: Images) -> None:
        """Refuse images of other names, and images that are there twice, before anything is computed."""
        places: dict[int, int] = {}
        for index in range(len(images)):
            number = self.number(images.where(index))
            if number in places:
                raise EvaluationError(
                    f"ILSVRC2012_val_{number + 1:08d} is there twice, as {images.where(places[number])} and"
                    f" {images.where(index)}: remove one."
                )
            places[number] = index


@final
class RealAccuracy:
    """Sums over images by their names; `merge`, or a sum of `tensors()` in place, joins processes."""

    def __init__(self, real: RealLabels) -> None:
        self.real = real
        self.seen = torch.zeros(len(real.labels), dtype=torch.int64)
        self.right = torch.zeros(1, dtype=torch.int64)

    def add(self, logits: Float[Tensor, "b k"], names: Sequence[str]) -> None:
        """A batch of images and their paths or file names."""
        if logits.ndim != 2 or logits.shape[1] != NUM_CLASSES:
            raise EvaluationError(
                f"The reassessed labels number ImageNet-1k's {NUM_CLASSES} classes in their usual order, but the model"
                f" has {logits.shape[-1]}: choose one with an ImageNet-1k head."
            )
        assert len(logits) == len(names)
        if not logits.isfinite().all():
            raise EvaluationError("The model's outputs are not finite: its weights or its preprocessing are broken.")
        for predicted, name in zip(logits.argmax(dim=1).tolist(), names, strict=True):
            number = self.real.number(name)
            self.seen[number] += 1
            self.right += predicted in self.real.labels[number]

    def tensors(self) -> dict[str, Tensor]:
        """Everything that was summed: summing each over the processes, in place, joins them."""
        return {"seen": self.seen, "right": self.right}

    def merge(self, other: "RealAccuracy") -> None:
        """Adds what another process has seen."""
        assert other.real.labels == self.real.labels
        theirs = other.tensors()
        for name, value in self.tensors().items():
            value += theirs[name]

    def outcome(self) -> Outcome:
        if int(self.seen.max()) > 1:
            number = int(self.seen.argmax()) + 1
            raise EvaluationError(
                f"ILSVRC2012_val_{number:08d} is there {int(self.seen.max())} times: remove the copies."
            )
        images = int(self.seen.sum())
        labelled = sum(bool(self.real.labels[number]) for number in self.seen.nonzero()[:, 0].tolist())
        if not labelled:
            raise EvaluationError(f"None of the {images} images has a reassessed label: there is nothing to measure.")
        right = int(self.right)
        return Outcome(
            metrics={"ReaL": share(right, labelled)},
            counts={"images": images, "with labels": labelled, "without labels": images - labelled},
            settings={"images in all": len(self.real.labels)},
            details={"interval": {"ReaL": list(wilson(right, labelled)), "level": 0.95, "method": "Wilson"}},
        )


def open_validation_images(data: str) -> DataSet:
    """ImageNet's validation images as the val part of a set, whole or in part; what is no folder of them opens as ever.

    The reassessed labels need no others: the images may lie flat or in folders of any names, and none is held out.
    """
    path = Path(os.path.expanduser(data))  # noqa: PTH111  Path's raises over odd texts
    if os.path.isdir(path):  # noqa: PTH112
        base = next((path / inside for inside in KAGGLE if (path / inside).is_dir()), path)
        parts = {SPLIT_WORDS[name.lower()]: name for name in list_folders(base) if name.lower() in SPLIT_WORDS}
        if "val" in parts or not parts:
            listing = list_images(base, parts.get("val", ""))
            named = [place for place, name in enumerate(listing.names) if NAME.search(name)]
            if named:
                names = [listing.names[place] for place in named]
                files = Files(base, names, [listing.sizes[place] for place in named])
                unused = np.zeros(len(names), np.int64)
                return make("imagenet", ("without labels",), {"val": (files, unused)}, notes=listing.notes())
    return open_data(data)


def _is_labels(item: Any) -> bool:
    return isinstance(item, list) and all(
        isinstance(label, int) and not isinstance(label, bool) and 0 <= label < NUM_CLASSES for label in item
    )
