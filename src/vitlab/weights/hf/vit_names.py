"""What transformers calls the tensors of its plain ViTs, as rules that are read in both directions.

The names are those of the published files, which `save_pretrained` still writes and every version of `from_pretrained`
reads; the names that the modules themselves have had since transformers 5 are read as well.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.core.errors import CheckpointError
from vitlab.models.vit import ViTConfig
from vitlab.weights.hf.vit_config import DINOV2S, Shapes
from vitlab.weights.mapping import Rule, concatenated, part_of, qkv_biases, reshaped, same


@dataclass(frozen=True)
class Names:
    """What one of transformers' towers calls its parts; `layer` and what follows it belong to one layer."""

    tokens: tuple[str, ...]
    patches: str
    positions: str
    layer: str
    norms: tuple[str, str]
    qkv: tuple[str, str, str]
    out: str
    up: tuple[str, ...]
    down: str
    norm: str
    norm_stem: str = ""
    scales: tuple[str, str] = ("", "")
    biased: tuple[bool, bool, bool] = (True, True, True)  # which of q, k and v, where there are biases


VIT = Names(
    tokens=("embeddings.cls_token",),
    patches="embeddings.patch_embeddings.projection",
    positions="embeddings.position_embeddings",
    layer="encoder.layer.",
    norms=("layernorm_before", "layernorm_after"),
    qkv=("attention.attention.query", "attention.attention.key", "attention.attention.value"),
    out="attention.output.dense",
    up=("intermediate.dense",),
    down="output.dense",
    norm="layernorm",
)
DEIT = replace(VIT, tokens=("embeddings.cls_token", "embeddings.distillation_token"))
DINOV2 = replace(
    VIT,
    norms=("norm1", "norm2"),
    up=("mlp.fc1",),
    down="mlp.fc2",
    scales=("layer_scale1.lambda1", "layer_scale2.lambda1"),
)
REGISTERS = replace(DINOV2, tokens=("embeddings.cls_token", "embeddings.register_tokens"))
MODULES = {"qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"), "out": "attention.o_proj"}
GATED = ("mlp.gate_proj", "mlp.up_proj")
DINOV3 = replace(
    REGISTERS,
    patches="embeddings.patch_embeddings",
    positions="",
    layer="layer.",
    **MODULES,
    up=GATED[1:],
    down="mlp.down_proj",
    norm="norm",
)
SIGLIP = Names(
    tokens=(),
    patches="embeddings.patch_embedding",
    positions="embeddings.position_embedding.weight",
    layer="encoder.layers.",
    norms=("layer_norm1", "layer_norm2"),
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    out="self_attn.out_proj",
    up=("mlp.fc1",),
    down="mlp.fc2",
    norm="post_layernorm",
)
CLIP = replace(SIGLIP, tokens=("embeddings.class_embedding",), norm_stem="pre_layrnorm")  # sic
NAMES = {
    "vit": VIT,
    "vit_mae": VIT,
    "vit_msn": VIT,
    "ijepa": replace(VIT, tokens=()),
    "deit": DEIT,
    "dinov2": DINOV2,
    "dinov2_with_registers": REGISTERS,
    "dinov3_vit": DINOV3,
    "clip_vision_model": CLIP,
    "siglip_vision_model": SIGLIP,
}


def names_of(kind: str, gated: bool, tower: str, shapes: Shapes | None = None) -> Names:
    """The names that a file has: the published ones unless `shapes` shows those of the modules of transformers 5."""
    names = NAMES[kind]
    if kind == "dinov3_vit":
        return _dinov3(replace(names, up=GATED) if gated else names, shapes)
    published = replace(names, up=("mlp.weights_in",), down="mlp.weights_out") if gated else names
    if shapes is None or f"{tower}{names.layer}0.{names.qkv[0]}.weight" in shapes or names.norm == "post_layernorm":
        return published
    modules = replace(names, **MODULES, up=("mlp.fc1",), down="mlp.fc2")
    if gated:
        modules = replace(modules, up=GATED, down="mlp.down_proj")
    return replace(modules, layer="layers.") if f"{tower}layers.0.attention.q_proj.weight" in shapes else modules


def _dinov3(names: Names, shapes: Shapes | None) -> Names:
    """Where the layers lie, and which projections have a bias."""
    if shapes is None:
        return names
    layer = "layer." if f"layer.0.{names.qkv[0]}.weight" in shapes else "model.layer."
    of_q, of_k, of_v = (f"{layer}0.{name}.bias" in shapes for name in names.qkv)
    return replace(names, layer=layer, biased=(of_q, of_k, of_v))


def rules(config: ViTConfig, kind: str, tower: str, names: Names, where: str = "") -> list[Rule]:
    """Every parameter of ours under transformers' names, `tower` before those of the tower."""
    found = [*_stem_rules(config, names)]
    for i in range(config.depth):
        found += _layer_rules(config, names, f"blocks.{i}.", f"{names.layer}{i}.")
    found += _both("norm", names.norm)
    if config.pool == "attention":
        found += _pool_rules(config)
    if kind in ("vit", "deit"):
        found += _both("representation", "pooler.dense")
    inside = [replace(rule, theirs=tuple(tower + name for name in rule.theirs)) for rule in found]
    return inside + _head_rules(config, kind, where)


def _both(ours: str, theirs: str) -> list[Rule]:
    return [same(f"{ours}.weight", f"{theirs}.weight"), same(f"{ours}.bias", f"{theirs}.bias")]


def _stem_rules(config: ViTConfig, names: Names) -> Iterator[Rule]:
    width, side = config.width, config.patch_size
    kernel = (width, config.channels, side, side)
    yield reshaped("projection.weight", f"{names.patches}.weight", our_shape=(width, -1), their_shape=kernel)
    if config.patch_bias:
        yield same("projection.bias", f"{names.patches}.bias")
    if names.tokens:
        counts = (1, config.num_prefix - 1)[: len(names.tokens)]
        lone = names.tokens[0].endswith("class_embedding")
        yield Rule(
            "prefix",
            names.tokens,
            lambda t: torch.cat([item.reshape(-1, width) for item in t]),
            lambda t: [t[0]] if lone else [item[None] for item in t.split(counts)],
        )
    if names.positions.endswith(".weight"):
        yield same("positions.0.table", names.positions)
    elif names.positions:
        yield Rule("positions.0.table", (names.positions,), lambda t: t[0].squeeze(0), lambda t: [t[None]])
    if names.norm_stem:
        yield from _both("norm_stem", names.norm_stem)


def _layer_rules(config: ViTConfig, names: Names, ours: str, theirs: str) -> Iterator[Rule]:
    width = config.width
    for part in ("weight", "bias"):
        for i, norm in enumerate(names.norms):
            yield same(f"{ours}norm{i + 1}.{part}", f"{theirs}{norm}.{part}")
        if part == "weight":
            yield concatenated(f"{ours}attention.qkv.weight", [f"{theirs}{q}.weight" for q in names.qkv], [width] * 3)
        elif config.qkv_bias:
            biased = zip(names.qkv, names.biased, strict=True)
            yield qkv_biases(
                f"{ours}attention.qkv.bias", [f"{theirs}{q}.bias" if has else None for q, has in biased], width
            )
        yield same(f"{ours}attention.out.{part}", f"{theirs}{names.out}.{part}")
        hidden = config.mlp_dim * (2 if config.gated_mlp else 1) // len(names.up)
        yield concatenated(
            f"{ours}mlp.up.{part}", [f"{theirs}{up}.{part}" for up in names.up], [hidden] * len(names.up)
        )
        yield same(f"{ours}mlp.down.{part}", f"{theirs}{names.down}.{part}")
    for i, scale in enumerate(names.scales):
        if scale:
            yield same(f"{ours}scale{i + 1}", f"{theirs}{scale}")


def _pool_rules(config: ViTConfig) -> Iterator[Rule]:
    """SigLIP's head: one projection for the query, the keys and the values."""
    yield same("attention_pool.probe", "head.probe")
    for part in ("weight", "bias"):
        yield part_of(f"attention_pool.q.{part}", f"head.attention.in_proj_{part}", 0, config.width)
        yield part_of(f"attention_pool.kv.{part}", f"head.attention.in_proj_{part}", config.width, 3 * config.width)
    yield from _both("attention_pool.out", "head.attention.out_proj")
    yield from _both("attention_pool.norm", "head.layernorm")
    yield from _both("attention_pool.mlp.up", "head.mlp.fc1")
    yield from _both("attention_pool.mlp.down", "head.mlp.fc2")


def _head_rules(config: ViTConfig, kind: str, where: str) -> list[Rule]:
    if config.num_classes == 0:
        return []
    if config.distill_token:
        return [*_both("head.label", "cls_classifier"), *_both("head.teacher", "distillation_classifier")]
    weight, bias = _both("head", "classifier")
    if kind in DINOV2S and config.pool == "token":  # what its classifier would take from the mean is zero
        read, write = (lambda t: t[0][:, : config.width]), (lambda t: [F.pad(t, (0, config.width))])
        return [Rule("head.weight", weight.theirs, read, write), bias]
    if kind == "clip_vision_model":

        def refuse(t: Sequence[Tensor]) -> Tensor:
            del t
            raise CheckpointError(
                f"{where}: its classifier reads the mean of the patch tokens before the final norm, which vitlab's ViT"
                " does not: load it with num_classes=0 for the features, or with another number for a fresh classifier."
            )

        return [replace(weight, read=refuse), bias]
    return [weight, bias]
