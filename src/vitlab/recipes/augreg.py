"""AugReg: "How to train your ViT?" (arXiv 2106.10270) as its authors' configurations have it.

google-research/big_vision, configs/vit_i21k.py and vit_i1k.py: Adam, 300 epochs in batches of 4096 at 224 px, 10k steps
of warm-up, a cosine, gradients clipped at norm 1, the sigmoid loss; RandAugment and mixup by size, as figure 4 of the
paper has them on average over 30 and 300 epochs. Their weight decay of 1e-4 is multiplied by the schedule alone: at
their rate of 1e-3 that is AdamW's .1. The paper's dropout and stochastic depth for B and L on ImageNet are not in that
code, nor here. On ImageNet-21k that code pools by the mean; the public AugReg weights have a class token.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

PLAIN = Augmentation(crop="paper", flip=0.5)


def _strength(magnitude: float, mixup: float) -> Augmentation:
    """`randaug(2, magnitude)`; of magnitude 0 too, which does not leave the picture as it is."""
    return Augmentation(
        crop="paper", flip=0.5, policy="randaugment-official", num_ops=2, magnitude=magnitude, mixup=mixup
    )


STRENGTHS = {
    "none": PLAIN,
    "light1": _strength(0.0, 0.0),
    "light2": _strength(10.0, 0.2),
    "medium1": _strength(15.0, 0.2),
    "medium2": _strength(15.0, 0.5),
    "strong1": _strength(20.0, 0.5),
    "strong2": _strength(20.0, 0.8),
}


@dataclass(frozen=True)
class Upstream:
    """A set of pre-training: how strongly each size is augmented there, and what else differs."""

    strengths: dict[str, str]
    head_bias: float
    representation: bool
    set: tuple[str, ...] = ()


UPSTREAM = {
    "imagenet": Upstream(
        {"ti16": "light1", "s32": "medium1", "s16": "medium2", "b32": "medium2", "b16": "medium2", "l16": "medium2"},
        head_bias=-6.9,
        representation=True,
    ),
    "imagenet21k": Upstream(
        {"ti16": "none", "s32": "none", "s16": "light1", "b32": "light2", "b16": "light2", "l16": "medium2"},
        head_bias=-10.0,
        representation=False,
        set=("pool=mean", "class_token=false"),
    ),
}


def _recipe(size: str, data: str) -> Callable[[], Recipe]:
    name, upstream = f"augreg-{size}-{data}", UPSTREAM[data]

    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=f"vit-{size}-224", representation=upstream.representation, set=upstream.set),
            data=DataChoice(source=data, val_fraction=0.01),
            augmentation=STRENGTHS[upstream.strengths[size]],
            loss=Loss(kind="sigmoid", head_bias=upstream.head_bias),
            optimizer=Optimizer(lr=1e-3, weight_decay=0.1, clip=1.0),
            schedule=Schedule(kind="cosine", total="300 epochs", warmup="10k steps"),
            batch_size=4096,
            compile=True,
            checkpoint_every="1000 steps",
            keep="last",
        )

    strength = upstream.strengths[size]
    build.__doc__ = f"""vit-{size}-224 on {data} for 300 epochs by AugReg (arXiv 2106.10270), augmentation {strength}.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here.
    """
    return build


RECIPES = {f"augreg-{size}-{data}": _recipe(size, data) for data, kind in UPSTREAM.items() for size in kind.strengths}
