"""What figures show, in words that follow from their numbers: what the paper found is said where it is there."""

import math
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from vitlab.inspection.filters import Components, smoothness
from vitlab.inspection.kinds import Kinds
from vitlab.inspection.positions import along_lines, nearness
from vitlab.inspection.rollout import coherence
from vitlab.inspection.view import Array

SMOOTH = 0.5  # correlation of pixels next to each other, from which a filter is called smooth
MOSTLY = 0.5  # share of what is explained by smooth filters, from which a model is said to have them
LARGE_PATCH = 4  # pixels of a side, from which a patch can show more than a slope
NEAR = 0.3  # correlation of being alike with being near, from which near places are said to be alike
ALONG = 0.05  # how much more alike places of one row and of one column are than others as far away, to be said
MANY_PLACES = 36  # patches, from which near and far are told apart
LOCAL, WIDE, CHANGE = 0.5, 0.75, 0.1  # of the distance of equal attention: a near head, a far one, what is no accident
EVERYWHERE = 0.1  # bits below equal attention, up to which a head is said to look everywhere alike
FLAT = 1.25  # times the mean that the most looked-at patch has, up to which a map tells little
FOCUS = 0.1  # of the patches, whose share of a head's attention is told
ALIKE, APART = 0.8, 0.4  # correlation of heads' maps: from which they look alike, and below which at different places
AREAS = 0.1  # how much more often patches beside each other are of one kind, from which they form areas
PLACED = 0.25  # how much more often the same place of two pictures is, from which kinds follow the place
PRESENT = 0.02  # of a picture's patches, from which a kind is in it
TOGETHER = 0.4  # correlation of patches beside each other, below which a map is scattered; fresh models have 0.1 to 0.3


def num_smooth(filters: Components) -> int | None:
    """How many of the filters are smooth; None where patches are too small to tell."""
    which = _smooth(filters)
    return None if which is None else int(which.sum())


def _smooth(filters: Components) -> Tensor | None:
    values = smoothness(filters.pictures) if min(filters.pictures.shape[-2:]) >= LARGE_PATCH else None
    return None if values is None else values >= SMOOTH


def filters_caption(filters: Components) -> str:
    """Of the principal components of the patch projection."""
    explained, which = filters.explained, _smooth(filters)
    height, width = filters.pictures.shape[-2:]
    text = (
        f"The {len(explained)} strongest patterns that the model compares every patch with: the principal components of"
        f" its filters, with {float(explained.sum()):.0%} of their variance."
    )
    if which is None:
        return f"{text} A patch of {width} x {height} pixels is too small to show colours, edges or stripes."
    count = int(which.sum())
    if float(explained[which].sum()) < MOSTLY * float(explained.sum()):
        number = "none" if not count else f"only {count}"
        return f"{text} Here {number} of them differ from noise: this model has learned little of what pictures hold."
    number = "all" if count == len(which) else f"{count}"
    others = "" if count == len(which) else "; the others look more like noise"
    return f"{text} Here {number} of them are smooth, as in trained models: colours, edges, stripes{others}."


def positions_caption(similarity: Array) -> str:
    """Of how alike positions are, [rows, columns, rows, columns]."""
    rows, columns = similarity.shape[:2]
    text = (
        f"One small square for each of the {columns} x {rows} places of a patch: yellow are the places that are like it"
        " to the model."
    )
    values = torch.from_numpy(similarity)
    near = nearness(values)
    if near is None:
        return f"{text} There are too few places, or all are alike, so nothing can be said of which are near."
    if near < NEAR:
        return (
            f"{text} Here near places are hardly more alike than far ones (correlation {_two(near)}): this model has"
            " not learned from its pictures how places lie."
        )
    along = all(value is not None and value > ALONG for value in along_lines(values))
    also = ", and those of one row or column more than others as far away" if along else ""
    return f"{text} Here near places are alike (correlation {near:.2f}){also}."


def distance_caption(distance: Mapping[int, Array], equal: float, grid: tuple[int, int]) -> str:
    """Of how far heads look in each layer; `equal` is the distance of equal attention to all patches."""
    text = (
        "Each dot is a head: low ones look at nearby patches, as through a magnifying glass, high ones across the whole"
        " picture."
    )
    if grid[0] * grid[1] < MANY_PLACES:
        return f"{text} With {grid[1]} x {grid[0]} patches, near and far hardly differ."
    layers = [distance[layer] / equal for layer in sorted(distance)]
    if all((np.abs(heads - 1) < CHANGE).all() for heads in layers):
        return (
            f"{text} Here all look about as far as equal attention to all patches does (dashed): this model has not"
            " learned where to look."
        )
    if len(layers) < 2:
        return text
    third = math.ceil(len(layers) / 3)
    first, last = np.concatenate(layers[:third]), np.concatenate(layers[-third:])
    near, far = bool(first.min() < LOCAL), bool(first.max() > WIDE)
    grown = float(last.mean() - first.mean())
    kinds = {
        (True, True): "the first layers have both kinds",
        (True, False): "the first layers look near",
        (False, True): "none of the first layers looks near",
        (False, False): "the first layers look neither near nor across the picture",
    }[near, far]
    more = "farther" if grown > CHANGE else "less far" if grown < -CHANGE else "about as far"
    means = f"{first.mean() * equal:.0f} pixels on average, then {last.mean() * equal:.0f}"
    as_found = ", as in the paper" if near and far and grown > CHANGE else ""
    return f"{text} Here {kinds}, and the last ones look {more} ({means}){as_found}."


def entropy_caption(entropy: Mapping[int, Array], equal: float | None) -> str:
    """Of how many places heads look at; `equal` are the bits of equal attention, where it is drawn."""
    text = "Each dot is a head: at 0 it looks at a single place, and each step of one bit is twice as many places."
    if equal is None:
        return text
    heads = np.concatenate(list(entropy.values()))
    count = int((heads > equal - EVERYWHERE).sum())
    number = "none does" if not count else "all do" if count == len(heads) else f"{count} of {len(heads)} do"
    return f"{text} Heads at the dashed line look everywhere alike, and so choose nothing: here {number}."


def rollout_caption(rollout: Array) -> str:
    """Of where the model looked, as shares of the patches [rows, columns]."""
    times = float(rollout.max() * rollout.size / rollout.sum())
    text = (
        "Beside it, yellow is where it looked: attention followed back through all layers (rollout), from least to"
        f" most; the yellowest patch has {times:.1f} times the mean"
    )
    doubt = rollout_doubt(rollout)
    return f"{text}. {doubt}" if doubt else f"{text}."


def last_layer_caption(maps: Array, layer: int) -> str:
    """Of the maps of one layer's heads, [heads, rows, columns]."""
    flat = maps.reshape(len(maps), -1)
    shares = flat / flat.sum(axis=1, keepdims=True)
    num = max(round(FOCUS * shares.shape[1]), 1)
    focus = -np.sort(-shares, axis=1)[:, :num].sum(axis=1)
    text = (
        f"Where each head of layer {layer} looks; yellow is where it looks most. Head {focus.argmax() + 1} is the most"
        f" selective: a tenth of the patches gets {focus.max():.0%} of its attention, where equal attention would give"
        f" them {num / shares.shape[1]:.0%}"
    )
    if len(maps) < 2:
        return f"{text}."
    text += f"; head {focus.argmin() + 1} is the least, with {focus.min():.0%}."
    centred = shares - shares.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(centred, axis=1)
    if not norms.all():
        return text
    between = (centred @ centred.T / np.outer(norms, norms))[np.triu_indices(len(maps), 1)]
    alike = float(between.mean())
    if alike >= ALIKE:
        return f"{text} All look at much the same places (correlation {_two(alike)})."
    return f"{text} They look at different places (correlation {_two(alike)})." if alike < APART else text


def kinds_caption(kinds: Kinds) -> str:
    """Of the kinds that patches are of."""
    count, rows, columns = kinds.maps.shape
    over = "" if count == 1 else f" over all {count} pictures together"
    text = (
        f"Patches that are alike in the last layer have one colour: {kinds.num} kinds, found by k-means{over}, explain"
        f" {kinds.explained:.0%} of how patches differ."
    )
    if rows * columns < MANY_PLACES:
        return f"{text} With {columns} x {rows} patches to a picture, little can be said of what they show."
    beside = f"patches beside each other are of one kind in {kinds.beside:.0%} of cases, any two in"
    beside += f" {kinds.anywhere:.0%}"
    if kinds.beside - kinds.anywhere < AREAS:
        return f"{text} Here {beside}: this model does not tell areas of a picture apart."
    same, other = kinds.same_place, kinds.other_place
    if same is not None and other is not None and same - other > PLACED:
        return (
            f"{text} Here kinds follow the place more than what is there: the same place of two pictures has one kind"
            f" in {same:.0%} of cases, any two places in {other:.0%}."
        )
    shared = int(((kinds.shares >= PRESENT).sum(axis=0) > 1).sum())
    also = "" if count == 1 else f" {shared} of the kinds {'is' if shared == 1 else 'are'} in more than one picture."
    return f"{text} Here they form areas: {beside}.{also}"


def rollout_doubt(rollout: Array) -> str:
    """Why the colours of a map, which run from least to most whatever there is, tell little; empty where they do."""
    if rollout.max() * rollout.size < FLAT * rollout.sum():
        return "It looked everywhere nearly alike, so that the colours tell little."
    together = coherence(rollout)
    if rollout.size >= MANY_PLACES and together is not None and together < TOGETHER:
        return (
            f"Patches beside each other have little in common (correlation {_two(together)}), so that nothing in the"
            " picture stands out."
        )
    return ""


def _two(value: float) -> str:
    """With two decimals; what rounds to zero has no sign."""
    return f"{round(value, 2) + 0.0:.2f}"
