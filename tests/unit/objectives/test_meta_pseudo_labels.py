"""Meta Pseudo Labels: its losses against NumPy in float64, its feedback against finite differences, state by hand."""

import copy
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batches import stepping
from tiny_vits import SIZES, random_vit
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import Split
from vitlab.models.contract import evaluating
from vitlab.models.create import create
from vitlab.models.outside import wrap
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.meta_pseudo_labels import MetaPseudoLabels, MetaPseudoLabelsOptions
from vitlab.training.adapters import choose, hold_still
from vitlab.training.learner import Learner
from vitlab.training.optimizers import Optimizer, build

NOW, MADE, SKIPPED = torch.tensor(0.5), torch.tensor(True), torch.tensor(False)
PAPER: dict[str, Any] = {"labels": "sampled", "sign": "theory"}


def batch_of(images: int = 4, *, ratio: int = 2, classes: int = 3, seed: int = 3) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def pictures(num: int) -> Tensor:
        return torch.randn(num, 3, 8, 8, generator=generator)

    num = images * ratio
    label = torch.eye(classes)[torch.arange(images) % classes]
    return Batch(
        {
            "labelled": Stream((pictures(images),), {"label": label}, torch.arange(images)),
            "unlabelled": Stream((pictures(num), pictures(num)), {}, torch.arange(num) + 50),
        }
    )


def tiny(seed: int = 0, **fields: Any) -> ViT:
    model = random_vit(ViTConfig(**{**SIZES, "num_classes": 3, **fields}), seed=seed).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.3)
    return model


def made(model: Any, smoothing: float = 0.0, **options: Any) -> MetaPseudoLabels:
    """For a model; its teacher has other weights."""
    torch.manual_seed(7)
    own = {"wait": 0.0, "ramp": 0.0, "teacher_start": "student", **options}
    criterion = CrossEntropy(label_smoothing=smoothing)
    objective = MetaPseudoLabels(MetaPseudoLabelsOptions(**own), criterion, model, _no_images(), "label")
    with torch.no_grad():
        for parameter in objective.player.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return objective


def _no_images() -> Split:
    return Split([])  # pyright: ignore[reportArgumentType]


def log_softmax(x: Any) -> Any:
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def answers(model: nn.Module, images: Tensor) -> Any:
    with torch.no_grad():
        return model(images).double().numpy()


@pytest.mark.parametrize("labels", ["soft", "hard"])
@pytest.mark.parametrize("sign", ["authors", "theory"])
def test_both_losses_are_their_formulas(labels: Any, sign: Any) -> None:
    student, batch = tiny(), batch_of()
    options: dict[str, Any] = {"labels": labels, "sign": sign, "weight": 3.0, "temperature": 0.2, "threshold": 0.5}
    objective = made(student, 0.15, ramp=0.8, baseline_rate=0.2, **options)
    labelled, unlabelled = batch.streams["labelled"], batch.streams["unlabelled"]
    y, strong = labelled.targets["label"].double().numpy(), unlabelled.views[1]
    loss, _ = objective.loss(student, batch, NOW)

    taught = answers(objective.player, strong)
    q = np.exp(log_softmax(taught))
    q = q if labels == "soft" else np.eye(3)[q.argmax(axis=1)]
    smoothed = q * 0.85 + 0.15 / 3
    expected = -(smoothed * log_softmax(answers(student, strong))).sum(axis=1).mean()
    assert loss.item() == pytest.approx(expected, rel=1e-5)

    def on_labels() -> float:
        return float(-(y * log_softmax(answers(student, labelled.views[0]))).sum(axis=1).mean())

    before = on_labels()
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.mul_(1.2)
    objective.baseline.fill_(0.05)
    h = (on_labels() - before) * (-1 if sign == "theory" else 1)
    found, metrics = objective.teach(student, batch, NOW)
    p = np.exp(log_softmax(answers(objective.player, unlabelled.views[0]) / 0.2))
    sure = p.max(axis=1) >= 0.5
    assert 0 < sure.sum() < len(sure)
    uda = (-(p * log_softmax(taught)).sum(axis=1) * sure).mean()
    from_labels = -((y * 0.85 + 0.05) * log_softmax(answers(objective.player, labelled.views[0]))).sum(axis=1).mean()
    feedback = h - (0.05 + 0.2 * (h - 0.05))  # the mean moves before it is taken off
    meta = -(q * log_softmax(taught)).sum(axis=1).mean()
    assert found.item() == pytest.approx(from_labels + 3.0 * (0.5 / 0.8) * uda + feedback * meta, rel=1e-5)
    assert metrics["feedback"].item() == pytest.approx(feedback, rel=1e-3)
    assert metrics["sure"].item() == pytest.approx(sure.mean())
    objective.after_step(student, SKIPPED)
    assert objective.baseline.item() == pytest.approx(0.05)
    objective.after_step(student, MADE)
    assert objective.baseline.item() == pytest.approx(0.05 + 0.2 * (h - 0.05), rel=1e-4)


class Line(nn.Module):
    """Two classes by two parameters: the logit of the second is w . x, that of the first 0."""

    def __init__(self, *w: float) -> None:
        super().__init__()
        self.head = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.head.weight.copy_(torch.tensor([w]))

    def forward(self, images: Tensor) -> Tensor:
        logit = self.head(images.flatten(1))
        return torch.cat([torch.zeros_like(logit), logit], dim=1)

    def auxiliary(self) -> dict[str, Tensor]:
        return {}


UNLABELLED = torch.tensor([[0.7, -0.4], [-0.2, 1.1]], dtype=torch.float64)[:, :, None, None]
LABELLED = torch.tensor([[1.0, 0.3], [-0.5, 0.8], [0.1, -1.2]], dtype=torch.float64)[:, :, None, None]
TARGET = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
LINES = Batch(
    {
        "labelled": Stream((LABELLED,), {"label": TARGET}, torch.arange(3)),
        "unlabelled": Stream((UNLABELLED, UNLABELLED), {}, torch.arange(2)),
    }
)


def stepped(student: Line, pseudo: Tensor, lr: float) -> Line:
    """The student after one step of gradient descent on pseudo-labels."""
    after = copy.deepcopy(student)
    loss = -(pseudo * after(UNLABELLED).log_softmax(dim=-1)).sum(dim=-1).mean()
    (gradient,) = torch.autograd.grad(loss, after.head.weight)
    with torch.no_grad():
        after.head.weight.sub_(lr * gradient)
    return after


def labelled_loss(student: Line) -> float:
    with torch.no_grad():
        return float(-(TARGET * student(LABELLED).log_softmax(dim=-1)).sum(dim=-1).mean())


def by_differences(student: Line, teacher: Line, lr: float) -> Tensor:
    """d L(student after a step on the teacher's probabilities) / d teacher, without any derivation."""
    found = []
    for i in range(2):
        values = []
        for way in (1, -1):
            moved = copy.deepcopy(teacher)
            with torch.no_grad():
                moved.head.weight[0, i] += way * 1e-5
                taught = moved(UNLABELLED).softmax(dim=-1)
            values.append(labelled_loss(stepped(student, taught, lr)))
        found.append((values[0] - values[1]) / 2e-5)
    return torch.tensor(found, dtype=torch.float64)


def by_feedback(student: Line, teacher: Line, lr: float, *, baseline: float = 0.0, **options: Any) -> Tensor:
    """The mean, over the labels that the teacher may draw, of what its feedback alone asks of its parameters."""
    mean = torch.zeros(2, dtype=torch.float64)
    for classes in itertools.product(range(2), repeat=2):
        objective = made(student, weight=0.0, baseline_rate=0.0, **{**PAPER, **options}).double()
        objective.player.load_state_dict(teacher.state_dict())
        objective.baseline.fill_(baseline)
        if objective.options.labels == "sampled":
            drawn = torch.eye(2, dtype=torch.float64)[list(classes)]
            objective.drawn = lambda *_, drawn=drawn: drawn  # pyright: ignore[reportAttributeAccessIssue]
            with torch.no_grad():
                chance = float((teacher(UNLABELLED).softmax(dim=-1) * drawn).sum(dim=-1).prod())
        else:
            chance = 0.25
        objective.loss(student, LINES, NOW)  # type: ignore[arg-type]
        assert objective.pseudo is not None
        after = stepped(student, objective.pseudo, lr)
        loss, _ = objective.teach(after, LINES, NOW)  # type: ignore[arg-type]
        (gradient,) = torch.autograd.grad(loss, objective.player.head.weight)  # type: ignore[arg-type]
        mean += chance * (gradient[0] - _of_labels(teacher))
    return mean


def _of_labels(teacher: Line) -> Tensor:
    """The gradient of the part of the teacher's loss that has nothing to do with the student."""
    outputs = teacher(LABELLED).float()
    loss = -(TARGET * outputs.log_softmax(dim=-1)).sum(dim=-1).mean()
    return torch.autograd.grad(loss, teacher.head.weight)[0][0]


def test_feedback_is_the_derivative_of_the_students_loss_by_the_teacher() -> None:
    """With the theory's sign and drawn labels, to the first order of the student's lr: of a tenth a tenth is wrong.

    Labels are a mean over images, so that n times the feedback's gradient is the derivative.
    """
    student, teacher = Line(0.4, -0.9), Line(-0.3, 0.6)
    errors = []
    for lr in (1e-2, 1e-3):
        expected = by_differences(student, teacher, lr)
        found = len(UNLABELLED) * by_feedback(student, teacher, lr)
        errors.append(float((found - expected).norm() / expected.norm()))
    assert errors[0] < 0.02
    assert errors[1] < 0.15 * errors[0]


def test_the_authors_sign_climbs_and_a_baseline_changes_no_mean() -> None:
    student, teacher, lr = Line(0.4, -0.9), Line(-0.3, 0.6), 1e-3
    expected = by_feedback(student, teacher, lr)
    torch.testing.assert_close(by_feedback(student, teacher, lr, sign="authors"), -expected)
    torch.testing.assert_close(by_feedback(student, teacher, lr, baseline=0.01), expected, rtol=1e-4, atol=1e-10)


def test_soft_labels_have_no_feedback() -> None:
    """CE(softmax(t), .) is flat at t: by default the teacher learns from labels and UDA alone, as the authors' does."""
    student, teacher = Line(0.4, -0.9), Line(-0.3, 0.6)
    assert by_feedback(student, teacher, 0.1, labels="soft").abs().max() < 1e-7
    assert by_feedback(student, teacher, 0.1, labels="sampled").abs().max() > 1e-4


def test_draws_follow_the_shares_and_the_places() -> None:
    objective = made(tiny(), labels="sampled")
    logits = torch.tensor([[0.0, 1.0, -1.0]]).expand(20_000, -1)
    places = torch.arange(20_000)
    drawn = objective.drawn(logits, places)
    assert (drawn.sum(dim=-1) == 1).all()
    torch.testing.assert_close(drawn.mean(dim=0), logits[0].softmax(dim=-1), atol=0.01, rtol=0)
    assert torch.equal(objective.drawn(logits[:100], places[500:600]), drawn[500:600])
    sure = torch.tensor([[-30.0, 30.0, -30.0], [30.0, -30.0, -30.0], [-30.0, -30.0, 30.0]])
    assert objective.drawn(sure, places[:3]).argmax(dim=-1).tolist() == [1, 0, 2]


def test_a_student_that_waits_gets_no_gradient() -> None:
    student, batch = tiny(), batch_of()
    objective = made(student, wait=0.5)
    for progress, moves in ((0.4999, False), (0.5, True)):
        student.zero_grad()
        loss, _ = objective.loss(student, batch, torch.tensor(progress))
        assert loss.item() > 0.5  # what it has still to learn is logged meanwhile
        loss.backward()
        gradients = [parameter.grad for parameter in student.parameters()]
        assert all(gradient is not None for gradient in gradients)
        assert any(gradient.any() for gradient in gradients if gradient is not None) == moves


def test_neither_dropout_nor_batches_move_what_is_measured() -> None:
    """The student's loss before and after nothing happened to it is the same, though it drops half of everything."""
    student, batch = tiny(dropout=0.5, drop_path=0.5), batch_of()
    objective = made(student)
    objective.loss(student, batch, NOW)
    objective.teach(student, batch, NOW)
    assert objective.change.item() == 0
    assert all(module.training for module in student.modules())


class Convolved(nn.Module):
    """A classifier with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 4, 4), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)


class Spoilt:
    """Batches, of which the second has a picture that is not finite."""

    def __init__(self) -> None:
        self.damaged = dict[int, str]()

    def batch(self, step: int) -> Batch:
        batch = batch_of(seed=step)
        if step == 1:
            batch.streams["labelled"].views[0][0] = torch.nan
        return batch

    def close(self) -> None: ...


def test_a_skipped_step_moves_neither_the_mean_nor_the_teachers_statistics() -> None:
    model = wrap(Convolved(), image_size=(8, 8))
    objective = made(model, threshold=0.0, **PAPER)
    _, stepper = stepping(model, objective, Optimizer(name="sgd", momentum=0.0, lr=0.1), Spoilt())
    assert stepper(0, 1.0)
    before = {name: value.clone() for name, value in objective.state_dict().items()}
    assert before["baseline"] != 0
    assert not stepper(1, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in objective.state_dict().items())
    assert stepper(2, 1.0)
    assert objective.baseline.item() != before["baseline"].item()


def test_what_has_no_single_class_is_refused() -> None:
    with pytest.raises(ConfigError, match="A pseudo-label is one class per image"):
        MetaPseudoLabels(MetaPseudoLabelsOptions(), CrossEntropy("sigmoid"), tiny(), _no_images(), "label")


def test_a_fresh_teacher_has_weights_of_its_own_and_the_students_trained_ones_by_option() -> None:
    student = tiny()
    torch.manual_seed(0)
    own = MetaPseudoLabels(MetaPseudoLabelsOptions(), CrossEntropy(), student, _no_images(), "label")
    same = MetaPseudoLabels(
        MetaPseudoLabelsOptions(teacher_start="student"), CrossEntropy(), student, _no_images(), "label"
    )
    first = dict(student.named_parameters())
    for own_name, value in same.player.named_parameters():
        assert torch.equal(value, first[own_name])
        assert value is not first[own_name]
    differing = [key for key, value in own.player.named_parameters() if not torch.equal(value, first[key])]
    assert len(differing) == len(first)
    assert own.product(student) is student


@pytest.mark.parametrize("name", ["vit-digits", "wrn-28-2", "vmoe-b16-every2"])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_teacher_is_trained_as_the_student_is(name: str, optimizer: Any) -> None:
    """Also kernels of convolutions by Muon, experts, the head's own rates and those that fall from layer to layer."""
    sizes = {
        "vit-digits": {"depth": 2, "positions": "learned2d"},
        "wrn-28-2": {"layers": (1, 1), "width": 16},
        "vmoe-b16-every2": {
            "image_size": (16, 16),
            "patch_size": 8,
            "width": 16,
            "depth": 2,
            "mlp_dim": 32,
            "heads": 2,
        },
    }
    student = create(name, num_classes=3, **sizes[name])
    objective = made(student, teacher_lr=2.0)
    spec = Optimizer(
        name=optimizer,
        weight_decay=0.1,
        layer_decay=0.5,
        head_lr_scale=10.0,
        head_weight_decay=0.0,
    )
    learner = Learner(student, objective)
    learner.turn("student")
    ours = _settings(build(student, [], spec))
    learner.turn("teacher")
    theirs = _settings(build(student, objective.param_groups(), spec))
    pairs = list(zip(student.named_parameters(), objective.player.parameters(), strict=True))
    assert len(theirs) == len(ours) == len(pairs)
    for (own_name, own), other in pairs:
        kind, rate, decay = ours[id(own)]
        assert theirs[id(other)] == (kind, 2 * rate, decay), own_name


def _settings(optimizers: list[torch.optim.Optimizer]) -> dict[int, tuple[str, float, float]]:
    """What trains each parameter, with which factor of the lr and which decay."""
    return {
        id(p): (type(each).__name__, group["rate"], group["weight_decay"])
        for each in optimizers
        for group in each.param_groups
        for p in group["params"]
    }


def test_a_fresh_teacher_is_refused_where_a_part_of_it_would_stay_random() -> None:
    student = tiny()
    student.projection.requires_grad_(False)
    with pytest.raises(ConfigError, match="set objective.teacher_start to student"):
        made(student, teacher_start="fresh")
    assert not made(student).player.projection.weight.requires_grad  # pyright: ignore[reportAttributeAccessIssue]


def test_a_teachers_batch_norms_are_held_still_as_the_students_are() -> None:
    student = create("wrn-28-2", num_classes=3, layers=(1,), width=8).train()
    choose(student, "head", None)
    hold_still(student)
    objective, batch = made(student), batch_of()
    before = {name: value.clone() for name, value in objective.player.named_buffers()}
    for progress in torch.tensor([0.1, 0.2]):
        objective.loss(student, batch, progress)
        objective.teach(student, batch, progress)
    assert before
    assert all(torch.equal(value, before[name]) for name, value in objective.player.named_buffers())


@pytest.mark.parametrize("sam", [None, 0.5])
def test_with_sam_too_the_feedback_is_of_the_students_own_weights(sam: float | None) -> None:
    """Its second pass is over weights uphill, where the labelled loss is another."""
    student, batch = tiny(), batch_of()
    objective = made(student, baseline_rate=0.0)
    feed: Any = SimpleNamespace(batch=lambda _: batch, damaged={}, close=lambda: None)
    _, stepper = stepping(student, objective, Optimizer(name="sgd", lr=0.1, momentum=0.0, sam=sam), feed)
    for step in range(2):
        before = _labelled_loss(student, batch)
        assert stepper(step, 1.0)
        assert objective.change.item() == pytest.approx(_labelled_loss(student, batch) - before, abs=1e-6)


def _labelled_loss(student: ViT, batch: Batch) -> float:
    labelled = batch.streams["labelled"]
    with evaluating(student), torch.no_grad():
        return F.cross_entropy(student(labelled.views[0]), labelled.targets["label"]).item()
