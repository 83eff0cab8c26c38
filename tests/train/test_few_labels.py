"""Images without labels: what FixMatch and Noisy Student learn from them in generated pictures, and broken ones do not.

A class is a brightness under noise. In the labelled images a tint goes with it, everywhere else the tint says nothing.
Who learns from labels alone goes by both. Who asks that views of one image that differ in their tints have one answer
finds that the tint is none of it.
"""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from batches import stepping
from vitlab.core.preprocess import Preprocess
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import Split
from vitlab.data.sources.pixels import Pixels
from vitlab.models.contract import evaluating
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.contract import Objective
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.fixmatch import Fixmatch, FixmatchOptions
from vitlab.objectives.noisy_student import NoisyStudent, NoisyStudentOptions
from vitlab.training.optimizers import Optimizer

SIDE, LABELLED, OTHERS, STEPS = 8, 16, 64, 80
NOTHING = Split(Pixels(np.zeros((1, SIDE, SIDE, 3), np.uint8), "them"))


def pictures(classes: Tensor, tints: Tensor, generator: torch.Generator) -> Tensor:
    """Two classes, told by their brightness, and two tints."""
    sign, color = (2.0 * each[:, None, None, None] - 1 for each in (classes, tints))
    tint = torch.tensor([1.0, 0.0, -1.0])[:, None, None]
    return torch.randn(len(classes), 3, SIDE, SIDE, generator=generator) + 0.25 * sign + 0.3 * color * tint


def drawn(num: int, generator: torch.Generator) -> Tensor:
    return torch.randint(2, (num,), generator=generator)


class Both:
    """Batches of 16 labelled images and 64 others in two views; `teacher`: these have its labels.

    `shuffled`: the second view, or the label, is another image's.
    """

    def __init__(self, teacher: ViT | None = None, *, shuffled: bool = False) -> None:
        self.teacher, self.shuffled, self.damaged = teacher, shuffled, dict[int, str]()

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        labels, others = torch.arange(LABELLED) % 2, drawn(OTHERS, generator)
        first = pictures(labels, labels, generator)
        weak, strong = (pictures(others, drawn(OTHERS, generator), generator) for _ in range(2))
        order = torch.randperm(OTHERS, generator=generator) if self.shuffled else torch.arange(OTHERS)
        views, targets = (weak, strong[order]), dict[str, Tensor]()
        if self.teacher is not None:
            with torch.no_grad(), evaluating(self.teacher):
                views, targets = (strong,), {"label": self.teacher(weak).softmax(dim=1)[order]}
        return Batch(
            {
                "labelled": Stream((first,), {"label": torch.eye(2)[labels]}, torch.arange(LABELLED)),
                "unlabelled": Stream(views, targets, torch.arange(OTHERS)),
            }
        )

    def close(self) -> None: ...


def trained(objective: Objective, feed: Both) -> tuple[ViT, float]:
    """A small ViT, and its accuracy on images whose tint says nothing."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"image_size": (SIDE, SIDE), "patch_size": 4, "width": 16, "depth": 1, "mlp_dim": 32}
    model = ViT(ViTConfig(**sizes, heads=2, num_classes=2, pool="mean"), Preprocess(size=(SIDE, SIDE)))
    model.initialize()
    _, stepper = stepping(model, objective, Optimizer(lr=3e-3, weight_decay=0.0, clip=1.0), feed)
    for step in range(STEPS):
        assert stepper(step, 1 - step / STEPS)
    generator = torch.Generator().manual_seed(10_000)
    classes = drawn(600, generator)
    with torch.no_grad(), evaluating(model):
        answers = model(pictures(classes, drawn(600, generator), generator)).argmax(dim=1)
    return model, (answers == classes).float().mean().item()


@functools.cache
def fixmatch(*, threshold: float = 0.8, shuffled: bool = False) -> tuple[ViT, float]:
    return trained(Fixmatch(FixmatchOptions(threshold=threshold), CrossEntropy(), NOTHING), Both(shuffled=shuffled))


def test_fixmatch_learns_what_broken_ones_cannot() -> None:
    """Not so where no answer is ever a label, or where the strong view is another image's."""
    broken = {"no labels": fixmatch(threshold=1.1)[1], "shuffled": fixmatch(shuffled=True)[1]}
    assert fixmatch()[1] > 0.95
    assert max(broken.values()) < 0.85  # the tint agrees with the class in half of the images: 75%


def student(*, shuffled: bool = False) -> float:
    teacher, _ = fixmatch(threshold=1.1)  # labels alone
    objective = NoisyStudent(NoisyStudentOptions(ratio=4), CrossEntropy(), teacher, NOTHING)
    return trained(objective, Both(teacher, shuffled=shuffled))[1]


def test_a_noisy_student_is_better_than_its_teacher_and_not_with_anothers_labels() -> None:
    """The tint that the teacher went by is noise in what the student sees."""
    assert fixmatch(threshold=1.1)[1] < 0.85
    assert student() > 0.95
    assert student(shuffled=True) < 0.85
