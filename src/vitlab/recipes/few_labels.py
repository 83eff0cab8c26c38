"""Few labels and many images: FixMatch, a round of Noisy Student, and their supervised baseline.

`--data.labelled` says how many labels there are. The supervised recipes have the averaged weights, the steps and the
labelled batch of the others, and images with labels alone. On CIFAR-10 they have the strong augmentation, on digits the
weak one; docs/few_labels.md has a run with the strong one too.

FixMatch's authors train a Wide-ResNet-28-2 on CIFAR-10 with SGD (.03, Nesterov), L2 decay 5e-4 on kernels, averaged
weights .999, 64 labelled images and 448 others per step, 2^20 steps; the threshold, the ratio, the weight and the
schedule cos(7 pi t / 16) here are theirs. Model and optimizer are those of the recipe cifar10, and the run is as short;
that labels come from an average of the model is Semi-ViT's (arXiv 2208.05688).
Noisy Student's quota and noise follow no published recipe at this size: the authors' smallest is SVHN.
"""

from collections.abc import Callable, Mapping
from typing import Any

from vitlab.core.config import Choice
from vitlab.data.augmentation import Augmentation
from vitlab.objectives.unlabelled import Strong
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

QUARTER_COSINE_END = 0.19509  # cos(7 pi / 16)


# of FixMatch's strong view; pictures of 8 x 8 bear less than the default
DIGITS_STRONG = {"magnitude": 3.0, "erase": 0.5, "erase_area": (0.02, 0.15)}


def _strong(weak: Augmentation, **changes: Any) -> Augmentation:
    """FixMatch's strong view, for labelled images and for a student."""
    return Strong(**changes).strong(weak)


def _digits(
    name: str, augmentation: Augmentation, objective: str = "supervised", options: Mapping[str, Any] | None = None
) -> Recipe:
    return Recipe(
        name=name,
        model=ModelChoice(source="vit-digits", set=("positions_std=0.5", "depth=2")),
        data=DataChoice(source="digits", val_fraction=0.1, labelled=0.05),
        augmentation=augmentation,
        objective=Choice(objective, options or {}),
        optimizer=Optimizer(lr=3e-3, weight_decay=0.05, clip=1.0, ema=0.99),
        schedule=Schedule(kind="quarter-cosine", total="400 steps", warmup="5%", end=QUARTER_COSINE_END),
        batch_size=32,
        evaluate_every="100 steps",
        checkpoint_every="100 steps",
        keep="last",  # a few dozen images would select by luck
    )


def _cifar10(
    name: str, augmentation: Augmentation, objective: str = "supervised", options: Mapping[str, Any] | None = None
) -> Recipe:
    return Recipe(
        name=name,
        model=ModelChoice(
            source="vit-s4-32",
            drop_path=0.1,
            image_size=32,
            set=("pool=mean", "class_token=false", "positions_std=0.5", "residual_scale=0", "rotary=true"),
        ),
        data=DataChoice(source="cifar10", val_fraction=0.02, labelled=0.01),
        augmentation=augmentation,
        objective=Choice(objective, options or {}),
        optimizer=Optimizer(name="muon", lr=7e-4, momentum=0.95, weight_decay=0.05, clip=1.0, ema=0.999),
        schedule=Schedule(kind="quarter-cosine", total="6000 steps", warmup="4%", end=QUARTER_COSINE_END),
        batch_size=64,
        compile=True,
        evaluate_every="1000 steps",
        checkpoint_every="1000 steps",
        log_every="100 steps",
        keep="last",
    )


DIGITS_WEAK = Augmentation(crop="pad", pad=1, flip=0.0)
CIFAR_WEAK = Augmentation(crop="pad", pad=4, pad_mode="reflect", flip=0.5)


def few_labels_digits() -> Recipe:
    """The labels of 5% of scikit-learn's embedded digits alone: the baseline of FixMatch and Noisy Student.

    Command: vitlab train few-labels-digits
    Hardware and time: one thread of an AMD EPYC, 10 s of CPU time.
    Score: 72.25, 75.0 and 74.5% on the test part (400 images), seeds 0 to 2 (docs/few_labels.md).
    """
    return _digits("few-labels-digits", DIGITS_WEAK)


def fixmatch_digits() -> Recipe:
    """FixMatch with the labels of 5% of scikit-learn's embedded digits.

    Command: vitlab train fixmatch-digits
    Hardware and time: one thread of an AMD EPYC, 32 s of CPU time.
    Score: 78.75 and 76.25% on the test part (400 images), seeds 0 and 1 (docs/few_labels.md).
    """
    return _digits("fixmatch-digits", DIGITS_WEAK, "fixmatch", {"ratio": 2, **DIGITS_STRONG})


def noisy_student_digits() -> Recipe:
    """A round of Noisy Student with the labels of 5% of scikit-learn's embedded digits.

    Command: vitlab train few-labels-digits --out runs/teacher
             vitlab train noisy-student-digits --objective.teacher runs/teacher
    Hardware and time: one thread of an AMD EPYC, 31 s of CPU time.
    Score: 79.5% on the test part (400 images), seed 0 (docs/few_labels.md).
    """
    noise = _strong(DIGITS_WEAK, **DIGITS_STRONG)
    return _digits("noisy-student-digits", noise, "noisy-student", {"ratio": 2, "quota": 100})


def few_labels_cifar10() -> Recipe:
    """The labels of 1% of CIFAR-10 alone: the baseline of FixMatch and Noisy Student.

    Command: vitlab train few-labels-cifar10 --data.source PATH
    Hardware and time: not run here with this model.
    Score: 48.39 ± 0.55% by vit-lite7-4-32 in 36 s of steps on one H200, three seeds (docs/results/methods.md).
    """
    return _cifar10("few-labels-cifar10", _strong(CIFAR_WEAK))


def fixmatch_cifar10() -> Recipe:
    """FixMatch with the labels of 1% of CIFAR-10, by the model of the recipe cifar10.

    Command: vitlab train fixmatch-cifar10 --data.source PATH
    Hardware and time: not run here with this model.
    Score: by vit-lite7-4-32 in 36 s of steps on one H200, three draws of labels: 51.14 ± 0.70%, after half of that
    time by simclr-cifar10 66.86 ± 0.40%; labels alone have 48.74, by the recipe cifar10 55.04
    (docs/results/methods.md).
    """
    return _cifar10("fixmatch-cifar10", CIFAR_WEAK, "fixmatch", {"teacher_ema": 0.99})


def noisy_student_cifar10() -> Recipe:
    """A round of Noisy Student with the labels of 1% of CIFAR-10, by the model of the recipe cifar10.

    Command: vitlab train few-labels-cifar10 --data.source PATH --out runs/teacher
             vitlab train noisy-student-cifar10 --data.source PATH --objective.teacher runs/teacher
    Hardware and time: not run here with this model.
    Score: by vit-lite7-4-32 in 36 s of steps on one H200, the teacher's with them: 55.03 ± 0.34%, three seeds; after
    half of that time by simclr-cifar10 65.48 ± 0.76%, three draws of labels (docs/results/methods.md).
    """
    return _cifar10("noisy-student-cifar10", _strong(CIFAR_WEAK), "noisy-student", {"ratio": 7, "quota": 4000})


RECIPES: dict[str, Callable[[], Recipe]] = {
    "few-labels-digits": few_labels_digits,
    "fixmatch-digits": fixmatch_digits,
    "noisy-student-digits": noisy_student_digits,
    "few-labels-cifar10": few_labels_cifar10,
    "fixmatch-cifar10": fixmatch_cifar10,
    "noisy-student-cifar10": noisy_student_cifar10,
}
