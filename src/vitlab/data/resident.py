"""A whole split as bytes on one device, and training batches made there: an epoch never touches the host."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.core.compiling import compile_options
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, augment, crop, erase, make_tables, mix
from vitlab.data.contract import Array, Split
from vitlab.data.decoding import decode
from vitlab.data.order import Order

LOOK_AT = 32  # images whose sizes are compared before all are decoded


def common_size(split: Split) -> tuple[int, int] | None:
    """The height and width that a split's images share, as far as some of them tell."""
    step = max(len(split) // LOOK_AT, 1)
    sizes = {pixels_of(split, i).shape[:2] for i in range(0, len(split), step)}
    return sizes.pop() if len(sizes) == 1 else None


def pixels_of(split: Split, index: int) -> Array:
    """One image as uint8 [H, W, 3]."""
    return decode(split.images.read(index), split.images.where(index))


def load_pixels(split: Split, progress: Callable[[int], None] | None = None) -> Tensor | None:
    """Every image as bytes [N, 3, H, W], or None where one has another size than the first."""
    height, width = pixels_of(split, 0).shape[:2]
    pixels = torch.empty(len(split), 3, height, width, dtype=torch.uint8)
    with ThreadPoolExecutor() as pool:
        for i, image in enumerate(pool.map(lambda i: pixels_of(split, i), range(len(split)))):
            if image.shape[:2] != (height, width):
                pool.shutdown(wait=False, cancel_futures=True)
                return None
            pixels[i] = torch.from_numpy(image.copy()).permute(2, 0, 1)
            if progress is not None and i % 1000 == 0:
                progress(i)
    return pixels


@final
class ResidentFeed:
    """Training batches of a split that lies on the device; every batch is a function of its step.

    `prepare` puts the step and the orders of its epochs into tensors of fixed places, and `made` reads nothing else, so
    that it can be captured in a graph.
    """

    def __init__(
        self,
        pixels: Tensor,
        targets: Float[Tensor, "n k"],
        *,
        preprocess: Preprocess,
        augmentation: Augmentation,
        order: Order,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
    ) -> None:
        self.pixels, self.targets, self.preprocess = pixels, targets, preprocess
        self.augmentation, self.order, self.batch_size = augmentation, order, batch_size
        self.key = key(seed, "augment")
        device, part = pixels.device, batch_size // world
        self._offsets = torch.arange(part, device=device) + rank * part
        self._num_epochs = -(-batch_size // order.num) + 1  # that a batch can touch
        self._orders = torch.empty(self._num_epochs * order.num, dtype=torch.int64, device=device)
        self._first_epoch = -1
        self._epoch_start = torch.zeros((), dtype=torch.int64, device=device)
        self._start = torch.zeros((), dtype=torch.int64, device=device)
        self._tables = make_tables(augmentation, device)
        self.made = self.make  # or the compiled one

    def prepare(self, step: int) -> None:
        """Make ready for the batch of a step."""
        start = step * self.batch_size
        epoch = start // self.order.num
        if epoch != self._first_epoch:
            for i in range(self._num_epochs):
                part = self._orders[i * self.order.num : (i + 1) * self.order.num]
                part.copy_(self.order.epoch_order(epoch + i, self._orders.device))
            self._first_epoch = epoch
            self._epoch_start.fill_(epoch * self.order.num)
        self._start.fill_(start)

    def make(self) -> tuple[Float[Tensor, "b 3 h w"], Float[Tensor, "b k"]]:
        """The batch that was made ready: images and targets, augmented, normalised and mixed."""
        places = self._start + self._offsets
        indices = self._orders[places - self._epoch_start]
        aug, tables = self.augmentation, self._tables
        images = crop(aug, self.pixels[indices], places, self.key, self.preprocess.size, tables)
        images = augment(aug, images, places, self.key, tables)
        images = erase(aug, self.preprocess.normalise(images), places, self.key, tables)
        return mix(aug, images, self.targets[indices], places, self.key, tables)

    def batch(self, step: int) -> tuple[Float[Tensor, "b 3 h w"], Float[Tensor, "b k"]]:
        self.prepare(step)
        return self.made()

    def compile(self) -> None:
        """Make batches with one compiled function."""
        self.made = torch.compile(self.make, options=compile_options(self.pixels.device))

    def close(self) -> None:
        """Nothing is held open."""


def whole_pictures(pixels: Tensor, preprocess: Preprocess) -> Float[Tensor, "b 3 h w"]:
    """Evaluation's input from bytes [B, 3, H, W]: resized where the size differs, and normalised."""
    if tuple(pixels.shape[-2:]) == preprocess.size:
        return preprocess.normalise(pixels)
    mode = "bicubic" if preprocess.interpolation in ("bicubic", "lanczos") else "bilinear"
    resized = F.interpolate(pixels.float(), preprocess.size, mode=mode, antialias=True)
    return preprocess.normalise(resized.round().clamp(0, 255))
