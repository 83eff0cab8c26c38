"""Learning from views: what each method finds in digits, and what broken ones do not."""

import functools
from typing import Any

import pytest
import torch
from torch import Tensor

from batches import stepping
from digit_pictures import digits, lit, lit_neighbours, small_vit
from vitlab.data.batch import Batch, Stream
from vitlab.models.contract import Model
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.contract import Objective, Phase
from vitlab.training.optimizers import Optimizer

BATCH, STEPS, TOTAL = 64, 150, 400
BAR = 0.59  # over three seeds sound ones have 0.67 to 0.86, broken ones at most 0.52
DINO = {"out_dim": 128, "hidden": 128, "bottleneck": 32, "momentum": 0.97, "num_small": 1}
COLD = {"teacher_temp": 0.02, "teacher_temp_start": 0.02, "center_momentum": 0.5}
OPTIONS: dict[str, dict[str, Any]] = {
    "dino": {**DINO, **COLD, "small_side": 1.0, "freeze_last": 0.01},
    "simclr": {"hidden": 64, "out_dim": 16},
    "lejepa": {"hidden": 64, "slices": 32, "num_large": 2, "weight": 0.1},
}
ENOUGH = {"frozen": 5, "sign": 30, "collapse": 60}  # steps that show what they come to
NUM_VIEWS = {"dino": 3, "simclr": 2, "lejepa": 2}


class Views:
    """Batches of digits, each in several lights; `shuffled`: every view is of another digit."""

    def __init__(self, num: int, *, shuffled: bool, seed: int) -> None:
        self.num, self.shuffled, self.seed, self.damaged = num, shuffled, seed, dict[int, str]()

    def batch(self, step: int) -> Batch:
        generator, (images, _) = torch.Generator().manual_seed(step + 1000 * self.seed), digits("train")
        chosen = torch.randint(len(images), (self.num, BATCH), generator=generator)
        if not self.shuffled:
            chosen = chosen[:1].expand(self.num, -1)
        views = tuple(lit(images[own], generator) for own in chosen)
        return Batch({"train": Stream(views, {}, torch.arange(BATCH) + step * BATCH)})

    def close(self) -> None: ...


@functools.cache
def learned(name: str, broken: str = "", seed: int = 0, **options: Any) -> tuple[float, dict[str, float]]:
    """The accuracy of the nearest neighbours by what an objective has trained, and the metrics of the last steps."""
    model = small_vit(0, seed)
    kind = OBJECTIVES.find(name)
    made: Any = kind.objective
    objective: Objective = made(kind.options(**{**OPTIONS[name], **options}), model)
    sound: Any = objective.loss

    def turned(model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = sound(model, batch, progress)
        return -loss, metrics

    def phases(_: Model) -> tuple[Phase, ...]:
        trains = (lambda name: name.startswith("objective.")) if broken == "frozen" else (lambda _: True)
        return (Phase("train", turned if broken == "sign" else sound, trains=trains),)

    objective.phases = phases  # pyright: ignore[reportAttributeAccessIssue]
    feed = Views(NUM_VIEWS[name], shuffled=broken == "shuffled", seed=seed)
    spec = Optimizer(lr=3e-3, weight_decay=0.05, clip=1.0)
    state, stepper = stepping(model, objective, spec, feed, total=TOTAL)
    steps = ENOUGH.get(broken, STEPS)
    for step in range(steps):
        assert stepper(step, min((step + 1) / 10, 1.0))
        if step == steps - 20:
            stepper.read()
    return lit_neighbours(state.objective.product(state.model)), stepper.read()


@pytest.mark.parametrize(
    ("name", "options"), [*((name, {}) for name in OPTIONS), ("dino", {"patch_weight": 1.0}), ("dino", {"koleo": 0.1})]
)
def test_it_learns_what_broken_ones_cannot(name: str, options: dict[str, Any]) -> None:
    """Digits are nearest to their like, whatever the light.

    Not so where views are of several images, the student is frozen, or the loss is turned around.
    """
    found = {broken: learned(name, broken, **options)[0] for broken in ("", "shuffled", "frozen", "sign")}
    assert found.pop("") > BAR
    assert max(found.values()) < BAR


def test_collapse_is_seen_in_the_teachers_entropies() -> None:
    """Without a centre it says one thing of all images; without sharpening, nothing of any; with both, neither."""
    _, sound = learned("dino")
    assert sound["teacher entropy"] < 0.5
    assert sound["teacher diversity"] - sound["teacher entropy"] > 0.2
    accuracy, one_answer = learned("dino", "collapse", center_momentum=1.0)
    assert one_answer["teacher diversity"] < 0.05
    assert accuracy < BAR
    accuracy, no_answer = learned("dino", "collapse", teacher_temp=1.0, teacher_temp_start=1.0)
    assert no_answer["teacher entropy"] > 0.995
    assert accuracy < BAR
