"""Small pictures as text: coloured half-blocks on a terminal, shades of characters elsewhere."""

import sys
from typing import Any, TypeAlias

import numpy as np
from rich.console import Console
from rich.text import Text

Block: TypeAlias = list[Text]  # lines of one width
SHADES = " .:-=+*#%@"


def in_color() -> bool:
    """Whether standard output is a terminal that shows colours."""
    return Console().color_system is not None and sys.stdout.isatty()


def picture(pixels: np.ndarray[Any, Any]) -> Block:
    """Bytes [H, W, 3], a character for two rows of one pixel."""
    if len(pixels) % 2:
        pixels = pixels[:-1]
    if not in_color():
        gray = pixels.reshape(len(pixels) // 2, 2, -1, 3).mean(axis=(1, 3)) / 255
        return [Text("".join(SHADES[min(int(v * len(SHADES)), len(SHADES) - 1)] for v in row)) for row in gray]
    return [
        Text.assemble(*(("▀", f"rgb({_commas(a)}) on rgb({_commas(b)})") for a, b in zip(upper, lower, strict=True)))
        for upper, lower in zip(pixels[::2].tolist(), pixels[1::2].tolist(), strict=True)
    ]


def heat(values: np.ndarray[Any, Any], low: float, high: float) -> Block:
    """[H, W] in `low`..`high`, dark to bright in colour, or 0 to 9; two characters a place, so that it is square."""
    unit = ((values - low) / max(high - low, 1e-12)).clip(0, 1)
    if not in_color():
        return [Text("".join(f"{min(int(v * 10), 9)} " for v in row)) for row in unit]
    ramp = np.array([(20, 11, 52), (132, 32, 107), (229, 92, 48), (246, 215, 70)])  # inferno, four stops
    place = unit * (len(ramp) - 1)
    left = np.minimum(place.astype(int), len(ramp) - 2)
    part = (place - left)[..., None]
    colors = (ramp[left] * (1 - part) + ramp[left + 1] * part).astype(int).tolist()
    return [Text.assemble(*(("  ", f"on rgb({_commas(color)})") for color in row)) for row in colors]


def cut(pixels: np.ndarray[Any, Any], patch: int) -> np.ndarray[Any, Any]:
    """[H, W, 3] with a character of background between its patches: one pixel across, two down."""
    height, width = pixels.shape[0] // patch, pixels.shape[1] // patch
    canvas = np.zeros((height, patch + 2, width, patch + 1, 3), dtype=np.uint8)
    canvas[:, :patch, :, :patch] = pixels.reshape(height, patch, width, patch, 3)
    return canvas.reshape(height * (patch + 2), width * (patch + 1), 3)[:-2, :-1]


def show(*blocks: Block) -> None:
    """Blocks side by side on standard output."""
    for i in range(max(map(len, blocks))):
        line = Text("  ")
        for block in blocks:
            line.append_text(block[i] if i < len(block) else Text(" " * len(block[0])))
            line.append("   ")
        if in_color():
            Console().print(line, soft_wrap=True)
        else:
            print(line.plain.rstrip())


def _commas(color: list[int]) -> str:
    return ",".join(map(str, color))
