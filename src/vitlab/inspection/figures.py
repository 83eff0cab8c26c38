"""Figures from arrays, without pyplot. Their colours are told apart by colour-blind readers and in grey print."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import MaxNLocator
from PIL import Image

Array: TypeAlias = np.ndarray[Any, Any]

INK, FAINT = "#23272e", "#8a9099"  # words and axes; guides
BLUE, ORANGE = "#3a86c8", "#d1730a"  # dots; what is set beside them
KINDS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00")  # Okabe and Ito's
HEAT = "cividis"  # even steps of lightness, the same to colour-blind eyes
STYLE: dict[Any, Any] = {
    "font.family": ["DejaVu Sans"],
    "font.size": 9.0,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.linewidth": 0.7,
    "axes.titlesize": 9.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "svg.fonttype": "none",  # words stay words, to be searched and read aloud
    "svg.hashsalt": "vitlab",  # the same figure is the same file
    "text.parse_math": False,
}


@mpl.rc_context(STYLE)
def filters_figure(pictures: Array) -> Figure:
    """Pictures [k, P, P, 3] with values from 0 to 1, in rows of seven."""
    columns = min(7, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    figure = _figure(0.85 * columns, 0.85 * rows)
    for place, picture in enumerate(pictures):
        axes = figure.add_subplot(rows, columns, place + 1)
        axes.imshow(picture, vmin=0, vmax=1, interpolation="nearest")
        _bare(axes)
    return figure


@mpl.rc_context(STYLE)
def positions_figure(similarity: Array) -> Figure:
    """[rows, columns, rows, columns]: for each place, how alike its position is to all others."""
    rows, columns = similarity.shape[:2]
    gap = max(1, round(max(rows, columns) / 10))
    low = min(float(similarity.min()), 0.0)
    figure = _figure(5.2, 4.6 * max(rows / columns, 0.4) + 0.3)
    axes = figure.add_subplot()
    canvas = _mosaic(similarity[..., None], gap, np.nan)[..., 0]
    drawn = axes.imshow(canvas, cmap=HEAT, vmin=low, vmax=1, interpolation="nearest")
    axes.set_xlabel("column of the patch")
    axes.set_ylabel("row of the patch")
    for axis, count, size in ((axes.xaxis, columns, columns), (axes.yaxis, rows, rows)):
        step = math.ceil(count / 14)
        numbers = np.arange(0, count, step)
        axis.set_ticks(numbers * (size + gap) + (size - 1) / 2, [str(number + 1) for number in numbers])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _color_bar(figure, drawn, axes, "how alike (cosine)")
    return figure


@mpl.rc_context(STYLE)
def distance_figure(distance: Mapping[int, Array], equal: float | None = None) -> Figure:
    """Mean attention distance by depth, a dot per head, as the paper plots it; `equal` is that of equal attention."""
    return _by_depth(distance, "mean attention distance (pixels)", equal, "equal attention to all patches")


@mpl.rc_context(STYLE)
def entropy_figure(entropy: Mapping[int, Array], equal: float | None = None) -> Figure:
    """Attention entropy by depth, a dot per head; `equal` is that of equal attention."""
    return _by_depth(entropy, "attention entropy (bits)", equal, "equal attention to all tokens")


@mpl.rc_context(STYLE)
def rollout_figure(pixels: Array, maps: Mapping[str, Array]) -> Figure:
    """A picture [H, W, 3], and beside it for each title the same under its map [rows, columns], from least to most."""
    factor = math.ceil(96 / max(pixels.shape[:2]))  # a tiny picture keeps its squares under a smooth map
    pixels = pixels.repeat(factor, axis=0).repeat(factor, axis=1)
    height, width = pixels.shape[:2]
    figure = _figure(2.3 * (1 + len(maps)), 2.3 * min(height / width, 2.5) + 0.3)
    panels = {"the picture": pixels} | {title: heated(pixels, values) for title, values in maps.items()}
    for place, (title, panel) in enumerate(panels.items()):
        axes = figure.add_subplot(1, len(panels), place + 1)
        axes.imshow(panel, interpolation="nearest" if factor > 1 else "antialiased")
        axes.set_title(title, fontsize=12)  # two such figures stand side by side in a report
        _bare(axes)
    return figure


@mpl.rc_context(STYLE)
def pictures_figure(pictures: Sequence[tuple[str, Array]]) -> Figure:
    """Pictures [H, W, 3] of one size side by side, each under its title."""
    height, width = pictures[0][1].shape[:2]
    figure = _figure(2.3 * len(pictures), 2.3 * min(height / width, 2.5) + 0.3)
    for place, (title, picture) in enumerate(pictures):
        axes = figure.add_subplot(1, len(pictures), place + 1)
        axes.imshow(picture, interpolation="nearest" if max(height, width) < 96 else "antialiased")
        axes.set_title(title)
        _bare(axes)
    return figure


@mpl.rc_context(STYLE)
def heads_figure(pixels: Array, heads: Mapping[int, Array]) -> Figure:
    """A column per layer, a row per head: each map [heads, rows, columns] over the picture, to its own most."""
    rows, columns = max(len(maps) for maps in heads.values()), len(heads)
    side = max(8, min(56, 1200 // max(rows, columns)))
    scale = side / max(pixels.shape[:2])
    height, width = (max(1, round(scale * length)) for length in pixels.shape[:2])
    small = np.asarray(Image.fromarray(pixels).resize((width, height), Image.Resampling.BOX))
    gap = max(1, side // 14)
    tiles = np.zeros((rows, columns, height, width, 4))
    for column, maps in enumerate(heads.values()):
        for row, values in enumerate(maps):
            tiles[row, column, ..., :3] = heated(small, values, low=0.0) / 255
            tiles[row, column, ..., 3] = 1
    cell = min(0.9, 8.4 / columns)
    figure = _figure(cell * columns + 0.7, cell * rows * height / width + 0.6)
    axes = figure.add_subplot()
    axes.imshow(_mosaic(tiles, gap, 0), interpolation="none")  # as it is, not enlarged, in an SVG
    axes.set_xticks(np.arange(columns) * (width + gap) + (width - 1) / 2, [str(layer) for layer in heads])
    axes.set_yticks(np.arange(rows) * (height + gap) + (height - 1) / 2, [str(row + 1) for row in range(rows)])
    axes.set_xlabel("layer")
    axes.set_ylabel("head")
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure


@mpl.rc_context(STYLE)
def last_layer_figure(pixels: Array, maps: Array) -> Figure:
    """A picture, and beside it the same under the map of each head of one layer, [heads, rows, columns]."""
    height, width = pixels.shape[:2]
    panels = [("the picture", pixels)]
    panels += [(f"head {number}", heated(pixels, values, low=0.0)) for number, values in enumerate(maps, start=1)]
    rows = math.ceil(len(panels) / 7)
    columns = math.ceil(len(panels) / rows)
    cell = 8.0 / max(columns, 4)
    figure = _figure(cell * columns, rows * (cell * min(height / width, 2.5) + 0.25))
    for place, (title, panel) in enumerate(panels, start=1):
        axes = figure.add_subplot(rows, columns, place)
        axes.imshow(panel, interpolation="nearest" if max(height, width) < 96 else "antialiased")
        axes.set_title(title)
        _bare(axes)
    return figure


@mpl.rc_context(STYLE)
def kinds_figure(pictures: Sequence[Array], maps: Array) -> Figure:
    """Pictures [H, W, 3] of one size, and below each (of one, beside it) its patches in the colours of their kinds."""
    alone = len(pictures) == 1
    columns = 2 if alone else min(len(pictures), 4)
    rows = 1 if alone else 2 * math.ceil(len(pictures) / columns)
    height, width = pictures[0].shape[:2]
    figure = _figure(2.0 * columns, rows * 2.0 * min(height / width, 2.5) + 0.1)
    for number, (pixels, kinds) in enumerate(zip(pictures, maps, strict=True)):
        first = 2 * (number // columns) * columns + number % columns + 1
        for place, panel in ((first, pixels), (first + (1 if alone else columns), painted(pixels, kinds))):
            axes = figure.add_subplot(rows, columns, place)
            axes.imshow(panel, interpolation="nearest" if max(height, width) < 96 else "antialiased")
            _bare(axes)
    return figure


@mpl.rc_context(STYLE)
def similarity_figure(similarity: Array, other: str | None = None) -> Figure:
    """CKA between layers, the embedding as layer 0; `other` names the model whose layers go across."""
    rows, columns = similarity.shape
    figure = _figure(4.4, min(3.7 * max(rows / columns, 0.4), 8) + 0.2)
    axes = figure.add_subplot()
    drawn = axes.imshow(similarity, cmap=HEAT, vmin=0, vmax=1, origin="lower", interpolation="nearest")
    axes.set_xlabel(
        "layer (0: before the first)" if other is None else "layer of the other model (0: before the first)"
    )
    axes.set_ylabel("layer")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(integer=True, nbins=13))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    _color_bar(figure, drawn, axes, "how alike (CKA)")
    return figure


def heated(pixels: Array, values: Array, low: float | None = None) -> Array:
    """A picture [H, W, 3] in grey under the colours of a map, which run from its least value, or `low`, to its most."""
    gray = np.asarray(Image.fromarray(pixels).convert("L"), dtype=np.float64)[..., None]
    colors = mpl.colormaps[HEAT](_enlarged(_unit(values, low), (pixels.shape[0], pixels.shape[1])))[..., :3]
    return np.rint(0.35 * gray + 0.65 * 255 * colors).astype(np.uint8)


def painted(pixels: Array, kinds: Array) -> Array:
    """A picture [H, W, 3] in grey under the colours of its patches' kinds [rows, columns]."""
    gray = np.asarray(Image.fromarray(pixels).convert("L"), dtype=np.float64)[..., None]
    colors = np.array([to_rgb(KINDS[number % len(KINDS)]) for number in range(int(kinds.max()) + 1)])
    down, across = (np.arange(side) * count // side for side, count in zip(pixels.shape[:2], kinds.shape, strict=True))
    return np.rint(0.3 * gray + 0.7 * 255 * colors[kinds[down][:, across]]).astype(np.uint8)


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width, height), layout="constrained")


def _by_depth(values: Mapping[int, Array], label: str, guide: float | None, guide_label: str) -> Figure:
    layers = list(values)
    figure = _figure(max(4.8, min(6.4, 1.6 + 0.33 * len(layers))), 3.4)
    axes = figure.add_subplot()
    for layer, heads in values.items():
        axes.plot([layer] * len(heads), heads, "o", color=BLUE, alpha=0.75, markersize=5, markeredgewidth=0, zorder=3)
    axes.plot(layers, [float(np.mean(heads)) for heads in values.values()], color=ORANGE, linewidth=1.4, zorder=2)
    axes.plot([], [], "o", color=BLUE, alpha=0.75, markersize=5, markeredgewidth=0, label="a head")
    axes.plot([], [], color=ORANGE, linewidth=1.4, label="mean of the layer")
    if guide is not None:
        axes.axhline(guide, color=FAINT, linewidth=0.9, linestyle=(0, (4, 3)), zorder=1, label=guide_label)
    axes.set_xlabel("network depth (layer)")
    axes.set_ylabel(label)
    axes.set_ylim(0, 1.08 * max(guide or 0, *(float(np.max(heads)) for heads in values.values()), 1e-6))
    axes.set_xlim(min(layers) - 0.6, max(layers) + 0.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=12))
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=8, handlelength=1.4, columnspacing=1.4)
    return figure


def _mosaic(tiles: Array, gap: int, fill: float) -> Array:
    """[rows, columns, h, w, k] as one picture with gaps between the tiles."""
    rows, columns, height, width, depth = tiles.shape
    canvas = np.full((rows, height + gap, columns, width + gap, depth), fill, dtype=np.float64)
    canvas[:, :height, :, :width] = tiles.transpose(0, 2, 1, 3, 4)
    return canvas.reshape(rows * (height + gap), columns * (width + gap), depth)[: -gap or None, : -gap or None]


def _unit(values: Array, low: float | None = None) -> Array:
    """From 0 at the least, or at `low`, to 1 at the most; 0 where all are alike."""
    least = float(values.min()) if low is None else low
    spread = float(values.max()) - least
    return (values - least) / spread if spread > 0 else np.zeros_like(values)


def _enlarged(values: Array, size: tuple[int, int]) -> Array:
    """Smoothly between the centres of patches."""
    image = Image.fromarray(np.asarray(values, dtype=np.float32))
    return np.asarray(image.resize((size[1], size[0]), Image.Resampling.BILINEAR)).clip(0, 1)


def _bare(axes: Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(False)


def _color_bar(figure: Figure, drawn: AxesImage, axes: Axes, label: str) -> None:
    bar = figure.colorbar(drawn, ax=axes, shrink=0.8, aspect=26, pad=0.02)
    bar.set_label(label)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=2)
