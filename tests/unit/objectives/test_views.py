"""Large and small views: sizes, what they show, and a model that sees both."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tiny_vits import SIZES, random_vit
from vitlab.data.augmentation import Augmentation
from vitlab.data.contract import Split
from vitlab.data.loading.order import Order
from vitlab.data.sources.pixels import Pixels
from vitlab.data.streams import StreamPlan, View
from vitlab.models.positions import resize_positions
from vitlab.models.vit import ViTConfig
from vitlab.objectives.views import Crops, by_size, feature_std


def main(size: tuple[int, int]) -> StreamPlan:
    split = Split.labelled(Pixels(np.zeros((4, 8, 8, 3), np.uint8), "them"), np.zeros(4, np.int64))
    view = View(Augmentation(crop_area=(0.4, 1.0), jitter=0.3), size)
    return StreamPlan("train", split, Order(0, 4), 2, (view,), targets=())


@pytest.mark.parametrize(
    ("size", "patch", "small"),
    [((224, 224), 16, (96, 96)), ((32, 32), 4, (12, 12)), ((8, 8), 2, (4, 4)), ((16, 32), 16, (16, 16))],
)
def test_small_views_are_whole_patches(size: tuple[int, int], patch: int, small: tuple[int, int]) -> None:
    plan = Crops(num_small=3).views(main(size), 2, patch)
    assert [view.size for view in plan.views] == [size] * 2 + [small] * 3
    assert plan.views[0] == main(size).views[0]
    own = plan.views[4].augmentation
    assert own == replace(plan.views[0].augmentation, crop_area=(0.05, 0.4))


def test_views_of_one_size_pass_together() -> None:
    called: list[tuple[int, ...]] = []

    def mean(images: torch.Tensor) -> torch.Tensor:
        called.append(tuple(images.shape))
        return images.mean(dim=(2, 3))

    views = [torch.randn(4, 3, side, side) for side in (8, 8, 4, 4, 4)]
    found = by_size(views, mean)
    assert called == [(8, 3, 8, 8), (12, 3, 4, 4)]
    for one, view in zip(found, views, strict=True):
        torch.testing.assert_close(one, view.mean(dim=(2, 3)))


def test_a_model_sees_a_small_view_with_its_positions_resized() -> None:
    model = random_vit(ViTConfig(**{**SIZES, "image_size": (16, 16), "num_classes": 0, "resize_rule": "hf"}))
    small = random_vit(ViTConfig(**{**SIZES, "image_size": (8, 8), "num_classes": 0}), seed=1)
    weights = model.state_dict()
    weights["positions.0.table"] = resize_positions(weights["positions.0.table"], (2, 2), rule="hf")
    small.load_state_dict(weights)
    images = torch.randn(3, 3, 8, 8)
    torch.testing.assert_close(model.pooled(images), small.pooled(images))


def test_feature_std() -> None:
    assert feature_std(torch.ones(6, 4)).item() == pytest.approx(0, abs=1e-6)
    assert feature_std(torch.cat([torch.eye(4), -torch.eye(4)])).item() == pytest.approx(1)
    assert feature_std(5 * torch.eye(4)).item() == pytest.approx(0.75**0.5)
