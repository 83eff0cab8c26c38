"""From an image of a data set to the bytes of a batch: in training cropped, resized and varied, else preprocessed."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.core.errors import DataError, ImageError
from vitlab.core.pictures import reason
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import Ints, bits, key
from vitlab.data.augmentation import Augmentation, augment, crop_box
from vitlab.data.contract import Array, Images
from vitlab.data.decoding import open_picture, read_picture
from vitlab.data.workers import Damaged

MAX_REPLACEMENTS = 20


@dataclass(frozen=True)
class TrainingReader:
    """Reads images as training sees them; a damaged one is replaced, by a choice that its place alone decides."""

    images: Images
    size: tuple[int, int]  # height, width
    augmentation: Augmentation
    seed: int
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    @functools.cached_property
    def _key(self) -> int:
        return key(self.seed, "augment")

    def fill(self, pixels: Array, indices: Array, places: Array) -> list[Damaged]:
        """Fill rows; where an image is damaged, `indices` is set to the one that was taken for it."""
        found: list[Damaged] = []
        out, order = torch.from_numpy(pixels), torch.from_numpy(places)
        for row, place in enumerate(places.tolist()):
            for index in self._candidates(int(indices[row]), place):
                try:
                    image = self._crop(index, place)
                except (ImageError, OSError) as error:
                    found.append(damaged(self.images, index, error))
                else:
                    break
            else:
                raise DataError(f"{MAX_REPLACEMENTS} images in a row cannot be read: {found[-1].sentence}")
            # one at a time, only the operations that a sample drew are computed
            out[row] = augment(self.augmentation, image[None], order[row : row + 1], self._key)[0]
            indices[row] = index
        return found

    def _candidates(self, index: int, place: int) -> Iterator[int]:
        yield index
        for attempt in range(MAX_REPLACEMENTS):
            yield int(replacement(key(self.seed, "replacement"), np.array([place]), attempt, len(self.images))[0])

    def _crop(self, index: int, place: int) -> Tensor:
        picture = open_picture(self.images.read(index), self.images.where(index))
        box = crop_box(self.augmentation, self._key, place, *picture.size)
        return resize(picture.crop(box, self.size), self.size, self.interpolation)


@dataclass(frozen=True)
class EvaluationReader:
    """Reads images as a model's preprocessing has them; rows of no image (-1) or a damaged one are 0."""

    images: Images
    preprocess: Preprocess

    def fill(self, pixels: Array, indices: Array, places: Array) -> list[Damaged]:  # noqa: ARG002
        """Fill rows; where an image is damaged, `indices` is set to -1."""
        found: list[Damaged] = []
        for row, index in enumerate(indices.tolist()):
            pixels[row] = 0
            if index < 0:
                continue
            try:
                picture = read_picture(self.images.read(index), self.images.where(index))
                pixels[row] = np.asarray(self.preprocess.picture(picture)).transpose(2, 0, 1)
            except (ImageError, OSError) as error:
                found.append(damaged(self.images, index, error))
                indices[row] = -1
        return found


def resize(pixels: Array, size: tuple[int, int], interpolation: Literal["bilinear", "bicubic"]) -> Tensor:
    """A picture [H, W, 3] as [3, h, w], antialiased where it shrinks; within a level of Pillow's, and faster."""
    image = torch.from_numpy(np.require(pixels, requirements=("C", "W"))).permute(2, 0, 1)
    if image.shape[1:] == size:
        return image
    return F.interpolate(image[None], size, mode=interpolation, antialias=True)[0]


def replacement(key: int, places: Ints, attempt: int, num: int) -> Ints:
    """The images, of `num`, to try at places whose own could not be read."""
    return bits(key, places, attempt) % num


def damaged(images: Images, index: int, error: Exception) -> Damaged:
    """An image that could not be read, with the sentence that says so."""
    sentence = str(error) if isinstance(error, ImageError) else f"Cannot read {images.where(index)}: {reason(error)}."
    return Damaged(index, sentence)
