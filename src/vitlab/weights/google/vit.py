"""Google's `.npz` dialects as formats: the configuration behind a file's names and shapes, and what a file can hold."""

import math
import re
from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from vitlab.core.config import replace
from vitlab.core.errors import CannotHoldError, CheckpointError, ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.models.hybrid import HybridConfig
from vitlab.models.positions import Kind
from vitlab.models.resnet import ResNetSpec
from vitlab.models.vit import ViTConfig
from vitlab.weights.files.container import TensorFile
from vitlab.weights.format import Contents, Format, Location, check_holds, layer_indices, plain_vit
from vitlab.weights.google.resnet_names import LINEN, fits, read_sizes, resnet_rules
from vitlab.weights.google.vit_names import Names, Shapes, each_of_theirs, their_shapes, vit_rules, write_flax
from vitlab.weights.mapping import Rule
from vitlab.weights.metadata import Notes, read_notes


class FlaxFormat(Format):
    """A dialect of Google's `.npz`."""

    no_positions: ClassVar[Kind]  # what a file without a position embedding means
    attention_pool: ClassVar[bool]  # whether a head that pools by attention has a place
    class_positions: ClassVar[tuple[int, ...]]  # how many of the positions may be the class token's, the usual first

    @abstractmethod
    def names(self, shapes: Shapes) -> Names | None:
        """The spelling of a file of this dialect; None for another file."""

    @abstractmethod
    def names_to_write(self, config: ViTConfig) -> Names:
        """The spelling in which a model is written."""

    @abstractmethod
    def preprocess(self, config: ViTConfig) -> tuple[Preprocess, str]:
        """The dialect's default, and what it is in words."""

    def tensors(self, location: Location) -> TensorFile:
        """The file with one tensor a layer."""
        return location.tensors

    def recognizes(self, location: Location) -> bool:
        return self.names(self.tensors(location).shapes) is not None

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        tensors, where, notes = self.tensors(location), location.where, read_notes(location)
        names = self.names(tensors.shapes)
        assert names is not None
        assumed: list[str] = []
        config = self.read_config(tensors.shapes, names, hints, notes.config, where, assumed)
        rules = _rules(config, names)
        for name, shape in their_shapes(rules, config).items():
            if not fits(name, tensors.shapes.get(name, shape), shape):
                raise CheckpointError(
                    f"{where}: '{name}' has the shape {list(tensors.shapes[name])} where the other tensors call for"
                    f" {list(shape)}; the file is damaged, or another model's."
                )
        if tensors is not location.tensors:  # all layers of one stack, then the next: a compressed one is unpacked once
            rules.sort(key=lambda rule: re.sub(r"\d+", "", rule.ours, count=1))
        preprocess, words = self.preprocess(config)
        if notes.preprocess is None:
            assumed.append(f"No preprocessing in the file: {words} was assumed.")
        return Contents(config, rules, notes.preprocess or preprocess, notes.labels, assumed, tensors)

    def read_config(
        self,
        shapes: Shapes,
        names: Names,
        hints: Mapping[str, Any],
        noted: Mapping[str, Any],
        where: str,
        assumed: list[str],
    ) -> ViTConfig:
        """The configuration behind a file's names and shapes, and what vitlab has `noted` in it."""

        def shape(name: str, axes: int) -> tuple[int, ...]:
            found = shapes.get(names.prefix + name)
            if found is None:
                raise CheckpointError(f"{where}: the tensor '{names.prefix}{name}' is missing; the file is incomplete.")
            if len(found) != axes:
                raise CheckpointError(
                    f"{where}: '{names.prefix}{name}' has the shape {list(found)}, not that of a ViT."
                )
            return found

        def has(name: str) -> bool:
            return names.prefix + name in shapes

        patch, patch_width, channels, width = shape("embedding/kernel", 4)
        resnet: dict[str, Any] = {}
        if has(LINEN.root):
            if HybridConfig not in self.configs:
                raise CheckpointError(f"{where}: a hybrid, with a ResNet before the patches, under unknown names.")
            layers, resnet_width, channels = read_sizes(shapes, LINEN, names.prefix, where)
            resnet = {"resnet_layers": layers, "resnet_width": resnet_width}
            stride = ResNetSpec(layers=layers).stride
            patch, patch_width = patch * stride, patch_width * stride
        _, heads, head_width = shape(f"Transformer/encoderblock_0/{names.block.attention}/query/kernel", 3)
        if patch != patch_width or heads * head_width != width:
            raise CheckpointError(
                f"{where}: patches of {patch} x {patch_width} px, {heads} heads of width {head_width} and a width of"
                f" {width}; vitlab's ViT has square patches and heads that share its width."
            )
        blocks = names.prefix + "Transformer/encoderblock_{}/" + names.block.norm1 + "/scale"
        fields: dict[str, Any] = {
            "patch_size": patch,
            "channels": channels,
            "width": width,
            "depth": layer_indices(shapes, blocks, where),
            "mlp_dim": shape(f"Transformer/encoderblock_0/{names.block.mlp}/Dense_0/kernel", 2)[1],
            "heads": heads,
            "num_classes": shape("head/kernel", 2)[1] if has("head/kernel") else 0,
            "representation": shape("pre_logits/kernel", 2)[1] if has("pre_logits/kernel") else None,
            "class_token": has("cls"),
            "pool": "attention" if has("MAPHead_0/probe") else "token" if has("cls") else "mean",
            "positions": self.no_positions if names.positions is None else "learned",
        }
        noted_size, wanted_size = _size(noted.get("image_size"), patch), _size(hints.get("image_size"), patch)
        if names.positions is not None:
            count, options = shape(names.positions, 3)[1], self.class_positions if has("cls") else (0,)
            size, placed = _placed(count, options, patch, noted_size, wanted_size, where)
            fields |= {"image_size": size, "positions_for_prefix": placed}
        elif noted_size or wanted_size:
            fields["image_size"] = noted_size or wanted_size
        else:
            side = patch * max(1, round(224 / max(1, patch)))
            fields["image_size"] = (side, side)
            assumed.append(f"No position embedding in the file tells its image size: {side} px was assumed.")
        try:
            kind = HybridConfig if resnet else ViTConfig
            config = kind(norm_eps=1e-6, gelu="tanh", resize_rule="official", **fields, **resnet)
            rule = {"resize_rule": noted["resize_rule"]} if "resize_rule" in noted else {}
            return replace(config, rule, where="vitlab's notes in it")
        except ConfigError as error:
            raise CheckpointError(f"{where}: {error}") from error

    def write(self, model: Model, path: Path) -> None:
        config = model.config if type(model.config) in self.configs else plain_vit(model, self.name)
        check_holds(self.name, config, self._read_back(config, str(path)))
        notes = Notes(
            {"image_size": config.image_size, "resize_rule": config.resize_rule}, model.preprocess, model.labels
        )
        rules = _rules(config, self.names_to_write(config))
        write_flax(path, self.name, each_of_theirs(rules, model.state_dict()), notes)

    def _read_back(self, config: ViTConfig, where: str) -> ViTConfig:
        """The configuration that a file written for `config` would be read as."""
        if config.depth == 0:
            raise CannotHoldError(f"The {self.name} format cannot hold a model without layers. Use format 'vitlab'.")
        if config.positions not in ("learned", self.no_positions):
            raise CannotHoldError(
                f"The {self.name} format cannot hold positions='{config.positions}': it has a place for"
                f" positions='learned' or '{self.no_positions}'. Use format 'vitlab'."
            )
        if any(side % config.patch_size for side in config.image_size):
            raise CannotHoldError(
                f"The {self.name} format cannot hold image_size={config.image_size} with patches of"
                f" {config.patch_size} px: it has no place for indivisible='pad'. Use format 'vitlab'."
            )
        by_attention = config.pool == "attention" and self.attention_pool
        placed = config.positions_for_prefix
        resnet: dict[str, Any] = {}
        if isinstance(config, HybridConfig):
            resnet = {"resnet_layers": config.resnet_layers, "resnet_width": config.resnet_width}
        stored = type(config)(  # only what has a place in the file
            **resnet,
            image_size=config.image_size,
            patch_size=config.patch_size,
            channels=config.channels,
            width=config.width,
            depth=config.depth,
            mlp_dim=config.mlp_dim,
            heads=config.heads,
            num_classes=config.num_classes,
            representation=config.representation,
            class_token=config.class_token,
            pool="attention" if by_attention else "token" if config.class_token else "mean",
            positions=config.positions,
            positions_for_prefix=placed if placed in self.class_positions else self.class_positions[0],
        )
        names, noted = self.names_to_write(stored), {"image_size": config.image_size}
        return self.read_config(their_shapes(_rules(stored, names), stored), names, {}, noted, where, [])


def _rules(config: ViTConfig, names: Names) -> list[Rule]:
    """A plain ViT's, and before them a hybrid's ResNet's."""
    resnet = resnet_rules(config.resnet, LINEN, names.prefix) if isinstance(config, HybridConfig) else []
    return resnet + vit_rules(config, names)


def _placed(
    count: int,
    options: tuple[int, ...],
    patch: int,
    noted: tuple[int, int] | None,
    wanted: tuple[int, int] | None,
    where: str,
) -> tuple[tuple[int, int], int]:
    """The image size that so many positions are for, and how many of them (one of the options) are of prefix tokens."""
    sides = [math.isqrt(max(0, count - placed)) * patch for placed in options]
    grids = [(placed, noted) for placed in options]
    grids += [(placed, (side, side)) for placed, side in zip(options, sides, strict=True)]
    grids += [(placed, wanted) for placed in options]
    for placed, size in grids:
        if size is not None and size[0] * size[1] == (count - placed) * patch**2:
            return size, placed
    raise CheckpointError(
        f"{where} has {count - options[0]} positions, not a square grid: give its image_size=(height, width)."
    )


def _size(size: Any, patch: int) -> tuple[int, int] | None:
    """A noted or wanted image size that patches divide, or None."""
    match size:
        case (int(height), int(width)) if min(height, width, patch) > 0 and not (height % patch or width % patch):
            return height, width
        case _:
            return None
