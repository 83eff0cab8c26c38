"""Images without labels beside the labelled ones: a second stream, in a weak view and a strong one."""

from dataclasses import dataclass, replace
from typing import Literal

from vitlab.core.bounds import NonNegativeFloat, PositiveInt, Probability
from vitlab.core.config import check_fields
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation
from vitlab.data.contract import UNLABELLED, Split
from vitlab.data.loading.order import Order
from vitlab.data.streams import StreamPlan, View
from vitlab.objectives.contract import Setting

LABELLED = "labelled"
WEAK = ("crop", "crop_part", "crop_area", "crop_aspect", "pad", "pad_mode", "flip", "fill")  # of an augmentation


@dataclass(frozen=True, kw_only=True)
class Strong:
    """How the strong view differs from the weak one, the recipe's crop and flip: operations, and a cut-out."""

    policy: Literal["none", "randaugment", "randaugment-official", "trivial"] = "randaugment"
    """Which operations of colour and shape."""
    num_ops: PositiveInt = 2  # both randaugments: operations per image
    magnitude: NonNegativeFloat = 9.0  # both randaugments: the operations' strength, 0 to 30
    erase: Probability = 1.0  # the probability that a square is cut out
    erase_area: tuple[float, float] = (0.01, 0.25)  # the range of the square's share of the picture's area

    def __post_init__(self) -> None:
        check_fields(self, "objective.")
        self.strong(Augmentation())  # says what is wrong with the values

    def strong(self, weak: Augmentation) -> Augmentation:
        """The strong view's augmentation, given the weak one's."""
        return replace(
            weak_view(weak),
            policy=self.policy,
            num_ops=self.num_ops,
            magnitude=self.magnitude,
            op_prob=1.0,
            erase=self.erase,
            erase_area=self.erase_area,
            erase_aspect=(1.0, 1.0),
            erase_mode="const",
        )


def weak_view(augmentation: Augmentation) -> Augmentation:
    """The recipe's crop and flip, and no more of what it does to labelled images."""
    return Augmentation(**{name: getattr(augmentation, name) for name in WEAK})


def unlabelled_of(setting: Setting) -> Split:
    """The data's unlabelled images; a plan refuses data without them for an objective that needs them."""
    return setting.dataset.splits[UNLABELLED]


def labelled_stream(main: StreamPlan) -> StreamPlan:
    """The labelled images as the recipe augments them."""
    return replace(main, name=LABELLED)


def unlabelled_stream(
    main: StreamPlan, split: Split, ratio: int, *views: Augmentation, targets: tuple[str, ...] = ()
) -> StreamPlan:
    """The stream of unlabelled images, `ratio` to each labelled one of `main`, seen once for each of the views."""
    return StreamPlan(
        UNLABELLED,
        split,
        Order(key(main.order.seed, UNLABELLED), len(split)),
        ratio * main.batch_size,
        tuple(View(view, main.views[0].size) for view in views),
        targets,
        main.num_classes,
        None if main.mix_until is None else ratio * main.mix_until,
    )
