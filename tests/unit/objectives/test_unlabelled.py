"""The second stream: how many images, which views, and an order of its own."""

import numpy as np
import pytest

from vitlab.core.errors import ConfigError
from vitlab.data.augmentation import Augmentation
from vitlab.data.contract import Split
from vitlab.data.loading.order import Order
from vitlab.data.sources.pixels import Pixels
from vitlab.data.streams import StreamPlan, View
from vitlab.objectives.unlabelled import Strong, labelled_stream, unlabelled_stream, weak_view

WEAK = Augmentation(crop="pad", pad=1, flip=0.5, mixup=0.8, cutmix=1.0, policy="three", erase=0.1)


def images(num: int) -> Split:
    return Split.labelled(Pixels(np.zeros((num, 8, 8, 3), np.uint8), "them"), np.arange(num) % 3)


def main(num: int = 12, *, mix_until: int | None = None) -> StreamPlan:
    views = (View(WEAK, (8, 8)),)
    return StreamPlan("train", images(num), Order(3, num), 4, views, num_classes=3, mix_until=mix_until)


def test_it_has_so_many_images_for_each_labelled_one() -> None:
    others = Split(images(40).images)
    options = Strong(policy="trivial", erase=0.5)
    stream = unlabelled_stream(main(), others, 7, weak_view(WEAK), options.strong(WEAK))
    assert (stream.name, stream.batch_size, stream.targets) == ("unlabelled", 28, ())
    assert stream.split is others
    weak, strong = (view.augmentation for view in stream.views)
    assert weak == Augmentation(crop="pad", pad=1, flip=0.5)  # the rest of the recipe's is for labelled images
    assert (strong.crop, strong.pad, strong.flip, strong.policy) == ("pad", 1, 0.5, "trivial")
    assert (strong.erase, strong.erase_mode, strong.erase_aspect, strong.mixes) == (0.5, "const", (1.0, 1.0), False)
    assert labelled_stream(main()).name == "labelled"
    assert labelled_stream(main()).views == main().views


def test_its_order_is_its_own_and_every_image_comes_once_in_an_epoch() -> None:
    """Else the labelled images and the others would come in step where there are as many."""
    split = images(12)
    stream = unlabelled_stream(main(), split, 1, weak_view(WEAK))
    orders = [plan.order.epoch_order(0).tolist() for plan in (main(), stream)]
    assert orders[0] != orders[1]
    assert sorted(orders[1]) == list(range(12))
    again = unlabelled_stream(main(), split, 1, weak_view(WEAK))
    assert again.order.epoch_order(0).tolist() == orders[1]


def test_mixing_ends_at_the_same_step_as_the_labelled_images() -> None:
    """After 5 steps of 4 images: in a stream of 3 images to each, after 60."""
    stream = unlabelled_stream(main(mix_until=20), images(9), 3, WEAK, targets=("label",))
    assert stream.mix_until == 60
    assert unlabelled_stream(main(), images(9), 3, WEAK, targets=("label",)).mix_until is None


def test_nonsense_is_a_sentence() -> None:
    with pytest.raises(ConfigError, match="erase must be at least 0 and at most 1"):
        Strong(erase=1.5)
    with pytest.raises(ConfigError, match="magnitude is between 0 and 30"):
        Strong(magnitude=31)
    with pytest.raises(ConfigError, match="erase_area is a range of fractions"):
        Strong(erase_area=(0.5, 0.1))
