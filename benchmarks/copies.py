"""How many planted copies `vitlab data` finds among real photos, and how many others it takes for copies.

    python benchmarks/copies.py FOLDER [--num 2000] [--model vitlab/tiny]

Of photos of a folder each twentieth gets a copy, by turns at half its size, as a JPEG of quality 30, without 2%, 5% and
10% of each side, without a fifth of its width, and mirrored. With --model the second line of each pair is with the
features of that model. Pairs that were not planted are counted, and with --list named: photos have copies already.
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
from vitlab import api
from vitlab.data.decoding import find_images, read_image

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
    "10% off each side": lambda photo: trimmed(photo, 0.1),
    "a fifth off the left": lambda photo: photo.crop((photo.width // 5, 0, photo.width, photo.height)),
    "mirrored": ImageOps.mirror,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=2000, help="photos")
    parser.add_argument("--near", type=float, nargs="+", default=[0.9, 0.95, 0.97])
    parser.add_argument("--model", help="whose features show cropped copies")
    parser.add_argument("--list", action="store_true", help="name what was found and not planted")
    given = parser.parse_args()
    files = find_images(given.folder)
    random.Random(0).shuffle(files)
    files = files[: given.num]
    with tempfile.TemporaryDirectory() as name:
        planted = plant(files, Path(name))
        print(f"{machine()}; {len(files):,} photos, {len(planted):,} copies\n")
        print("| near | features | " + " | ".join(KINDS) + " | not planted | seconds |\n|" + "-|" * (len(KINDS) + 4))
        for near in given.near:
            for model in (None, given.model) if given.model else (None,):
                start = time.perf_counter()
                pairs = api.examine_data(name, model, near=near).copies
                seconds = time.perf_counter() - start
                stems = [[Path(place.where).stem.removesuffix(" copy") for place in (p.first, p.second)] for p in pairs]
                right = {one for one, other in stems if one == other}
                of = {kind: [number for number, its in planted.items() if its == kind] for kind in KINDS}
                found = [f"{sum(number in right for number in of[kind])} of {len(of[kind])}" for kind in KINDS]
                wrong = [(p, pair) for p, pair in zip(pairs, stems, strict=True) if pair[0] != pair[1]]
                print(f"| {near} | {model or 'none'} | {' | '.join(found)} | {len(wrong)} | {seconds:.1f} |")
                for pair, (one, other) in sorted(wrong, key=lambda each: each[0].similarity) if given.list else ():
                    print(f"{pair.kind} {pair.similarity:.3f} {files[int(one)]} {files[int(other)]}")


def plant(files: list[Path], folder: Path) -> dict[str, str]:
    """The photos and their copies, in a folder; the kind of each photo's copy."""
    planted: dict[str, str] = {}
    for number, path in enumerate(files):
        photo = read_image(path)
        photo.save(folder / f"{number:06}.jpg", quality=90)
        if number % EACH == 0:
            kind = list(KINDS)[number // EACH % len(KINDS)]
            KINDS[kind](photo).save(folder / f"{number:06} copy.jpg", quality=90)
            planted[f"{number:06}"] = kind
    return planted


if __name__ == "__main__":
    main()
