"""From a recipe to what the loop needs: data in parts, a model for its classes, and feeds."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from vitlab.core.config import from_dict, parse_assignments, to_dict
from vitlab.core.errors import ConfigError, Error
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import key, torch_seed
from vitlab.data.augmentation import check_pairs, erase, mix
from vitlab.data.contract import DataSet, Split
from vitlab.data.loader import Loader, evaluation_batches
from vitlab.data.open import hold_out, open_data
from vitlab.data.order import EvaluationOrder, Order, balanced_weights, share
from vitlab.data.resident import Pixels, ResidentFeed, common_size, load_inputs, load_pixels
from vitlab.data.sources.arranged import arrange
from vitlab.data.sources.imagenet import REPORTED_ON_VAL
from vitlab.models.contract import Model, evaluating
from vitlab.models.create import create, fresh_model
from vitlab.objectives.contract import Objective
from vitlab.objectives.distillation import Distillation, separate_heads
from vitlab.objectives.supervised import Supervised, one_hot
from vitlab.training.adapters import choose
from vitlab.training.distribution import World
from vitlab.training.recipe import ModelChoice, Recipe
from vitlab.weights.load import load
from vitlab.weights.native import config_settings, read_config

RESIDENT_LIMIT = {"cuda": 0.25, "cpu": 0.1}  # the share of the device's memory that a resident set may take
DROPPING = ("dropout", "attention_dropout", "drop_path")  # a model may lack these: 0 is what it has then
RESIDENT_SIDE = 96  # px; larger pictures are stored encoded, and decoded in workers


@dataclass(frozen=True)
class Parts:
    """What is trained on, what selects, and what is only reported on."""

    train: Split
    val: Split | None
    test: Split | None


def divide(dataset: DataSet) -> Parts:
    """The parts of a set, checked for what training needs."""
    train = dataset.splits.get("train")
    if train is None or len(train) == 0:
        raise Error(f"{dataset.name} has no training images.")
    if dataset.num_classes < 2:
        raise Error(f"{dataset.name} has one class only ('{dataset.classes[0]}'): a classifier needs two or more.")
    val = dataset.splits.get("val")
    if not (dataset.multi_label or dataset.fixed_classes):
        counts = train.counts(dataset.num_classes) + (0 if val is None else val.counts(dataset.num_classes))
        few = [name for name, count in zip(dataset.classes, counts, strict=True) if count < 2]
        if few:
            raise Error(
                f"{dataset.name}: the class '{few[0]}' has fewer than two images, too few to learn from and to check:"
                " add some, or leave the class out."
            )
    return Parts(train, val, dataset.splits.get("test"))


def open_parts(recipe: Recipe) -> DataSet:
    """The recipe's data; where it has no validation part, a fraction of train is held out for it.

    Of a set whose results are reported on its val part, that one is test, unless nothing is held out.
    """
    dataset = open_data(recipe.data.source, val_fraction=recipe.data.val_fraction)
    if dataset.name in REPORTED_ON_VAL and recipe.data.val_fraction and set(dataset.splits) == {"train", "val"}:
        dataset = arrange(dataset, {"train": ("train",), "test": ("val",)})
    if "val" not in dataset.splits and "train" in dataset.splits:
        dataset = hold_out(dataset, recipe.data.val_fraction)
    return dataset


def architecture(model: Model) -> dict[str, Any]:
    """All that `rebuild_model` needs of a model, but for its weights."""
    return {**config_settings(model), "preprocess": to_dict(model.preprocess)}


def rebuild_model(recipe: Recipe, dataset: DataSet, settings: Mapping[str, Any], where: Path) -> Model:
    """A run's model for the weights of its checkpoint, also where the source of its first weights is gone."""
    preprocess = from_dict(Preprocess, settings.get("preprocess", {}), where=str(where))
    model = fresh_model(read_config(settings, where), preprocess)
    choose(model, recipe.model.train_only, recipe.model.lora)
    model.labels, model.multi_label = dataset.classes, dataset.multi_label
    return model


def build_model(recipe: Recipe, dataset: DataSet) -> Model:
    """The recipe's model for the data's classes, its head at zero, initialised by the seed."""
    spec = recipe.model
    fields = _fields(spec)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(recipe.seed, "initialise"))
        source = load if spec.pretrained else create
        num_classes = None if spec.keep_head else dataset.num_classes
        make = functools.partial(source, spec.source, num_classes=num_classes, image_size=spec.image_size)
        model = make(**fields)
        if more := _more_fields(spec, model.config):
            model = make(**(fields | more))
        choose(model, spec.train_only, spec.lora)
    if (channels := getattr(model.config, "channels", 3)) != 3:
        raise ConfigError(f"{spec.source} takes images of {channels} channels, and training gives it 3.")
    if spec.keep_head:
        _check_head(model, spec, dataset)
    elif spec.pretrained:  # also where the classes are as many: they are others
        for parameter in _last_layers(model, dataset.num_classes):
            torch.nn.init.zeros_(parameter)
    model.labels, model.multi_label = dataset.classes, dataset.multi_label
    if recipe.loss.head_bias:
        for name, parameter in model.head.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.constant_(parameter, recipe.loss.head_bias)
    return model


def _check_head(model: Model, spec: ModelChoice, dataset: DataSet) -> None:
    """A head can be kept where its classes are the data's, in their order as far as both are named alike."""
    if not spec.pretrained:
        raise ConfigError("model.keep_head keeps a trained head: it goes with model.pretrained.")
    if model.config.num_classes != dataset.num_classes:
        raise ConfigError(
            f"model.keep_head: {spec.source} knows {model.config.num_classes} classes and {dataset.name} has"
            f" {dataset.num_classes}; leave it out, so that the model gets a head for them."
        )
    names = model.labels or ()
    if names != tuple(dataset.classes) and set(names) == set(dataset.classes):
        raise ConfigError(
            f"model.keep_head: {spec.source} has the classes of {dataset.name} in another order; leave it out."
        )


def _last_layers(model: Model, num_classes: int) -> Iterator[torch.nn.Parameter]:
    """What gives the classes; a norm or a layer before it would be dead with zeros too."""
    for module in model.head.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d) and module.weight.shape[0] == num_classes:
            yield from module.parameters(recurse=False)


def loss_kind(recipe: Recipe, split: Split) -> Literal["softmax", "sigmoid"]:
    """The recipe's loss, or the one for as many labels as the split's images have."""
    several = split.labels.ndim == 2
    if recipe.loss.kind == "auto":
        return "sigmoid" if several else "softmax"
    if several and recipe.loss.kind == "softmax":
        raise ConfigError("loss.kind softmax is for one label an image, and these have several: leave it out.")
    return recipe.loss.kind


def build_objective(recipe: Recipe, parts: Parts, dataset: DataSet, model: Model) -> Objective:
    """The recipe's loss, with its teacher's; class weights are the inverse of the training counts, 1 on average."""
    weights, num_classes = None, dataset.num_classes
    if recipe.loss.class_weights:
        counts = np.maximum(parts.train.counts(num_classes), 1)
        weights = torch.tensor(counts.sum() / (num_classes * counts), dtype=torch.float32)
    base = Supervised(
        loss_kind(recipe, parts.train),
        label_smoothing=recipe.loss.label_smoothing,
        class_weights=weights,
        class_mean=recipe.loss.class_mean,
        whole=recipe.loss.whole,
        multi_label=dataset.multi_label,
    )
    spec = recipe.teacher
    if spec.source is None:
        return base
    teacher = load(spec.source)
    separate_heads(model)
    return Distillation(
        base,
        teacher,
        seen=model.preprocess,
        kind=spec.kind,
        alpha=spec.alpha,
        tau=spec.tau,
        order=_order(spec.source, teacher, dataset),
    )


def _order(source: str, teacher: Model, dataset: DataSet) -> list[int] | None:
    """Where the data's classes are among the teacher's; None where they are in the same order, or it names none."""
    if teacher.config.num_classes != dataset.num_classes:
        raise ConfigError(
            f"The teacher ({source}) knows {teacher.config.num_classes} classes and {dataset.name} has"
            f" {dataset.num_classes}: fine-tune it on that data first."
        )
    names = teacher.labels or ()
    if names == tuple(dataset.classes) or set(names) != set(dataset.classes):
        return None
    return [names.index(name) for name in dataset.classes]


def resident_pixels(recipe: Recipe, split: Split, device: torch.device, say: Callable[[str], None]) -> Pixels | None:
    """The split's bytes on the device where the recipe wants them there, or where they fit and it does not say."""
    wanted = recipe.data.resident
    if wanted is False:
        return None
    size = common_size(split)
    if size is None or (wanted is None and (max(size) > RESIDENT_SIDE or _too_large(split, size, device))):
        if wanted:
            raise ConfigError("data.resident needs images of one size that fit in memory: leave it out for this set.")
        return None
    say(f"Reading {len(split)} images of {size[0]} x {size[1]} into memory.")
    pixels = load_pixels(split, size, recipe.data.max_unreadable)
    if pixels is not None:
        return pixels.to(device)
    if wanted:
        raise ConfigError("data.resident needs images of one size, and there are others: leave it out for this set.")
    say("There are images of other sizes: they are read anew in every epoch.")
    return None


def resident_inputs(
    recipe: Recipe, split: Split, preprocess: Preprocess, device: torch.device, say: Callable[[str], None]
) -> Pixels | None:
    """What an evaluated part's images are to the model, on the device, where they fit."""
    if _too_large(split, preprocess.size, device):
        return None
    say(f"Reading {len(split)} images of {preprocess.size[0]} x {preprocess.size[1]} into memory.")
    return load_inputs(split, preprocess, recipe.data.max_unreadable).to(device)


def _too_large(split: Split, size: tuple[int, int], device: torch.device) -> bool:
    total = torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else 16 * 2**30
    return len(split) * 3 * size[0] * size[1] > RESIDENT_LIMIT[device.type] * total


def build_feed(
    recipe: Recipe,
    split: Split,
    pixels: Pixels | None,
    preprocess: Preprocess,
    num_classes: int,
    world: World,
    start: int,
) -> "ResidentFeed | LoaderFeed":
    """Training batches from `start` on: made on the device, or by worker processes."""
    check_pairs(recipe.augmentation, share(recipe.batch_size, world.size))
    weights = balanced_weights(split.labels) if recipe.data.balanced else None
    order = Order(recipe.seed, len(split), repeats=recipe.data.repeats, weights=weights)
    if pixels is not None:
        targets = one_hot(torch.from_numpy(split.labels).to(world.device), num_classes)
        return ResidentFeed(
            pixels,
            targets,
            preprocess=preprocess,
            augmentation=recipe.augmentation,
            order=order,
            batch_size=recipe.batch_size,
            seed=recipe.seed,
            rank=world.rank,
            world=world.size,
        )
    return LoaderFeed(recipe, split, preprocess, order, num_classes, world, start)


class LoaderFeed:
    """Batches that worker processes decode and augment; normalised, erased and mixed on the device."""

    def __init__(
        self,
        recipe: Recipe,
        split: Split,
        preprocess: Preprocess,
        order: Order,
        num_classes: int,
        world: World,
        start: int,
    ) -> None:
        self.loader = Loader(
            split,
            size=preprocess.size,
            augmentation=recipe.augmentation,
            order=order,
            batch_size=recipe.batch_size,
            num_workers=workers(recipe),
            seed=recipe.seed,
            rank=world.rank,
            world=world.size,
            start_step=start,
            pin_memory=world.device.type == "cuda",
            max_damaged=recipe.data.max_unreadable,
        )
        self._batches = iter(self.loader)
        self._next = start
        self.key = key(recipe.seed, "augment")
        self.augmentation, self.preprocess = recipe.augmentation, preprocess
        self.num_classes, self.device = num_classes, world.device
        # on a CPU the pages of a new batch cost more than the arithmetic
        shape = (share(recipe.batch_size, world.size), 3, *preprocess.size)
        self._kept = torch.empty(shape) if world.device.type == "cpu" else None

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """A step's images, which the next one's may take the place of, and their targets."""
        assert step == self._next, "a loader gives its batches in order"
        self._next += 1
        loaded = next(self._batches)
        places = loaded.places.to(self.device)
        images = self.preprocess.normalise(loaded.images.to(self.device, non_blocking=True), self._kept)
        targets = one_hot(loaded.labels.to(self.device), self.num_classes)
        images = erase(self.augmentation, images, places, self.key)
        return mix(self.augmentation, images, targets, places, self.key)

    @property
    def damaged(self) -> Mapping[int, str]:
        """What could not be read so far."""
        return self.loader.damaged

    def close(self) -> None:
        self.loader.close()


def score(
    model: Model,
    split: Split,
    pixels: Pixels | None,
    recipe: Recipe,
    world: World,
    autocast: Callable[[], Any],
    signalled: Callable[[], int],
) -> dict[str, float] | None:
    """Accuracy and loss over a split, each sample once; `score`, which selects, is the accuracy.

    None where a signal comes before the last of it.
    """
    sums = torch.zeros(3, dtype=torch.float64, device=world.device)  # loss, right, count
    several = split.labels.ndim == 2
    objective = Supervised(loss_kind(recipe, split), class_mean=recipe.loss.class_mean, multi_label=several)
    with torch.no_grad(), autocast(), _evaluating(model):  # inference mode does not go with sharded models
        for images, labels, counts in _evaluation(model, split, pixels, recipe, world):
            if signalled():
                return None
            logits = model(images).float()
            targets = one_hot(labels, logits.shape[-1])
            sums[0] += objective.losses(logits, targets)[counts].sum()
            sums[1] += objective.right(logits, targets)[counts].sum()
            sums[2] += counts.sum()
    if world.size > 1:
        torch.distributed.all_reduce(sums)
    loss, right, count = sums.tolist()
    accuracy = right / count
    return {"score": accuracy, "accuracy": accuracy, "loss": loss / count, "count": count}


def _evaluation(
    model: Model, split: Split, pixels: Pixels | None, recipe: Recipe, world: World
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """A process's share of a split: images, labels, and which of them count.

    All processes get equally many batches, since those of a sharded model must call it together.
    """
    size = max(recipe.batch_size // world.size, 1) * world.size
    if pixels is None:
        batches = evaluation_batches(
            split,
            model.preprocess,
            batch_size=size,
            num_workers=workers(recipe),
            rank=world.rank,
            world=world.size,
            max_damaged=recipe.data.max_unreadable,
        )
        for batch in batches:
            images = model.preprocess.normalise(batch.images.to(world.device))
            yield images, batch.labels.to(world.device), batch.counts.to(world.device)
        return
    labels, order = torch.from_numpy(split.labels).to(world.device), EvaluationOrder(len(split), size, world.size)
    for step in range(len(order)):
        indices, counts = (torch.from_numpy(part).to(world.device) for part in order.batch(step, world.rank))
        readable = counts if pixels.whole is None else counts & pixels.whole[indices]
        yield model.preprocess.normalise(pixels.values[indices]), labels[indices], readable


def workers(recipe: Recipe) -> int:
    """How many processes decode."""
    return recipe.data.workers if recipe.data.workers is not None else min(os.cpu_count() or 1, 16)


@contextlib.contextmanager
def _evaluating(model: Model) -> Iterator[None]:
    with evaluating(model):
        try:
            yield
        finally:
            if isinstance(model, FSDPModule):
                model.reshard()  # what was gathered here must not outlive the weights that it was gathered from


def _fields(spec: ModelChoice) -> dict[str, Any]:
    """The fields of the model's configuration that a recipe sets."""
    fields = {name: value for name in DROPPING if (value := getattr(spec, name))}
    if spec.checkpoint_blocks:
        fields["checkpoint_blocks"] = True
    others = parse_assignments(spec.set, where="model.set")
    if taken := {"image_size", "num_classes"} & others.keys():
        raise ConfigError(
            f"model.set cannot change {min(taken)}: classes are the data's, the size is model.image_size."
        )
    return fields | others


def _more_fields(spec: ModelChoice, config: Any) -> dict[str, Any]:
    """Fields that the model itself has to be asked about: what it drops and should not, and its width."""
    fields = {name: 0.0 for name in DROPPING if getattr(spec, name) == 0 and getattr(config, name, 0)}
    if spec.representation:
        if not hasattr(config, "representation"):
            raise ConfigError(f"model.representation: {spec.source} has no such head; leave it out.")
        fields["representation"] = config.width
    return fields
