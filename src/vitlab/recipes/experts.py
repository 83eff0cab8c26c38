"""V-MoE's pre-training (arXiv 2106.05974), and its digits.

Rates, weight decay, warm-up and clipping are those of the authors' code (google-research/vmoe, configs/vmoe_paper),
which are ViT's; the row on ImageNet-21k is pretrain_imagenet21k.py there. That code names no epochs on JFT. B, L and H
have ViT's; S, which ViT's table does not have, those of the dense S/32 of the same sizes in the public configurations
of google/uncertainty-baselines (baselines/jft/experiments/jft300m_vit_small8_32.py). That the paper had the same epochs
is not confirmed. JFT is not public: name your own set with --data.source.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from vitlab.data.augmentation import Augmentation
from vitlab.recipes.scaling import scaling_recipe
from vitlab.recipes.small import digits
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

PLAIN = Augmentation(crop="paper", flip=0.5)


@dataclass(frozen=True)
class Row:
    """A pre-training."""

    model: str
    data: str
    epochs: int
    lr: float
    clip: float | None = None
    augmentation: Augmentation = PLAIN


STRONG = Augmentation(flip=0.5, policy="randaugment-official", num_ops=2, magnitude=20.0, mixup=0.5)  # randaug(2,20)

ROWS: dict[str, Row] = {
    "vmoe-s32-jft": Row("vmoe-s32-every2", "jft", 5, 1e-3),
    "vmoe-b16-jft": Row("vmoe-b16-every2", "jft", 7, 8e-4),
    "vmoe-l16-jft": Row("vmoe-l16-every2", "jft", 14, 4e-4),
    "vmoe-h14-jft": Row("vmoe-h14-last5", "jft", 14, 3e-4, clip=10.0),
    "vmoe-b16-imagenet21k": Row("vmoe-b16-every2-e8", "imagenet21k", 300, 8e-4, clip=1.0, augmentation=STRONG),
}


def _recipe(name: str, row: Row) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=row.model, checkpoint_blocks=True),
            data=DataChoice(source=row.data, val_fraction=0.01),
            augmentation=row.augmentation,
            loss=Loss(kind="sigmoid", head_bias=-10.0),
            optimizer=Optimizer(lr=row.lr, weight_decay=0.1, clip=row.clip),
            schedule=Schedule(kind="linear", total=f"{row.epochs} epochs", warmup="10k steps", end=1e-5 / row.lr),
            batch_size=4096,
            strategy="experts",
            checkpoint_every="1000 steps",
            keep="last",
        )

    build.__doc__ = f"""{row.model} on {row.data} for {row.epochs} epochs (arXiv 2106.05974), with spread experts.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here.
    """
    return build


def vmoe_15b_jft() -> Recipe:
    """V-MoE-15B by the training of "Scaling Vision Transformers", whose set and optimizer it has, its weights sharded.

    Command: torchrun --nnodes N --nproc-per-node 8 -m vitlab train vmoe-15b-jft --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the paper states 90.35% on ImageNet after fine-tuning.
    """
    return scaling_recipe("vmoe-15b-jft", "vmoe-15b")


def vmoe_digits() -> Recipe:
    """A tiny mixture of four experts on scikit-learn's embedded digits.

    Command: vitlab train vmoe-digits
    Hardware and time: an AMD EPYC, one thread, 120 s of its time.
    Score: 100% on the held-out part that selects, 99.0% on the test part (400 images), one run.
    """
    recipe = digits()
    return replace(recipe, name="vmoe-digits", model=replace(recipe.model, source="vmoe-digits"))


RECIPES: dict[str, Callable[[], Recipe]] = {
    **{name: _recipe(name, row) for name, row in ROWS.items()},
    "vmoe-15b-jft": vmoe_15b_jft,
    "vmoe-digits": vmoe_digits,
}
