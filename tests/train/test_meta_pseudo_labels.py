"""Meta Pseudo Labels: what the student learns from few labels that it never sees, and what broken ones do not."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from batches import stepping
from vitlab.core.preprocess import Preprocess
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import Split
from vitlab.models.contract import evaluating
from vitlab.models.outside import wrap
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.contract import Phase
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.meta_pseudo_labels import MetaPseudoLabels, MetaPseudoLabelsOptions
from vitlab.training.optimizers import Optimizer

SIDE, CLASSES, BATCH, RATIO, KNOWN = 8, 4, 16, 3, 16
NO_IMAGES = Split([])  # pyright: ignore[reportArgumentType]
TINTS = torch.tensor([[2.0, -1.0, -1.0], [0.0, 1.7, -1.7], [-2.0, 1.0, 1.0], [0.0, -1.7, 1.7]])


def pictures(labels: Tensor, generator: torch.Generator, tint: float = 0.15) -> Tensor:
    """A tint that tells the class, under patches of any brightness and noise, which differ from view to view."""
    bright = torch.randn(len(labels), 1, 2, 2, generator=generator).repeat_interleave(4, 2).repeat_interleave(4, 3)
    noise = 0.1 * torch.randn(len(labels), 3, SIDE, SIDE, generator=generator)
    return bright + noise + tint * TINTS[labels][:, :, None, None]


class Pictures:
    """The same few labelled pictures in every batch, and other ones without labels."""

    def __init__(self) -> None:
        self.damaged = dict[int, str]()
        self.labels = torch.arange(KNOWN) % CLASSES
        self.known = pictures(self.labels, torch.Generator().manual_seed(99))

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        classes = torch.randint(CLASSES, (BATCH * RATIO,), generator=generator)
        views = tuple(pictures(classes, generator) for _ in range(2))
        places = torch.arange(len(classes)) + step * len(classes)
        return Batch(
            {
                "labelled": Stream((self.known,), {"label": torch.eye(CLASSES)[self.labels]}, torch.arange(KNOWN)),
                "unlabelled": Stream(views, {}, places),
            }
        )

    def close(self) -> None: ...


def learned(broken: str = "", *, steps: int = 50, **options: Any) -> float:
    """The student's accuracy on new pictures."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"image_size": (SIDE, SIDE), "patch_size": 4, "width": 32, "depth": 1, "mlp_dim": 64}
    model = ViT(ViTConfig(**sizes, heads=2, num_classes=CLASSES, pool="mean"), Preprocess(size=(SIDE, SIDE)))
    model.initialize()
    own = {"wait": 0.1, "ramp": 0.2, "weight": 1.0, "labels": "sampled", "sign": "theory", **options}
    objective = MetaPseudoLabels(MetaPseudoLabelsOptions(**own), CrossEntropy(), model, NO_IMAGES, "label")
    sound, drawn = objective.loss, objective.drawn

    def shuffled(logits: Tensor, places: Tensor) -> Tensor:
        return drawn(logits, places).roll(1, dims=0)

    def turned(*given: Any) -> tuple[Tensor, dict[str, Tensor]]:
        loss, metrics = sound(*given)
        return -loss, metrics

    if broken == "shuffled":
        objective.drawn = shuffled
    if broken == "sign":
        phases = (
            Phase("student", turned, lambda name: name.startswith("model.")),
            Phase("teacher", objective.teach, lambda name: name.startswith("objective.")),
        )
        objective.phases = lambda _: phases  # pyright: ignore[reportAttributeAccessIssue]
    state, stepper = stepping(model, objective, Optimizer(lr=3e-3, weight_decay=0.05, clip=1.0), Pictures())
    for step in range(steps):
        assert stepper(step, min((step + 1) / 10, 1.0))
    labels = torch.arange(400) % CLASSES
    with torch.no_grad(), evaluating(state.model):
        answers = state.model(pictures(labels, torch.Generator().manual_seed(1_000_000))).argmax(dim=-1)
    return (answers == labels).float().mean().item()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="paper"),
        pytest.param({"labels": "soft", "sign": "authors"}, id="authors", marks=pytest.mark.slow),
    ],
)
def test_the_student_learns_what_broken_ones_cannot(options: dict[str, Any]) -> None:
    """Not so where it is taught the labels of other pictures, waits all along, or its loss is turned around."""
    assert learned(**options) > 0.85
    assert max(learned("shuffled", **options), learned("sign", **options), learned(wait=1.0, **options)) < 0.6


class Feed:
    """One batch of points on a plane in two clouds, few of which have labels."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.damaged = dict[int, str]()
        self.labels = torch.arange(96) % 2
        middles = torch.tensor([[1.5, -1.0, 0.0], [-1.5, 1.0, 0.0]])
        points = middles[self.labels] + 0.5 * torch.randn(96, 3, generator=generator)
        self.points = points[:, :, None, None]

    def batch(self, step: int) -> Batch:
        labelled = Stream((self.points[:16],), {"label": torch.eye(2)[self.labels[:16]]}, torch.arange(16))
        others = self.points[16:]
        return Batch({"labelled": labelled, "unlabelled": Stream((others, others), {}, torch.arange(80) + 80 * step)})

    def close(self) -> None: ...


def fed_back(sign: str) -> float:
    """The student's accuracy where the teacher never sees a label, and knows nothing but the feedback."""
    torch.manual_seed(0)
    model = wrap(nn.Sequential(nn.Flatten(), nn.Linear(3, 2)), image_size=(1, 1))
    own: dict[str, Any] = {"wait": 0.0, "weight": 0.0, "labels": "sampled", "sign": sign, "teacher_lr": 400.0}
    objective = MetaPseudoLabels(MetaPseudoLabelsOptions(**own), CrossEntropy(), model, NO_IMAGES, "label")

    def means(outputs: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        del target
        return outputs.sum() * 0, {}

    objective.criterion.means = means
    feed = Feed()
    state, stepper = stepping(model, objective, Optimizer(name="sgd", lr=0.2, momentum=0.0), feed)
    for step in range(400):
        assert stepper(step, 1.0)
    with torch.no_grad():
        answers = state.model(feed.points).argmax(dim=-1)
    return (answers == feed.labels).float().mean().item()


def test_feedback_alone_teaches_by_the_theorys_sign_and_misleads_by_the_other() -> None:
    assert fed_back("theory") > 0.9
    assert fed_back("authors") < 0.5
