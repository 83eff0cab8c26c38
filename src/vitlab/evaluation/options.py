"""What can be chosen of each protocol; nothing heavy is imported, for the command line shows these without torch."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class AccuracyOptions:
    """Top-1, top-5, per class, confusion, calibration; mAP where an image has several labels."""


@dataclass(frozen=True, kw_only=True)
class RealOptions:
    """ImageNet's validation images with the reassessed labels."""

    labels: str = "real.json"
    """The public real.json, of github.com/google-research/reassessed-imagenet."""


@dataclass(frozen=True, kw_only=True)
class FewshotOptions:
    """Least squares on frozen features of a few images a class."""

    shots: tuple[int, ...] = ()
    """Images a class; by default those of 1, 5, 10, 25 that every class has."""
    seeds: tuple[int, ...] = (0, 1, 2)
    """What the images are drawn by, a draw each."""
    l2: float = 1024.0
    """The penalty."""
    sweep: bool = False
    """Try 2^-10 ... 2^19 instead and keep the best on the measured split, as the public sweep does."""


@dataclass(frozen=True, kw_only=True)
class LinearOptions:
    """A linear classifier on frozen features, its penalty chosen on held-out images."""

    l2s: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
    """The penalties to choose from."""
    solver: Literal["lbfgs", "sgd"] = "lbfgs"
    """lbfgs passes over everything at each step; sgd takes mini-batches."""
    holdout: float = 0.1
    """The part of train that chooses, where the data has no validation part of its own."""
    epochs: int = 50
    """sgd: passes over the features."""
    seed: int = 0
    """What is held out, and the order of mini-batches, follow from this."""


@dataclass(frozen=True, kw_only=True)
class KnnOptions:
    """The nearest training images vote."""

    ks: tuple[int, ...] = ()
    """How many vote; by default those of 1, 5, 10, 20, 100, 200 that train allows, one of them chosen on held-out
    images."""
    weights: Literal["similarity", "uniform", "distance"] = "similarity"
    """What a vote counts: exp(similarity / temperature), one, or one over the distance."""
    temperature: float = 0.07
    """Of the similarity weights."""
    holdout: float = 0.1
    """The part of train that chooses among several numbers."""


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Parameters, FLOPs, speed, memory; what training will cost and did cost."""

    count_only: bool = False
    """Do not run the model: parameters and FLOPs only. A zoo name will do as the model."""
    seconds: float = 3.0
    """About how long to time each speed. Without --batch-size the batch is the largest up to 64 that this suffices for;
    the least is one pass of one image (of two in training), or of the batch that was asked for, and one before it."""
    recipe: str | None = None
    """A recipe's name: what training the model by it will cost."""
    train_images: int | None = None
    """How many images train has, where the recipe's data is not at hand."""
    images: float | None = None
    """How many images training will see, epochs multiplied out, instead of a recipe."""
    run: str | None = None
    """A run's folder: what it did cost. Where the model is a run's, that run."""
    devices: int | None = None
    """How many devices that run used; by default what it recorded."""


OPTIONS: dict[str, type] = {
    "accuracy": AccuracyOptions,
    "real": RealOptions,
    "fewshot": FewshotOptions,
    "linear": LinearOptions,
    "knn": KnnOptions,
    "cost": CostOptions,
}
