"""What training reads: named streams of a split, each in one or more views."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

from vitlab.core.errors import ConfigError
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, check_pairs
from vitlab.data.contract import Split, Target
from vitlab.data.loading.order import Order, share
from vitlab.data.targets import wanted_targets


@final
@dataclass(frozen=True)
class View:
    """How a picture is seen: varied, and at a height and width."""

    augmentation: Augmentation
    size: tuple[int, int]


@final
@dataclass(frozen=True)
class StreamPlan:
    """A stream of samples: which, in which order, how they are seen, and with which of the split's targets."""

    name: str
    split: Split
    order: Order
    batch_size: int  # over all processes
    views: tuple[View, ...]
    targets: tuple[str, ...] = ("label",)
    num_classes: int = 0  # of labels of kind class, which become rows of so many
    mix_until: int | None = None  # the place from which on nothing is mixed any more; None: there is none

    def __post_init__(self) -> None:
        if not self.views:
            raise ConfigError(f"The stream '{self.name}' has no view of its images: give it one at least.")
        kinds = {name: target.kind for name, target in self.wanted().items()}
        if any(view.augmentation.mixes for view in self.views) and (
            len(self.views) > 1 or list(kinds) != ["label"] or kinds["label"] == "number"
        ):
            raise ConfigError(
                f"Mixup and cutmix mix one view of each image and its class labels, and the stream '{self.name}' has"
                f" {_said(len(self.views), kinds)}: leave them out."
            )

    def wanted(self) -> dict[str, Target]:
        """The targets that are asked for, by name; an error where the split lacks one."""
        return wanted_targets(self.split, self.targets)


def view_keys(plans: Sequence[StreamPlan], seed: int) -> list[tuple[int, ...]]:
    """The key of each stream's views; that of the first of all is the one that there was before there were others."""
    keys = [tuple(key(seed, "augment", plan.name, j) for j in range(len(plan.views))) for plan in plans]
    return [(key(seed, "augment"), *keys[0][1:]), *keys[1:]]


def check_plans(plans: Sequence[StreamPlan], world: int) -> None:
    """Refuse streams of one name, and parts of a batch that cannot be mixed."""
    if not plans or len({plan.name for plan in plans}) < len(plans):
        raise ConfigError("Training reads at least one stream, and each has a name of its own.")
    for plan in plans:
        part = share(plan.batch_size, world)
        for view in plan.views:
            check_pairs(view.augmentation, part)


def _said(num_views: int, kinds: dict[str, str]) -> str:
    if num_views > 1:
        return f"{num_views} views"
    return "no targets" if not kinds else "the targets " + ", ".join(f"{name} ({kinds[name]})" for name in kinds)
