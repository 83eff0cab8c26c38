"""CoAtNet as timm has it: `coatnet_0_224`, `coatnet_0_rw_224` and the like, a state dict or the hub's folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from einops import rearrange
from torch import Tensor

from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.core.preprocess import Preprocess
from vitlab.models.coatnet import BlockSpec, CoAtNetConfig
from vitlab.models.contract import Model
from vitlab.models.create import empty_model
from vitlab.weights.format import Contents, Format, Location, cannot_hold
from vitlab.weights.mapping import Rule, reshaped, same, to_theirs
from vitlab.weights.metadata import read_notes
from vitlab.weights.timm.coatnet_config import PREFIX, TABLE, config_of, hub_settings
from vitlab.weights.timm.files import reader_of, write_timm
from vitlab.weights.timm.hub_config import Said, labels_of, preprocess_of, said_by

CONV = {
    "shortcut.conv": "shortcut.expand",
    "norm": "pre_norm",
    "expand": "conv1_1x1",
    "norm1": "norm1",
    "depthwise": "conv2_kxk",
    "norm2": "norm2",
    "squeeze.down": "se.fc1",
    "squeeze.up": "se.fc2",
    "reduce": "conv3_1x1",
}
ATTENTION = {
    "shortcut.conv": "shortcut.expand",
    "norm1": "norm1",
    "attention.qkv": "attn.qkv",
    "attention.out": "attn.proj",
    "attention.relative.up": "attn.rel_pos.mlp.fc1",
    "attention.relative.down": "attn.rel_pos.mlp.fc2",
    "norm2": "norm2",
    "up": "mlp.fc1",
    "down": "mlp.fc2",
}
WHOLE = {"attention.relative.table": TABLE, "scale1": "ls1.gamma", "scale2": "ls2.gamma"}
TOP = {
    "stem.conv1": "stem.conv1",
    "stem.norm": "stem.norm1",
    "stem.conv2": "stem.conv2",
    "representation": "head.pre_logits.fc",
    "head": "head.fc",
}
PREPROCESS = Preprocess(resize="shortest", shortest_edge=235, interpolation="bicubic")  # 224 px of it, 95%


def rules(config: CoAtNetConfig) -> list[Rule]:
    """Every tensor of ours with timm's name for it, running statistics too."""
    specs = config.blocks
    return [_rule(ours, value.shape, config, specs) for ours, value in empty_model(config).state_dict().items()]


def _rule(ours: str, shape: tuple[int, ...], config: CoAtNetConfig, specs: list[BlockSpec]) -> Rule:
    owner, _, leaf = ours.rpartition(".")
    if not ours.startswith("blocks."):
        norm = "head.norm" if config.norm_pooled else "norm"
        return same(ours, f"{norm if owner == 'norm' else TOP[owner]}.{leaf}")
    _, index, part = ours.split(".", 2)
    spec = specs[int(index)]
    start = PREFIX.format(spec.stage, spec.place)
    if part in WHOLE:
        return same(ours, start + WHOLE[part])
    part = part.rpartition(".")[0]
    theirs = (CONV if spec.kind == "conv" else ATTENTION)[part]
    if part.startswith("squeeze.") and config.squeeze_early:
        theirs = theirs.replace("se.", "se_early.")
    if part == "norm1" and spec.kind == "attention" and spec.stride == 2:
        theirs = "norm1.norm"
    name = f"{start}{theirs}.{leaf}"
    if part == "attention.qkv":
        return _heads_first(ours, name, spec.inner(config) // config.head_width, shape)
    if leaf == "weight" and len(shape) == 2 and ".relative." not in ours:  # a convolution of 1 x 1 there
        return reshaped(ours, name, our_shape=shape, their_shape=(*shape, 1, 1))
    return same(ours, name)


def _heads_first(ours: str, theirs: str, heads: int, shape: tuple[int, ...]) -> Rule:
    """timm's rows are q, k and v of the first head, then of the second, ...; ours q of all heads, then k, then v."""

    def read(tensors: Any) -> Tensor:
        flat = tensors[0].reshape(shape[0], -1)
        return rearrange(flat, "(h three d) i -> (three h d) i", three=3, h=heads).reshape(shape)

    def write(value: Tensor) -> list[Tensor]:
        flat = rearrange(value.reshape(shape[0], -1), "(three h d) i -> (h three d) i", three=3, h=heads)
        return [flat.reshape(*shape, 1, 1) if len(shape) == 2 else flat.reshape(shape)]

    return Rule(ours, (theirs,), read, write)


@final
class TimmCoAtNet(Format):
    name = "timm"
    configs = (CoAtNetConfig,)

    def recognizes(self, location: Location) -> bool:
        shapes, start = location.tensors.shapes, PREFIX.format(0, 0)
        return "stem.conv1.weight" in shapes and any(
            f"{start}{part}.weight" in shapes for part in ("conv1_1x1", "attn.qkv")
        )

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        where, assumed = location.where, list[str]()
        said = said_by(location.settings, read_notes(location), where)
        config = config_of(location.tensors.shapes, said, hints, where, assumed)
        found = rules(config)
        known = {name for rule in found for name in rule.theirs}
        for name in location.tensors.shapes:
            if name not in known:
                raise CheckpointError(f"{where}: not a CoAtNet that vitlab has: it has no place for '{name}'.")
        preprocess = _preprocess(config, said, where, assumed)
        return Contents(config, found, preprocess, labels_of(said, where), assumed)

    def write(self, model: Model, path: Path) -> None:
        config = model.config
        if not isinstance(config, CoAtNetConfig):
            raise cannot_hold(self.name)
        if set(config.strides) != {2}:
            raise CannotHoldError(
                f"timm's CoAtNets halve the map in every stage, and this one has strides={config.strides}: save it with"
                " format='vitlab'."
            )
        if config.norm_pooled == (config.representation is None):
            raise CannotHoldError(
                "timm's CoAtNets have a norm after pooling with a hidden layer before the classifier, or neither: save"
                " this one with format='vitlab'."
            )
        tensors = to_theirs(rules(config), model.state_dict())
        read_back = reader_of(tensors, path, config.image_size, config_of, _preprocess)
        write_timm(model, path, tensors, settings=lambda: hub_settings(model, config), read_back=read_back)


def _preprocess(config: CoAtNetConfig, said: Said, where: str, assumed: list[str]) -> Preprocess:
    if said.notes.preprocess is not None or "mean" in said.pretrained:
        return preprocess_of(config, said, where, assumed)
    assumed.append("No preprocessing in the file: timm's for CoAtNets was assumed (the middle 95%, values -1 to 1).")
    return PREPROCESS.with_size(config.image_size)
