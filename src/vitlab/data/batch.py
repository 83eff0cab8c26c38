"""What a step of training gets: named streams of samples, each with its views, targets and places."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import final

import torch
from jaxtyping import Float, Int
from torch import Tensor


@final
@dataclass(frozen=True)
class Stream:
    """Samples of one kind: normalised images in one or more views, targets by name, and their counted places.

    Targets are as a loss takes them: a label is probabilities [B, K], or 0/1 per class where several hold; a mask is
    class numbers [B, H, W]; a number is [B] or [B, M]. Whatever an objective draws at random is counted from `places`.
    """

    views: tuple[Float[Tensor, "b c h w"], ...]
    targets: Mapping[str, Tensor]
    places: Int[Tensor, "b"]

    def __len__(self) -> int:
        return len(self.places)


@final
@dataclass(frozen=True)
class Batch:
    """Streams by name, the main one first; most objectives have that one alone, with one view."""

    streams: Mapping[str, Stream]

    @property
    def first(self) -> Stream:
        return next(iter(self.streams.values()))

    @property
    def images(self) -> Float[Tensor, "b c h w"]:
        """The first view of the first stream."""
        return self.first.views[0]

    @property
    def targets(self) -> Mapping[str, Tensor]:
        """Those of the first stream."""
        return self.first.targets

    @property
    def places(self) -> Int[Tensor, "b"]:
        """Those of the first stream."""
        return self.first.places

    def __len__(self) -> int:
        return len(self.first)

    def parts(self, num: int) -> list["Batch"]:
        """The batch cut into parts, for accumulation; the last may be smaller.

        Every stream is cut in the proportions of the first: where it has so many times the samples, means over it add
        up as those over the first do.
        """
        ends = list(itertools.accumulate(len(chunk) for chunk in self.places.chunk(num)))[:-1]
        chunks: list[tuple[Tensor, ...]] = []
        for stream in self.streams.values():
            own = [end * len(stream) // len(self) for end in ends]
            tensors = (*stream.views, *stream.targets.values(), stream.places)
            chunks += [tensor.tensor_split(own) for tensor in tensors]
        return [self.with_tensors(part) for part in zip(*chunks, strict=True)]

    def tensors(self) -> list[Tensor]:
        """All of its tensors, in an order that `with_tensors` knows."""
        return [t for s in self.streams.values() for t in (*s.views, *s.targets.values(), s.places)]

    def with_views_as(self, dtype: torch.dtype) -> "Batch":
        """The same batch, its images of another type."""
        return Batch(
            {name: replace(s, views=tuple(view.to(dtype) for view in s.views)) for name, s in self.streams.items()}
        )

    def with_tensors(self, tensors: Sequence[Tensor]) -> "Batch":
        """The same batch of other tensors."""
        rest, streams = list(tensors), dict[str, Stream]()
        for name, stream in self.streams.items():
            views = tuple(rest.pop(0) for _ in stream.views)
            targets = {target: rest.pop(0) for target in stream.targets}
            streams[name] = Stream(views, targets, rest.pop(0))
        assert not rest
        return Batch(streams)
