"""What was found, as files: figures in PNG and SVG, the numbers in `inspect.json`, and all of it in `inspect.html`."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

from vitlab.core.files import atomic_file
from vitlab.core.reading import parse_json, read_text
from vitlab.data.places import evenly
from vitlab.inspection import captions, figures
from vitlab.inspection.distance import patch_distances
from vitlab.inspection.document import Panel
from vitlab.inspection.drawing import SUFFIXES, draw, inline_svg, save_drawing
from vitlab.inspection.examine import Findings
from vitlab.inspection.filters import Components, as_pixels, smoothness
from vitlab.inspection.kinds import Kinds
from vitlab.inspection.page import page
from vitlab.inspection.positions import nearness, neighbourhood
from vitlab.inspection.view import Array, View

MOST_LAYERS = 12  # columns of the heads' figure
VIEW_FIGURES = ("attention", "last-layer", "heads", "predicted")
MODEL_FIGURES = ("kinds", "distance", "entropy", "similarity", "similarity-other", "filters", "positions")


def write(findings: Findings, folder: Path) -> list[Path]:
    """All files, in a folder that may be there already; figures of an earlier inspection go, and the page is last."""
    files: list[Path] = []

    def panel(name: str, figure: Figure, caption: str) -> Panel:
        drawing = draw(figure)
        files.extend(save_drawing(drawing, folder / name))
        return Panel(inline_svg(drawing.svg, caption), caption)

    views = [
        (view, [panel(f"{name}-{number}", figure, caption) for name, figure, caption in view_figures(view)])
        for number, view in enumerate(findings.views, start=1)
    ]
    sections = [(title, panel(name, figure, caption)) for title, name, figure, caption in model_figures(findings)]
    for file in earlier_figures(folder):
        if file not in files:
            file.unlink(missing_ok=True)
    _write_text(folder / "inspect.json", json.dumps(numbers(findings), indent=2, allow_nan=False) + "\n")
    _write_text(folder / "inspect.html", page(findings, views, sections))
    return [*files, folder / "inspect.json", folder / "inspect.html"]


def earlier_figures(folder: Path) -> Iterator[Path]:
    """The figures that belong to the `inspect.json` in a folder; none where that is not ours."""
    try:
        pictures = parse_json(read_text(folder / "inspect.json"))["pictures"]
        count = len(pictures)
    except (OSError, ValueError, KeyError, TypeError):
        return
    views = (f"{name}-{number}" for name in VIEW_FIGURES for number in range(1, count + 1))
    for name in (*views, *MODEL_FIGURES):
        yield from (folder / f"{name}{suffix}" for suffix in SUFFIXES)


def numbers(findings: Findings) -> dict[str, Any]:
    """What `inspect.json` holds: plain values, layers from 1, null where there is no number."""
    filters, positions, kinds = findings.filters, findings.positions, findings.kinds
    return {
        "model": findings.model,
        "image_size": list(findings.image_size),
        "grid": list(findings.grid),
        "patch_pixels": list(findings.patch),
        "num_prefix": findings.num_prefix,
        "averages": {"data": findings.data, "images": findings.num_images},
        "pictures": [
            {
                "name": view.name,
                "classes": [{"label": label, "probability": share} for label, share in view.classes],
                "rollout": _plain(view.rollout),
                "gradient_rollout": _plain(view.gradient),
            }
            for view in findings.views
        ],
        "kinds": None if kinds is None else _kinds(kinds),
        "distance_pixels": {str(layer): _plain(heads) for layer, heads in findings.distance.items()},
        "entropy_bits": {str(layer): _plain(heads) for layer, heads in findings.entropy.items()},
        "similarity": _plain(findings.similarity),
        "other_model": findings.other,
        "other_similarity": _plain(findings.other_similarity),
        "filters_explained": None if filters is None else _plain(filters.explained.numpy()),
        "filters_smoothness": None if filters is None else _plain(_smoothness(filters)),
        "positions": None if positions is None else neighbourhood(torch.from_numpy(positions)),
        "positions_nearness": None if positions is None else nearness(torch.from_numpy(positions)),
        "missing": list(findings.missing),
    }


def view_figures(view: View) -> Iterator[tuple[str, Figure, str]]:
    """The name, the figure and the caption of each figure of a picture."""
    maps: dict[str, Array] = {}
    caption = "The picture as the model sees it."
    if view.rollout is not None:
        maps["where it looked"] = view.rollout
        caption += f" {captions.rollout_caption(view.rollout)}"
    if view.gradient is not None:
        maps["what spoke for its answer"] = view.gradient
        caption += " On the right only the attention that raised the score of the answer counts."
    yield "attention", figures.rollout_figure(view.pixels, maps), caption
    if view.heads:
        layer = max(view.heads)
        words = captions.last_layer_caption(view.heads[layer], layer)
        yield "last-layer", figures.last_layer_figure(view.pixels, view.heads[layer]), words
        shown = _some(view.heads)
        caption = (
            "Each column is a layer of the model, each row a head. Yellow is where a head looks most; colours are"
            " scaled for each by itself."
        )
        if len(shown) < len(view.heads):
            caption += f" {len(shown)} of {len(view.heads)} layers are shown."
        yield "heads", figures.heads_figure(view.pixels, shown), caption
    if view.predicted is not None:
        yield "predicted", figures.pictures_figure(view.predicted.pictures), view.predicted.words


def model_figures(findings: Findings) -> Iterator[tuple[str, str, Figure, str]]:
    """The title, the name, the figure and the caption of each figure of the model as a whole."""
    rows, columns = findings.grid
    if findings.kinds is not None:
        pictures = [view.pixels for view in findings.views]
        yield (
            "What it holds to be alike",
            "kinds",
            figures.kinds_figure(pictures, findings.kinds.maps),
            captions.kinds_caption(findings.kinds),
        )
    if findings.distance:
        equal = patch_distances(findings.grid, findings.patch).mean().item()
        yield (
            "How far it looks",
            "distance",
            figures.distance_figure(findings.distance, equal),
            captions.distance_caption(findings.distance, equal, findings.grid),
        )
    if findings.entropy:
        tokens = rows * columns + findings.num_prefix
        whole = all(heads.max() <= math.log2(tokens) + 1e-3 for heads in findings.entropy.values())
        yield (
            "How many places it looks at",
            "entropy",
            figures.entropy_figure(findings.entropy, math.log2(tokens) if whole else None),
            captions.entropy_caption(findings.entropy, math.log2(tokens) if whole else None),
        )
    if findings.similarity is not None:
        yield (
            "How the layers resemble each other",
            "similarity",
            figures.similarity_figure(findings.similarity),
            "Yellow squares are pairs of layers that hold much the same about a picture's patches; between the layers"
            " of a dark one the model changed what it holds.",
        )
    if findings.other_similarity is not None:
        yield (
            f"How it resembles {findings.other}",
            "similarity-other",
            figures.similarity_figure(findings.other_similarity, findings.other),
            f"The layers of this model, upwards, beside those of {findings.other}, across: yellow where both hold much"
            " the same about the same places of the same pictures.",
        )
    if findings.filters is not None:
        yield (
            "What it sees in a patch first",
            "filters",
            figures.filters_figure(as_pixels(findings.filters.pictures).numpy()),
            captions.filters_caption(findings.filters),
        )
    if findings.positions is not None:
        yield (
            "How it tells places apart",
            "positions",
            figures.positions_figure(findings.positions),
            captions.positions_caption(findings.positions),
        )


def _some(heads: dict[int, Array]) -> dict[int, Array]:
    """At most so many layers, evenly chosen, the first and the last among them."""
    layers = list(heads)
    places = evenly(len(layers), MOST_LAYERS)
    return {layers[place]: heads[layers[place]] for place in places}


def _kinds(kinds: Kinds) -> dict[str, Any]:
    return {
        "maps": kinds.maps.tolist(),
        "explained": _plain(np.asarray(kinds.explained)),
        "beside": _plain(np.asarray(kinds.beside)),
        "anywhere": _plain(np.asarray(kinds.anywhere)),
        "same_place": kinds.same_place,
        "other_place": kinds.other_place,
    }


def _smoothness(filters: Components) -> Array | None:
    smooth = smoothness(filters.pictures)
    return None if smooth is None else smooth.numpy()


def _plain(values: Array | None) -> Any:
    """Nested lists of six digits; null for what is not a number."""
    if values is None:
        return None
    if values.ndim:
        return [_plain(value) for value in values]
    return float(f"{values:.6g}") if np.isfinite(values) else None


def _write_text(path: Path, text: str) -> None:
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8", errors="backslashreplace")  # a file's name may not be UTF-8
