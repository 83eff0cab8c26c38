"""CvT's and CoAtNet's own training.

CvT (arXiv 2103.15808): 300 epochs on ImageNet by the authors' configurations (microsoft/CvT, experiments/imagenet/cvt):
256 images and a rate of .00025 a GPU for 13, half of both for 21, on as many GPUs as make the paper's batch of 2048;
the paper prints a rate of .02 for it, ten times theirs. The file for 21 names 13's augmentation but turns on neither of
the two ways in which that code would use it; it is taken here as meant. W24 is pre-trained on ImageNet-21k at 224 px
(section 4.1: weight decay .1); that its epochs, rate, augmentation and stochastic depth are those of 21 on ImageNet is
not confirmed. It is fine-tuned at 384 px by ViT's protocol (section 4.1 names steps and batch); the rate is one of
ViT's, since the paper names none.

CoAtNet (arXiv 2106.04803): table 10, appendix A.2. Its RandAugment is taken to be Google's official one; the code of
MaxViT (google-research/maxvit), which its authors built on CoAtNet's, has the same figures for it but not its ranges,
so that this is not confirmed. The table names no crops: they are those of that code, models/utils.py. JFT is not
public: name your own set with --data.source.

Each pre-training at 224 px is followed by the fine-tuning on ImageNet that the table has beside it: 30 epochs at a
constant rate without warm-up, weight decay 1e-8, averaged weights. It continues from the run of the recipe that comes
before; --model.source names other weights, for instance coatnet-2-rw.sw-in12k, timm's own variant and training. The
authors published none. Its crops are not confirmed: they are kept. The head is a new one, after ImageNet too, as in
MaxViT's code (models/hp/vision_i1k.py), which has the same figures. The table's "center crop", on before and off in
fine-tuning, is taken for a matter of evaluation (not confirmed): here that sees the whole picture. CoAtNet-4's better
figures from ImageNet-21k (88.3% and 88.4%) come from RandAugment 2, 5 in pre-training, which is left out of both here.
The table ends at CoAtNet-5: what 6 and 7 were trained with on JFT-3B is not published, and they have its column here.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from vitlab.data.augmentation import Augmentation
from vitlab.recipes.finetuning import finetune_recipe
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


@dataclass(frozen=True)
class CvTRow:
    """What differs between CvT's sizes."""

    model: str
    drop_path: float
    weight_decay: float
    repeats: int  # of repeated augmentation
    data: str = "imagenet"
    image_size: int | None = None


CVT_ROWS = {
    "cvt-13-imagenet": CvTRow("cvt-13", 0.1, 0.05, 1),
    "cvt-21-imagenet": CvTRow("cvt-21", 0.1, 0.1, 3),
    "cvt-w24-imagenet21k": CvTRow("cvt-w24", 0.1, 0.1, 3, data="imagenet21k", image_size=224),
}
CVT_SCORES = {"cvt-13": "81.6%", "cvt-21": "82.5%", "cvt-w24": "87.7% on ImageNet after fine-tuning at 384 px"}
# W24's fine-tuning: the set, steps, the part held out, the score
CVT_TUNINGS = {
    "cvt-w24-384-imagenet": ("imagenet", 20_000, 0.01, "87.7%"),
    "cvt-w24-384-cifar100": ("cifar100", 10_000, 0.02, "94.09%"),
}


@dataclass(frozen=True)
class CoAtNetColumn:
    """CoAtNet's pre-training on a set: what all sizes share."""

    epochs: int
    warmup: str
    decay: Literal["cosine", "linear"]
    weight_decay: float
    augmentation: Augmentation
    loss: Loss


CROPS = Augmentation(crop_area=(0.08, 1.0))
RANDAUGMENT = replace(CROPS, policy="randaugment-official", num_ops=2)
COATNET_COLUMNS = {
    "imagenet": CoAtNetColumn(
        300,
        "10k steps",
        "cosine",
        0.05,
        replace(RANDAUGMENT, magnitude=15.0, mixup=0.8),
        Loss(label_smoothing=0.1),
    ),
    "imagenet21k": CoAtNetColumn(90, "5 epochs", "linear", 0.01, CROPS, Loss(kind="sigmoid", label_smoothing=1e-4)),
    "jft": CoAtNetColumn(
        14,
        "20k steps",
        "linear",
        0.01,
        replace(RANDAUGMENT, magnitude=5.0),
        Loss(kind="sigmoid", label_smoothing=1e-4),
    ),
}


@dataclass(frozen=True)
class CoAtNetRow:
    """What differs between CoAtNet's sizes."""

    number: int
    data: str
    drop_path: float
    lr: float
    score: str  # on ImageNet: at 224 px, or after fine-tuning


COATNET_ROWS = [
    CoAtNetRow(0, "imagenet", 0.2, 1e-3, "81.6%"),
    CoAtNetRow(1, "imagenet", 0.3, 1e-3, "83.3%"),
    CoAtNetRow(2, "imagenet", 0.5, 1e-3, "84.1%"),
    CoAtNetRow(3, "imagenet", 0.7, 1e-3, "84.5%"),
    CoAtNetRow(2, "imagenet21k", 0.3, 1e-3, "87.1% after fine-tuning at 384 px"),
    CoAtNetRow(3, "imagenet21k", 0.5, 1e-3, "87.6% after fine-tuning at 384 px"),
    CoAtNetRow(4, "imagenet21k", 0.7, 1e-3, "87.9% after fine-tuning at 384 px"),
    CoAtNetRow(
        3, "jft", 0.0, 1e-3, "88.52% for a variant with strided depthwise convolutions, after fine-tuning at 384 px"
    ),
    CoAtNetRow(4, "jft", 0.1, 5e-4, "89.11% after fine-tuning at 512 px"),
    CoAtNetRow(5, "jft", 0.0, 5e-4, "89.77% after fine-tuning at 512 px"),
    CoAtNetRow(6, "jft", 0.0, 5e-4, "90.45% after JFT-3B and fine-tuning at 512 px"),
    CoAtNetRow(7, "jft", 0.0, 5e-4, "90.88% after JFT-3B and fine-tuning at 512 px"),
]
SHARDED = 6  # from this number on, weights and optimizer are sharded and blocks recomputed: a GPU holds no copy


@dataclass(frozen=True)
class CoAtNetTuning:
    """CoAtNet's fine-tuning on ImageNet, after a set that decides the batch and, but for one size, the augmentation."""

    number: int
    before: str
    drop_path: float
    score: str
    image_size: int = 384
    magnitude: float | None = None  # RandAugment's, where it is not the set's

    @property
    def name(self) -> str:
        """As the zoo's names with a resolution; sets other than ImageNet are named too."""
        after = "" if self.before == "imagenet" else f"-from-{self.before}"
        return f"coatnet-{self.number}-{self.image_size}-imagenet{after}"


COATNET_TUNING_BATCHES = {"imagenet": 512, "imagenet21k": 1024, "jft": 512}
COATNET_TUNINGS = [
    CoAtNetTuning(0, "imagenet", 0.2, "83.9%"),
    CoAtNetTuning(1, "imagenet", 0.3, "85.1%"),
    CoAtNetTuning(2, "imagenet", 0.5, "85.7%, and 85.9% at 512 px"),
    CoAtNetTuning(3, "imagenet", 0.7, "85.8%, and 86.0% at 512 px", magnitude=20.0),
    CoAtNetTuning(2, "imagenet21k", 0.3, "87.1%, and 87.3% at 512 px"),
    CoAtNetTuning(3, "imagenet21k", 0.5, "87.6%, and 87.9% at 512 px"),
    CoAtNetTuning(4, "imagenet21k", 0.7, "87.9%, and 88.1% at 512 px"),
    CoAtNetTuning(3, "jft", 0.1, "88.52%, and 88.81% at 512 px, for a variant with strided depthwise convolutions"),
    CoAtNetTuning(4, "jft", 0.3, "89.11%", image_size=512),
    CoAtNetTuning(5, "jft", 0.2, "89.77%", image_size=512),
    CoAtNetTuning(6, "jft", 0.2, "90.45%", image_size=512),
    CoAtNetTuning(7, "jft", 0.2, "90.88%", image_size=512),
]


def _cvt(name: str, row: CvTRow) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=row.model, drop_path=row.drop_path, image_size=row.image_size),
            data=DataChoice(source=row.data, val_fraction=0.01, repeats=row.repeats),
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
            optimizer=Optimizer(lr=2e-3, weight_decay=row.weight_decay),
            schedule=Schedule(kind="cosine", total="300 epochs", warmup="5 epochs", end=1e-5 / 2e-3),
            batch_size=2048,
            compile=True,
            keep="last",
        )

    build.__doc__ = f"""{row.model} on {row.data} from scratch as its authors train it.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the authors report {CVT_SCORES[row.model]}.
    """
    return build


def _cvt_tuning(name: str, data: str, steps: int, held_out: float, score: str) -> Callable[[], Recipe]:
    source = "runs/cvt-w24-imagenet21k"

    def build() -> Recipe:
        return finetune_recipe(data, source, steps=steps, lr=0.01, warmup=500, held_out=held_out, name=name)

    build.__doc__ = f"""cvt-w24 after ImageNet-21k, at 384 px on {data} (arXiv 2103.15808, section 4.1).

    Starts from {source}, the run of that recipe, or from SOURCE.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH [--model.source SOURCE]
    Hardware and time: not run here.
    Score: none seen here; the paper reports {score}.
    """
    return build


def _coatnet(name: str, row: CoAtNetRow) -> Callable[[], Recipe]:
    column = COATNET_COLUMNS[row.data]

    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(
                source=f"coatnet-{row.number}", drop_path=row.drop_path, checkpoint_blocks=row.number >= SHARDED
            ),
            data=DataChoice(source=row.data, val_fraction=0.01),
            augmentation=column.augmentation,
            loss=column.loss,
            optimizer=Optimizer(lr=row.lr, weight_decay=column.weight_decay, clip=1.0),
            schedule=Schedule(
                kind=column.decay, total=f"{column.epochs} epochs", warmup=column.warmup, end=1e-5 / row.lr
            ),
            batch_size=4096,
            compile=True,
            strategy="shard" if row.number >= SHARDED else "auto",
            keep="last",
        )

    build.__doc__ = f"""coatnet-{row.number} on {row.data} from scratch by its paper (arXiv 2106.04803, table 10).

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the paper reports {row.score}.
    """
    return build


def _coatnet_tuning(row: CoAtNetTuning) -> Callable[[], Recipe]:
    augmentation = COATNET_COLUMNS[row.before].augmentation  # the table has the same in both columns
    if row.magnitude is not None:
        augmentation = replace(augmentation, magnitude=row.magnitude)
    model = f"coatnet-{row.number}"
    source = f"runs/{model}-{row.before}"

    def build() -> Recipe:
        return Recipe(
            name=row.name,
            model=ModelChoice(
                source=source,
                pretrained=True,
                image_size=row.image_size,
                drop_path=row.drop_path,
                checkpoint_blocks=row.number >= SHARDED,
            ),
            data=DataChoice(source="imagenet", val_fraction=0.01),
            augmentation=augmentation,
            loss=Loss(label_smoothing=0.1),
            optimizer=Optimizer(lr=5e-5, weight_decay=1e-8, clip=1.0, ema=0.9999),
            schedule=Schedule(kind="constant", total="30 epochs", warmup="0 steps"),
            batch_size=COATNET_TUNING_BATCHES[row.before],
            compile=True,
            strategy="shard" if row.number >= SHARDED else "auto",
            keep="last",
        )

    build.__doc__ = f"""{model} after {row.before}, at {row.image_size} px on ImageNet (arXiv 2106.04803, table 10).

    Starts from {source}, the run of that recipe, or from SOURCE.

    Command: torchrun --nproc-per-node 8 -m vitlab train {row.name} --data.source PATH [--model.source SOURCE]
    Hardware and time: not run here.
    Score: none seen here; the paper reports {row.score}.
    """
    return build


RECIPES: dict[str, Callable[[], Recipe]] = {
    **{name: _cvt(name, row) for name, row in CVT_ROWS.items()},
    **{name: _cvt_tuning(name, *row) for name, row in CVT_TUNINGS.items()},
    **{name: _coatnet(name, row) for row in COATNET_ROWS for name in [f"coatnet-{row.number}-{row.data}"]},
    **{row.name: _coatnet_tuning(row) for row in COATNET_TUNINGS},
}
