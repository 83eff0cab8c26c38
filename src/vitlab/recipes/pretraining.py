"""The paper's pre-training, table 3: Adam (.9, .999), batch 4096, 10k steps of warm-up, 224 px.

JFT is not public: name your own set with --data.source. Three models of the figures are not in the table: ViT-b/32 of
figure 4, and R152x2 and R200x3 for 14 epochs of figure 5. Their rate is the nearest row's, which is not confirmed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


@dataclass(frozen=True)
class Row:
    """A row of the table."""

    model: str
    data: str
    epochs: int
    lr: float
    decay: str  # of the rate: linear or cosine
    weight_decay: float
    dropout: float


ROWS: dict[str, Row] = {
    "vit-b32-jft": Row("vit-b32-224", "jft", 7, 8e-4, "linear", 0.1, 0.0),
    "vit-b16-jft": Row("vit-b16-224", "jft", 7, 8e-4, "linear", 0.1, 0.0),
    "vit-l32-jft": Row("vit-l32-224", "jft", 7, 6e-4, "linear", 0.1, 0.0),
    "vit-l16-jft-7ep": Row("vit-l16-224", "jft", 7, 4e-4, "linear", 0.1, 0.0),
    "vit-l16-jft": Row("vit-l16-224", "jft", 14, 4e-4, "linear", 0.1, 0.0),
    "vit-h14-jft": Row("vit-h14-224", "jft", 14, 3e-4, "linear", 0.1, 0.0),
    "bit-r50x1-jft": Row("bit-r50x1", "jft", 7, 1e-3, "linear", 0.1, 0.0),
    "bit-r50x2-jft": Row("bit-r50x2", "jft", 7, 1e-3, "linear", 0.1, 0.0),
    "bit-r101x1-jft": Row("bit-r101x1", "jft", 7, 8e-4, "linear", 0.1, 0.0),
    "bit-r152x1-jft": Row("bit-r152x1", "jft", 7, 6e-4, "linear", 0.1, 0.0),
    "bit-r152x2-jft": Row("bit-r152x2", "jft", 7, 6e-4, "linear", 0.1, 0.0),
    "r50-vit-b32-jft": Row("r50-vit-b32-224", "jft", 7, 8e-4, "linear", 0.1, 0.0),
    "r50-vit-b16-jft": Row("r50-vit-b16-224", "jft", 7, 8e-4, "linear", 0.1, 0.0),
    "r50-vit-l32-jft": Row("r50-vit-l32-224", "jft", 7, 2e-4, "linear", 0.1, 0.0),
    "r50-vit-l16-jft-7ep": Row("r50-vit-l16-224", "jft", 7, 4e-4, "linear", 0.1, 0.0),
    "r50-vit-l16-jft": Row("r50-vit-l16-224", "jft", 14, 4e-4, "linear", 0.1, 0.0),
    "vit-b32-imagenet21k": Row("vit-b32-224", "imagenet21k", 90, 1e-3, "linear", 0.03, 0.1),
    "vit-b16-imagenet21k": Row("vit-b16-224", "imagenet21k", 90, 1e-3, "linear", 0.03, 0.1),
    "vit-l32-imagenet21k-30ep": Row("vit-l32-224", "imagenet21k", 30, 1e-3, "linear", 0.03, 0.1),
    "vit-l32-imagenet21k": Row("vit-l32-224", "imagenet21k", 90, 1e-3, "linear", 0.03, 0.1),
    "vit-l16-imagenet21k-30ep": Row("vit-l16-224", "imagenet21k", 30, 1e-3, "linear", 0.03, 0.1),
    "vit-l16-imagenet21k": Row("vit-l16-224", "imagenet21k", 90, 1e-3, "linear", 0.03, 0.1),
    "vit-b32-imagenet": Row("vit-b32-224", "imagenet", 300, 3e-3, "cosine", 0.3, 0.1),
    "vit-b16-imagenet": Row("vit-b16-224", "imagenet", 300, 3e-3, "cosine", 0.3, 0.1),
    "vit-l32-imagenet": Row("vit-l32-224", "imagenet", 300, 3e-3, "cosine", 0.3, 0.1),
    "vit-l16-imagenet": Row("vit-l16-224", "imagenet", 300, 3e-3, "cosine", 0.3, 0.1),
}
FIGURES: dict[str, Row] = {  # of figures 4 and 5; the rates are those of B/32 and R152x2
    "vit-bhalf32-jft": Row("vit-bhalf32-224", "jft", 7, 8e-4, "linear", 0.1, 0.0),
    "bit-r152x2-jft-14ep": Row("bit-r152x2", "jft", 14, 6e-4, "linear", 0.1, 0.0),
    "bit-r200x3-jft": Row("bit-r200x3", "jft", 14, 6e-4, "linear", 0.1, 0.0),
}


def _recipe(name: str, row: Row) -> Callable[[], Recipe]:
    place = "table 3" if name in ROWS else "a figure without its rate in table 3,"
    several = row.data in ("jft", "imagenet21k")  # the sigmoid loss, its head's bias at -10: the authors' code

    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=row.model, dropout=row.dropout, representation="vit-" in row.model),
            data=DataChoice(source=row.data, val_fraction=0.01),
            augmentation=Augmentation(crop="paper", flip=0.5),
            loss=Loss(kind="sigmoid", head_bias=-10.0) if several else Loss(),
            optimizer=Optimizer(
                name="adamw",
                lr=row.lr,
                weight_decay=row.weight_decay,
                clip=1.0 if row.data == "imagenet" else None,
            ),
            schedule=Schedule(
                kind="linear" if row.decay == "linear" else "cosine",
                total=f"{row.epochs} epochs",
                warmup="10k steps",
                end=1e-5 / row.lr if row.decay == "linear" else 0.0,  # the authors' code ends at 1e-5
            ),
            batch_size=4096,
            compile=True,
            checkpoint_every="1000 steps",
            keep="last",
        )

    build.__doc__ = f"""{row.model} on {row.data} for {row.epochs} epochs, {place} of arXiv 2010.11929.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here; the paper states 2,500 TPUv3 core-days for H/14 on JFT.
    Score: none seen here.
    """
    return build


RECIPES = {name: _recipe(name, row) for name, row in {**ROWS, **FIGURES}.items()}
