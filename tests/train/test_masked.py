"""Masked patches and masked autoencoders learn what broken ones cannot, and the way from a run to its uses works."""

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from batches import stepping
from changing import changed
from vitlab.cli import main
from vitlab.data.batch import Batch, Stream
from vitlab.data.open import open_data
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.mae import MAEOptions, MaskedAutoencoder
from vitlab.objectives.masked_patches import MaskedPatches, MaskedPatchesOptions
from vitlab.objectives.patches import PatchObjective
from vitlab.recipes import find_recipe
from vitlab.training import session
from vitlab.training.optimizers import Optimizer
from vitlab.weights.load import load

Set: TypeAlias = Literal["slopes", "digits"]
SIDE, SIZE = 12, 32
STEPS: dict[Set, int] = {"slopes": 150, "digits": 400}


def slopes(num: int, seed: int) -> Tensor:
    """Grey pictures that change evenly in a direction of their own: what is hidden follows from what is not."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[:SIDE, :SIDE] / (SIDE - 1) - 0.5
    middle, (down, right) = rng.uniform(0.2, 0.8, (num, 1, 1, 1)), rng.uniform(-0.8, 0.8, (2, num, 1, 1, 1))
    grey = np.round(255 * (middle + down * y + right * x)).clip(0, 255)
    return torch.from_numpy(grey).to(torch.uint8).expand(-1, 3, -1, -1)


@functools.cache
def digits(part: str) -> Tensor:
    split = open_data("digits").splits[part]
    pixels = torch.stack([torch.as_tensor(split.images.read(i)) for i in range(len(split))])
    return pixels[:, None].expand(-1, 3, -1, -1)


class Pictures:
    """Batches of pictures."""

    damaged: dict[int, str] = {}  # noqa: RUF012  a feed's

    def __init__(self, model: ViT, images: Tensor) -> None:
        self.images = model.preprocess.normalize(images)

    def batch(self, step: int) -> Batch:
        places = torch.arange(step * SIZE, (step + 1) * SIZE)
        return Batch({"train": Stream((self.images[places % len(self.images)],), {}, places)})

    def close(self) -> None:
        pass


def colors(model: ViT) -> MaskedPatches:
    return MaskedPatches(MaskedPatchesOptions(), model)


def autoencoder(model: ViT) -> MaskedAutoencoder:
    options = MAEOptions(decoder_width=32, decoder_depth=1, decoder_heads=2, target="pixels")
    return MaskedAutoencoder(options, model)


def whole(_: ViT, __: PatchObjective) -> None:
    pass


def frozen(model: ViT, objective: PatchObjective) -> None:
    """The model stays as it is; what belongs to the objective learns."""
    del objective
    model.requires_grad_(False)


def shuffled(model: ViT, objective: PatchObjective) -> None:
    """What is sought belongs to other images."""
    del model
    found: Any = objective
    if isinstance(objective, MaskedAutoencoder):
        sought = objective.target
        found.target = lambda values: sought(values.roll(1, 0))
    elif isinstance(objective, MaskedPatches):
        classes = objective.classes
        found.classes = lambda model, images: classes(model, images.roll(1, 0))


@functools.cache
def held_out_loss(
    build: Callable[[ViT], PatchObjective], breaks: Callable[[ViT, PatchObjective], None], on: Set
) -> float:
    """The loss on pictures that were not learned from, by targets that are right."""
    torch.manual_seed(0)
    train, test = (slopes(2048, 0), slopes(256, 1)) if on == "slopes" else (digits("train"), digits("test"))
    own: dict[str, Any] = {"patch_size": 4} if on == "slopes" else {"patch_size": 2, "positions_std": 0.5}
    sizes = {"image_size": tuple(train.shape[2:]), "width": 32, "depth": 2, "mlp_dim": 64, "heads": 4}
    model = ViT(ViTConfig(**sizes, **own, num_classes=0, pool="mean", class_token=False))
    model.initialize()
    objective = build(model)
    breaks(model, objective)
    _, step = stepping(model, objective, Optimizer(name="muon", lr=1e-2, clip=1.0), Pictures(model, train))
    for number in range(STEPS[on]):
        step(number, min((number + 1) / 30, 1.0))
    right = build(model)
    right.load_state_dict(objective.state_dict())
    held = Batch({"train": Stream((model.preprocess.normalize(test),), {}, torch.arange(len(test)))})
    with torch.no_grad():
        return right.loss(model.eval(), held, torch.zeros(()))[0].item()


@pytest.mark.parametrize(
    ("build", "on", "bar"),
    # of digits of 8 x 8 an autoencoder's decoder says as much by itself
    [(colors, "slopes", 1.4), (autoencoder, "slopes", 0.04), (colors, "digits", 1.18)],
)
def test_it_learns_what_broken_ones_cannot(build: Callable[[ViT], PatchObjective], on: Set, bar: float) -> None:
    """Far below the bar; a frozen model and one that learns of other images' patches stay above it."""
    assert held_out_loss(build, whole, on) < bar
    assert held_out_loss(build, frozen, on) > bar
    assert held_out_loss(build, shuffled, on) > bar


SMALL = ["--schedule.total", "8 steps", "--schedule.warmup", "2 steps", "--evaluate-every", "4 steps"]
SMALL += ["--model.set", "depth=1", "pool=mean", "class_token=false", "--device", "cpu"]


def test_fine_tuning_begins_from_the_weights_of_a_run(tmp_path: Path) -> None:
    """A run without a head is a source of weights like any other."""
    recipe = changed(find_recipe("mae-digits"), **{"schedule.total": "2 steps", "schedule.warmup": "0 steps"})
    session.train(recipe, tmp_path / "mae", device="cpu", show=False)
    start = {"model.source": str(tmp_path / "mae"), "model.pretrained": True, "model.set": (), "optimizer.ema": None}
    tuned = changed(find_recipe("digits"), **start, **{"schedule.total": "1 step", "schedule.warmup": "0 steps"})
    session.train(changed(tuned, **{"optimizer.lr": 1e-12}), tmp_path / "tuned", device="cpu", show=False)
    before, after = load(tmp_path / "mae").state_dict(), load(tmp_path / "tuned").state_dict()
    assert set(after) - set(before) == {"head.weight", "head.bias"}
    for name, value in before.items():
        torch.testing.assert_close(after[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_from_a_run_to_its_uses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Train without labels, then fine-tune with them, measure the features, and look at what is filled in."""
    run = tmp_path / "mae"
    assert main(["train", "mae-digits", *SMALL, "--out", str(run)]) == 0
    few = ["--steps", "3", "--device", "cpu", "--out", str(tmp_path / "tuned")]
    assert main(["finetune", "digits", "--model", str(run), *few]) == 0
    capsys.readouterr()
    assert main(["evaluate", "knn", "--model", str(run), "--data", "digits", "--json", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["metrics"]["top-1"]["value"] > 0.3  # of ten classes, by features that saw no label
    picture = tmp_path / "digit.png"
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8) * 4).convert("RGB").save(picture)
    look = ["inspect", str(picture), "--model", str(run), "--out", str(tmp_path / "inside"), "--device", "cpu"]
    assert main(look) == 0
    assert (tmp_path / "inside" / "predicted-1.png").exists()
    assert "the model filled them in" in (tmp_path / "inside" / "inspect.html").read_text()
