"""Models of timm's by name: their configuration, and the bare module behind it."""

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from vitlab.core.bounds import BelowOne, NonNegativeInt, PositiveInt
from vitlab.core.config import check_bounds
from vitlab.core.errors import ConfigError, Error, unknown_name
from vitlab.core.peers import import_timm
from vitlab.models.heads import HeadKind
from vitlab.models.stages import count_once

PREFIX = "timm:"


@dataclass(frozen=True, kw_only=True)
class TimmConfig:
    """A name of timm's, and what differs from its defaults; `arguments` are those of timm's entry point."""

    name: str  # without 'timm:', with or without a tag: 'resnet18', 'resnet18.a1_in1k'
    image_size: tuple[PositiveInt, PositiveInt] = (224, 224)  # height, width
    num_classes: NonNegativeInt = 1000  # 0: no head
    head: HeadKind = "pooled"  # patches: a dense one, on each place of what timm's model gives
    channels: PositiveInt = 3
    dropout: BelowOne | None = None  # timm's drop_rate; None: its own default
    drop_path: BelowOne | None = None  # timm's drop_path_rate
    checkpoint_blocks: bool = False  # recompute in the backward pass, where timm's model can
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_bounds(self)
        for name, value in self.arguments.items():
            try:
                json.dumps(value)
            except TypeError as error:
                raise ConfigError(
                    f"{name}={value!r} cannot be stored with a model: give a text or a number."
                ) from error


@dataclass(frozen=True)
class Known:
    """What timm says about a name."""

    image_size: tuple[int, int]
    num_classes: int
    settings: Mapping[str, Any]  # its pretrained_cfg


def known(name: str) -> Known:
    """timm's settings of a name, or an error with near matches."""
    timm = import_timm()
    if not name or ":" in name or "/" in name or not timm.is_model(name):
        names = [PREFIX + item for item in timm.list_models()]
        raise unknown_name("model", PREFIX + name, names, " `vitlab models 'timm:*'` lists them.")
    try:
        found = timm.models.get_pretrained_cfg(name)
    except RuntimeError as error:  # a tag that the architecture does not have
        tags = [PREFIX + item for item in timm.list_models(name.partition(".")[0] + ".*", pretrained=True)]
        raise unknown_name("model", PREFIX + name, tags) from error
    settings = {} if found is None else found.to_dict()
    _, height, width = settings.get("input_size", (3, 224, 224))
    return Known((height, width), settings.get("num_classes", 1000), settings)


def with_arguments(config: TimmConfig, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes of a configuration in which what is no field of it is an argument of timm's."""
    fields = {item for item in TimmConfig.__dataclass_fields__ if item != "name"}
    ours = {name: value for name, value in changes.items() if name in fields}
    theirs = {name: value for name, value in changes.items() if name not in fields}
    return {**ours, "arguments": {**config.arguments, **ours.get("arguments", {}), **theirs}}


def build_net(config: TimmConfig, *, pretrained: bool = False) -> nn.Module:
    """timm's own module; an image size goes to it only where it differs from the name's and the model takes one."""
    timm, facts = import_timm(), known(config.name)
    _check_arguments(timm, config)
    arguments: dict[str, Any] = {"num_classes": config.num_classes, **config.arguments}
    if config.dropout is not None:
        arguments["drop_rate"] = config.dropout
    if config.drop_path is not None:
        arguments["drop_path_rate"] = config.drop_path
    if config.channels != 3:
        arguments["in_chans"] = config.channels
    height, width = config.image_size
    side = height if height == width else (height, width)  # some take a number only
    sized = {} if config.image_size == facts.image_size else {"img_size": side}
    try:
        try:
            net = timm.create_model(config.name, pretrained=pretrained, **arguments, **sized)
        except TypeError as error:
            if not sized or "img_size" not in str(error):
                raise
            if facts.settings.get("fixed_input_size"):
                raise ConfigError(_only(config, facts.image_size)) from error
            net = timm.create_model(config.name, pretrained=pretrained, **arguments)
        if config.checkpoint_blocks:
            net.set_grad_checkpointing(True)
            count_once(net)
    except Error:
        raise
    except Exception as error:  # timm checks by assertions, and by what its modules do with their arguments
        if pretrained:
            raise
        raise ConfigError(f"timm cannot build {config.name} this way: {first_line(error)}.") from error
    return net


def first_line(error: BaseException) -> str:
    """The first line of what went wrong, without its full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def _only(config: TimmConfig, size: tuple[int, int]) -> str:
    return f"timm's {config.name} takes images of {size[0]} x {size[1]} px only: leave image_size out."


def _check_arguments(timm: Any, config: TimmConfig) -> None:
    """Refuse what would read other files or give another kind of module, and what has a field of its own."""
    own = {"num_classes": "num_classes", "in_chans": "channels", "img_size": "image_size"}
    own |= {"drop_rate": "dropout", "drop_path_rate": "drop_path"}
    reserved = {*inspect.signature(timm.create_model).parameters, "features_only", "feature_cfg", "pretrained_strict"}
    for name in config.arguments:
        if name in own:
            raise ConfigError(f"Give {own[name]} instead of timm's {name}.")
        if name in reserved:
            raise ConfigError(f"'{name}' is not for timm's {config.name} but for its loader: leave it out.")
