"""Learning from views on generated pictures: what each method learns, and what broken ones do not."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from batches import stepping
from vitlab.core.preprocess import Preprocess
from vitlab.data.augmentation import Augmentation
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import Array, Split
from vitlab.data.loading.order import Order
from vitlab.data.loading.resident import load_pixels
from vitlab.data.loading.resident_feed import ResidentFeed
from vitlab.data.sources.pixels import Pixels
from vitlab.data.streams import StreamPlan, View
from vitlab.evaluation.knn import knn_accuracy
from vitlab.models.contract import Model, evaluating
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.contract import Objective, Phase
from vitlab.training.optimizers import Optimizer

SIDE, CLASSES, STEPS = 16, 4, 100
PREPROCESS = Preprocess(size=(SIDE, SIDE))
AUGMENTATION = Augmentation(crop_area=(0.4, 1.0), jitter=0.6, hue=0.5, gray=0.2)
SMALL: dict[str, Any] = {"num_small": 2, "small_side": 0.5, "small_area": (0.2, 0.5)}
OPTIONS: dict[str, dict[str, Any]] = {
    "dino": {**SMALL, "out_dim": 64, "hidden": 64, "bottleneck": 16, "momentum": 0.95, "freeze_last": 0.05},
    "simclr": {"hidden": 64, "out_dim": 16},
    "lejepa": {"hidden": 64, "slices": 32, "num_large": 2},
}


def pictures(num: int, seed: int) -> tuple[Array, Array]:
    """Stripes across or down, chessboards or rings, in any two colours and anywhere: pixels tell little."""
    rng = np.random.default_rng(seed)
    labels = np.arange(num) % CLASSES
    y, x = np.mgrid[:SIDE, :SIDE][:, None] + rng.uniform(0, SIDE, (2, num, 1, 1))
    middle = np.hypot(y - SIDE, x - SIDE)
    waves = [np.sin(y * 1.2), np.sin(x * 1.2), np.sin(y * 0.9) * np.sin(x * 0.9) * 2, np.sin(middle * 1.2)]
    pattern = np.choose(labels[:, None, None], waves)[..., None] > 0
    first, second = rng.integers(0, 256, (2, num, 1, 1, 3))
    noise = rng.normal(0, 12, (num, SIDE, SIDE, 3))
    return np.clip(np.where(pattern, first, second) + noise, 0, 255).astype(np.uint8), labels


@pytest.fixture(scope="module")
def sets() -> list[tuple[Array, Array]]:
    return [pictures(400, 0), pictures(200, 1)]


def knn(model: Model, sets: list[tuple[Array, Array]]) -> float:
    with torch.no_grad(), evaluating(model):
        features = [
            model.pooled(PREPROCESS.normalize(torch.from_numpy(images).permute(0, 3, 1, 2))).numpy()
            for images, _ in sets
        ]
    return float(knn_accuracy(features[0], sets[0][1], features[1], sets[1][1], ks=(5,))[0])


class Shuffled(Objective):
    """An objective whose second view is of another image."""


def learned(name: str, sets: list[tuple[Array, Array]], broken: str = "", steps: int = STEPS) -> float:
    """The accuracy of a model's neighbours after some steps of an objective, sound or broken."""
    torch.manual_seed(0)
    config = ViTConfig(
        image_size=(SIDE, SIDE), patch_size=4, width=32, depth=2, mlp_dim=64, heads=2, num_classes=0, pool="mean"
    )
    model = ViT(config, PREPROCESS)
    model.initialize()
    kind = OBJECTIVES.find(name)
    objective = kind.objective(kind.options(**OPTIONS[name]), model)  # pyright: ignore[reportCallIssue]
    if broken:
        break_it(objective, broken)
    split = Split.labelled(Pixels(sets[0][0], "them"), sets[0][1])
    main = StreamPlan("train", split, Order(0, 400), 64, (View(AUGMENTATION, (SIDE, SIDE)),), targets=())
    [plan] = objective.streams(main)
    stored = load_pixels(split, (SIDE, SIDE))
    assert stored is not None
    feed = ResidentFeed([plan], {"train": stored}, preprocess=PREPROCESS, seed=0)
    state, stepper = stepping(model, objective, Optimizer(lr=2e-3, weight_decay=0.05, clip=1.0), feed)
    for step in range(steps):
        assert stepper(step, min(1.0, (step + 1) / 10))
    return knn(state.objective.product(state.model), sets)


def break_it(objective: Objective, how: str) -> None:
    sound: Any = objective.loss

    def wrong(model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if how == "sign":
            loss, metrics = sound(model, batch, progress)
            return -loss, metrics
        first, *rest = batch.first.views
        mixed = (first, *(view.roll(j + 1, dims=0) for j, view in enumerate(rest)))
        return sound(model, Batch({"train": Stream(mixed, {}, batch.places)}), progress)

    def phases(_: Model) -> Iterator[Phase]:
        trains = (lambda name: not name.startswith("model.")) if how == "frozen" else (lambda _: True)
        return (Phase("train", sound if how == "frozen" else wrong, trains=trains),)  # pyright: ignore[reportReturnType]

    objective.phases = phases  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", OPTIONS)
def test_it_learns_what_broken_ones_cannot(name: str, sets: list[tuple[Array, Array]]) -> None:
    """Neighbours by features are of the same pattern; with views of other images, a frozen student or the loss turned
    around they are not."""
    found = {how: learned(name, sets, how) for how in ("", "shuffled", "frozen", "sign")}
    print(name, found)
    assert found.pop("") > 0.8
    assert max(found.values()) < 0.7
