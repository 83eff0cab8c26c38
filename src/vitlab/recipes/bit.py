"""Big Transfer (arXiv 1912.11370): its pre-training, and the fine-tuning that a set's size and resolution decide.

Pre-training (section 3.3): SGD with momentum .9 in batches of 4096 at .03 for each 256, 5000 steps of warm-up, weight
decay 1e-4; 90 epochs with drops to a tenth after 30, 60 and 80 on ImageNet (BiT-S) and ImageNet-21k (BiT-M), 40 with
drops after 10, 23, 30 and 37 on JFT (BiT-L). The losses are those of google-research/big_vision (configs/bit_i1k.py and
bit_i21k.py). JFT is not public: name your own set with --data.source. The BiTs of ViT's table are in pretraining.py.
The sizes are those of ViT's figures: of figure 3, whose BiTs are this paper's, and of figure 5, whose BiTs are on JFT
there; on ImageNet and ImageNet-21k they are for growing sets at equal training.

Fine-tuning, BiT-HyperRule: SGD with momentum .9 at .003, batch 512, no weight decay; the figures are those of the
authors' code (google-research/big_transfer, bit_hyperrule.py). Its smallest sets have a warm-up of 100 steps and drops
at 200, 300 and 400, where the paper says 500 and 30, 60 and 90% for all.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
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
        optimizer=Optimizer(name="sgd", lr=0.003, momentum=0.9),
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
    parts = "train=train+val,test=test" if data in ("flowers102", "vtab") else ""

    def build() -> Recipe:
        recipe = bit_recipe(data, "bit-r50x1.in21k", num_images=num_images, picture=picture, name=name)
        return dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, parts=parts))

    what, where = ("a task of VTAB-1k, PATH,", " --data.source PATH") if data == "vtab" else (data, "")
    build.__doc__ = f"""Fine-tuning on {what} by BiT-HyperRule (arXiv 1912.11370).

    Command: vitlab train {name} --model.source SOURCE{where}
    Hardware and time: not run here.
    Score: none seen here.
    """
    return build


# the set; epochs; after which epochs the rate falls
UPSTREAM: dict[str, tuple[int, tuple[int, ...]]] = {
    "imagenet": (90, (30, 60, 80)),
    "imagenet21k": (90, (30, 60, 80)),
    "jft": (40, (10, 23, 30, 37)),
}
FIGURE_3 = ("r50x1", "r101x1", "r50x3", "r101x3", "r152x4")
FIGURE_5 = ("r50x1", "r50x2", "r101x1", "r152x1", "r152x2", "r200x3")
SIZES = tuple(dict.fromkeys(FIGURE_3 + FIGURE_5))
SCORES = {"imagenet": "81.30%", "imagenet21k": "85.39%", "jft": "87.54%"}  # R152x4's on ImageNet, fine-tuned


def _upstream(size: str, data: str) -> Callable[[], Recipe]:
    name, (epochs, drops) = f"bit-{size}-{data}", UPSTREAM[data]

    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=f"bit-{size}"),
            data=DataChoice(source=data, val_fraction=0.01),
            augmentation=Augmentation(crop="paper", flip=0.5),
            loss=Loss() if data == "imagenet" else Loss(kind="sigmoid", head_bias=-10.0),
            optimizer=Optimizer(name="sgd", lr=0.03 * 4096 / 256, momentum=0.9, l2=1e-4),
            schedule=Schedule(
                kind="staircase",
                total=f"{epochs} epochs",
                warmup="5000 steps",
                drops=tuple(f"{epoch} epochs" for epoch in drops),
                drop=0.1,
            ),
            batch_size=4096,
            compile=True,
            checkpoint_every="1000 steps",
            keep="last",
        )

    score = f"; the paper reports {SCORES[data]} on ImageNet after fine-tuning" if size == "r152x4" else ""
    model = f"BiT-R{size[1:]}"
    build.__doc__ = f"""{model} on {data} from scratch by its paper (arXiv 1912.11370, section 3.3).

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here; the paper uses a TPUv3-512 for R152x4.
    Score: none seen here{score}.
    """
    return build


PRETRAININGS = [*((size, data) for size in SIZES for data in ("imagenet", "imagenet21k")), ("r152x4", "jft")]
RECIPES = {
    **{f"bit-{size}-{data}": _upstream(size, data) for size, data in PRETRAININGS},
    **{f"bit-{data}": _recipe(data, *facts) for data, facts in SETS.items()},
}
