"""What studies start from: for each scale a ViT, a BiT and a hybrid of about one size, trained alike.

digits: seconds per run on one core. cifar: a study is some minutes of one H200; its three models cost the same within
8%, 0.34 to 0.37 GFLOPs per image. tiny-imagenet: longer runs. imagenet: the paper's own recipes for ImageNet (table 3),
and BiT's. Scores: docs/results/studies.md.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from vitlab.core.config import Choice, parse_assignments
from vitlab.core.errors import ConfigError
from vitlab.data.augmentation import Augmentation
from vitlab.models.create import configured
from vitlab.recipes.bit import RECIPES as BIT
from vitlab.recipes.pretraining import RECIPES as PRETRAINING
from vitlab.training.durations import parse
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

Family: TypeAlias = Literal["ViT", "BiT", "hybrid"]
OptimizerName: TypeAlias = Literal["own", "adamw", "sgd"]
FAMILIES: tuple[Family, ...] = ("ViT", "BiT", "hybrid")


@dataclass(frozen=True)
class Small:
    """A scale of small images: its data, how long a run is, and a model of each family."""

    data: str
    total: str
    batch_size: int
    image_size: int
    lr: float  # of AdamW
    augmentation: Augmentation
    models: dict[Family, tuple[str, tuple[str, ...]]]  # a row of the zoo, and what is other than there
    held_out: float = 0.1
    sgd_lr: float = 0.1


SMALL_ROOT = "small_root=true"  # else 32 px would be 8 before the first unit
ONE_UNIT = ("resnet_layers=[1]", "resnet_width=32")
SMALL: dict[str, Small] = {
    "digits": Small(
        "digits",
        "200 steps",
        64,
        16,
        6e-3,
        Augmentation(crop="resize", flip=0.0),
        {
            "ViT": ("vit-digits", ("patch_size=4", "width=32", "mlp_dim=64")),
            "BiT": ("bit-r50x1", ("layers=[1,1]", "width=32")),
            "hybrid": (
                "r-vit-ti16-224",
                ("patch_size=4", "width=32", "depth=2", "mlp_dim=64", "heads=4", *ONE_UNIT),
            ),
        },
    ),
    "cifar": Small(
        "cifar10",
        "10 epochs",
        512,
        32,
        1e-3,
        Augmentation(crop="pad", pad=4, flip=0.5),
        {
            "ViT": ("vit-ti4-32", ("depth=6",)),
            "BiT": ("bit-r50x1", ("layers=[1,3,4]", "width=32", SMALL_ROOT)),
            "hybrid": (
                "r-vit-ti16-224",
                ("patch_size=4", "depth=3", "resnet_layers=[1,1,1]", "resnet_width=32", SMALL_ROOT),
            ),
        },
        held_out=0.02,
        sgd_lr=0.4,
    ),
    "tiny-imagenet": Small(
        "tiny-imagenet",
        "20 epochs",
        512,
        64,
        1e-3,
        Augmentation(crop="pad", pad=8, flip=0.5),
        {
            "ViT": ("vit-ti8-64", ()),
            "BiT": ("bit-r50x1", ("layers=[2,2,2]", "width=64")),
            "hybrid": (
                "r-vit-ti16-224",
                ("patch_size=8", "resnet_layers=[2,2]", "width=192", "depth=10"),
            ),
        },
        held_out=0.02,
        sgd_lr=0.4,
    ),
}


def scale_recipe(scale: str, family: Family = "ViT", *, optimizer: OptimizerName = "own") -> Recipe:
    """The recipe of a family at a scale; `own`: AdamW for what has attention, SGD for BiT."""
    if scale == "imagenet":
        return _imagenet(family, optimizer)
    if scale not in SMALL:
        raise ConfigError(f"There is no scale '{scale}': {', '.join([*SMALL, 'imagenet'])}.")
    small = SMALL[scale]
    source, changes = small.models[family]
    sgd = optimizer == "sgd" or (optimizer == "own" and family == "BiT")
    return Recipe(
        name=f"{scale}-{family.lower()}",
        model=ModelChoice(source=source, image_size=small.image_size, set=changes),
        data=DataChoice(source=small.data, val_fraction=small.held_out, workers=0),
        augmentation=small.augmentation,
        optimizer=_sgd(small) if sgd else _adamw(small),
        schedule=Schedule(kind="cosine", total=small.total, warmup="10%"),
        batch_size=small.batch_size,
        evaluate_every="0 steps",
        checkpoint_every="50%",
        log_every="10%",
        keep="last",
    )


def _adamw(small: Small) -> Optimizer:
    return Optimizer(name="adamw", lr=small.lr, weight_decay=0.05, clip=1.0)


def _sgd(small: Small) -> Optimizer:
    return Optimizer(name="sgd", lr=small.sgd_lr, momentum=0.9, l2=1e-4, clip=1.0)


def _imagenet(family: Family, optimizer: str) -> Recipe:
    vit = PRETRAINING["vit-b16-imagenet"]()
    if family == "ViT":
        return vit
    if family == "hybrid":
        return dataclasses.replace(vit, model=dataclasses.replace(vit.model, source="r50-vit-b16-224"))
    bit = BIT["bit-r152x4-imagenet"]()
    bit = dataclasses.replace(bit, model=dataclasses.replace(bit.model, source="bit-r50x1"))
    if optimizer == "adamw":  # at the rate that table 3 has for ResNets
        return dataclasses.replace(bit, optimizer=Optimizer(name="adamw", lr=1e-3, weight_decay=0.1))
    return bit


def with_model(recipe: Recipe, **changes: Any) -> Recipe:
    """The recipe with other fields of its model's configuration, as depth=2; image_size is the side in pixels."""
    size = changes.pop("image_size", recipe.model.image_size)
    kept = [text for text in recipe.model.set if text.partition("=")[0] not in changes]
    added = [f"{name}={value}" for name, value in changes.items()]
    return dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, image_size=size, set=(*kept, *added)))


def steps_times(recipe: Recipe, factor: int) -> Recipe:
    """The recipe with so many times as long a run."""
    schedule = recipe.schedule
    drops = tuple(_times(drop, factor) for drop in schedule.drops)
    return dataclasses.replace(
        recipe, schedule=dataclasses.replace(schedule, total=_times(schedule.total, factor), drops=drops)
    )


def with_batches(recipe: Recipe, size: int, *, factor: int) -> Recipe:
    """The recipe with batches of another size, and so many times as many steps."""
    schedule, by_images = recipe.schedule, size / recipe.batch_size
    total = _times(schedule.total, factor * (1 if parse(schedule.total)[1] == "step" else by_images))
    return dataclasses.replace(recipe, batch_size=size, schedule=dataclasses.replace(schedule, total=total))


def on_part(recipe: Recipe, part: float) -> Recipe:
    """The recipe on a part of train, of each class, with as many steps as on all of it."""
    schedule = recipe.schedule
    epochs = {
        name: _times(value, 1 / part)
        for name in ("total", "warmup")
        if parse(value := getattr(schedule, name))[1] == "epoch"
    }
    drops = tuple(_times(drop, 1 / part) if parse(drop)[1] == "epoch" else drop for drop in schedule.drops)
    return dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, fraction=part),
        schedule=dataclasses.replace(schedule, drops=drops, **epochs),
    )


def _times(duration: str, factor: float) -> str:
    """A duration so many times as long; a part of the run stays that part."""
    amount, unit = parse(duration)
    return duration if unit == "%" else f"{amount * factor:g} {unit}s"


def config_of(recipe: Recipe) -> Any:
    """The configuration of the recipe's model, but for its classes."""
    spec = recipe.model
    return configured(spec.source, image_size=spec.image_size, **parse_assignments(spec.set, where="model.set"))


def tuned(recipe: Recipe, source: str | None = None, *, steps: int, lr: float, image_size: int | None = None) -> Recipe:
    """The paper's fine-tuning (SGD, cosine, a zero head) of a run's model on the recipe's data, whole train.

    Without a source it is that of fresh weights, to tell what it would cost.
    """
    fresh = with_model(recipe, image_size=image_size or recipe.model.image_size).model
    return dataclasses.replace(
        recipe,
        model=fresh if source is None else ModelChoice(source=source, pretrained=True, image_size=image_size),
        data=dataclasses.replace(recipe.data, fraction=1.0),
        objective=Choice("supervised"),
        optimizer=Optimizer(name="sgd", lr=lr, momentum=0.9, clip=1.0),
        schedule=Schedule(kind="cosine", total=f"{steps} steps", warmup="10%"),
    )


# steps and rate of fine-tuning at each scale; imagenet: table 4's
TUNING: dict[str, tuple[int, float]] = {
    "digits": (60, 0.03),
    "cifar": (200, 0.03),
    "tiny-imagenet": (800, 0.03),
    "imagenet": (20_000, 0.03),
}
