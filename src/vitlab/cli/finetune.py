"""`vitlab finetune`: a trained model for a folder of photos."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import tyro

from vitlab.cli.parsing import FLAGS

DESCRIPTION = """Transfer a trained model to your data: a zero head, positions for the new resolution, SGD and cosine.

What is not given is chosen from the data's size: batch, resolution and steps. The best weights on a held-out part of
the training images become RUN/model, with the data's class names. Every other field of a recipe is an option too, as in
`vitlab train`: `vitlab train digits --help` lists them.

Examples:
  vitlab finetune photos/ --model vit-b16-224.augreg-in21k
  vitlab finetune photos/ --model runs/digits --freeze backbone
  vitlab finetune photos/ --model B_16.npz --epochs 20 --augment strong --balanced --tracker mlflow
  vitlab finetune camvid/ --model vit-ti16-224.augreg-in21k --task segmentation
  vitlab finetune labels.csv --model hf-hub:google/vit-base-patch16-224 --lora 8 --steps 500
"""


@dataclass(frozen=True)
class Arguments:
    data: str
    """A folder of class folders, a CSV, a data set's name: see docs/data.md. DIR as the first word is the same."""
    model: str
    """Where the weights come from: a run, a folder, a file, a checkpoint's name, hf-hub:owner/name, timm:name."""
    task: str = "classification"
    """What the model is for: classification, segmentation (where there are masks), or FILE.py:NAME of your own."""
    out: Path | None = None
    """The run's folder; by default runs/finetune, with a number behind it where that is taken."""
    steps: int | None = None
    """Optimizer steps."""
    epochs: float | None = None
    """Passes over the training images, in the place of --steps."""
    lr: float | None = None
    """The learning rate; the paper's grid is 0.001, 0.003, 0.01, 0.03."""
    batch_size: int | None = None
    """Images per step."""
    image_size: int | None = None
    """The side in pixels at which to fine-tune."""
    augment: Literal["none", "light", "strong"] = "light"
    """How training images are varied: not at all, by crops and flips, or by RandAugment and erasing besides."""
    balanced: bool = False
    """Draw every class equally often."""
    freeze: Literal["none", "backbone"] = "none"
    """backbone: train the head alone."""
    lora: int | None = None
    """Train low-rank adapters of this rank and the head."""
    val_fraction: float = 0.1
    """The part of train that selects, where the data has no validation part; of data without parts, as much is test."""
    patience: int | None = None
    """Stop after so many evaluations without a better score."""
    seed: int = 0
    """What order, augmentation and initialisation follow from."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU where there is one."""
    json: bool = False
    """Print the outcome as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    named = bool(arguments) and not arguments[0].startswith("-")
    given, rest = tyro.cli(
        Arguments,
        args=["--data", *arguments] if named else arguments,
        prog="vitlab finetune",
        description=DESCRIPTION,
        config=FLAGS,
        return_unknown_args=True,
    )
    from vitlab import api
    from vitlab.cli.choices import parse_recipe
    from vitlab.cli.train import report
    from vitlab.recipes.finetuning import finetune_recipe
    from vitlab.training.recipe import Recipe

    def adjust(recipe: Recipe) -> Recipe:
        return parse_recipe(recipe, rest, prog="vitlab finetune") if rest else recipe

    # A wrong option is said before anything is read.
    adjust(finetune_recipe(given.data, given.model, steps=1, lr=1.0, warmup=0, held_out=0.1))
    outcome = api.finetune(
        given.data,
        given.model,
        task=given.task,
        out=given.out,
        steps=given.steps,
        epochs=given.epochs,
        lr=given.lr,
        batch_size=given.batch_size,
        image_size=given.image_size,
        augment=given.augment,
        balanced=given.balanced,
        freeze=given.freeze,
        lora=given.lora,
        val_fraction=given.val_fraction,
        patience=given.patience,
        seed=given.seed,
        adjust=adjust,
        device=given.device,
        show=True,
    )
    return report(outcome, as_json=given.json)
