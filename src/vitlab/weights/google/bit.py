"""BiT in Google's `.npz` files: its authors' own (TensorFlow's names), and big_vision's two kinds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, final

from vitlab.core.config import replace
from vitlab.core.errors import CheckpointError, ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.bit import BiTConfig
from vitlab.models.contract import Model
from vitlab.weights.files.container import Renamed, TensorFile
from vitlab.weights.format import Contents, Format, Location, cannot_hold, check_holds
from vitlab.weights.google.resnet_names import (
    LINEN,
    PAPER,
    TENSORFLOW,
    Spelling,
    fits,
    group_norm,
    read_sizes,
    resnet_rules,
)
from vitlab.weights.google.vit_names import PREFIXES, Shapes, each_of_theirs, their_shapes, write_flax
from vitlab.weights.mapping import Rule, same, transposed
from vitlab.weights.metadata import Notes, read_notes


@dataclass(frozen=True)
class Kind:
    """A network under its names; `fields` are what no name or shape tells."""

    names: Spelling
    norm: str | None  # before the head
    head: str
    convolution: bool  # whether the head's kernel is one's, [1, 1, in, out]
    fields: Mapping[str, Any] = field(default_factory=dict)

    def rules(self, config: BiTConfig, prefix: str) -> list[Rule]:
        rules = resnet_rules(config, self.names, prefix)
        if self.norm is not None:
            rules += group_norm("norm", prefix + self.norm, self.names)
        if config.num_classes:
            theirs = f"{prefix}{self.head}/kernel"
            rules.append(_convolved("head.weight", theirs) if self.convolution else transposed("head.weight", theirs))
            rules.append(same("head.bias", f"{prefix}{self.head}/bias"))
        return rules


AUTHORS = Kind(TENSORFLOW, "resnet/group_norm", "resnet/head/conv2d", True)
V2 = Kind(PAPER, "norm-pre-head", "head", False, {"pool_padding": "infinity"})
V1 = Kind(
    LINEN,
    None,
    "head",
    False,
    {"activation": "post", "padding": "same", "norm_eps": 1e-6, "weight_eps": 1e-5, "weight_eps_of": "std"},
)


class FlaxBiT(Format):
    """A dialect of Google's `.npz`, for BiT."""

    configs = (BiTConfig,)
    kinds: ClassVar[tuple[Kind, ...]]

    def recognizes(self, location: Location) -> bool:
        return self.find(_plain_names(location.tensors).shapes) is not None

    def find(self, shapes: Shapes) -> tuple[Kind, str] | None:
        """The kind of network in a file, and the prefix of its names; a hybrid has a ResNet too, and more."""
        for prefix in PREFIXES:
            if f"{prefix}embedding/kernel" in shapes:
                return None
            for kind in self.kinds:
                if prefix + kind.names.root in shapes:
                    return kind, prefix
        return None

    def preprocess(self, size: tuple[int, int]) -> tuple[Preprocess, str]:
        """The dialect's default, and what it is in words."""
        return Preprocess(size=size), "BiT's (resized straight to the input size, values -1 to 1)"

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        tensors, where, notes = _plain_names(location.tensors), location.where, read_notes(location)
        found = self.find(tensors.shapes)
        assert found is not None
        kind, prefix = found
        assumed: list[str] = []
        config = _read_config(tensors.shapes, kind, prefix, where)
        size = notes.config.get("image_size") or hints.get("image_size")
        if size is None:
            assumed.append(f"The file does not say its image size: {config.image_size[0]} px was assumed.")
        else:
            config = replace(config, {"image_size": size}, where=where)
        rules = kind.rules(config, prefix)
        for name, shape in their_shapes(rules, config).items():
            if not fits(name, tensors.shapes.get(name, shape), shape):
                raise CheckpointError(
                    f"{where}: '{name}' has the shape {list(tensors.shapes[name])} where the other tensors call for"
                    f" {list(shape)}; the file is damaged, or another model's."
                )
        preprocess, words = self.preprocess(config.image_size)
        if notes.preprocess is None:
            assumed.append(f"No preprocessing in the file: {words} was assumed.")
        return Contents(config, rules, notes.preprocess or preprocess, notes.labels, assumed, tensors)

    def write(self, model: Model, path: Path) -> None:
        config = model.config
        if not isinstance(config, BiTConfig):
            raise cannot_hold(self.name)
        kind = next(
            (kind for kind in self.kinds if (kind.norm is None) == (config.activation == "post")), self.kinds[0]
        )
        stored = BiTConfig(
            image_size=config.image_size,
            layers=config.layers,
            width=config.width,
            channels=config.channels,
            num_classes=config.num_classes,
            checkpoint_blocks=config.checkpoint_blocks,
            **kind.fields,
        )
        check_holds(self.name, config, stored)
        notes = Notes({"image_size": config.image_size}, model.preprocess, model.labels)
        write_flax(path, self.name, each_of_theirs(kind.rules(config, ""), model.state_dict()), notes)


def _read_config(shapes: Shapes, kind: Kind, prefix: str, where: str) -> BiTConfig:
    layers, width, channels = read_sizes(shapes, kind.names, prefix, where)
    head = shapes.get(f"{prefix}{kind.head}/kernel", (0,))
    try:
        return BiTConfig(layers=layers, width=width, channels=channels, num_classes=head[-1], **kind.fields)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _convolved(ours: str, theirs: str) -> Rule:
    return Rule(ours, (theirs,), lambda t: t[0][0, 0].T, lambda t: [t.T[None, None]])


@final
class GoogleBiT(FlaxBiT):
    """BiT's own files."""

    name = "google"
    kinds = (AUTHORS,)


@final
class BigVisionBiT(FlaxBiT):
    """big_vision's `bit_paper` (V2) and `bit` (V1)."""

    name = "big_vision"
    kinds = (V2, V1)

    def preprocess(self, size: tuple[int, int]) -> tuple[Preprocess, str]:
        edge = round(min(size) * 256 / 224)
        words = f"big_vision's for classifiers (shorter side {edge} px, centre cropped, values -1 to 1)"
        return Preprocess(size=size, resize="shortest", shortest_edge=edge), words


def _plain_names(file: TensorFile) -> TensorFile:
    """Some of the authors' files number their convolutions: 'standardized_conv2d_7'."""
    names = {re.sub(r"(standardized_conv2d)_\d+(?=/)", r"\1", name): name for name in file.shapes}
    return file if all(ours == theirs for ours, theirs in names.items()) else Renamed(file, names)
