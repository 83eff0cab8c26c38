"""`vitlab pretrain`: learning from one's own photos without labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vitlab.cli.parsing import options_of, read
from vitlab.weights.box import DEFAULT

DESCRIPTION = """Train a model on your photos without labels, before fine-tuning it on those with labels.

PHOTOS is a folder of pictures, with or without folders inside it, or any data set. Without --model it starts from
vitlab/tiny, the model in the package. By default batch size, lr and steps follow from the number of photos. It first
prints how long it will take on this machine. RUN/model has no head; `vitlab finetune DATA --model RUN` gives it one.
Labels are never used for training; where there are some (class folders), nearest neighbours show before and after how
well the features separate the classes. docs/pretrain.md says when this pays.

Methods: dino (the default on a GPU), simclr (on a CPU), ibot and lejepa, in which views of a photo agree,
masked-patches and mae, in which hidden patches are predicted, or FILE.py:NAME of your own. Their options and every
other field of a recipe are options too, as in `vitlab train`.

Examples:
  vitlab pretrain photos/
  vitlab finetune labelled/ --model runs/pretrain
  vitlab pretrain photos/ --epochs 5 --out runs/mine
  vitlab pretrain photos/ --method simclr --lr auto
  vitlab pretrain photos/ --method dino --objective.koleo 0.1 --objective.num-small 4
  vitlab pretrain photos/ --model hf-hub:google/vit-base-patch16-224 --image-size 224
  vitlab pretrain photos/ --model vit-s8-64 --method mae --epochs 300
"""
PROG = "vitlab pretrain PHOTOS"


@dataclass(frozen=True)
class Arguments:
    data: str | None = None
    """The photos: a folder, or any data set of docs/data.md. PHOTOS is short for this option."""
    model: str = DEFAULT
    """Where the weights come from, as for finetune; a row of the zoo (`vitlab models`) starts from fresh ones."""
    method: str | None = None
    """The method: dino (the default on a GPU), simclr (on a CPU), ibot, lejepa, masked-patches, mae, or
    FILE.py:NAME of your own."""
    out: Path | None = None
    """The run's folder; by default runs/pretrain, with a number appended if that exists."""
    steps: int | None = None
    """Optimizer steps."""
    epochs: float | None = None
    """Passes over the photos, instead of --steps."""
    lr: float | Literal["auto"] | None = None
    """The learning rate; auto finds it by a range test before the first step."""
    batch_size: int | None = None
    """Photos per step."""
    image_size: int | None = None
    """The side in pixels at which to train."""
    val_fraction: float = 0.1
    """The fraction of photos that is held out; with class folders, as many again are left for testing."""
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
    from vitlab.core.devices import choose_device
    from vitlab.core.errors import ConfigError
    from vitlab.core.record import read_json
    from vitlab.recipes import unlabelled

    if any(text.partition("=")[0] == "--objective" for text in rest):
        raise ConfigError("Name the objective as --method, so that lr and augmentation are its own.")
    own = {"--lr": given.lr, "--steps": given.steps, "--epochs": given.epochs, "--image-size": given.image_size}
    refuse_twice(own, rest)
    lr: float | Literal["auto"] | None = "auto" if takes_auto(rest) else given.lr
    on_gpu = choose_device(given.device).startswith("cuda")
    method = given.method or unlabelled.default_method(on_gpu=on_gpu)
    draft = unlabelled.pretrain_recipe("", given.model, method, trained=True, num_images=1, on_gpu=on_gpu)
    missing = f"Name a folder of photos: {PROG}."
    photos, adjust = data_and_changes(given.data, draft, rest, options_of(Arguments), prog=PROG, missing=missing)
    outcome = api.pretrain(
        photos,
        given.model,
        method=method,
        out=given.out,
        steps=given.steps,
        epochs=given.epochs,
        lr=lr,
        batch_size=given.batch_size,
        image_size=given.image_size,
        val_fraction=given.val_fraction,
        tracker=given.tracker,
        seed=given.seed,
        adjust=adjust,
        device=given.device,
        show=True,
    )
    classes = read_json(outcome.folder / "data.json").get("classes")
    return report(outcome, as_json=given.json, data=photos if classes else "DATA")
