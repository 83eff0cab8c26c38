"""CvT's and CoAtNet's own training on ImageNet, 300 epochs each.

CvT (arXiv 2103.15808): the figures of the authors' configurations, 256 images and a rate of .00025 a GPU, eight of
them; the paper prints a rate of .02 for its batch of 2048, ten times theirs.

CoAtNet (arXiv 2106.04803): the table of hyper-parameters in its appendix, which was not at hand; its RandAugment has
magnitude 15, past the end of the scale here, which is 10. A public reprint of the table's fine-tuning columns
(keras_cv_attention_models) confirms stochastic depth, RandAugment and mixup. The rest is as in the code of MaxViT,
which its authors built on CoAtNet's: RandAugment and mixup again, 300 epochs of batches of 4096, 10k steps of warm-up,
AdamW from 1e-3 (for MaxViT itself 3e-3) to 1e-5, label smoothing .1, weight decay .05, clipping at 1. MaxViT averages
weights at .9999; that CoAtNet does so only in fine-tuning is not confirmed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimisers import Optimiser
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


@dataclass(frozen=True)
class CvTRow:
    """What differs between CvT's sizes."""

    model: str
    drop_path: float
    weight_decay: float
    repeats: int  # of repeated augmentation


CVT_ROWS = {
    "cvt-13-imagenet": CvTRow("cvt-13", 0.1, 0.05, 1),
    "cvt-21-imagenet": CvTRow("cvt-21", 0.1, 0.1, 3),
}
COATNET_DROP_PATHS = {0: 0.2, 1: 0.3, 2: 0.5, 3: 0.7}


def _cvt(name: str, row: CvTRow) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=row.model, drop_path=row.drop_path),
            data=DataChoice(source="imagenet", val_fraction=0.01, repeats=row.repeats),
            augmentation=Augmentation(
                crop="paper",
                crop_area=(0.08, 1.0),
                policy="randaugment",
                magnitude=9.0,
                erase=0.25,
                mixup=0.8,
                cutmix=1.0,
            ),
            loss=Loss(label_smoothing=0.1),
            optimiser=Optimiser(rate=2e-3, weight_decay=row.weight_decay),
            schedule=Schedule(kind="cosine", total="300 epochs", warmup="5 epochs", end=1e-5 / 2e-3),
            batch_size=2048,
            compile=True,
            keep="last",
        )

    build.__doc__ = f"""{row.model} from scratch as its authors train it.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the authors report {"81.6" if row.model == "cvt-13" else "82.5"}%.
    """
    return build


def _coatnet(name: str, number: int, drop_path: float) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=f"coatnet-{number}", drop_path=drop_path),
            data=DataChoice(source="imagenet", val_fraction=0.01),
            augmentation=Augmentation(
                crop="paper",
                policy="randaugment",
                num_ops=2,
                magnitude=10.0,
                magnitude_std=0.0,
                op_prob=1.0,
                mixup=0.8,
            ),
            loss=Loss(label_smoothing=0.1),
            optimiser=Optimiser(rate=1e-3, weight_decay=0.05, clip=1.0),
            schedule=Schedule(kind="cosine", total="300 epochs", warmup="10k steps", end=1e-2),
            batch_size=4096,
            compile=True,
            keep="last",
        )

    scores = {0: "81.6", 1: "83.3", 2: "84.1", 3: "84.5"}
    build.__doc__ = f"""coatnet-{number} from scratch by its paper.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the paper reports {scores[number]}%.
    Of its figures only those named at the top of this recipe's file are confirmed, by others' code.
    """
    return build


RECIPES: dict[str, Callable[[], Recipe]] = {
    **{name: _cvt(name, row) for name, row in CVT_ROWS.items()},
    **{
        f"coatnet-{number}-imagenet": _coatnet(f"coatnet-{number}-imagenet", number, drop_path)
        for number, drop_path in COATNET_DROP_PATHS.items()
    },
}
