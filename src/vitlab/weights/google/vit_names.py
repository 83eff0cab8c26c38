"""Flax's names and layouts of a ViT, which Google's two `.npz` dialects share.

A dense kernel is [in, out]; a query, key or value kernel [D, heads, D_h], the output's [heads, D_h, D]; the patch
kernel [row, column, channel, D].
"""

import dataclasses
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from einops import rearrange
from torch import Tensor

from vitlab.models.create import empty_model
from vitlab.models.vit import ViTConfig
from vitlab.weights.files.npz import COMMENT_LIMIT, comment_of, write_npz
from vitlab.weights.mapping import Rule, concatenated, read_through, reshaped, same, transposed
from vitlab.weights.metadata import Notes

logger = logging.getLogger("vitlab")

Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
# Where the parameters lie in a training state; `img` is the image tower of an image-text model.
PREFIXES = ("", "params/", "opt/target/", "params/img/", "img/")


@dataclass(frozen=True)
class Block:
    """The names of an encoder block's parts, which Flax numbers."""

    norm1: str
    attention: str
    norm2: str
    mlp: str


COUNTED = Block("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")  # all parts in one count
BY_KIND = Block("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")  # a count for each kind


@dataclass(frozen=True)
class Names:
    """A file's spelling: the parameters' prefix, a block's parts, and the position embedding where there is one."""

    prefix: str
    block: Block
    positions: str | None


def find_prefix(shapes: Shapes) -> str | None:
    """Where a ViT's parameters lie in a file."""
    marks = ("embedding/kernel", "Transformer/encoder_norm/scale")
    return next((prefix for prefix in PREFIXES if any(f"{prefix}{mark}" in shapes for mark in marks)), None)


def find_block(shapes: Shapes, prefix: str) -> Block | None:
    """How a file numbers the parts of its first block."""
    for block in (COUNTED, BY_KIND):
        for mark in (f"{block.attention}/query/kernel", f"{block.mlp}/Dense_0/kernel", f"{block.norm2}/scale"):
            if f"{prefix}Transformer/encoderblock_0/{mark}" in shapes:
                return block
    return None


def vit_rules(config: ViTConfig, names: Names) -> list[Rule]:
    """Our parameters and theirs, for a plain ViT."""
    root, side, width = names.prefix, config.patch_shape[-1], config.width
    rules = [
        Rule(
            "projection.weight",
            (f"{root}embedding/kernel",),
            lambda t: rearrange(t[0], "p q c d -> d (c p q)"),
            lambda t: [rearrange(t, "d (c p q) -> p q c d", p=side, q=side)],
        ),
        same("projection.bias", f"{root}embedding/bias"),
    ]
    if config.class_token:
        rules.append(reshaped("prefix", f"{root}cls", our_shape=(1, width), their_shape=(1, 1, width)))
    if names.positions is not None:
        table = f"{root}{names.positions}"
        rules.append(Rule("positions.0.table", (table,), lambda t: t[0].squeeze(0), lambda t: [t.unsqueeze(0)]))
    for i in range(config.depth):
        ours, theirs = f"blocks.{i}", f"{root}Transformer/encoderblock_{i}"
        attention = f"{theirs}/{names.block.attention}"
        rules += _norm(f"{ours}.norm1", f"{theirs}/{names.block.norm1}")
        rules += _to_heads(
            f"{ours}.attention.qkv", [f"{attention}/{part}" for part in ("query", "key", "value")], config
        )
        rules += _from_heads(f"{ours}.attention.out", f"{attention}/out", config)
        rules += _norm(f"{ours}.norm2", f"{theirs}/{names.block.norm2}")
        rules += _mlp(f"{ours}.mlp", f"{theirs}/{names.block.mlp}")
    rules += _norm("norm", f"{root}Transformer/encoder_norm")
    if config.pool == "attention":
        attention = f"{root}MAPHead_0/MultiHeadDotProductAttention_0"
        rules.append(same("attention_pool.probe", f"{root}MAPHead_0/probe"))
        rules += _to_heads("attention_pool.q", [f"{attention}/query"], config)
        rules += _to_heads("attention_pool.kv", [f"{attention}/key", f"{attention}/value"], config)
        rules += _from_heads("attention_pool.out", f"{attention}/out", config)
        rules += _norm("attention_pool.norm", f"{root}MAPHead_0/LayerNorm_0")
        rules += _mlp("attention_pool.mlp", f"{root}MAPHead_0/MlpBlock_0")
    if config.representation is not None:
        rules += _dense("representation", f"{root}pre_logits")
    if config.num_classes:
        rules += _dense("head", f"{root}head")
    return rules


def each_of_theirs(rules: Sequence[Rule], state: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Our state dict under their names, one tensor at a time, so that there is never a second copy of the model."""
    left_out = sorted(set(state) - {rule.ours for rule in rules})
    assert not left_out, f"no rule for {left_out}"
    for rule in rules:
        yield from zip(rule.theirs, rule.write(state[rule.ours]), strict=True)


def their_shapes(rules: Sequence[Rule], config: Any) -> dict[str, tuple[int, ...]]:
    """The shapes that a file of this configuration has."""
    state = empty_model(config).state_dict()
    return {name: tuple(value.shape) for name, value in each_of_theirs(rules, state)}


def write_flax(path: Path, name: str, arrays: Iterable[tuple[str, Tensor]], notes: Notes) -> None:
    """The file of a format, with what no name tells as a comment that other readers do not see."""
    if len(comment_of(notes.header())) > COMMENT_LIMIT:
        logger.warning("%s: the class names are too long for the %s format; they are left out.", path, name)
        notes = dataclasses.replace(notes, labels=None)
    write_npz(path, arrays, notes.header())


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [transposed(f"{ours}.weight", f"{theirs}/kernel"), same(f"{ours}.bias", f"{theirs}/bias")]


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]


def _mlp(ours: str, theirs: str) -> list[Rule]:
    return _dense(f"{ours}.up", f"{theirs}/Dense_0") + _dense(f"{ours}.down", f"{theirs}/Dense_1")


def _to_heads(ours: str, theirs: Sequence[str], config: ViTConfig) -> list[Rule]:
    """Projections to all heads, behind one another in our one product."""
    width, heads, num = config.width, config.heads, len(theirs)

    def read_kernels(kernels: Sequence[Tensor]) -> Tensor:
        weight = kernels[0].new_empty(num, width, width)  # filled in place: torch.cat is slow over transposed tensors
        for part, kernel in zip(weight, kernels, strict=True):
            part.copy_(kernel.reshape(width, width).T)
        return weight.flatten(0, 1)

    def write_kernels(weight: Tensor) -> list[Tensor]:
        return [part.T.reshape(width, heads, width // heads) for part in weight.chunk(num)]

    biases = concatenated(f"{ours}.bias", [f"{name}/bias" for name in theirs], [width] * num)
    return [
        Rule(f"{ours}.weight", tuple(f"{name}/kernel" for name in theirs), read_kernels, write_kernels),
        read_through(biases, read=Tensor.flatten, write=lambda t: t.reshape(heads, width // heads)),
    ]


def _from_heads(ours: str, theirs: str, config: ViTConfig) -> list[Rule]:
    """The product that joins the heads again."""
    width, heads = config.width, config.heads
    kernel = read_through(
        transposed(f"{ours}.weight", f"{theirs}/kernel"),
        read=lambda t: t.reshape(width, width),
        write=lambda t: t.reshape(heads, width // heads, width),
    )
    return [kernel, same(f"{ours}.bias", f"{theirs}/bias")]
