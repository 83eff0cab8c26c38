"""A round's loss against NumPy in float64, and what it refuses."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import vitlab
from tiny_vits import SIZES, random_vit
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import DataSet, Split
from vitlab.data.sources.pixels import Pixels
from vitlab.models.vit import ViTConfig
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.contract import Criterion, Setting
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.noisy_student import NoisyStudent, NoisyStudentOptions

NOTHING = Split(Pixels(np.zeros((1, 8, 8, 3), np.uint8), "them"))
TEACHER: Any = torch.nn.Identity()


def log_softmax(x: Any) -> Any:
    x = np.asarray(x, dtype=np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def smoothed(target: Any, smoothing: float) -> Any:
    return np.asarray(target, np.float64) * (1 - smoothing) + smoothing / target.shape[-1]


@pytest.mark.parametrize(("labels", "ratio"), [("soft", 1), ("soft", 3), ("hard", 2)])
def test_the_loss_is_the_labelled_mean_and_ratio_times_the_others(labels: Any, ratio: int) -> None:
    """Images that are their own logits; hard labels are smoothed as the true ones are, soft ones are not."""
    generator = torch.Generator().manual_seed(0)
    own, others = torch.randn(4, 3, generator=generator), torch.randn(4 * ratio, 3, generator=generator)
    true, told = torch.eye(3)[[0, 1, 2, 0]], torch.rand(4 * ratio, 3, generator=generator).softmax(dim=1)
    if labels == "hard":
        told = torch.eye(3)[told.argmax(dim=1)]
    batch = Batch(
        {
            "labelled": Stream((own[:, :, None, None],), {"label": true}, torch.arange(4)),
            "unlabelled": Stream((others[:, :, None, None],), {"label": told}, torch.arange(4 * ratio)),
        }
    )
    options = NoisyStudentOptions(labels=labels, ratio=ratio)
    made: Any = NoisyStudent(options, CrossEntropy(label_smoothing=0.2), TEACHER, NOTHING)

    def handed_on(images: Tensor) -> Tensor:
        return images.flatten(1)

    loss, metrics = made.loss(handed_on, batch, torch.zeros(()))
    first = -(smoothed(true, 0.2) * log_softmax(own)).sum(axis=1).mean()
    second = -(smoothed(told, 0.2 if labels == "hard" else 0.0) * log_softmax(others)).sum(axis=1).mean()
    assert loss.item() == pytest.approx(first + ratio * second, rel=1e-6)
    assert metrics["unlabelled loss"].item() == pytest.approx(second, rel=1e-6)
    same = (others.argmax(dim=1) == told.argmax(dim=1)).float().mean().item()
    assert metrics["agreement"].item() == pytest.approx(same)


def test_what_it_cannot_do_is_a_sentence(tmp_path: Path) -> None:
    kind, student = OBJECTIVES.find("noisy-student"), random_vit(ViTConfig(**SIZES, num_classes=3))
    vitlab.save(random_vit(ViTConfig(**SIZES, num_classes=2)), tmp_path / "teacher")
    dataset = DataSet("set", tuple("abc"), {"unlabelled": NOTHING}, "print")

    class Squared(Criterion):
        def losses(self, outputs: Tensor, target: Tensor) -> Tensor:
            return (outputs - target).square().mean(dim=1)

    def setting(criterion: Any) -> Setting:
        return Setting(model=student, dataset=dataset, target="label", criterion=criterion)

    with pytest.raises(ConfigError, match=r"needs a teacher: name a trained model \(--objective.teacher SOURCE\)"):
        kind.build(kind.options(), setting(CrossEntropy))
    with pytest.raises(ConfigError, match="Noisy Student is for classification"):
        kind.build(kind.options(teacher=str(tmp_path / "teacher")), setting(Squared))
    with pytest.raises(ConfigError, match="knows 2 classes and set has 3: fine-tune it on that data first"):
        kind.build(kind.options(teacher=str(tmp_path / "teacher")), setting(CrossEntropy))
    with pytest.raises(ConfigError, match=r"Noisy Student needs loss\.kind='softmax'"):
        NoisyStudent(NoisyStudentOptions(), CrossEntropy("sigmoid"), TEACHER, NOTHING)
