"""`vitlab finetune`: a trained model for a folder of photos."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.cli.parsing import options_of, read
from vitlab.weights.box import DEFAULT

DESCRIPTION = """Fine-tune a trained model on your data: DIR is a folder with one folder of photos per class.

Without --model it starts from vitlab/tiny, the model in the package. By default batch size, resolution, lr and steps
follow from the data's size and the model. It first prints how long it will take on this machine. The best
weights on a held-out part of the training images become RUN/model, with the data's class names. Metrics go to
RUN/metrics.jsonl and TensorBoard (tensorboard --logdir RUN), and with --tracker to MLflow or W&B. Every other field of
a recipe is an option too, as in `vitlab train`: `vitlab train digits --help` lists them.

Examples:
  vitlab finetune photos/
  vitlab finetune photos/ --epochs 5 --augment strong --balanced
  vitlab finetune photos/ --lr auto --tracker mlflow
  vitlab finetune photos/ --model vit-b16-224.augreg-in21k --image-size 224
  vitlab finetune photos/ --model runs/digits --freeze backbone
  vitlab finetune camvid/ --model vit-ti16-224.augreg-in21k --task segmentation
  vitlab finetune labels.csv --model hf-hub:google/vit-base-patch16-224 --lora 8 --steps 500
  vitlab finetune photos/ --optimizer.name adamw --optimizer.layer-decay 0.75 --schedule.warmup 10%
"""
PROG = "vitlab finetune DIR"


@dataclass(frozen=True)
class Arguments:
    data: str | None = None
    """A folder of class folders, a CSV or a data set's name; see docs/data.md. DIR is short for this option."""
    model: str = DEFAULT
    """Where the weights come from: a run, a folder, a file, a checkpoint's name, hf-hub:owner/name, timm:name."""
    task: str = "classification"
    """What the model is for: classification, segmentation (where there are masks), or FILE.py:NAME of your own."""
    out: Path | None = None
    """The run's folder; by default runs/finetune, with a number appended if that exists."""
    steps: int | None = None
    """Optimizer steps."""
    epochs: float | None = None
    """Passes over the training images, instead of --steps."""
    lr: float | Literal["auto"] | None = None
    """The learning rate; auto finds it by a range test before the first step."""
    batch_size: int | None = None
    """Images per step."""
    image_size: int | None = None
    """The side in pixels at which to fine-tune."""
    augment: Literal["none", "light", "strong"] = "light"
    """Augmentation: none; crops and flips; or crops, flips, RandAugment and erasing."""
    balanced: bool = False
    """Draw every class equally often."""
    freeze: Literal["none", "backbone"] = "none"
    """backbone: train only the head."""
    lora: int | None = None
    """Train low-rank adapters of this rank and the head."""
    val_fraction: float = 0.1
    """The fraction of train held out for selection if there is no validation split; without splits, as much is test."""
    patience: int | None = None
    """Stop after this many evaluations without a better score."""
    tracker: Literal["none", "mlflow", "wandb"] = "none"
    """Also log metrics to MLflow or Weights & Biases, besides metrics.jsonl and TensorBoard."""
    seed: int = 0
    """The seed of initialisation, order and augmentation."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    json: bool = False
    """Print the outcome as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given, rest = read(Arguments, arguments, prog=PROG, description=DESCRIPTION)
    from vitlab import api
    from vitlab.cli.choices import data_and_changes, refuse_twice, takes_auto
    from vitlab.cli.train import report
    from vitlab.recipes.finetuning import finetune_recipe

    own = {"--lr": given.lr, "--steps": given.steps, "--epochs": given.epochs, "--image-size": given.image_size}
    refuse_twice({**own, "--lora": given.lora}, rest)
    lr: float | Literal["auto"] | None = "auto" if takes_auto(rest) else given.lr
    draft = finetune_recipe("", given.model, steps=1, lr=1.0, warmup=0, held_out=0.1)
    missing = f"Name a folder with one folder of photos per class: {PROG}."
    data, adjust = data_and_changes(given.data, draft, rest, options_of(Arguments), prog=PROG, missing=missing)
    outcome = api.finetune(
        data,
        given.model,
        task=given.task,
        out=given.out,
        steps=given.steps,
        epochs=given.epochs,
        lr=lr,
        batch_size=given.batch_size,
        image_size=given.image_size,
        augment=given.augment,
        balanced=given.balanced,
        freeze=given.freeze,
        lora=given.lora,
        val_fraction=given.val_fraction,
        patience=given.patience,
        tracker=given.tracker,
        seed=given.seed,
        adjust=adjust,
        device=given.device,
        show=True,
    )
    return report(outcome, as_json=given.json)
