"""The features of real images, of made ones and of noise, at the size that a generator makes, over all processes."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import UInt8
from torch import Tensor

from vitlab.core.random import key, uniform
from vitlab.data.contract import Split
from vitlab.data.loading.loader import evaluation_batches
from vitlab.data.places import evenly
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.features import Share
from vitlab.evaluation.frechet import Gaussian, features_of, gaussian, moments
from vitlab.models.generator import Generator


@final
@dataclass(frozen=True, kw_only=True)
class Looking:
    """How images are looked at: by whose features, made by which generator, how many at once, by which process."""

    subject: Subject
    model: Generator
    batch_size: int
    workers: int
    share: Share
    progress: Callable[[int, int], None] | None = None

    def real(self, split: Split, num: int | None = None) -> Gaussian:
        """Of the readable images of a split, or of at most so many of them, evenly chosen."""
        if num is not None:
            split = split.take(evenly(len(split), num))
        share = self.share
        batches = evaluation_batches(
            split,
            self.model.preprocess,
            batch_size=self.batch_size * share.world,
            num_workers=self.workers,
            rank=share.rank,
            world=share.world,
        )
        return self._gaussian((batch.images[batch.counts] for batch in batches), len(split))

    def made(self, num: int, seed: int) -> Gaussian:
        """Of images that the generator makes."""
        model = self.model
        return self._gaussian((model.pixels(model(model.latents(seed, at)).float()) for at in self._places(num)), num)

    def noise(self, num: int) -> Gaussian:
        """Of pictures whose values are drawn each by itself."""
        shape = (3, *self.model.preprocess.size)
        draws = torch.arange(math.prod(shape), device=self.subject.device)
        drawn = (uniform(key("noise"), at[:, None], draws).view(-1, *shape) for at in self._places(num))
        return self._gaussian(((values * 256).to(torch.uint8) for values in drawn), num)

    def _places(self, num: int) -> Iterator[Tensor]:
        places = torch.arange(self.share.rank, num, self.share.world, device=self.subject.device)
        return iter(places.split(self.batch_size))

    def _gaussian(self, parts: Iterable[UInt8[Tensor, "b 3 h w"]], num: int) -> Gaussian:
        share, sums, done = self.share, list[Tensor](), 0
        for pixels in parts:
            if len(pixels):
                sums.append(moments(features_of(self.subject, pixels)))
            done += self.batch_size * share.world
            if self.progress is not None:
                self.progress(min(done, num), num)
        if not sums:
            raise EvaluationError("There are no images to look at, or fewer than there are processes.")
        return gaussian(torch.stack(share.gather(torch.stack(sums).sum(dim=0))).sum(dim=0))
