"""Pictures that a generator makes: the same for the same seed, one by one and in a grid."""

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from vitlab.core.errors import Error
from vitlab.core.files import atomic_folder
from vitlab.data.contract import Array
from vitlab.models.contract import evaluating
from vitlab.models.generator import Generator

GRID = "grid.png"
BATCH = 64  # made together, always so many: the last bits of a picture must not depend on how many are asked for
SMALLEST = 64  # px; smaller pictures are enlarged in the grid, by whole factors


def sample(
    model: Generator, num: int, seed: int, progress: Callable[[int, int], None] | None = None
) -> UInt8[np.ndarray, "n h w 3"]:
    """So many pictures; the first ones of a seed are the same however many follow."""
    made: list[Array] = []
    device = next(model.parameters()).device
    with evaluating(model), torch.inference_mode():
        for start in range(0, num, BATCH):
            images = model(model.latents(seed, torch.arange(start, start + BATCH, device=device))).float()
            if not images.isfinite().all():
                raise Error("The model's output is not finite: its weights are damaged.")
            made.append(model.pixels(images).permute(0, 2, 3, 1).cpu().numpy())
            if progress is not None:
                progress(min(start + BATCH, num), num)
    return np.concatenate(made)[:num]


def grid(pictures: UInt8[np.ndarray, "n h w 3"]) -> UInt8[np.ndarray, "y x 3"]:
    """All in one picture, row by row, nearly as many rows as columns; white where there is none."""
    num, height, width, _ = pictures.shape
    times, columns = max(1, math.ceil(SMALLEST / max(height, width))), math.ceil(math.sqrt(num))
    rows, gap = math.ceil(num / columns), 2
    high, wide = height * times + gap, width * times + gap
    page = np.full((rows * high + gap, columns * wide + gap, 3), 255, np.uint8)
    for i, picture in enumerate(pictures):
        top, left = gap + i // columns * high, gap + i % columns * wide
        page[top : top + high - gap, left : left + wide - gap] = picture.repeat(times, axis=0).repeat(times, axis=1)
    return page


def check_folder(out: Path) -> None:
    """Refuse a name under which there is something else than pictures of an earlier call."""
    if out.is_dir() and any(out.iterdir()) and not (out / GRID).is_file():
        raise Error(f"{out} holds other things, which would be lost: choose another folder.")
    if out.exists() and not out.is_dir():
        raise Error(f"{out} is a file; give the name of a folder to write.")


def write_samples(pictures: UInt8[np.ndarray, "n h w 3"], out: Path) -> list[Path]:
    """The grid and each picture as PNG files in a folder that is there whole or not at all."""
    check_folder(out)
    digits = max(len(str(len(pictures) - 1)), 3)
    files = {f"{i:0{digits}}.png": picture for i, picture in enumerate(pictures)}
    with atomic_folder(out) as partial:
        for name, pixels in {GRID: grid(pictures), **files}.items():
            Image.fromarray(pixels).save(partial / name)
    return [out / name for name in (GRID, *files)]
