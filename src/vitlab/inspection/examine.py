"""All analyses of one model over pictures: numbers and arrays, nothing drawn or written."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.core.pictures import Picture
from vitlab.inspection.capture import chosen_layers, misfit, watching
from vitlab.inspection.distance import attention_distance
from vitlab.inspection.entropy import attention_entropy
from vitlab.inspection.filters import Components, filter_components
from vitlab.inspection.kinds import Kinds, kinds_of
from vitlab.inspection.positions import position_similarity
from vitlab.inspection.similarity import FEWEST, StreamingCka, aligned_rows, coarsest
from vitlab.inspection.view import Array, Geometry, View, geometry_of, look, to_images
from vitlab.models.contract import Model, Tokens, evaluating

MOST_ROWS = 512  # tokens of a minibatch that CKA compares


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What was seen. Layers count from 1; a number for each head; what is None or empty the model does not have."""

    model: str
    image_size: tuple[int, int]
    grid: tuple[int, int]  # of the patches that pictures are cut into
    num_prefix: int
    patch: tuple[float, float]  # height and width in pixels
    views: tuple[View, ...]
    num_images: int  # over which distance, entropy and similarity were taken
    kinds: Kinds | None = None  # of the views' patches
    data: str | None = None  # the set that they are from, where it was not the given pictures
    filters: Components | None = None
    positions: Array | None = None  # [rows, columns, rows, columns]
    distance: dict[int, Array] = field(default_factory=dict)  # pixels
    entropy: dict[int, Array] = field(default_factory=dict)  # bits
    similarity: Array | None = None  # [1 + layers, 1 + layers]: the embedding first
    other: str | None = None  # another model, and [1 + layers, 1 + its layers]
    other_similarity: Array | None = None
    missing: tuple[str, ...] = ()  # sentences on what could not be had


def examine(
    model: Model,
    name: str,
    shown: Iterable[tuple[str, Picture]],
    pictures: Iterable[Picture],
    *,
    data: str | None = None,
    layers: Sequence[int] | None = None,
    other: tuple[Model, str] | None = None,
    batch_size: int = 8,
    seen: Callable[[int], None] | None = None,
) -> Findings:
    """Every analysis that the model allows: maps of the pictures `shown`, averages over `pictures`, a batch at a time.

    `layers`, from 0, are those whose heads are shown and measured; rollout and similarity always take all. `seen` is
    called with the number of pictures behind us.
    """
    missing: list[str] = []
    wanted = chosen_layers(model, layers) if model.taps.attention or layers is not None else []
    with evaluating(model), torch.inference_mode():
        geometry = geometry_of(model)
        views = tuple(look(model, label, picture, geometry, wanted, missing) for label, picture in shown)
        averages = Averages(model, geometry, wanted, other[0] if other else None)
        for batch in _batches(pictures, batch_size):
            averages.add(batch)
            if seen is not None:
                seen(averages.num_images)
        similarity, other_similarity = averages.similarities()
        missing += averages.missing()
        filters = filter_components(model.taps.filters()) if model.taps.filters else None
        positions = _positions(model, geometry, missing)
    if not model.taps.attention:
        missing.append("This model does not work by attention: there are no attention maps, distances or entropies.")
    elif getattr(model.config, "num_classes", None) == 0:
        missing.append("This model gives no classes, so there is no answer by which to weight rollout.")
    if filters is None:
        missing.append("This model does not project patches of the picture, so there are no filters of it to show.")
    return Findings(
        model=name,
        image_size=model.preprocess.size,
        grid=geometry.layout.grid,
        num_prefix=geometry.layout.num_prefix,
        patch=geometry.patch,
        views=views,
        num_images=averages.num_images,
        kinds=_kinds(views),
        data=data,
        filters=filters,
        positions=positions,
        distance=averages.distance.result(),
        entropy=averages.entropy.result(),
        similarity=similarity,
        other=other[1] if other else None,
        other_similarity=other_similarity,
        missing=tuple(dict.fromkeys(missing)),
    )


@final
class Means:
    """A running mean for each head of each layer."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}
        self._counts: dict[int, int] = {}

    def add(self, layer: int, values: Tensor, count: int) -> None:
        """The mean over so many images."""
        self._sums[layer] = self._sums.get(layer, 0) + values.double().cpu() * count
        self._counts[layer] = self._counts.get(layer, 0) + count

    def result(self) -> dict[int, Array]:
        """By layer, from 1; a layer with a head that has no distance at all is left out."""
        means = {layer + 1: (self._sums[layer] / self._counts[layer]).numpy() for layer in sorted(self._sums)}
        return {layer: values for layer, values in means.items() if np.isfinite(values).all()}


@final
class Averages:
    """Distance, entropy and similarity over pictures, one pass of the model for all three; no picture is kept."""

    def __init__(self, model: Model, geometry: Geometry, layers: Sequence[int], other: Model | None) -> None:
        self.model, self.geometry, self.layers, self.other = model, geometry, layers, other
        self.num_images = 0
        self.distance, self.entropy = Means(), Means()
        self._within, self._between = StreamingCka(), StreamingCka()
        self._batches, self._misfits = 0, dict[int, str]()

    def add(self, pictures: Sequence[Picture]) -> None:
        """A batch."""
        images = to_images(self.model, pictures)
        with watching(self.model, self._see(len(images)), self.layers) if self.layers else torch.no_grad():
            tokens = self.model.features(images)
        if not tokens[-1].values.isfinite().all():
            raise Error("The model's tokens are not finite: its weights are damaged.")
        theirs: list[Tokens] = []
        if self.other is not None:
            with evaluating(self.other):
                theirs = self.other.features(to_images(self.other, pictures))
        self.num_images += len(images)
        grid = coarsest([*tokens, *theirs])
        if len(images) * grid[0] * grid[1] >= FEWEST:
            self._batches += 1
            self._within.add(aligned_rows(tokens, coarsest(tokens), MOST_ROWS))
            if theirs:
                self._between.add(aligned_rows(tokens, grid, MOST_ROWS), aligned_rows(theirs, grid, MOST_ROWS))

    def similarities(self) -> tuple[Array | None, Array | None]:
        """Between the model's layers, and with those of the other model."""
        if not self._batches:
            return None, None
        return self._within.result().numpy(), self._between.result().numpy() if self.other is not None else None

    def missing(self) -> Iterator[str]:
        """What could not be had, in sentences."""
        if self._misfits:
            first, *more = self._misfits.values()
            also = f", as for {len(more)} other layer{'s' * (len(more) > 1)}" if more else ""
            yield f"{first} There is no distance for it{also}."
        if self.num_images and not self._batches:
            yield f"Similarity needs at least {FEWEST} tokens at once: give more pictures."

    def _see(self, count: int) -> Callable[[int, Tensor], None]:
        layout = self.geometry.layout

        def see(layer: int, attention: Tensor) -> None:
            self.entropy.add(layer, attention_entropy(attention), count)
            problem = misfit(layer, attention, layout, count)
            if problem is not None:
                self._misfits[layer] = problem
                return
            far = attention_distance(
                attention, grid=layout.grid, patch_size=self.geometry.patch, num_prefix=layout.num_prefix
            )
            self.distance.add(layer, far, count)

        return see


def _kinds(views: Sequence[View]) -> Kinds | None:
    patches = [view.patches for view in views if view.patches is not None]
    return kinds_of(patches) if patches and len(patches) == len(views) else None


def _positions(model: Model, geometry: Geometry, missing: list[str]) -> Array | None:
    if model.taps.positions is None:
        missing.append("This model adds no position to its patches, so there are none to compare.")
        return None
    vectors, (rows, columns) = model.taps.positions(), geometry.layout.grid
    if len(vectors) != rows * columns:
        missing.append(f"The model has {len(vectors)} positions for {rows} x {columns} patches: they are not compared.")
        return None
    return position_similarity(vectors, (rows, columns)).cpu().numpy()


def _batches(pictures: Iterable[Picture], size: int) -> Iterator[list[Picture]]:
    iterator = iter(pictures)
    while batch := list(itertools.islice(iterator, size)):
        yield batch
