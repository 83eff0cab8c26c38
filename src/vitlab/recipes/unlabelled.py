"""Learning without labels on your own photos: a recipe that follows from the method, the model and their number.

The starting model is already good: epochs are few, and the lr is lower in the layers farther from its end, so that the
first steps, in which the objective's own head knows nothing, do little harm. docs/results/pretrain.md says which
methods helped and which did harm.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from vitlab.core.config import Choice
from vitlab.core.errors import ConfigError, unknown_name
from vitlab.core.registry import is_file_reference
from vitlab.data.augmentation import Augmentation
from vitlab.objectives import OBJECTIVES
from vitlab.recipes.views import COLORS, SMALL_HEAD
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

FEWEST = 2  # photos: one has no other to be told from
SQUARES = Augmentation(crop="paper", crop_area=(0.4, 1.0))
VIEWS = replace(COLORS, crop_area=(0.3, 1.0))
SMALL_VIEWS: Mapping[str, Any] = {"num_small": 2, "small_side": 0.5, "small_area": (0.1, 0.4)}
CAREFUL = 1e-4  # the lr of methods that did harm with the others'
SHORT: Mapping[str, Any] = {"teacher_temp": 0.04, "momentum": 0.99, "freeze_last": 0.05}  # some hundred steps


@dataclass(frozen=True, kw_only=True)
class Method:
    """An objective with the options and the augmentation that suit few photos and a short run."""

    objective: str
    options: Mapping[str, Any] = field(default_factory=dict)
    augmentation: Augmentation = VIEWS
    lr: float = 7e-4  # from trained weights, for batches of 32; it grows with the square root of the batch
    fresh_lr: float = 1e-3  # from fresh ones, likewise


DINO = Method(objective="dino", options={**SMALL_HEAD, **SMALL_VIEWS, **SHORT})
METHODS: dict[str, Method] = {
    "dino": DINO,
    "ibot": replace(DINO, options={**DINO.options, "patch_weight": 1.0}),
    "simclr": Method(objective="simclr", options={"hidden": 1024}),
    "lejepa": Method(objective="lejepa", options={**SMALL_VIEWS, "num_large": 2, "hidden": 1024}, lr=CAREFUL),
    "mae": Method(
        objective="mae",
        options={"decoder_width": 192, "decoder_depth": 2, "decoder_heads": 6},
        augmentation=SQUARES,
        lr=CAREFUL,
    ),
    "masked-patches": Method(objective="masked-patches", augmentation=SQUARES, lr=1.8e-4),
}
DEFAULT, DEFAULT_ON_CPU = "dino", "simclr"  # docs/results/pretrain.md


@dataclass(frozen=True)
class Spent:
    """Passes over the photos, in steps neither below nor above these."""

    epochs: float = 5
    fresh_epochs: float = 100
    steps: tuple[int, int] = (50, 20_000)
    steps_on_cpu: tuple[int, int] = (50, 300)
    batch_size: int = 256  # at most
    batch_size_on_cpu: int = 32


SPENT = Spent()


def default_method(*, on_gpu: bool) -> str:
    """What did best where it was measured: 422 steps on a GPU, and 156 on a CPU, too few for DINO's teacher."""
    return DEFAULT if on_gpu else DEFAULT_ON_CPU


def method_named(name: str) -> Method:
    """A method by its name, or any objective that needs no labels, with its own options."""
    if name in METHODS:
        return METHODS[name]
    if not is_file_reference(name) and name not in OBJECTIVES.names():
        raise unknown_name("method", name, METHODS, f" There are {', '.join(METHODS)}, or FILE.py:NAME of your own.")
    if OBJECTIVES.find(name).objective.scores_task:
        raise ConfigError(f"'{name}' trains a model that answers a task; without one there are {', '.join(METHODS)}.")
    return Method(objective=name)


def pretrain_recipe(
    data: str,
    model: str,
    method: str,
    *,
    trained: bool,
    num_images: int,
    on_gpu: bool,
    held_out: float = 0.1,
    steps: int | None = None,
    epochs: float | None = None,
    lr: float | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
) -> Recipe:
    """For a model, with its weights if `trained` and with fresh ones else; what is None follows from the photos."""
    chosen = method_named(method)
    batch = SPENT.batch_size if on_gpu else SPENT.batch_size_on_cpu
    while batch > 4 and batch * 4 > num_images:
        batch //= 2
    batch = batch if batch_size is None else batch_size
    if batch < 1:
        raise ConfigError(f"batch_size must be at least 1, not {batch}.")
    if steps is None:
        passes = epochs or (SPENT.epochs if trained else SPENT.fresh_epochs)
        least, most = SPENT.steps if on_gpu else SPENT.steps_on_cpu
        wanted = max(round(passes * num_images / batch), 1)
        steps = wanted if epochs is not None else min(max(wanted, least), most)
    base = chosen.lr if trained else chosen.fresh_lr
    return Recipe(
        name="pretrain",
        model=ModelChoice(source=model, pretrained=trained, image_size=image_size),
        data=DataChoice(source=data, val_fraction=held_out),
        augmentation=chosen.augmentation,
        objective=Choice(chosen.objective, dict(chosen.options)),
        optimizer=Optimizer(
            name="adamw",
            lr=base * (batch / 32) ** 0.5 if lr is None else lr,
            weight_decay=0.05,
            layer_decay=0.75 if trained else 1.0,
            clip=1.0,
        ),
        schedule=Schedule(kind="cosine", total=f"{steps} steps", warmup="10%"),
        batch_size=batch,
        evaluate_every="10%" if on_gpu else "25%",  # which takes a pass over a part of the photos
        checkpoint_every="10%",
        keep="last",
    )
