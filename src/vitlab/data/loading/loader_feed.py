"""Training batches that worker processes decode and augment; the rest is done on the device."""

from collections.abc import Iterator, Mapping, Sequence
from typing import final

import torch
from torch import Tensor

from vitlab.core.preprocess import Preprocess
from vitlab.data.augmentation import erase, mix
from vitlab.data.batch import Batch, Stream
from vitlab.data.loading.loader import Loaded, Loader
from vitlab.data.loading.order import share
from vitlab.data.streams import StreamPlan, check_plans, view_keys
from vitlab.data.targets import TargetKind, as_target


@final
class LoaderFeed:
    """Batches of streams from step `start` on, in order; normalised, erased and mixed on the device."""

    def __init__(
        self,
        plans: Sequence[StreamPlan],
        *,
        preprocess: Preprocess,
        seed: int,
        device: torch.device,
        num_workers: int,
        rank: int = 0,
        world: int = 1,
        start: int = 0,
        max_damaged: float = 0.01,
    ) -> None:
        check_plans(plans, world)
        self._next, self._loaders = start, list[Loader]()
        try:
            for plan, keys, workers in zip(plans, view_keys(plans, seed), _divide(num_workers, plans), strict=True):
                loader = Loader(
                    plan,
                    num_workers=workers,
                    seed=seed,
                    keys=keys,
                    rank=rank,
                    world=world,
                    start_step=start,
                    pin_memory=device.type == "cuda",
                    max_damaged=max_damaged,
                )
                self._loaders.append(loader)
        except BaseException:
            self.close()
            raise
        self._streams = [
            _OnDevice(plan, keys, preprocess, device, share(plan.batch_size, world))
            for plan, keys in zip(plans, view_keys(plans, seed), strict=True)
        ]

    def batch(self, step: int) -> Batch:
        """A step's batch, whose images the next one's may take the place of."""
        assert step == self._next, "a loader gives its batches in order"
        self._next += 1
        pairs = zip(self._streams, self._loaders, strict=True)
        return Batch({stream.plan.name: stream.finish(next(loader)) for stream, loader in pairs})

    @property
    def damaged(self) -> Mapping[int, str]:
        """What could not be read so far of the first stream: a sentence for each index."""
        return self._loaders[0].damaged

    def check(self, count: int) -> None:
        """An error if so many images of the first stream, over all processes, are more than may be damaged."""
        self._loaders[0].check(count)

    def close(self) -> None:
        """End the workers; no more batches can be had."""
        for loader in self._loaders:
            loader.close()


@final
class _OnDevice:
    """What is done to a stream's batches where the model is."""

    def __init__(
        self, plan: StreamPlan, keys: tuple[int, ...], preprocess: Preprocess, device: torch.device, part: int
    ) -> None:
        self.plan, self.keys, self.preprocess, self.device = plan, keys, preprocess, device
        self._kinds: dict[str, TargetKind] = {name: target.kind for name, target in plan.wanted().items()}
        # on a CPU the pages of a new batch cost more than the arithmetic
        on_cpu = device.type == "cpu"
        self._kept = [torch.empty(part, 3, *view.size) if on_cpu else None for view in plan.views]

    def finish(self, loaded: Loaded) -> Stream:
        places = loaded.places.to(self.device)
        views = tuple(self._views(loaded, places))
        targets = {
            name: as_target(values.to(self.device, non_blocking=True), self._kinds[name], self.plan.num_classes)
            for name, values in loaded.targets.items()
        }
        aug = self.plan.views[0].augmentation
        if aug.mixes:
            image, targets["label"] = mix(
                aug, views[0], targets["label"], places, self.keys[0], until=self.plan.mix_until
            )
            views = (image,)
        return Stream(views, targets, places)

    def _views(self, loaded: Loaded, places: Tensor) -> Iterator[Tensor]:
        for view, own, pixels, kept in zip(self.plan.views, self.keys, loaded.views, self._kept, strict=True):
            images = self.preprocess.normalize(pixels.to(self.device, non_blocking=True), kept)
            yield erase(view.augmentation, images, places, own)


def _divide(num_workers: int, plans: Sequence[StreamPlan]) -> list[int]:
    """Workers for each stream, by how many pictures it has, and at least one where there are any."""
    work = [plan.batch_size * len(plan.views) for plan in plans]
    return [max(round(num_workers * part / sum(work)), 1) if num_workers > 0 else num_workers for part in work]
