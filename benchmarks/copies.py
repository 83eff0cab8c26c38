"""How many planted copies `vitlab data` finds among real photos, and how many others it takes for copies.

    python benchmarks/copies.py FOLDER [--num 2000]

Of photos of a folder each twentieth gets a copy, by turns at half its size, as a JPEG of quality 30, without 2% and
without 5% of each side, and mirrored, which is not looked for. Copies that are there already count as wrong ones.
"""

import argparse
import io
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from PIL import Image, ImageOps

from timing import machine
from vitlab.data.copies import find_copies
from vitlab.data.decoding import find_images, read_image
from vitlab.data.open import open_data

EACH = 20


def trimmed(photo: Image.Image, share: float) -> Image.Image:
    x, y = round(photo.width * share), round(photo.height * share)
    return photo.crop((x, y, photo.width - x, photo.height - y))


def compressed(photo: Image.Image) -> Image.Image:
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=30)
    return Image.open(file)


KINDS: dict[str, Callable[[Image.Image], Image.Image]] = {
    "half the size": lambda photo: photo.resize((photo.width // 2, photo.height // 2)),
    "JPEG of quality 30": compressed,
    "2% off each side": lambda photo: trimmed(photo, 0.02),
    "5% off each side": lambda photo: trimmed(photo, 0.05),
    "mirrored": ImageOps.mirror,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=2000, help="photos")
    parser.add_argument("--near", type=float, nargs="+", default=[0.95, 0.97, 0.98, 0.99])
    given = parser.parse_args()
    files = find_images(given.folder)
    random.Random(0).shuffle(files)
    planted: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for number, path in enumerate(files[: given.num]):
            photo = read_image(path)
            photo.save(folder / f"{number:06}.jpg", quality=90)
            if number % EACH == 0:
                kind = list(KINDS)[number // EACH % len(KINDS)]
                KINDS[kind](photo).save(folder / f"{number:06} copy.jpg", quality=90)
                planted[f"{number:06}"] = kind
        dataset = open_data(folder, val_fraction=0)
        print(f"{machine()}; {len(files[: given.num]):,} photos, {len(planted):,} copies\n")
        print("| near | " + " | ".join(KINDS) + " | wrong | seconds |\n|" + "-|" * (len(KINDS) + 3))
        for near in given.near:
            start = time.perf_counter()
            pairs = find_copies(dataset, near=near)
            seconds = time.perf_counter() - start
            stems = [{Path(place.where).stem.removesuffix(" copy") for place in (p.first, p.second)} for p in pairs]
            right = [next(iter(stem)) for stem in stems if len(stem) == 1]
            of = {kind: [number for number, its in planted.items() if its == kind] for kind in KINDS}
            found = [f"{sum(number in right for number in of[kind])} of {len(of[kind])}" for kind in KINDS]
            print(f"| {near} | {' | '.join(found)} | {len(pairs) - len(right)} | {seconds:.1f} |")


if __name__ == "__main__":
    main()
