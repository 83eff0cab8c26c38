"""Speed of loading photos for training, beside timm's loader and torchvision's transforms, in one run.

    python benchmarks/loading.py                       about two minutes on two idle cores
    python benchmarks/loading.py --rounds 3 --batches 6

JPEG files of 500 x 375 pixels, the random resized crop of timm and torchvision (8% to 100% of the area) to 224 px and a
flip, two workers, bilinear; the consumer holds normalised float32 batches. A round starts each loader anew, lets it run
in, and times the batches after that. A ratio above 1 means that vitlab is faster: the median of the paired rounds.

timm's loader normalises in the consumer; torchvision's transforms do so in the workers, as documented, or, in a second
variant, on the batch. vitlab's training on a CPU normalises into a batch that it keeps, which saves the pages of a new
one; a third variant of torchvision's does the same by vitlab's function. torchvision's own JPEG decoder does not load
beside every torch: Pillow decodes, as in timm.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Literal, TypeAlias

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from timing import Timing, machine
from vitlab.core.peers import import_timm, import_torchvision
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.data.augmentation import Augmentation
from vitlab.data.contract import Split
from vitlab.data.jpeg import decoder_name
from vitlab.data.loading.loader import Loader
from vitlab.data.loading.order import Order
from vitlab.data.sources.files import Files
from vitlab.data.streams import StreamPlan, View

SIZE = 224
LENGTH = 10**6  # of the peers' epochs: none ends while it is timed
Batches: TypeAlias = Callable[[list[Path], int, int, ExitStack], Generator[Tensor]]


def make_photos(folder: Path, num: int) -> list[Path]:
    """Photos as data sets have them: parts of scikit-learn's two, in varied light, with a camera's noise, as JPEG."""
    from sklearn.datasets import load_sample_images

    photos = [Image.fromarray(pixels) for pixels in load_sample_images().images]
    draw = np.random.default_rng(0)
    paths: list[Path] = []
    for number in range(num):
        photo = photos[number % len(photos)]
        width, height = (500, 375) if number % 4 else (375, 500)
        share = draw.uniform(0.7, 1.0) * min(photo.width / width, photo.height / height)
        part_width, part_height = int(width * share), int(height * share)
        left = int(draw.integers(photo.width - part_width + 1))
        top = int(draw.integers(photo.height - part_height + 1))
        part = photo.resize(
            (width, height), Image.Resampling.BICUBIC, (left, top, left + part_width, top + part_height)
        )
        pixels = np.asarray(part) * draw.uniform(0.8, 1.2) + draw.normal(0, 4, (height, width, 1))
        paths.append(folder / f"{number:04}.jpg")
        Image.fromarray(pixels.clip(0, 255).astype(np.uint8)).save(paths[-1], quality=int(draw.integers(90, 98)))
    return paths


class Photos(Dataset[Any]):
    """The files over and over, decoded by Pillow: what timm's and torchvision's own data sets do with a file."""

    def __init__(self, paths: list[Path], transform: Callable[[Image.Image], Any] | None = None) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path = self.paths[index % len(self.paths)]
        with path.open("rb") as file:
            image = Image.open(file).convert("RGB")
        assert self.transform is not None
        return self.transform(image), index % 10


def ours(paths: list[Path], batch: int, workers: int, stack: ExitStack) -> Generator[Tensor]:
    names = [path.name for path in paths]
    images = Files(paths[0].parent, names, [path.stat().st_size for path in paths])
    split = Split.labelled(images, np.arange(len(paths)) % 10)
    view = View(Augmentation(crop_area=(0.08, 1.0)), (SIZE, SIZE))
    loader = Loader(StreamPlan("train", split, Order(0, len(paths)), batch, (view,)), num_workers=workers, seed=0)
    stack.enter_context(loader)
    normalize = into_one(batch)
    for loaded in loader:
        yield normalize(loaded.views[0])


def into_one(batch: int) -> Callable[[Tensor], Tensor]:
    """Normalisation into one batch that is kept, as vitlab trains on a CPU."""
    preprocess = Preprocess(size=(SIZE, SIZE), mean=IMAGENET_MEAN, std=IMAGENET_STD)
    out = torch.empty(batch, 3, SIZE, SIZE)
    return lambda images: preprocess.normalize(images, out)


def timms(paths: list[Path], batch: int, workers: int, stack: ExitStack) -> Generator[Tensor]:
    import_timm()
    from timm.data.loader import create_loader

    create: Any = create_loader
    loader = create(
        Photos(paths),
        input_size=(3, SIZE, SIZE),
        batch_size=batch,
        is_training=True,
        color_jitter=None,
        interpolation="bilinear",
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        num_workers=workers,
        device=torch.device("cpu"),
        persistent_workers=False,
    )
    batches = iter(loader)
    stack.callback(_end_workers, loader.loader)
    for images, _ in batches:
        yield images


def torchvisions(
    normalized: Literal["in workers", "as a batch", "into one"],
) -> Batches:
    def batches(paths: list[Path], batch: int, workers: int, stack: ExitStack) -> Generator[Tensor]:
        import_torchvision()
        from torchvision.transforms import v2

        crop = [v2.PILToTensor(), v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()]
        steps = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(IMAGENET_MEAN, IMAGENET_STD, inplace=True)]
        transform = v2.Compose([*crop, *steps] if normalized == "in workers" else crop)
        loader = DataLoader(Photos(paths, transform), batch, shuffle=True, num_workers=workers)
        stack.callback(_end_workers, loader)
        finish: Callable[[Tensor], Tensor] = v2.Compose(steps) if normalized == "as a batch" else into_one(batch)
        for images, _ in loader:
            yield images if normalized == "in workers" else finish(images)

    return batches


def _end_workers(loader: Any) -> None:
    iterator = getattr(loader, "_iterator", None)
    if iterator is not None:
        iterator._shutdown_workers()


CANDIDATES: dict[str, Batches] = {
    "vitlab": ours,
    "timm": timms,
    "torchvision v2": torchvisions("in workers"),
    "torchvision v2, normalised as a batch": torchvisions("as a batch"),
    "torchvision v2, normalised as vitlab does": torchvisions("into one"),
}


def measure(name: str, paths: list[Path], batch: int, workers: int, num_batches: int) -> tuple[float, float]:
    """Wall and processor seconds of `num_batches`, after as many as are read ahead, and two more, have passed."""
    run_in = 2 * workers + 2
    with ExitStack() as stack, closing(CANDIDATES[name](paths, batch, workers, stack)) as batches:
        for images in itertools.islice(batches, run_in):
            assert images.shape == (batch, 3, SIZE, SIZE)
            assert images.dtype == torch.float32
        start, used = time.perf_counter(), processor_seconds()
        for _ in itertools.islice(batches, num_batches):
            pass
        return time.perf_counter() - start, processor_seconds() - used


def processor_seconds() -> float:
    """What this process and its workers have used so far, by Linux's account; 0 elsewhere."""
    used = 0
    for process in [os.getpid(), *(child.pid for child in multiprocessing.active_children())]:
        status = Path(f"/proc/{process}/stat")
        if status.exists():
            fields = status.read_text().rsplit(")", 1)[1].split()
            used += int(fields[11]) + int(fields[12])  # utime and stime: proc(5)
    return used / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--photos", type=int, default=256)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--batches", type=int, default=16, help="that are timed in a round")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the workers take the cores
    timings: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    used: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    num = arguments.batch * arguments.batches
    with tempfile.TemporaryDirectory() as folder:
        paths = make_photos(Path(folder), arguments.photos)
        size = sum(path.stat().st_size for path in paths) / len(paths)
        order, shuffle = list(CANDIDATES), random.Random(0).shuffle
        for _ in range(arguments.rounds):
            shuffle(order)
            for name in order:
                wall, processor = measure(name, paths, arguments.batch, arguments.workers, arguments.batches)
                timings[name].append(wall)
                used[name].append(processor)
            lrs = (f"{name} {num / timings[name][-1]:.0f}" for name in CANDIDATES)
            print(", ".join(lrs), file=sys.stderr, flush=True)
    print(
        f"{machine()}, {decoder_name()}; {arguments.workers} workers, {arguments.photos} files of {size / 1e3:.0f} kB,"
    )
    print(f"{arguments.rounds} interleaved rounds of {arguments.batches} batches of {arguments.batch}.\n")
    print("| loader | images/s | vitlab is faster by | processor ms per image |\n|-|-|-|-|")
    mine = Timing(timings["vitlab"])
    for name in CANDIDATES:
        timing = Timing(timings[name])
        middle, low, high = mine.speed_over(timing)
        ratio = "" if name == "vitlab" else f"{middle:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {name} | {num / timing.median:.0f} | {ratio} | {1e3 * statistics.median(used[name]) / num:.2f} |")


if __name__ == "__main__":
    main()
