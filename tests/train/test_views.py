"""Learning from views: what each method finds in generated pictures and in digits, and what broken ones do not."""

import functools
from typing import Any, Literal, TypeAlias

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from batches import stepping
from vitlab.core.preprocess import Preprocess
from vitlab.data.batch import Batch, Stream
from vitlab.data.open import open_data
from vitlab.evaluation.knn import knn_accuracy
from vitlab.models.contract import Model, evaluating
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.contract import Objective, Phase
from vitlab.training.optimizers import Optimizer

Set: TypeAlias = Literal["tints", "digits"]
SIDE, PATCH, CLASSES, BATCH = 8, 4, 4, 64
STEPS: dict[Set, int] = {"tints": 100, "digits": 300}
BARS: dict[Set, tuple[float, float]] = {"tints": (0.7, 0.85), "digits": (0.62, 0.68)}  # of broken ones, of sound ones
DINO = {"out_dim": 128, "hidden": 128, "bottleneck": 32, "momentum": 0.97, "num_small": 1}
COLD = {"teacher_temp": 0.02, "teacher_temp_start": 0.02, "center_momentum": 0.5}
OPTIONS: dict[str, dict[str, Any]] = {
    "dino": {**DINO, **COLD, "small_side": 1.0, "freeze_last": 0.05},
    "simclr": {"hidden": 64, "out_dim": 16},
    "lejepa": {"hidden": 64, "slices": 32, "num_large": 2, "weight": 0.1},
}
ENOUGH = {"frozen": 5, "sign": 30, "collapse": 60}  # steps that show what they come to
NUM_VIEWS = {"dino": 3, "simclr": 2, "lejepa": 2}


def pictures(labels: Tensor, generator: torch.Generator) -> Tensor:
    """A faint tint that tells the class, under patches of any brightness and noise, which differ from view to view."""

    def normal(*shape: int) -> Tensor:
        return torch.randn(len(labels), *shape, generator=generator)

    patches = SIDE // PATCH
    bright = normal(1, patches, patches).repeat_interleave(PATCH, dim=2).repeat_interleave(PATCH, dim=3)
    around = torch.tensor([[2.0, -1.0, -1.0], [0.0, 1.7, -1.7], [-2.0, 1.0, 1.0], [0.0, -1.7, 1.7]])  # grey is 0
    return bright + 0.1 * normal(3, SIDE, SIDE) + 0.025 * around[labels][:, :, None, None]


@functools.cache
def digits(part: str) -> tuple[Tensor, Tensor]:
    """Pictures of -1 to 1, and what they show."""
    split = open_data("digits").splits[part]
    pixels = torch.stack([torch.as_tensor(split.images.read(i)) for i in range(len(split))])
    return pixels.float() / 127.5 - 1, torch.as_tensor(split.labels)


def moved(images: Tensor, generator: torch.Generator) -> Tensor:
    """Digits a pixel aside, bolder or fainter, under noise."""
    rows, columns = (torch.arange(SIDE) + torch.randint(3, (len(images), 1), generator=generator) for _ in range(2))
    shifted = F.pad(images, (1, 1, 1, 1), value=-1.0)[
        torch.arange(len(images))[:, None, None], rows[:, :, None], columns[:, None, :]
    ]
    gain = 0.7 + 0.6 * torch.rand(len(images), 1, 1, generator=generator)
    noise = 0.2 * torch.randn(len(images), SIDE, SIDE, generator=generator)
    return (shifted * gain + noise)[:, None].expand(-1, 3, -1, -1).contiguous()


class Pictures:
    """Batches of views of images; `shuffled`: every view is of another image."""

    def __init__(self, kind: Set, num_views: int, *, shuffled: bool) -> None:
        self.kind, self.num_views, self.shuffled, self.damaged = kind, num_views, shuffled, dict[int, str]()

    def batch(self, step: int) -> Batch:
        generator, known = torch.Generator().manual_seed(step), digits("train")[0]
        num = 256 if self.kind == "tints" else len(known)
        images = torch.randint(num, (self.num_views, BATCH), generator=generator)
        if not self.shuffled:
            images = images[:1].expand(self.num_views, -1)
        tinted = self.kind == "tints"
        views = [pictures(own % CLASSES, generator) if tinted else moved(known[own], generator) for own in images]
        return Batch({"train": Stream(tuple(views), {}, torch.arange(BATCH) + step * BATCH)})

    def close(self) -> None: ...


def knn(model: Model, kind: Set) -> float:
    generator = torch.Generator().manual_seed(1)
    if kind == "tints":
        labels = [torch.arange(num) % CLASSES for num in (400, 400)]
        images = [pictures(own, generator) for own in labels]
    else:
        known, labels = zip(*map(digits, ("train", "test")), strict=True)
        images = [moved(own, generator) for own in known]
    with torch.no_grad(), evaluating(model):
        features = [model.pooled(own).numpy() for own in images]
    return float(knn_accuracy(features[0], labels[0], features[1], labels[1], ks=(10,))[0])


@functools.cache
def learned(name: str, broken: str = "", on: Set = "tints", **options: Any) -> tuple[float, dict[str, float]]:
    """The accuracy of the nearest neighbours by what an objective has trained, and the metrics of the last steps."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"image_size": (SIDE, SIDE), "patch_size": PATCH, "width": 32, "depth": 1, "mlp_dim": 64}
    if on == "digits":
        sizes["positions_std"] = 0.5  # shapes tell them apart, which fresh weights see by this
    model = ViT(ViTConfig(**sizes, heads=2, num_classes=0, pool="mean"), Preprocess(size=(SIDE, SIDE)))
    model.initialize()
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
    feed = Pictures(on, NUM_VIEWS[name], shuffled=broken == "shuffled")
    spec = Optimizer(lr=3e-3, weight_decay=0.05, clip=1.0)
    state, stepper = stepping(model, objective, spec, feed)
    steps = ENOUGH.get(broken, STEPS[on])
    for step in range(steps):
        assert stepper(step, min((step + 1) / 10, 1.0))
        if step == steps - 20:
            stepper.read()
    return knn(state.objective.product(state.model), on), stepper.read()


@pytest.mark.parametrize(
    ("name", "kind"),
    # in so few steps DINO learns nothing of digits but by KoLeo, which needs no views
    [*((name, "tints") for name in OPTIONS), ("simclr", "digits"), ("lejepa", "digits")],
)
def test_it_learns_what_broken_ones_cannot(name: str, kind: Set) -> None:
    """Images are nearest to those of their own tint, or digit.

    Not so where views are of several images, the student is frozen, or the loss is turned around.
    """
    found = {broken: learned(name, broken, kind)[0] for broken in ("", "shuffled", "frozen", "sign")}
    low, high = BARS[kind]
    assert found.pop("") > high
    assert max(found.values()) < low


def test_collapse_is_seen_in_the_teachers_entropies() -> None:
    """Without a centre it says one thing of all images; without sharpening, nothing of any; with both, neither."""
    _, sound = learned("dino", "")
    assert sound["teacher entropy"] < 0.5
    assert sound["teacher diversity"] - sound["teacher entropy"] > 0.2
    accuracy, one_answer = learned("dino", "collapse", center_momentum=1.0)
    assert one_answer["teacher diversity"] < 0.05
    assert accuracy < 0.7
    accuracy, no_answer = learned("dino", "collapse", teacher_temp=1.0, teacher_temp_start=1.0)
    assert no_answer["teacher entropy"] > 0.995
    assert accuracy < 0.7
