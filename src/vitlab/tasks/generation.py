"""Making images like those of a set: no target, and a score that compares made images with held-out ones."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from vitlab.core.errors import ConfigError, DataError
from vitlab.data.contract import DataSet, Split
from vitlab.evaluation.contract import Subject
from vitlab.evaluation.frechet import (
    COLLAPSED,
    diversity,
    feature_subject,
    features_of,
    frechet_distance,
    gaussian,
    moments,
    title,
)
from vitlab.models.contract import Model
from vitlab.models.generator import is_generator, takes_none
from vitlab.objectives.contract import Criterion
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks.contract import ReportContext, Scorer, Scores, Section, Task, TaskKind
from vitlab.tasks.report import PARTS, plain_opening
from vitlab.tasks.scoring import Held
from vitlab.tasks.sections import Opening, Remark, Table, Text
from vitlab.weights.box import DEFAULT

DIVERSITY = "diversity"
SEED = 0  # of the noise that held-out images are compared by, the same in every evaluation


@dataclass(frozen=True)
class GenerationOptions:
    """Whose features decide how near made images are to real ones."""

    features: str = DEFAULT
    """A model that takes images, preferably one trained on such images, or `pixels`; the Frechet distance of its
    features selects the checkpoint."""


@final
class Generation(Task):
    """Images like those of the data, from noise. Labels and masks are not looked at."""

    target = ""
    protocol = "frechet"

    def __init__(self, options: GenerationOptions | None = None) -> None:
        self.options = options or GenerationOptions()
        self.title = title(self.options.features)
        self._subject = functools.cache(functools.partial(feature_subject, self.options.features))

    def check(self, dataset: DataSet) -> None:
        train = dataset.splits.get("train")
        if train is None or len(train) == 0:
            raise DataError(f"{dataset.name} has no training images.")

    def fields(self, dataset: DataSet) -> dict[str, Any]:
        del dataset
        return {"num_classes": 0}

    def fit(self, model: Model, dataset: DataSet) -> None:
        if not is_generator(model):
            raise ConfigError(
                f"The task generation needs a generator, and {type(model).__name__} makes no images: choose one, as"
                " --model.source transgan-s-32."
            )
        super().fit(model, dataset)

    def criterion(self, loss: Loss, dataset: DataSet, train: Split) -> Criterion:
        del loss, dataset, train
        raise ConfigError(
            "Generation has no target to learn by, and loss.* no meaning: choose an objective with a critic, as"
            " --objective transgan."
        )

    def scorer(self, loss: Loss, dataset: DataSet) -> "GenerationScorer":
        del loss, dataset
        return GenerationScorer(self.title, self._subject)

    def words(self, scores: Mapping[str, float]) -> str:
        if self.title in scores:
            hint = ", nearly all alike" if scores[DIVERSITY] < COLLAPSED else ""
            return f"{self.title} {scores[self.title]:.4g}, {DIVERSITY} {scores[DIVERSITY]:.2f}{hint}"
        names = [name for name in ("real score", "made score") if name in scores]
        return ", ".join(f"{name} {scores[name]:.2f}" for name in names)

    def answers(self, model: Model, outputs: Tensor, top: int) -> NoReturn:
        del outputs, top
        raise takes_none(type(model).__name__)

    def opening(self, context: ReportContext) -> Opening:
        reached = context.reached
        words = f"{self.title} {reached.scores[self.title]:.4g}" if reached and self.title in reached.scores else ""
        return plain_opening("making pictures", "to make pictures from noise", reached, words)

    def curve_title(self, name: str, context: ReportContext) -> str:
        if name == self.title:
            return f"{name}: lower is better"
        own = "Diversity of made pictures, 1: that of real ones"
        return own if name == DIVERSITY else super().curve_title(name, context)

    def commands(self, run: str, data: str) -> tuple[tuple[str, tuple[str, ...]], ...]:
        measured = ("vitlab", "evaluate", self.protocol, "--model", run, "--data", data)
        return (
            ("See more of what it makes:", ("vitlab", "sample", run, "samples")),
            ("Measure it, beside noise and real pictures:", measured),
        )

    def remarks(self, context: ReportContext) -> list[Remark]:
        reached = context.reached
        if reached is None or reached.scores.get(DIVERSITY, 1.0) >= COLLAPSED:
            return []
        return [
            Remark(
                f"The generator collapsed: its pictures are nearly all alike (their features vary by"
                f" {reached.scores[DIVERSITY]:.1%} of what those of real pictures do)."
            )
        ]

    def sections(self, context: ReportContext) -> list[Section]:
        reached = context.reached
        if reached is None or self.title not in reached.scores:
            return []
        words = (
            f"As many pictures were made as there are {PARTS[reached.part]} pictures ({reached.count:,}), and the"
            " features of both compared: the distance is 0 where these have the same mean and covariance. It compares"
            " with others only where features, pictures and their number are the same; `vitlab evaluate frechet`"
            " gives that of noise and of training pictures beside it."
        )
        rows = ((self.title, f"{reached.scores[self.title]:.4g}"), (DIVERSITY, f"{reached.scores[DIVERSITY]:.2f}"))
        return [Section("How near they are to real ones", (Text(words), Table(head=("measure", "value"), rows=rows)))]


@final
class GenerationScorer(Scorer):
    """The Frechet distance between held-out images and as many made ones, of which less is better.

    The noise is counted from the held-out images' numbers, so that every evaluation looks at the same.
    """

    def __init__(self, name: str, subject: Any) -> None:
        self.name, self._subject_on = name, subject

    def of(self, called: nn.Module, model: Model, batch: Held) -> Tensor:
        assert is_generator(model)
        device = batch.images.device
        subject: Subject = self._subject_on(device)
        made = called(model.latents(SEED, batch.indices.to(device)))
        rows = batch.counts.nonzero().flatten()
        rows = rows if len(rows) else batch.counts.new_zeros(1, dtype=torch.int64)  # sums of nothing have a width, too
        real = batch.pixels[rows.to(batch.pixels.device)]
        found = features_of(subject, model.pixels(made[rows].float()))
        return self.sums(found, features_of(subject, real), batch.counts[rows])

    def sums(self, outputs: Float[Tensor, "b d"], target: Float[Tensor, "b d"], counts: Bool[Tensor, "b"]) -> Tensor:
        """Of the features of made images and of real ones."""
        return torch.cat([moments(outputs[counts]), moments(target[counts])])

    def scores(self, sums: Tensor) -> Scores:
        made, real = (gaussian(part) for part in sums.chunk(2))
        distance = frechet_distance(made, real)
        return {
            "score": -distance,
            self.name: distance,
            DIVERSITY: diversity(made, real),
            "loss": distance,
            "count": real.count,
        }


TASK = TaskKind(
    name="generation",
    summary="pictures like those of a set, made from noise",
    build=Generation,
    options=GenerationOptions,
)
