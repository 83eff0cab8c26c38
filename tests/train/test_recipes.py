"""Every recipe: it is documented, survives JSON, and trains two steps at a reduced size."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from changing import changed
from vitlab.core.config import from_dict, to_dict
from vitlab.core.errors import UnknownNameError
from vitlab.data.open import names
from vitlab.models.create import create
from vitlab.models.zoo.rows import ZOO
from vitlab.recipes import RECIPES, find_recipe
from vitlab.training import session
from vitlab.training.durations import Pace
from vitlab.training.plan import open_parts
from vitlab.training.recipe import Recipe
from vitlab.training.schedules import resolve
from vitlab.weights.load import save
from vitlab.weights.published import PUBLISHED
from vtab_folders import make_task

SIZES = {"jft": 303_000_000, "imagenet21k": 14_000_000, "imagenet": 1_281_167, "digits": 1_797}  # training images


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_resolves_and_says_what_it_is(name: str) -> None:
    recipe, words = find_recipe(name), RECIPES[name].__doc__ or ""
    assert recipe.name == name
    assert all(part in words for part in ("Command:", f"train {name}", "Hardware and time:", "Score:"))
    assert not words.startswith("The same"), "as which? in a list its neighbours are others"
    assert "--data.source" in words or recipe.data.source in names()  # the command names what the set's name does not
    earlier = [f"runs/{other}" for other in RECIPES if other != name]  # the run of the recipe that comes before
    known = [*PUBLISHED, *earlier] if recipe.model.pretrained else ZOO
    assert recipe.model.source in known or recipe.model.source.startswith("timm:")
    assert from_dict(Recipe, json.loads(json.dumps(to_dict(recipe))), where=name) == recipe
    schedule = resolve(recipe.schedule, Pace(recipe.batch_size, SIZES.get(recipe.data.source, 50_000)))
    if recipe.schedule.kind != "constant":
        assert schedule.factor(schedule.total - 1) < schedule.factor(schedule.warmup)


def distinct() -> list[str]:
    """Of recipes that differ only in what the test below exchanges, and in the optimizer's numbers, the first."""
    short = {"schedule.total": "2 steps", "schedule.warmup": "1 step", "schedule.end": 0.0, "schedule.drops": ()}
    numbers = {"optimizer.lr": 1.0, "optimizer.weight_decay": 0.0, "optimizer.momentum": 0.9, "batch_size": 16}
    named = {"name": "", "model.source": "vit-digits", "model.image_size": None, "data.source": "", "data.parts": ""}
    run = {"compile": False, "strategy": "replicate", "checkpoint_every": "1 step", "data.val_fraction": 0.1}
    found: dict[str, str] = {}
    for name in RECIPES:
        found.setdefault(repr(changed(find_recipe(name), **short, **numbers, **named, **run)), name)
    return list(found.values())


@pytest.mark.parametrize("name", distinct())
def test_a_recipe_trains(name: str, small_set: Path, tmp_path: Path) -> None:
    recipe = find_recipe(name)
    source = "vit-digits"
    if recipe.model.pretrained:
        source, experts = str(tmp_path / "trained"), any(each.startswith("capacity=") for each in recipe.model.set)
        num_classes = 3 if recipe.model.keep_head else 10
        save(create("vmoe-digits" if experts else "vit-digits", num_classes=num_classes), source)
    if recipe.objective.name in ("distillation", "noisy-student"):
        save(create("vit-digits", num_classes=3), tmp_path / "teacher")
        recipe = changed(recipe, **{"objective.teacher": str(tmp_path / "teacher")})
    if recipe.objective.name == "semantic-softmax":
        (tmp_path / "tree.csv").write_text("0,dark\n1,dark\n2,bright\n")
        recipe = changed(recipe, **{"objective.hierarchy": str(tmp_path / "tree.csv")})
    if recipe.objective.name == "mae":
        narrow = {"objective.decoder_width": 16, "objective.decoder_depth": 1, "objective.decoder_heads": 2}
        recipe = changed(recipe, **narrow)
    small = {"model.source": source, "model.image_size": 16 if recipe.model.pretrained else None, "batch_size": 16}
    short = {"schedule.total": "2 steps", "schedule.warmup": "1 step", "compile": False, "precision": "float32"}
    short["strategy"] = "replicate"  # one process
    source = with_masks(tmp_path / "masked") if recipe.task.name == "segmentation" else small_set
    data = {"data.source": str(source), "data.parts": "", "data.workers": 0, "augmentation.pad": 1}
    if recipe.objective.name == "meta-pseudo-labels":
        data |= {"data.labelled": min(recipe.data.labelled, 0.2)}  # the set has no unlabelled images of its own
    if recipe.task.name == "segmentation":
        small |= {"model.set": ()}  # which is for larger patches
    if recipe.task.name == "generation":
        small |= {"model.source": "transgan-digits", "model.set": ["depths=1,1", "width=32", "latent_dim=4"]}
        small |= {"task.features": "pixels", "objective.critic_width": 8, "objective.critic_depth": 1}
        small |= {"objective.critic_heads": 2, "objective.critic_patch": 2}
    heads = {f"objective.{name}": 8 for name in ("hidden", "out_dim") if name in recipe.objective.options}
    reduced = changed(recipe, **small, **short, **data, **heads)
    ended = session.train(reduced, tmp_path / "run", device="cpu", show=False)
    assert ended.step == 2
    assert (tmp_path / "run" / "model" / "model.safetensors").exists()


@pytest.mark.parametrize("name", ["finetune-vtab", "bit-vtab"])
@pytest.mark.parametrize(
    ("task", "crops", "flips"), [("eurosat", True, True), ("svhn", True, False), ("smallnorb_ele", False, False)]
)
def test_vtab_trains_on_the_thousand_and_keeps_labels_right(
    name: str, task: str, crops: bool, flips: bool, tmp_path: Path
) -> None:
    """A mirrored digit is none, and a crop moves the camera; a mirrored field is a field."""
    num_classes = 9 if task == "smallnorb_ele" else 10
    folder = make_task(tmp_path, task, num_classes)  # of each class 2 in train and 1 in val
    save(create("vit-digits", num_classes=10), tmp_path / "trained")
    recipe = changed(
        find_recipe(name),
        **{"model.source": str(tmp_path / "trained"), "model.image_size": 16, "batch_size": 16},
        **{"schedule.total": "2 steps", "schedule.warmup": "1 step"},
        **{"data.source": str(folder), "data.workers": 0},
    )
    session.train(recipe, tmp_path / "run", device="cpu", show=False)
    made = session.recipe_of(tmp_path / "run")
    splits = open_parts(made).splits
    assert {part: len(split) for part, split in splits.items()} == {"train": 3 * num_classes, "test": num_classes}
    assert made.augmentation.crop == (recipe.augmentation.crop if crops else "resize")
    assert made.augmentation.flip == (0.5 if flips else 0.0)
    assert recipe.augmentation.crop in ("paper", "part")
    session.resume(tmp_path / "run", device="cpu", show=False)


def with_masks(root: Path) -> Path:
    """Pictures whose bright half is class 1."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for i in range(24):
        mask = np.zeros((8, 8), np.uint8)
        mask[:, : 2 + i % 5] = 1
        Image.fromarray(mask * 255).convert("RGB").save(root / "images" / f"{i}.png")
        Image.fromarray(mask).save(root / "masks" / f"{i}.png")
    return root


def test_the_papers_tables_are_all_there() -> None:
    """Table 3's rows for plain ViTs, and table 4's sets."""
    sizes = {"vit-b32", "vit-b16", "vit-l32", "vit-l16"}
    assert {f"{size}-{data}" for size in sizes for data in ("jft", "imagenet21k", "imagenet")} <= set(RECIPES)
    assert "vit-h14-jft" in RECIPES
    for data in ("imagenet", "cifar10", "cifar100", "pets", "flowers102", "vtab"):
        assert f"finetune-{data}" in RECIPES
    huge = find_recipe("vit-h14-jft")
    assert (huge.optimizer.lr, huge.optimizer.weight_decay, huge.schedule.total) == (3e-4, 0.1, "14 epochs")
    base = find_recipe("vit-b16-imagenet")
    assert (base.optimizer.lr, base.optimizer.weight_decay, base.optimizer.clip) == (3e-3, 0.3, 1.0)
    assert (base.schedule.kind, base.model.dropout, base.batch_size) == ("cosine", 0.1, 4096)


def test_an_unknown_recipe_gets_near_matches() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean digits"):
        find_recipe("digit")
