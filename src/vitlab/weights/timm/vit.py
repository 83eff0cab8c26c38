"""timm's state dicts of ViTs and hybrids, alone or in a hub's folder; also DeiT's, DINO's (1 to 3) and MAE's own."""

import logging
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, final

from vitlab.core.errors import CheckpointError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.models.create import empty_model
from vitlab.models.hybrid import HybridConfig
from vitlab.models.vit import ViTConfig
from vitlab.weights.format import Contents, Format, Location, plain_vit
from vitlab.weights.mapping import Rule, concatenated, qkv_biases, read_through, reshaped, same, to_theirs
from vitlab.weights.metadata import read_notes
from vitlab.weights.resnet_names import TIMM, TIMM_STEM, resnet_rules
from vitlab.weights.timm.files import SINGLE, write_timm
from vitlab.weights.timm.hub_config import Said, create_call, hub_settings, labels_of, preprocess_of, said_by
from vitlab.weights.timm.vit_config import (
    BACKBONE,
    PERIODS,
    REGISTERS,
    Shapes,
    check_holds_timm,
    check_look_alike,
    config_of,
)

logger = logging.getLogger("vitlab")

# Our names and theirs; the second ones are those of DeiT-III's (gamma_1) and DINOv2's (w12, w3) own files.
BLOCK: dict[str, tuple[str, ...]] = {
    "norm1": ("norm1",),
    "attention.qkv": ("attn.qkv",),
    "attention.q_norm": ("attn.q_norm",),
    "attention.k_norm": ("attn.k_norm",),
    "attention.out": ("attn.proj",),
    "scale1": ("ls1.gamma", "gamma_1"),
    "norm2": ("norm2",),
    "mlp.up": ("mlp.fc1", "mlp.w12"),
    "mlp.down": ("mlp.fc2", "mlp.w3"),
    "scale2": ("ls2.gamma", "gamma_2"),
}
SPLIT_UP = {"mlp.fc1_g": "mlp.fc1_x", "mlp.w1": "mlp.w2"}  # the gated MLP's first layer in two
BIASES = ("attn.q_bias", "attn.v_bias", "attn.qkv.bias_mask")  # EVA's and, the last one, DINOv3's own: none of k
POOL = {
    "probe": "latent",
    "q": "q",
    "kv": "kv",
    "out": "proj",
    "norm": "norm",
    "mlp.up": "mlp.fc1",
    "mlp.down": "mlp.fc2",
}
TOP = {
    "projection": "patch_embed.proj",
    "norm_stem": "norm_pre",
    "representation": "pre_logits.fc",
    "head": "head",
    "head.label": "head",
    "head.teacher": "head_dist",
}
LAYERS = {name for names in BLOCK.values() for name in names} | {*SPLIT_UP, *SPLIT_UP.values(), *BIASES}
# Parts of other models of timm that have patches and blocks: windows, other stems, relative and rotary positions.
UNIT = r"stages\.\d+\.blocks\.\d+\.(conv[123]|norm[123]|downsample\.(conv|norm))"
STEM = rf"backbone\.((stem\.)?(conv|norm)|{UNIT})\.(weight|bias)$"  # of hybrids
FOREIGN = re.compile(
    rf"patch_embed\.(?!proj\.|{STEM})|(?!{PERIODS})(layers|stages|rope|rel_pos|pos_block|blocks_token_only|cls_)\w*\."
)
PATCHES = "patch_embed.proj.weight"


def rules(config: ViTConfig, found: Collection[str] = (), prefix: str = "") -> list[Rule]:
    """Every parameter of ours with timm's names for it; of several, the one that is found."""

    def name(*options: str) -> str:
        return prefix + next((option for option in options if prefix + option in found), options[0])

    known: dict[str, Rule] = {}
    if isinstance(config, HybridConfig):
        resnet = resnet_rules(config.resnet, TIMM if config.resnet_layers else TIMM_STEM, prefix + BACKBONE)
        known = {rule.ours: rule for rule in resnet}
    return [known.get(ours) or _rule(ours, config, name) for ours in empty_model(config).state_dict()]


def _rule(ours: str, config: ViTConfig, name: Callable[..., str]) -> Rule:
    width = config.width
    if ours == "projection.weight":
        return reshaped(ours, name(PATCHES), our_shape=(width, -1), their_shape=(width, *config.patch_shape))
    if ours == "positions.0.table":
        return reshaped(ours, name("pos_embed"), our_shape=(-1, width), their_shape=(1, -1, width))
    if ours == "prefix":
        sizes = (int(config.class_token), int(config.distill_token), config.num_registers)
        names = (name("cls_token"), name("dist_token"), name(*REGISTERS))
        there = [(theirs, size) for theirs, size in zip(names, sizes, strict=True) if size]
        rule = concatenated(ours, [theirs for theirs, _ in there], [size for _, size in there])
        return read_through(rule, read=lambda t: t.reshape(-1, width), write=lambda t: t.reshape(1, -1, width).clone())
    block = re.fullmatch(r"(blocks\.\d+\.)(.+?)(\.weight|\.bias)?", ours)
    if block:
        start, part, leaf = block[1], block[2], block[3] or ""
        if ours.endswith("qkv.bias"):
            return _biases(ours, start, width, name)
        theirs = name(*(f"{start}{option}{leaf}" for option in (*BLOCK[part], *SPLIT_UP)))
        for gate, value in SPLIT_UP.items():
            if theirs == name(f"{start}{gate}{leaf}"):
                return concatenated(ours, [theirs, name(f"{start}{value}{leaf}")], [config.mlp_dim] * 2)
        return same(ours, theirs)
    owner, _, leaf = ours.rpartition(".")
    if ours.startswith("attention_pool."):
        part = ours.removeprefix("attention_pool.")
        owner, _, leaf = part.rpartition(".") if part != "probe" else (part, "", "")
        return same(ours, name(f"attn_pool.{POOL[owner]}{'.' if leaf else ''}{leaf}"))
    if owner == "norm":
        options = ("norm", "fc_norm") if config.pool == "token" or not config.norm_pooled else ("fc_norm", "norm")
        return same(ours, name(*(f"{option}.{leaf}" for option in options)))
    return same(ours, name(f"{TOP[owner]}.{leaf}"))


def _biases(ours: str, start: str, width: int, name: Callable[..., str]) -> Rule:
    """Of q, k and v: one tensor, or EVA's two, or DINOv3's one with a mask."""
    of_q, of_v, mask = (name(f"{start}{part}") for part in BIASES)
    whole = name(f"{start}attn.qkv.bias", f"{start}{BIASES[0]}")
    if whole == of_q:
        return qkv_biases(ours, [of_q, None, of_v], width)
    if name("", f"{start}{BIASES[2]}") == mask:
        return Rule(ours, (whole, mask), lambda t: t[0] * t[1], lambda t: [t, t.new_ones(3 * width)])
    return same(ours, whole)


@final
class Timm(Format):
    name = "timm"
    configs = (ViTConfig, HybridConfig)

    def recognizes(self, location: Location) -> bool:
        settings = location.settings or {}
        named = (
            isinstance(settings.get("architecture"), str) and "model_type" not in settings
        )  # the latter: transformers'
        return named or any(name.endswith(PATCHES) for name in location.tensors.shapes)

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        where, found = location.where, location.tensors.shapes
        said = said_by(location.settings, read_notes(location), where)
        check_look_alike(said, where)
        prefix = _prefix(found, said, where)
        shapes = {name.removeprefix(prefix): shape for name, shape in found.items() if name.startswith(prefix)}
        _check_plain(shapes, where)
        if not said.architecture and shapes.keys() >= {"pos_embed", f"blocks.0.{BIASES[0]}"}:
            raise CheckpointError(
                f"{where}: it may be EVA's, a plain ViT, or EVA-02's, which is none: the config.json that came with it"
                " tells them apart, and must lie beside it."
            )
        assumed: list[str] = []
        config = config_of(shapes, said, hints, where, assumed)
        preprocess = preprocess_of(config, said, where, assumed)
        return Contents(config, rules(config, found, prefix), preprocess, labels_of(said, where), assumed)

    def write(self, model: Model, path: Path) -> None:
        config = model.config if type(model.config) in self.configs else plain_vit(model, self.name)
        check_holds_timm(config)
        tensors = to_theirs(rules(config), model.state_dict())
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}

        def read_back(said: Said) -> tuple[Any, Preprocess]:
            check_look_alike(said, str(path))
            return config_of(shapes, said, {}, str(path), []), preprocess_of(config, said, str(path), [])

        write_timm(model, path, tensors, settings=lambda: hub_settings(model, config), read_back=read_back)
        if path.suffix in SINGLE and config.gelu != "exact" and not config.gated_mlp:
            logger.warning(
                "%s: timm takes its GELU for the exact one unless it is told, %s; a folder tells it.",
                path,
                create_call(config, path),
            )


def _prefix(found: Shapes, said: Said, where: str) -> str:
    """What stands before all names of the model: nothing, 'backbone.' (DINO), 'visual.trunk.' (open CLIP), ..."""
    prefixes = sorted(name.removesuffix(PATCHES) for name in found if name.endswith(PATCHES))
    if not prefixes:
        raise CheckpointError(f"{where}: timm's '{said.architecture}' is not a plain ViT ('{PATCHES}' is not in it).")
    if len(prefixes) > 1:
        raise CheckpointError(f"{where}: it holds several models ({', '.join(prefixes)}); save one of them alone.")
    return prefixes[0]


def _check_plain(shapes: Shapes, where: str) -> None:
    """Refuse other models: parts that a plain ViT has no place for, and parts that it lacks."""
    known = {f"{layer}{leaf}" for layer in LAYERS for leaf in ("", ".weight", ".bias")}
    pool = {f"attn_pool.{part}{leaf}" for part in POOL.values() for leaf in ("", ".weight", ".bias")}
    for name in shapes:
        block = re.fullmatch(r"blocks\.\d+\.(.+)", name)
        odd_block = name.startswith("blocks.") and (block is None or block[1] not in known)
        if odd_block or FOREIGN.match(name) or (name.startswith("attn_pool.") and name not in pool):
            raise CheckpointError(f"{where}: not a plain ViT: it has no place for '{name}'.")
    needed = ["blocks.0.norm1.bias", "blocks.0.attn.qkv.weight", "blocks.0.attn.proj.bias"]
    if not shapes.keys() & {"blocks.0.mlp.w3.bias", "blocks.0.mlp.fc2.bias"}:
        needed.append("blocks.0.mlp.fc2.bias")
    if not shapes.keys() & {"norm.bias", "fc_norm.bias"}:
        needed.append("norm.bias")
    for name in needed:
        if name not in shapes:
            raise CheckpointError(f"{where}: not a plain ViT, or incomplete: '{name}' is missing.")
    if "norm.weight" in shapes and "fc_norm.weight" in shapes:
        raise CheckpointError(f"{where}: not a plain ViT: it has a norm before pooling and another after it.")
    if "attn_pool.latent" in shapes and "norm_pre.weight" in shapes:
        raise CheckpointError(f"{where}: not a plain ViT: CLIP's norm with attention pooling has rotary positions.")
