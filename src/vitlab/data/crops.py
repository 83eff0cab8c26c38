"""Copies that were cropped or mirrored, among pairs of images that something else, as their features, found alike.

Parts of a picture are set beside the whole of another: of every part of a coarse grid the 16 x 16 levels of grey, then
around the best one the edges are moved until 32 x 32 levels agree best.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Final

import numpy as np
from jaxtyping import Float, Int, UInt8
from numpy.lib.stride_tricks import sliding_window_view
from PIL import Image

from vitlab.core.errors import ImageError
from vitlab.data.contract import Array, DataSet
from vitlab.data.copies import FLAT, SIDE, SMALLEST, TOGETHER, Pair, Place
from vitlab.data.decoding import decode

KEPT: Final = 64  # px of a side that are kept of a picture
FINE: Final = 32  # px of a side that decide
NEAR: Final = 0.95  # the correlation of those from which two are copies: docs/results/data.md
PROMISING: Final = 0.8  # the same of 16 x 16 from which edges are moved
GRIDS: Final = (16, 17, 18, 19, 20, 22, 24)  # 16 of so many: parts of 100% to 67% of a side
STEPS: Final = (0.02, 0.01, 0.005)  # of a side, by which edges are moved
LEAST: Final = 0.6  # of a side that a part must have

Box = tuple[float, float, float, float]  # left, top, right, bottom, from 0 to 1


@dataclass(frozen=True)
class Match:
    """How much the best part of a picture is like another, whole or mirrored."""

    similarity: float
    box: Box
    mirrored: bool


def find_crops(
    dataset: DataSet,
    places: Sequence[Place],
    candidates: Int[Array, "m 2"],
    *,
    near: float = NEAR,
    progress: Callable[[int, int], None] | None = None,
) -> list[Pair]:
    """Each place that is a part of an earlier one, or the earlier of it, with the one that it is most like.

    `candidates` are numbers of places; what cannot be read, has no structure or is small is left out.
    """
    partners: dict[int, set[int]] = {}
    for one, other in candidates.tolist():
        partners.setdefault(one, set()).add(other)
        partners.setdefault(other, set()).add(one)
    rows = sorted(partners)
    parts = [rows[start : start + TOGETHER] for start in range(0, len(rows), TOGETHER)]
    pictures: dict[int, UInt8[Array, "64 64"]] = {}
    best: dict[int, tuple[float, Match, int]] = {}
    with ThreadPoolExecutor() as pool:
        for part in pool.map(lambda part: _read(dataset, places, part), parts):
            pictures.update(part)

        def compare(part: list[int]) -> list[tuple[int, int, Match]]:
            there = [row for row in part if row in pictures]
            found: list[tuple[int, int, Match]] = []
            for row in there:
                others = sorted(other for other in partners[row] if other in pictures)
                matches = parts_like(pictures[row], [pictures[other] for other in others], near)
                found += [(row, other, match) for other, match in zip(others, matches, strict=True) if match]
            return found

        for done, found in enumerate(pool.map(compare, parts), start=1):
            for row, other, match in found:
                earlier, later = min(row, other), max(row, other)
                if later not in best or match.similarity > best[later][0]:
                    best[later] = (match.similarity, match, earlier)
            if progress is not None:
                progress(min(done * TOGETHER, len(rows)), len(rows))
    return [
        Pair("mirrored" if match.mirrored else "cropped", similarity, places[earlier], places[later])
        for later, (similarity, match, earlier) in sorted(best.items())
    ]


def small(pixels: Array) -> UInt8[Array, "64 64"] | None:
    """What is kept of a picture; None where it is small or has no structure."""
    gray = Image.fromarray(pixels).convert("L").resize((KEPT, KEPT), Image.Resampling.BOX)
    levels = np.asarray(gray)
    return levels if min(pixels.shape[:2]) >= SMALLEST and levels.std() >= FLAT else None


def parts_like(
    picture: UInt8[Array, "64 64"], others: Sequence[UInt8[Array, "64 64"]], near: float = NEAR
) -> list[Match | None]:
    """For each of the others the part of the picture that is like it; None where none is."""
    if not others:
        return []
    windows = _windows(picture)
    source = Image.fromarray(picture)
    matches: list[Match | None] = []
    for other in others:
        found: list[Match] = []
        for mirrored in (False, True):
            whole = other[:, ::-1] if mirrored else other
            alike = windows @ _unit(_resized(Image.fromarray(whole), SIDE).ravel())
            place = int(alike.argmax())
            if alike[place] >= PROMISING:
                similarity, box = _moved(source, _unit(_resized(Image.fromarray(whole), FINE).ravel()), _boxes()[place])
                found.append(Match(min(similarity, 1.0), box, mirrored))
        best = max(found, key=lambda match: match.similarity, default=None)
        matches.append(best if best is not None and best.similarity >= near else None)
    return matches


def _read(dataset: DataSet, places: Sequence[Place], rows: Sequence[int]) -> dict[int, UInt8[Array, "64 64"]]:
    found: dict[int, UInt8[Array, "64 64"]] = {}
    for row in rows:
        images = dataset.splits[places[row].split].images
        try:
            pixels = decode(images.read(places[row].index), places[row].where, min_size=(2 * KEPT, 2 * KEPT))
        except ImageError:
            continue
        if (kept := small(pixels)) is not None:
            found[row] = kept
    return found


def _windows(picture: UInt8[Array, "64 64"]) -> Float[Array, "w 256"]:
    source, parts = Image.fromarray(picture), list[Array]()
    for width in GRIDS:
        for height in GRIDS:
            levels = np.asarray(source.resize((width, height), Image.Resampling.BOX), np.float32)
            parts.append(sliding_window_view(levels, (SIDE, SIDE)).reshape(-1, SIDE * SIDE))
    return _unit(np.concatenate(parts))


@cache
def _boxes() -> list[Box]:
    """The parts of `_windows`, in their order."""
    return [
        (left / width, top / height, (left + SIDE) / width, (top + SIDE) / height)
        for width in GRIDS
        for height in GRIDS
        for top in range(height - SIDE + 1)
        for left in range(width - SIDE + 1)
    ]


def _moved(source: Image.Image, target: Float[Array, "1024"], box: Box) -> tuple[float, Box]:
    """The box after its edges were moved as long as that helps, by ever smaller steps."""
    best = _likeness(source, box, target)
    for step in STEPS:
        better = True
        while better:
            better = False
            for edge in range(4):
                for change in (-step, step):
                    moved = list(box)
                    moved[edge] = min(max(moved[edge] + change, 0.0), 1.0)
                    if moved[2] - moved[0] < LEAST or moved[3] - moved[1] < LEAST:
                        continue
                    tried = moved[0], moved[1], moved[2], moved[3]
                    if (likeness := _likeness(source, tried, target)) > best + 1e-4:
                        best, box, better = likeness, tried, True
    return best, box


def _likeness(source: Image.Image, box: Box, target: Float[Array, "1024"]) -> float:
    left, top, right, bottom = (KEPT * edge for edge in box)
    part = _resized(source, FINE, (left, top, right, bottom))
    return float(_unit(part.ravel()) @ target)


def _resized(source: Image.Image, side: int, box: Box | None = None) -> Float[Array, "s s"]:
    return np.asarray(source.resize((side, side), Image.Resampling.BILINEAR, box=box), np.float32)


def _unit(levels: Float[Array, "*n v"]) -> Float[Array, "*n v"]:
    """Without their mean and at unit length; zeros where there is no structure."""
    centred = levels - levels.mean(axis=-1, keepdims=True)
    norm = np.linalg.norm(centred, axis=-1, keepdims=True)
    return np.where(norm >= FLAT * np.sqrt(levels.shape[-1]), centred / np.maximum(norm, 1e-12), 0.0).astype(np.float32)
