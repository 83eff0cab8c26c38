"""From an image of a data set to the bytes of a batch: in training cropped, resized and varied, else preprocessed."""

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.core.errors import DataError, ImageError
from vitlab.core.pictures import reason
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import Ints, bits, key
from vitlab.data.augmentation import augment, crop_box, move_masks
from vitlab.data.contract import IGNORED, Array, Images, Masks
from vitlab.data.decoding import open_picture, read_mask, read_picture
from vitlab.data.loading.workers import Damaged
from vitlab.data.streams import View
from vitlab.data.targets import Slot, mask_slot

MAX_REPLACEMENTS = 20


@dataclass(frozen=True)
class TrainingReader:
    """Reads images as training sees them, in each of their views, and their masks as the first view has them.

    One that is damaged, or whose mask is, is replaced, by a choice that its place alone decides.
    """

    images: Images
    views: tuple[View, ...]
    keys: tuple[int, ...]  # of each view
    seed: int  # of replacements
    masks: Mapping[str, Masks] = field(default_factory=dict)
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"

    def slots(self) -> dict[str, Slot]:
        views = {view_name(j): Slot((3, *view.size), np.uint8) for j, view in enumerate(self.views)}
        return views | {name: mask_slot(self.views[0].size) for name in self.masks}

    def fill(self, rows: Mapping[str, Array], indices: Array, places: Array) -> list[Damaged]:
        """Fill rows; where an image is damaged, `indices` is set to the one that was taken for it."""
        found: list[Damaged] = []
        out = {name: torch.from_numpy(array) for name, array in rows.items()}
        order = torch.from_numpy(places)
        for row, place in enumerate(places.tolist()):
            for index in self._candidates(int(indices[row]), place):
                try:
                    images, masks = self._crop(index, place)
                except (ImageError, OSError) as error:
                    found.append(damaged(self.images, index, error))
                else:
                    break
            else:
                raise DataError(f"{MAX_REPLACEMENTS} images in a row cannot be read: {found[-1].sentence}")
            here = order[row : row + 1]
            # one at a time, only the operations that a sample drew are computed
            for j, (view, image) in enumerate(zip(self.views, images, strict=True)):
                out[view_name(j)][row] = augment(view.augmentation, image[None], here, self.keys[j])[0]
            for name, mask in masks.items():
                moved = move_masks(self.views[0].augmentation, mask[None], here, self.keys[0], IGNORED)
                out[name][row] = moved[0]
            indices[row] = index
        return found

    def _candidates(self, index: int, place: int) -> Iterator[int]:
        yield index
        for attempt in range(MAX_REPLACEMENTS):
            yield int(replacement(key(self.seed, "replacement"), np.array([place]), attempt, len(self.images))[0])

    def _crop(self, index: int, place: int) -> tuple[list[Tensor], dict[str, Tensor]]:
        """What the views take of a picture that is decoded once, and what the first takes of its masks."""
        picture = open_picture(self.images.read(index), self.images.where(index))
        boxes = [
            crop_box(view.augmentation, own, place, *picture.size)
            for view, own in zip(self.views, self.keys, strict=True)
        ]
        sizes = [view.size for view in self.views]
        parts = picture.crops(boxes, sizes)
        images = [resize(part, size, self.interpolation) for part, size in zip(parts, sizes, strict=True)]
        masks = {
            name: crop_mask(read_mask(mask, index, picture.size), boxes[0], sizes[0])
            for name, mask in self.masks.items()
        }
        return images, masks


@dataclass(frozen=True)
class EvaluationReader:
    """Reads images as a model's preprocessing has them, and their masks; rows of no image (-1) or a damaged one are 0,
    and their masks `IGNORED`.
    """

    images: Images
    preprocess: Preprocess
    masks: Mapping[str, Masks] = field(default_factory=dict)

    def slots(self) -> dict[str, Slot]:
        size = self.preprocess.size
        return {view_name(0): Slot((3, *size), np.uint8), **{name: mask_slot(size) for name in self.masks}}

    def fill(self, rows: Mapping[str, Array], indices: Array, places: Array) -> list[Damaged]:  # noqa: ARG002
        """Fill rows; where an image is damaged, `indices` is set to -1."""
        found: list[Damaged] = []
        pixels = rows[view_name(0)]
        for row, index in enumerate(indices.tolist()):
            pixels[row] = 0
            for name in self.masks:
                rows[name][row] = IGNORED
            if index < 0:
                continue
            try:
                picture = read_picture(self.images.read(index), self.images.where(index))
                masks = {
                    name: seen_mask(read_mask(mask, index, (picture.height, picture.width)), self.preprocess)
                    for name, mask in self.masks.items()
                }
                pixels[row] = np.asarray(self.preprocess.picture(picture)).transpose(2, 0, 1)
            except (ImageError, OSError) as error:
                found.append(damaged(self.images, index, error))
                indices[row] = -1
            else:
                for name, mask in masks.items():
                    rows[name][row] = mask
        return found


def view_name(number: int) -> str:
    """What the slot of a view is called."""
    return f"view{number}"


def crop_mask(mask: Array, box: tuple[int, int, int, int], size: tuple[int, int]) -> Tensor:
    """A part of a mask at another size, every pixel the one that is nearest to its centre."""
    top, left, height, width = box
    rows = top + ((np.arange(size[0]) + 0.5) * (height / size[0])).astype(np.int64)
    columns = left + ((np.arange(size[1]) + 0.5) * (width / size[1])).astype(np.int64)
    return torch.from_numpy(mask[rows[:, None], columns])


def seen_mask(mask: Array, preprocess: Preprocess) -> Array:
    """A mask resized and cropped as its picture is; what padding adds is `IGNORED`."""
    # Pictures are padded with 0, which is what 255 becomes when 1 is added to it.
    shifted = dataclasses.replace(preprocess, interpolation="nearest").picture(mask + np.uint8(1))
    return np.asarray(shifted)[..., 0] - np.uint8(1)


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
