"""DeiT's losses against NumPy, and a teacher that sees the same pixels and stays as it is."""

from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from batches import labelled
from tiny_vits import SIZES, random_vit
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.data.batch import Batch
from vitlab.models.heads import DistilledHead
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.distillation import Distillation

PLAIN = Preprocess(size=(8, 8))
NOW = torch.zeros(())


def answering(answers: Tensor, num_classes: int = 3) -> Any:
    """A student that gives these answers: of one head, or of two beside each other."""

    two = DistilledHead(num_classes, num_classes)
    for linear in (two.label, two.teacher):
        torch.nn.init.eye_(linear.weight)
        torch.nn.init.zeros_(linear.bias)

    class Student(torch.nn.Module):
        head = two if answers.shape[1] > num_classes else torch.nn.Identity()

        def pooled(self, _: Tensor) -> Tensor:
            return answers

        def forward(self, _: Tensor) -> Tensor:
            return self.head(answers)

    return Student()


def tiny(seed: int = 0, *, preprocess: Preprocess = PLAIN, **changes: Any) -> ViT:
    sizes = {**SIZES, "image_size": preprocess.size, "num_classes": 3, **changes}
    model = random_vit(ViTConfig(**sizes), seed=seed, preprocess=preprocess)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(0.3)
    return model


def a_batch(num: int = 5) -> Batch:
    generator = torch.Generator().manual_seed(7)
    targets = torch.rand(num, 3, generator=generator).softmax(dim=-1)  # as mixing makes them
    return labelled(torch.randn(num, 3, 8, 8, generator=generator), targets)


def log_softmax(x: Any) -> Any:
    x = np.asarray(x, dtype=np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def expected(kind: str, label: Any, distilled: Any, told: Any, targets: Any, alpha: float, tau: float) -> float:
    """Equations 2 and 3 of arXiv 2012.12877 in float64, image by image."""
    total = 0.0
    for own, other, teacher, y in zip(label, distilled, told, np.asarray(targets, dtype=np.float64), strict=True):
        from_labels = -(y * log_softmax(own)).sum()
        if kind == "hard":
            from_teacher = -log_softmax(other)[int(np.argmax(teacher))]
        else:
            p = np.exp(log_softmax(np.asarray(teacher, dtype=np.float64) / tau))
            q = np.exp(log_softmax(np.asarray(other, dtype=np.float64) / tau))
            from_teacher = tau**2 * (p * np.log(p / q)).sum()
        total += (1 - alpha) * from_labels + alpha * from_teacher
    return total / len(label)


@pytest.mark.parametrize("two_heads", [True, False])
@pytest.mark.parametrize(("kind", "alpha", "tau"), [("hard", 0.5, 3.0), ("soft", 0.1, 3.0), ("soft", 0.7, 1.0)])
def test_the_loss_is_the_papers(kind: Any, alpha: float, tau: float, two_heads: bool) -> None:
    teacher, batch = tiny(1), a_batch()
    objective = Distillation(CrossEntropy(), teacher, seen=PLAIN, kind=kind, alpha=alpha, tau=tau)
    answers = torch.randn(5, 6 if two_heads else 3, generator=torch.Generator().manual_seed(3))
    loss, metrics = objective.loss(answering(answers), batch, NOW)
    with torch.no_grad():
        told = teacher(batch.images).numpy()
    label, distilled = answers[:, :3].numpy(), answers[:, -3:].numpy()
    wanted = expected(kind, label, distilled, told, batch.targets["label"], alpha, tau)
    assert loss.item() == pytest.approx(wanted, rel=1e-5)
    assert metrics["agreement"].item() == pytest.approx((distilled.argmax(1) == told.argmax(1)).mean())
    together = (label + distilled).argmax(1) == batch.targets["label"].numpy().argmax(1)
    assert metrics["accuracy"].item() == pytest.approx(together.mean())


def test_a_case_worked_by_hand() -> None:
    """Two classes, both heads undecided: half of ln 2 from the labels, and half of it whatever the teacher says."""
    teacher = tiny(1, num_classes=2)
    objective = Distillation(CrossEntropy(), teacher, seen=PLAIN)
    batch = labelled(torch.zeros(1, 3, 8, 8), torch.tensor([[0.0, 1.0]]))
    loss, _ = objective.loss(answering(torch.zeros(1, 4), 2), batch, NOW)
    assert loss.item() == pytest.approx(np.log(2))


def test_labels_are_smoothed_and_the_teachers_are_not() -> None:
    teacher, batch = tiny(1), a_batch()
    answers = torch.randn(5, 6, generator=torch.Generator().manual_seed(3))
    objective = Distillation(CrossEntropy(label_smoothing=0.1), teacher, seen=PLAIN)
    smoothed = batch.targets["label"] * 0.9 + 0.1 / 3
    with torch.no_grad():
        told = teacher(batch.images).numpy()
    wanted = expected("hard", answers[:, :3].numpy(), answers[:, 3:].numpy(), told, smoothed, 0.5, 1.0)
    assert objective.loss(answering(answers), batch, NOW)[0].item() == pytest.approx(wanted, rel=1e-5)


def test_the_teacher_sees_its_own_normalisation_of_the_same_pixels() -> None:
    teacher = tiny(1, preprocess=Preprocess(size=(8, 8), mean=IMAGENET_MEAN, std=IMAGENET_STD))
    pixels = torch.randint(0, 256, (4, 3, 8, 8), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    objective = Distillation(CrossEntropy(), teacher, seen=PLAIN)
    with torch.no_grad():
        wanted = teacher(teacher.preprocess.normalize(pixels))
    torch.testing.assert_close(objective.taught(PLAIN.normalize(pixels)), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(4, 4), (16, 12)])
def test_the_teacher_sees_pictures_at_its_own_size(size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    teacher = tiny(1, preprocess=Preprocess(size=size))
    seen: list[Tensor] = []

    def see(images: Tensor) -> Tensor:
        seen.append(images)
        return torch.zeros(len(images), 3)

    monkeypatch.setattr(teacher, "forward", see)
    rng = np.random.default_rng(0)
    picture = Image.fromarray(rng.integers(0, 256, (8, 8, 3)).astype(np.uint8))
    Distillation(CrossEntropy(), teacher, seen=PLAIN).taught(PLAIN([picture]))
    resized = np.asarray(picture.resize((size[1], size[0]), Image.Resampling.BILINEAR), dtype=np.float64)
    wanted = torch.from_numpy(resized / 127.5 - 1).permute(2, 0, 1)[None].float()
    torch.testing.assert_close(seen[0], wanted, rtol=0, atol=1.5 / 127.5)  # Pillow rounds to bytes


def test_classes_in_another_order() -> None:
    teacher, images = tiny(1), a_batch().images
    objective = Distillation(CrossEntropy(), teacher, seen=PLAIN, order=[2, 0, 1])
    with torch.no_grad():
        logits = teacher(images)
    assert torch.equal(objective.taught(images), torch.stack([logits[:, 2], logits[:, 0], logits[:, 1]], dim=1))


def test_each_head_learns_from_its_own_source() -> None:
    """The whole student: label head from the labels, distillation head from the teacher; its answer is their mean."""
    student, batch, teacher = tiny(2, distill_token=True).train(), a_batch(), tiny(1)
    assert isinstance(student.head, DistilledHead)
    with torch.no_grad():
        label, distilled = student.head.both(student.pool(student.encode(student.embed(batch.images))))
        mean, taught = student(batch.images), teacher(batch.images).numpy()
        loss, _ = Distillation(CrossEntropy(), teacher, seen=PLAIN).loss(student, batch, NOW)
    torch.testing.assert_close(mean, (label + distilled) / 2, rtol=1e-4, atol=1e-4)
    wanted = expected("hard", label.numpy(), distilled.numpy(), taught, batch.targets["label"], 0.5, 1.0)
    assert loss.item() == pytest.approx(wanted, rel=1e-4)
    first, second = student.head.label, student.head.teacher
    for alpha, learns, rests in ((0.0, first, second), (1.0, second, first)):
        student.zero_grad()
        Distillation(CrossEntropy(), teacher, seen=PLAIN, alpha=alpha).loss(student, batch, NOW)[0].backward()
        assert learns.weight.grad is not None
        assert learns.weight.grad.any()
        assert rests.weight.grad is None or not rests.weight.grad.any()


def test_the_teacher_is_neither_trained_nor_saved_but_follows() -> None:
    teacher = tiny(1, dropout=0.5).train()
    objective = Distillation(CrossEntropy(), teacher, seen=PLAIN).train()
    assert list(objective.parameters()) == []
    assert objective.state_dict() == {}
    images = a_batch().images
    assert torch.equal(objective.taught(images), objective.taught(images))  # no dropout
    assert not objective.taught(images).requires_grad
    objective.to(torch.float64)
    assert next(teacher.parameters()).dtype == torch.float64
    assert objective.scale.dtype == torch.float64


def test_what_cannot_be_is_refused() -> None:
    teacher = tiny(1)
    with pytest.raises(ConfigError, match="softmax"):
        Distillation(CrossEntropy("sigmoid"), teacher, seen=PLAIN)
    with pytest.raises(ConfigError, match="alpha"):
        Distillation(CrossEntropy(), teacher, seen=PLAIN, alpha=1.5)
    with pytest.raises(ConfigError, match="tau"):
        Distillation(CrossEntropy(), teacher, seen=PLAIN, tau=0.0)
