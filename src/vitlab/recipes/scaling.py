"""ViT-g/14 and G/14 as "Scaling Vision Transformers" (arXiv 2106.04560) and its authors' published configuration train.

Adafactor with momentum in bfloat16 at 8e-4, weight decay .03 and for the head 3, gradients clipped at norm 1; 10k steps
of warm-up, then the inverse square root of the step, and a cool-down over the last 50k of a million; batches of 16,384
at 224 px; the sigmoid loss, its head's bias at -10. The paper's set is JFT-3B, 29,593 classes and not public: name your
own with --data.source. Their Adafactor does not limit the size of single updates, so neither does this.
"""

from collections.abc import Callable

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

SHARDED = 16_384  # images per step


def scaling_recipe(name: str, model: str, *, data: str = "jft", batch_size: int = SHARDED) -> Recipe:
    """The training of g and G for any model, its weights and optimizer sharded over all processes."""
    return Recipe(
        name=name,
        model=ModelChoice(source=model, checkpoint_blocks=True),
        data=DataChoice(source=data, val_fraction=0.001),
        augmentation=Augmentation(crop="paper", flip=0.5),
        loss=Loss(kind="sigmoid", head_bias=-10.0),
        optimizer=Optimizer(
            name="adafactor",
            lr=8e-4,
            momentum=0.9,
            weight_decay=0.03,
            head_weight_decay=3.0,
            update_clip=None,
            clip=1.0,
        ),
        schedule=Schedule(kind="rsqrt", total="1M steps", warmup="10k steps", timescale="10k steps", cooldown="5%"),
        batch_size=batch_size,
        strategy="shard",
        checkpoint_every="1000 steps",
        evaluate_every="1000 steps",
        log_every="50 steps",
        keep="last",
    )


def _recipe(name: str, model: str, words: str) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return scaling_recipe(name, model)

    build.__doc__ = f"""{words} on JFT-3B for a million steps (arXiv 2106.04560), weights and optimizer sharded.

    Command: torchrun --nnodes N --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here.
    """
    return build


RECIPES = {
    "vit-g14-jft": _recipe("vit-g14-jft", "vit-giant14-224", "ViT-g/14"),
    "vit-gigantic14-jft": _recipe("vit-gigantic14-jft", "vit-gigantic14-224", "ViT-G/14"),
}
