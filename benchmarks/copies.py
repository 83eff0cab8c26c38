"""How many planted copies `vitlab data` finds among real photos, and how many others it takes for copies.

    python benchmarks/copies.py FOLDER [--num 2000] [--model vitlab/tiny]

Of photos of a folder each twentieth gets a copy, by turns at half its size, as a JPEG of quality 30, without 2%, 5% and
10% of each side, without a fifth of its width, and mirrored. The first table is without features, the second with those
of --model. Pairs that were not planted are counted, and with --list named: photos have copies already.
"""

import argparse
import hashlib
import io
import random
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from PIL import Image, ImageOps
from torch import Tensor

from timing import machine
from vitlab import api
from vitlab.data.copies import Place
from vitlab.data.decoding import find_images, read_image
from vitlab.data.open import open_data
from vitlab.evaluation.contract import Subject
from vitlab.evaluation.examination import examine
from vitlab.evaluation.subject import subject_of


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
    parser.add_argument("--every", type=int, default=20, help="of so many photos one has a copy")
    parser.add_argument("--near", type=float, nargs="+", default=[0.9, 0.93, 0.95, 0.97, 0.98])
    parser.add_argument("--model", help="whose features show cropped copies")
    parser.add_argument("--list", action="store_true", help="name what was found and not planted")
    given = parser.parse_args()
    files = find_images(given.folder)
    random.Random(0).shuffle(files)
    files = files[: given.num]
    with tempfile.TemporaryDirectory() as name:
        planted = plant(files, given.every, Path(name))
        print(f"{machine()}; {len(files):,} photos, {len(planted):,} copies")
        dataset = open_data(name, val_fraction=0)
        for subject in (None, remembering(given.model)) if given.model else (None,):
            print(f"\nfeatures of {given.model if subject else 'no model'}\n")
            print("| near | " + " | ".join(KINDS) + " | not planted | seconds |\n|" + "-|" * (len(KINDS) + 3))
            for near in given.near:
                found = examine(dataset, subject, near=near)
                pairs = [(pair, stem(pair.first), stem(pair.second)) for pair in found.copies]
                right = {one for _, one, other in pairs if one == other}
                others = [each for each in pairs if each[1] != each[2]]
                of = {kind: [number for number, its in planted.items() if its == kind] for kind in KINDS}
                told = [f"{sum(number in right for number in of[kind])} of {len(of[kind])}" for kind in KINDS]
                print(f"| {near} | {' | '.join(told)} | {len(others)} | {found.seconds:.0f} |", flush=True)
                for pair, one, other in sorted(others, key=lambda each: each[0].similarity) if given.list else ():
                    print(f"  {pair.kind} {pair.similarity:.3f} {files[int(one)].name} {files[int(other)].name}")


def remembering(model: str) -> Subject:
    """The model's features, of each batch computed once."""
    subject, known = subject_of(api.load(model), name=model), dict[bytes, Tensor]()

    def features(images: Tensor) -> Tensor:
        key = hashlib.blake2b(images.numpy().tobytes()).digest()
        if key not in known:
            known[key] = subject.features(images)
        return known[key]

    return replace(subject, features=features)


def stem(place: Place) -> str:
    """The number of the photo that it is, or is a copy of."""
    return Path(place.where).stem.removesuffix(" copy")


def plant(files: list[Path], every: int, folder: Path) -> dict[str, str]:
    """The photos and their copies, in a folder; the kind of each photo's copy."""
    planted: dict[str, str] = {}
    for number, path in enumerate(files):
        photo = read_image(path)
        photo.save(folder / f"{number:06}.jpg", quality=90)
        if number % every == 0:
            kind = list(KINDS)[number // every % len(KINDS)]
            KINDS[kind](photo).save(folder / f"{number:06} copy.jpg", quality=90)
            planted[f"{number:06}"] = kind
    return planted


if __name__ == "__main__":
    main()
