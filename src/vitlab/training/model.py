"""A run's model: built by its recipe for its data, or rebuilt for the weights of a checkpoint."""

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from vitlab.core.config import from_dict, parse_assignments, to_dict
from vitlab.core.errors import ConfigError, UnknownNameError
from vitlab.core.imagenet import places_of
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import torch_seed
from vitlab.core.registry import need_permission
from vitlab.models.contract import Model
from vitlab.models.create import configured, create, fresh_model
from vitlab.models.outside import wrap
from vitlab.training.adapters import choose
from vitlab.training.plan import Plan
from vitlab.training.recipe import GIVEN, ModelChoice
from vitlab.training.run import RunError
from vitlab.weights import box
from vitlab.weights.claims import model_within
from vitlab.weights.load import load, read_configuration
from vitlab.weights.native import config_settings, read_config
from vitlab.weights.upcycle import upcycle, upcycled

# a model may lack these: 0 is what it has then
DROPPING = ("dropout", "attention_dropout", "drop_path", "patch_dropout")


def architecture(model: Model) -> dict[str, Any]:
    """All that `rebuild_model` needs of a model, but for its weights."""
    terms = {} if model.license is None else {"license": model.license}
    return {**config_settings(model), "preprocess": to_dict(model.preprocess), **terms}


def rebuild_model(plan: Plan, settings: Mapping[str, Any], where: Path, kept: Path) -> Model:
    """A run's model for the weights of the checkpoint `kept`, also where the source of its first weights is gone."""
    if plan.recipe.model.source.startswith(GIVEN):
        return build_model(plan)
    preprocess = from_dict(Preprocess, settings.get("preprocess", {}), where=str(where))
    config = read_config(settings, where)
    held = sum(file.stat().st_size for file in kept.iterdir()) // 2  # values of two bytes at least
    model_within(config, preprocess, held, str(where))
    model = fresh_model(config, preprocess)
    model.license = terms if isinstance(terms := settings.get("license"), str) else None
    choose(model, plan.recipe.model.train_only, plan.recipe.model.lora)
    _fit(plan, model)
    return model


def check_model(spec: ModelChoice) -> None:
    """Refuse a model that cannot be, before data are read for it."""
    if not spec.source.startswith(GIVEN):
        need_permission("model", spec.source)
        source = read_configuration if spec.pretrained else configured
        try:
            config = source(spec.source, image_size=spec.image_size, **_fields(spec))
        except UnknownNameError as error:
            if spec.pretrained or not (spec.source in box.names() or Path(spec.source).exists()):
                raise
            raise ConfigError(
                f"'{spec.source}' is no model of the zoo. To start from the weights there, add --model.pretrained."
            ) from error
        _more_fields(spec, config)
        if spec.upcycle:
            upcycled(config, **_experts(spec))


def build_model(plan: Plan) -> Model:
    """The recipe's model with the head that the task needs, at zero, initialised by the seed."""
    recipe, spec = plan.recipe, plan.recipe.model
    needed = plan.model_fields()
    model = _given(plan, needed) if spec.source.startswith(GIVEN) else _made(plan, needed)
    if (channels := getattr(model.config, "channels", 3)) != 3:
        raise ConfigError(f"{spec.source} takes images of {channels} channels, and training gives it 3.")
    if spec.keep_head:
        _check_head(model, spec, plan)
    elif spec.pretrained:  # also where the classes are as many: they are others
        for parameter in _last_layers(model, needed["num_classes"]):
            torch.nn.init.zeros_(parameter)
    _fit(plan, model)
    if recipe.loss.head_bias:
        for name, parameter in model.head.named_parameters():
            if name.endswith("bias"):
                torch.nn.init.constant_(parameter, recipe.loss.head_bias)
    return model


def _fit(plan: Plan, model: Model) -> None:
    if plan.scores_task:
        plan.task.fit(model, plan.dataset)
        model.task = plan.recipe.task.name


def _made(plan: Plan, needed: Mapping[str, Any]) -> Model:
    spec = plan.recipe.model
    need_permission("model", spec.source)
    fields = _fields(spec) | {name: value for name, value in needed.items() if name != "num_classes"}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(torch_seed(plan.recipe.seed, "initialise"))
        source = load if spec.pretrained else create
        num_classes = None if spec.keep_head else needed["num_classes"]
        make = functools.partial(source, spec.source, num_classes=num_classes, image_size=spec.image_size)
        model = make(**fields)
        if more := _more_fields(spec, model.config):
            model = make(**(fields | more))
        if spec.upcycle:
            model = upcycle(model, seed=torch_seed(plan.recipe.seed, "upcycle"), **_experts(spec))
        choose(model, spec.train_only, spec.lora)
    return model


def _given(plan: Plan, needed: Mapping[str, Any]) -> Model:
    """The model that the caller handed over, which has the head that it has."""
    model, spec = plan.given.model, plan.recipe.model
    if model is None:
        raise RunError(
            f"This run's model ({spec.source.removeprefix(GIVEN)}) was given as an object: give it again, as"
            " vitlab.resume(run, model=...)."
        )
    if not isinstance(model, Model):
        size = None if spec.image_size is None else (spec.image_size, spec.image_size)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(torch_seed(plan.recipe.seed, "initialise"))
            model = wrap(model, image_size=size, **needed)
    num = getattr(model.config, "num_classes", None)
    if num not in (None, needed["num_classes"]):
        raise ConfigError(f"The given model has {num} outputs, and {plan.dataset.name} needs {needed['num_classes']}.")
    choose(model, spec.train_only, spec.lora)
    return model


def _check_head(model: Model, spec: ModelChoice, plan: Plan) -> None:
    """A head can be kept where its classes are the data's, in their order as far as both are named alike."""
    dataset = plan.dataset
    if not spec.pretrained:
        raise ConfigError("model.keep_head keeps a trained head: it goes with model.pretrained.")
    if model.config.num_classes != dataset.num_classes:
        raise ConfigError(
            f"model.keep_head: {spec.source} knows {model.config.num_classes} classes and {dataset.name} has"
            f" {dataset.num_classes}; leave it out, so that the model gets a head for them."
        )
    places = None if model.labels is None else places_of(model.labels, dataset.classes)
    if places is not None and places != sorted(places):
        raise ConfigError(
            f"model.keep_head: {spec.source} has the classes of {dataset.name} in another order; leave it out."
        )


def _last_layers(model: Model, num_classes: int) -> Iterator[torch.nn.Parameter]:
    """What gives the classes; a norm or a layer before it would be dead with zeros too."""
    for module in model.head.modules():
        if isinstance(module, torch.nn.Linear | torch.nn.Conv2d) and module.weight.shape[0] == num_classes:
            yield from module.parameters(recurse=False)


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


def _experts(spec: ModelChoice) -> dict[str, Any]:
    return parse_assignments(spec.upcycle, where="model.upcycle")


def _more_fields(spec: ModelChoice, config: Any) -> dict[str, Any]:
    """Fields that the model itself has to be asked about: what it drops and should not, and its width."""
    fields = {name: 0.0 for name in DROPPING if getattr(spec, name) == 0 and getattr(config, name, 0)}
    if spec.representation:
        if not hasattr(config, "representation"):
            raise ConfigError(f"model.representation: {spec.source} has no such head; leave it out.")
        fields["representation"] = config.width
    return fields
