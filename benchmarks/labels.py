"""How many labels that were changed, and pictures that do not belong, `vitlab data` finds among real photos.

    python benchmarks/labels.py FOLDER [--strangers FOLDER] [--num 3000] [--model vitlab/tiny]

Of photos of a folder of classes one in twenty gets the label of another class, drawn evenly; of another folder, photos
are put among them, five at a time, so that they are not each other's neighbours. Precision is the share of what is
suspected that was changed, recall the share of what was changed that is suspected; `first` is the precision among as
many as were changed, surest first, and AUROC the chance that a changed label is ranked before one that was not. Labels
that were wrong already count against us.
"""

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from sklearn.metrics import roc_auc_score

from timing import machine
from vitlab import api
from vitlab.core.random import key, permutation
from vitlab.data.contract import Array
from vitlab.data.decoding import find_images
from vitlab.data.open import open_data
from vitlab.evaluation.outliers import NEIGHBOURS, nearest
from vitlab.evaluation.suspects import held_out_probabilities, suspicions
from vitlab.inference.embed import Embedding, write_embedding

FEW = 5  # strangers at a time


def shares(found: set[int], planted: set[int]) -> str:
    right = len(found & planted)
    return f"{right / max(len(found), 1):.1%} | {right / len(planted):.1%}"


def wrong_labels(features: Array, labels: Array, num_classes: int, change: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    changed = rng.choice(len(labels), round(len(labels) * change), replace=False)
    given = labels.copy()
    given[changed] = (labels[changed] + rng.integers(1, num_classes, len(changed))) % num_classes
    start = time.perf_counter()
    held = held_out_probabilities(features, given, num_classes).probabilities
    seconds = time.perf_counter() - start
    found, planted = suspicions(held, given), set(changed.tolist())
    agreement = float((held.argmax(axis=1) == given).mean())
    own = held[np.arange(len(given)), given]
    others = held.copy()
    others[np.arange(len(given)), given] = -1
    auroc = roc_auc_score(np.isin(np.arange(len(given)), changed), others.max(axis=1) - own)
    first = {each.row for each in found[: len(planted)]}
    named = [each.predicted == labels[each.row] for each in found if each.row in planted]
    both = shares({each.row for each in found}, planted)
    print(
        f"| {seed} | {agreement:.1%} | {len(planted)} | {len(found)} | {both} |"
        f" {len(first & planted) / max(len(first), 1):.1%} | {auroc:.3f} | {np.mean(named):.1%} | {seconds:.1f} |"
    )


def strangers(features: Array, num: int) -> None:
    """The last `num` rows do not belong; five of them at a time are among the others."""
    own, others = features[:-num], features[-num:]
    aurocs, first, second = list[float](), 0, 0
    for start in range(0, num, FEW):
        some = np.concatenate([own, others[start : start + FEW]])
        distances = 1 - nearest(some, NEIGHBOURS)[0].mean(axis=1)
        aurocs.append(float(roc_auc_score(np.arange(len(some)) >= len(own), distances)))
        ranks = (-distances).argsort().argsort()[len(own) :] / len(some)
        first, second = first + int((ranks < 0.01).sum()), second + int((ranks < 0.05).sum())
    print("\n| strangers | AUROC (lowest, highest) | in the farthest 1% | 5% |\n|-|-|-|-|")
    print(f"| {num} | {np.mean(aurocs):.3f} ({min(aurocs):.2f}, {max(aurocs):.2f}) | {first} | {second} |")


def embedded(model: str, files: list[str], keep: Path | None) -> Array:
    """The features of these files, of which those that are kept are not computed again."""
    known: dict[str, Array] = {}
    if keep is not None and keep.exists():
        with np.load(keep, allow_pickle=False) as found:
            known = dict(zip(found["names"].tolist(), found["features"], strict=True))
    if missing := [file for file in files if file not in known]:
        known |= dict(zip(missing, api.embed(model, missing).features, strict=True))
        if keep is not None:
            write_embedding(Embedding(tuple(known), np.stack(list(known.values()))), keep)
    return np.stack([known[file] for file in files])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--strangers", type=Path, help="photos of something else")
    parser.add_argument("--num", type=int, default=3000, help="photos, evenly spread over the folder")
    parser.add_argument("--classes", type=int, help="so many classes, the first, of the folder's")
    parser.add_argument("--change", type=float, default=0.05)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--model", default="vitlab/tiny")
    parser.add_argument("--keep", type=Path, help="an .npz for the features, read where it is there")
    given = parser.parse_args()
    dataset = open_data(given.folder, val_fraction=0)
    split = dataset.splits["train"]
    num_classes = min(given.classes or dataset.num_classes, dataset.num_classes)
    there = np.flatnonzero(split.labels < num_classes)
    chosen = there[np.linspace(0, len(there) - 1, min(given.num, len(there))).astype(int)]
    files = [split.images.where(int(index)) for index in chosen]
    others: list[Path] = []
    if given.strangers is not None:
        found = find_images(given.strangers)
        others = [found[i] for i in permutation(key(0, "strangers"), len(found))[: len(files) // 50].tolist()]
    start = time.perf_counter()
    features = embedded(given.model, [*files, *map(str, others)], given.keep)
    seconds = time.perf_counter() - start
    print(f"{machine()}; {len(files):,} photos of {num_classes} classes, {given.model}: features in {seconds:.0f} s\n")
    print("| seed | agreement | changed | suspected | precision | recall | first | AUROC | right class | seconds |")
    print("|-|-|-|-|-|-|-|-|-|-|")
    for seed in range(given.seeds):
        wrong_labels(features[: len(files)], split.labels[chosen], num_classes, given.change, seed)
    if others:
        strangers(features, len(others))


if __name__ == "__main__":
    main()
