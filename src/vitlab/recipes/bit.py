"""BiT-HyperRule: Big Transfer's fine-tuning, which a data set's size and resolution decide (arXiv 1912.11370).

SGD with momentum .9 at .003, batch 512, no weight decay; the figures are those of the authors' code. Its smallest sets
have a warm-up of 100 steps and drops at 200, 300 and 400, where the paper says 500 and 30, 60 and 90% for all.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimisers import Optimiser
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

SMALL_AREA = 96 * 96  # px; pictures below it are trained at 128
SMALL_SET, LARGE_SET = 20_000, 500_000  # images


@dataclass(frozen=True)
class HyperRule:
    """What the rule sets for a data set."""

    resize: int
    crop: int
    steps: int
    warmup: int
    drops: tuple[str, ...]  # where the rate falls to a tenth
    mixup: float


def hyperrule(num_images: int, picture: tuple[int, int]) -> HyperRule:
    """The rule for a training set of so many images, most of them of that height and width."""
    resize, crop = (160, 128) if picture[0] * picture[1] < SMALL_AREA else (512, 480)
    if num_images < SMALL_SET:
        return HyperRule(resize, crop, 500, 100, ("40%", "60%", "80%"), 0.0)
    steps = 10_000 if num_images < LARGE_SET else 20_000
    return HyperRule(resize, crop, steps, 500, ("30%", "60%", "90%"), 0.1)


def bit_recipe(
    data: str,
    model: str,
    *,
    num_images: int,
    picture: tuple[int, int],
    held_out: float = 0.0,
    name: str = "bit",
) -> Recipe:
    """The rule's recipe for any set and any trained model."""
    rule = hyperrule(num_images, picture)
    return Recipe(
        name=name,
        model=ModelChoice(source=model, pretrained=True, image_size=rule.crop),
        data=DataChoice(source=data, val_fraction=held_out),
        augmentation=Augmentation(crop="part", crop_part=rule.crop / rule.resize, flip=0.5, mixup=rule.mixup),
        optimiser=Optimiser(name="sgd", rate=0.003, momentum=0.9),
        schedule=Schedule(
            kind="staircase", total=f"{rule.steps} steps", warmup=f"{rule.warmup} steps", drops=rule.drops, drop=0.1
        ),
        batch_size=512,
        evaluate_every="10%",
        checkpoint_every="10%",
        keep="last",
    )


# training images, the usual picture
SETS: dict[str, tuple[int, tuple[int, int]]] = {
    "imagenet": (1_281_167, (375, 500)),
    "cifar10": (50_000, (32, 32)),
    "cifar100": (50_000, (32, 32)),
    "pets": (3_680, (375, 500)),
    "flowers102": (2_040, (500, 667)),  # train and validation parts together, as in the paper
    "vtab": (1_000, (375, 500)),
}


def _recipe(data: str, num_images: int, picture: tuple[int, int]) -> Callable[[], Recipe]:
    name = f"bit-{data}"

    def build() -> Recipe:
        return bit_recipe(data, "bit-r50x1.in21k", num_images=num_images, picture=picture, name=name)

    build.__doc__ = f"""Fine-tuning on {data} by BiT-HyperRule (arXiv 1912.11370).

    Command: vitlab train {name} --model.source SOURCE
    Hardware and time: not run here.
    Score: none seen here.
    """
    return build


RECIPES = {f"bit-{data}": _recipe(data, *facts) for data, facts in SETS.items()}
