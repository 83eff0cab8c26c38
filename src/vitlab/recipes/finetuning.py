"""The paper's fine-tuning, table 4: SGD with momentum .9, batch 512, clip 1, cosine, 384 px, a zero head."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


@dataclass(frozen=True)
class Row:
    """A row of the table: steps, the rates to choose from, the part held out to choose on."""

    steps: int
    lrs: tuple[float, ...]
    held_out: float
    warmup: int = 500


ROWS: dict[str, Row] = {
    "imagenet": Row(20_000, (0.003, 0.01, 0.03, 0.06), 0.01),
    "cifar100": Row(10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "cifar10": Row(10_000, (0.001, 0.003, 0.01, 0.03), 0.02),
    "pets": Row(500, (0.001, 0.003, 0.01, 0.03), 0.1, warmup=100),
    "flowers102": Row(500, (0.001, 0.003, 0.01, 0.03), 0.1, warmup=100),
    "vtab": Row(2_500, (0.01,), 0.0),
}
PARTS = {  # of VTAB all thousand images, of Flowers all but its val part
    "vtab": "train=train+val,test=test",
    "flowers102": "train=train,test=test",
}


def finetune_recipe(
    data: str,
    model: str,
    *,
    steps: int,
    lr: float,
    warmup: int,
    held_out: float,
    image_size: int | None = 384,
    batch_size: int = 512,
    name: str = "finetune",
) -> Recipe:
    """The protocol of table 4 for any set and any trained model."""
    return Recipe(
        name=name,
        model=ModelChoice(source=model, pretrained=True, image_size=image_size),
        data=DataChoice(source=data, val_fraction=held_out),
        augmentation=Augmentation(crop="paper", flip=0.5),
        optimizer=Optimizer(name="sgd", lr=lr, momentum=0.9, clip=1.0),
        schedule=Schedule(kind="cosine", total=f"{steps} steps", warmup=f"{warmup} steps"),
        batch_size=batch_size,
        evaluate_every="10%",
        checkpoint_every="10%",
    )


@dataclass(frozen=True)
class Budget:
    """Steps, warm-up, batch and rate for a set of some size."""

    steps: int
    warmup: int
    batch_size: int
    lr: float


def budget(num_images: int, *, on_gpu: bool) -> Budget:
    """What to spend on a training set of so many images.

    Steps grow with the set as the table's rows do: 500 below 20,000 images, 10,000 below half a million, else 20,000.
    The batch is the table's 512, or less so that an epoch has four steps at least, and at most 32 without a GPU; the
    rate is the table's .01 for 512 and falls with the square root of the batch.
    """
    steps = 500 if num_images < 20_000 else 10_000 if num_images < 500_000 else 20_000
    batch = 512 if on_gpu else 32
    while batch > 8 and batch * 4 > num_images:
        batch //= 2
    return Budget(steps, 100 if steps == 500 else 500, batch, 0.01 * (batch / 512) ** 0.5)


def _recipe(data: str, row: Row) -> Callable[[], Recipe]:
    name = f"finetune-{data}"
    lr = row.lrs[len(row.lrs) // 2]
    parts = PARTS.get(data, "")

    def build() -> Recipe:
        recipe = finetune_recipe(
            data,
            "vit-b16-224.augreg-in21k",
            steps=row.steps,
            lr=lr,
            warmup=row.warmup,
            held_out=row.held_out,
            name=name,
        )
        return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, parts=parts))

    what, where = ("a task of VTAB-1k, PATH,", " --data.source PATH") if data == "vtab" else (data, "")
    grid = ", ".join(map(str, row.lrs))
    build.__doc__ = f"""Fine-tuning on {what} as in table 4 of arXiv 2010.11929; one lr of its grid ({grid}).

    Command: vitlab train {name} --model.source SOURCE{where} [--optimizer.lr R]
    Hardware and time: not run here.
    Score: none seen here.
    """
    return build


RECIPES = {f"finetune-{data}": _recipe(data, row) for data, row in ROWS.items()}
