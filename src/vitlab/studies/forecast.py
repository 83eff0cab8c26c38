"""What the cells of a study will cost, said before the first is trained: runs, FLOPs, and time on this machine."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch

from vitlab.core.record import read_json
from vitlab.core.words import about, count, flops
from vitlab.data.contract import DataSet
from vitlab.evaluation.cost import TRAINING_FACTOR, training_speed
from vitlab.models.contract import Model
from vitlab.models.counts import count_flops, count_parameters
from vitlab.models.outside import OutsideModel
from vitlab.studies.cells import Cell, outlined, planned
from vitlab.studies.grid import RESULT
from vitlab.training.recipe import Recipe

ENOUGH = {"cpu": 1e11, "cuda": 1e14}  # FLOPs of a rehearsed pass at most: about a second
LOOK = 0.2  # seconds of rehearsal, where a pass is short enough for several
AROUND = 0.5  # seconds that a run takes besides its steps, where there are few images: building, writing
PER_IMAGE = 4e-5  # seconds of it for each image of the data, as seen once on a CPU: opening, reading, scoring


@dataclass(frozen=True)
class Shape:
    """What one step of a cell computes."""

    flops: float  # of one image, forward
    parameters: int
    images: int  # of all streams
    objective: str  # what another one does with as many images takes another time


@dataclass(frozen=True)
class Forecast:
    """What is left of some cells; `seconds` None where nothing like it could be tried here."""

    runs: int
    done: int
    flops: float
    seconds: float | None
    where: str

    def sentence(self, what: str, then: "Forecast | None" = None) -> str:
        """What is left, and `then` what depends on it, of which a part may be done already."""
        kept = f", {self.done:,} of them done already" if self.done else ""
        more = f"; then up to {count(then.runs, 'more run')}, {then.time}, {flops(then.flops)}" if then else ""
        if self.runs == self.done:
            return f"{what}: {count(self.runs, 'run')}, all done already{more}."
        cost = f"{self.time} on this {self.where}, {flops(self.flops)} of training"
        return f"{what}: {count(self.runs, 'run')}{kept}; {cost}{more}."

    @property
    def time(self) -> str:
        return "a time that cannot be told here" if self.seconds is None else f"about {about(self.seconds)}"


def flops_of(model: Model) -> float:
    """Of one image forward, as the cost protocol counts them; a module of no family is counted as it is."""
    if not isinstance(model, OutsideModel):
        return float(count_flops(model))
    from torch.utils.flop_counter import FlopCounterMode

    images = torch.zeros(1, model.config.channels, *model.config.image_size)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model.eval()(images)
    return float(counter.get_total_flops())


def forecast(
    cells: Iterable[tuple[Cell, Recipe, DataSet]], device: str, paces: dict[Shape, float] | None = None
) -> Forecast:
    """The sum over the cells that are left, from runs of the same shape that ended or from a step that is tried.

    `paces` are seconds per step by shape: what is known already, to which is added what is found out here.
    """
    paces = {} if paces is None else paces
    counted: dict[str, tuple[Shape, int]] = {}  # by all of a recipe but its seed
    examples: dict[Shape, tuple[Cell, Recipe, DataSet]] = {}
    left: list[tuple[Shape, int]] = []  # of cells that are trained already, some may have to be measured
    runs = done = images_read = 0
    for cell, recipe, dataset in cells:
        key = repr(dataclasses.replace(recipe, seed=0)) + cell.module
        if key not in counted:
            model, steps = outlined(cell, recipe, dataset)
            images = recipe.batch_size * (1 + recipe.objective.options.get("ratio", 0))  # unlabelled ones beside
            counted[key] = Shape(flops_of(model), count_parameters(model), images, recipe.objective.name), steps
        shape, steps = counted[key]
        done += cell.is_done
        if (trained := Path(cell.folder, RESULT)).exists():
            result = read_json(trained)
            if result.get("step") and result.get("seconds"):
                paces[shape] = result["seconds"] / result["step"]
        else:
            left.append((shape, steps))
            images_read += sum(map(len, dataset.splits.values()))
            examples.setdefault(shape, (cell, recipe, dataset))
        runs += 1
    for shape in sorted(examples.keys() - paces.keys(), key=lambda shape: shape.flops):
        pace = rehearsed(examples[shape], shape, device) or _scaled(shape, paces)
        if pace is not None:
            paces[shape] = pace
    seconds = None
    if all(shape in paces for shape in examples):
        seconds = sum(AROUND + steps * paces[shape] for shape, steps in left) + PER_IMAGE * images_read
    total = sum(TRAINING_FACTOR * shape.flops * shape.images * steps for shape, steps in left)
    return Forecast(runs, done, total, seconds, "GPU" if device.startswith("cuda") else "CPU")


def rehearsed(example: tuple[Cell, Recipe, DataSet], shape: Shape, device: str) -> float | None:
    """Seconds per step, by a forward and a backward pass of some images; None where even two images are too many."""
    most = ENOUGH.get(torch.device(device).type, ENOUGH["cpu"])
    images = min(int(most / max(TRAINING_FACTOR * shape.flops, 1)), shape.images)
    if images < 2:
        return None
    model, _ = planned(*example)
    bf16 = device.startswith("cuda") and example[1].precision != "float32"
    speed = training_speed(model.to(device), images, device=torch.device(device), bf16=bf16, seconds=LOOK)
    return shape.images / speed.value


def _scaled(shape: Shape, paces: dict[Shape, float]) -> float | None:
    """By the largest shape that has a pace: the same FLOPs per second."""
    if not paces:
        return None
    like = max(paces, key=lambda other: other.flops)
    return paces[like] * shape.flops * shape.images / (like.flops * like.images)
