"""What lies beside timm's tensors: the hub's config.json, read and written."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.models.contract import Model
from vitlab.models.hybrid import HybridConfig
from vitlab.models.timm.preprocess import preprocess_named
from vitlab.models.vit import ViTConfig
from vitlab.weights.metadata import Notes

GELUS = {"gelu": "exact", "gelu_tanh": "tanh", "quick_gelu": "quick"}
POOLS = {"token": "token", "avg": "mean", "map": "attention"}
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

# Entry points vit_{size}_patch{patch}_224 of timm: (width, depth, heads) to size and patches
ENTRY_POINTS: dict[tuple[int, int, int], tuple[str, tuple[int, ...]]] = {
    (192, 12, 3): ("tiny", (16,)),
    (384, 12, 6): ("small", (8, 16, 32)),
    (768, 12, 12): ("base", (8, 16, 32)),
    (1024, 24, 16): ("large", (14, 16, 32)),
    (1280, 32, 16): ("huge", (14,)),
    (1408, 40, 16): ("giant", (14,)),
    (1664, 48, 16): ("gigantic", (14,)),
}
# Entry points of hybrids by their ResNet's units
HYBRIDS = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


@dataclass(frozen=True)
class Said:
    """What a checkpoint says beside its tensors."""

    architecture: str = ""
    args: Mapping[str, Any] = field(default_factory=dict)  # of the entry point
    pretrained: Mapping[str, Any] = field(default_factory=dict)
    notes: Notes = field(default_factory=Notes)

    @property
    def pool(self) -> str:
        return str(self.args.get("global_pool") or self.pretrained.get("global_pool") or "")

    def sizes(self, where: str) -> list[tuple[int, int]]:
        """The image sizes that the file names, the most certain first."""
        input_size = self.pretrained.get("input_size")
        named = [self.notes.config.get("image_size"), self.args.get("img_size")]
        named.append(input_size[1:] if isinstance(input_size, list) else None)
        sizes: list[tuple[int, int]] = []
        for size in [(size, size) if isinstance(size, int) else size for size in named if size]:
            match size:
                case [int(height), int(width)] if min(height, width) > 0:
                    sizes.append((height, width))
                case _:
                    raise CheckpointError(f"{where}: {size!r} in its settings is not an image size.")
        return sizes


def said_by(settings: Mapping[str, Any] | None, notes: Notes, where: str) -> Said:
    """The parts of config.json that matter; older ones have no `pretrained_cfg` but its fields at the top."""
    if settings is None or not isinstance(settings.get("architecture"), str):
        return Said(notes=notes)
    args, pretrained = settings.get("model_args") or {}, settings.get("pretrained_cfg", settings)
    if not isinstance(args, Mapping) or not isinstance(pretrained, Mapping):
        raise CheckpointError(f"{where}: 'model_args' and 'pretrained_cfg' in its config.json must be objects.")
    at_top = ("global_pool", "label_names", "label_descriptions")
    pretrained = {**pretrained, **{name: settings[name] for name in at_top if name in settings}}
    return Said(settings["architecture"].partition(".")[0], args, pretrained, notes)


def preprocess_of(config: Any, said: Said, where: str, assumed: list[str]) -> Preprocess:
    """The preprocessing that the file names, or its family's default and a sentence that says so."""
    if said.notes.preprocess is not None:
        return said.notes.preprocess
    named, size = said.pretrained, config.image_size
    if "mean" not in named or "std" not in named:
        family, mean, std = _family(config)
        assumed.append(f"No preprocessing in the file: {family}'s default was assumed (mean {mean}, std {std}).")
        named = {"mean": mean, "std": std, "crop_pct": 0.9 if min(size) < 384 else 1.0}
    return preprocess_named(named, size, where, assumed)


def _family(config: ViTConfig) -> tuple[str, tuple[float, ...], tuple[float, ...]]:
    """Whose mean and deviation a bare file of this make needs, by the models that timm publishes."""
    if config.norm_stem:
        return "CLIP", CLIP_MEAN, CLIP_STD
    imagenet = config.distill_token or config.layer_scale is not None or config.pool == "mean" or not config.num_classes
    if config.class_token and imagenet:
        return "DeiT, DINO and MAE", IMAGENET_MEAN, IMAGENET_STD
    return "ViT", (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)


def labels_of(said: Said, where: str) -> tuple[str, ...] | None:
    """Class names: ours, or timm's with their descriptions where it has them."""
    if said.notes.labels is not None:
        return said.notes.labels
    names = said.pretrained.get("label_names")
    if isinstance(names, dict):  # by index, as text
        names = [names.get(str(index)) for index in range(len(names))]
    if not names:
        return None
    described = said.pretrained.get("label_descriptions") or {}
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names) or not isinstance(described, dict):
        raise CheckpointError(f"{where}: the class names beside it must be a list of texts.")
    return tuple(str(described.get(name, name)) for name in names)


def hub_settings(model: Model, config: ViTConfig) -> dict[str, Any]:
    """The config.json with which timm builds the model: an entry point, and arguments that say everything else."""
    labels = {} if model.labels is None else {"label_names": list(model.labels)}
    return {
        "architecture": _entry_point(config),
        "num_classes": config.num_classes,
        "num_features": config.width,
        "global_pool": _theirs(POOLS, config.pool),
        **labels,
        "model_args": _arguments(config),
        "pretrained_cfg": {
            **pretrained_settings(model),
            "fixed_input_size": True,
            "pool_size": None,
            "first_conv": _first_conv(config),
            "classifier": ["head", "head_dist"] if config.distill_token else "head",
        },
    }


def create_call(config: ViTConfig, path: Path) -> str:
    """How timm reads a file without a config.json as the model that it is."""
    arguments = _arguments(config)
    if isinstance(config, HybridConfig):
        return f"by act_layer={arguments['act_layer']!r}"
    entry = _entry_point(config)
    if plain := re.fullmatch(r"vit_([a-z]+)_patch(\d+)_224", entry):  # what it brings need not be said
        sizes = {size: numbers for numbers, (size, _) in ENTRY_POINTS.items()}
        width, depth, heads = sizes[plain[1]]
        usual = ViTConfig(
            patch_size=int(plain[2]), width=width, depth=depth, heads=heads, mlp_dim=4 * width, gelu="exact"
        )
        brought = _arguments(usual)
        arguments = {name: value for name, value in arguments.items() if value != brought[name]}
    said = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    return f"as in timm.create_model({entry!r}, {said}, checkpoint_path={str(path)!r})"


def pretrained_settings(model: Model) -> dict[str, Any]:
    """What every family's config.json says of classes and preprocessing."""
    preprocess, (height, width) = model.preprocess, model.config.image_size
    edge = preprocess.shortest_edge or min(preprocess.size)
    return {
        "input_size": [model.config.channels, height, width],
        "interpolation": preprocess.interpolation,
        "crop_pct": 1.0 if preprocess.resize == "squash" else _crop(min(preprocess.size), edge),
        "crop_mode": "squash" if preprocess.resize == "squash" else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": model.config.num_classes,
    }


def _first_conv(config: ViTConfig) -> str:
    if not isinstance(config, HybridConfig):
        return "patch_embed.proj"
    return "patch_embed.backbone.stem.conv" if config.resnet_layers else "patch_embed.backbone.conv"


def _entry_point(config: ViTConfig) -> str:
    """One that brings what no argument in JSON can: the distilled class, gated MLPs, CLIP's epsilon."""
    if isinstance(config, HybridConfig):
        if config.resnet_layers not in HYBRIDS or config.resnet_width != 64:
            raise CannotHoldError(
                f"timm has no entry point for a hybrid of resnet_layers={config.resnet_layers} and"
                f" resnet_width={config.resnet_width}; write a single .safetensors file, or use format 'vitlab'."
            )
        return HYBRIDS[config.resnet_layers]
    size, patches = ENTRY_POINTS.get((config.width, config.depth, config.heads), ("base", (16,)))
    if config.distill_token:
        return f"deit_{size if size in ('tiny', 'small') else 'base'}_distilled_patch16_224"
    if config.gated_mlp:
        return "vit_giant_patch14_dinov2"
    if config.norm_eps == 1e-5:
        return "vit_base_patch16_clip_224"
    return f"vit_{size}_patch{config.patch_size if config.patch_size in patches else patches[-1]}_224"


def _arguments(config: ViTConfig) -> dict[str, Any]:
    hidden = config.mlp_dim * (2 if config.gated_mlp else 1)
    ratio = hidden / config.width
    if int(config.width * ratio) != hidden:  # timm truncates
        ratio = (hidden + 0.5) / config.width
    height, width = config.image_size
    placed = min(config.positions_for_prefix, config.num_prefix)
    activation = {} if config.gated_mlp else {"act_layer": _theirs(GELUS, config.gelu)}
    return {
        "img_size": height if height == width else [height, width],
        "patch_size": config.patch_shape[-1],
        "in_chans": config.channels,
        "num_classes": config.num_classes,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": ratio,
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "init_values": 0.0 if config.layer_scale is None else config.layer_scale or 1e-5,  # timm: 0 is none
        "class_token": config.class_token,
        "reg_tokens": config.num_registers,
        "pos_embed": "none" if config.positions == "none" else "learn",
        "no_embed_class": placed == 0 and config.num_prefix > 0,
        "pre_norm": config.norm_stem,
        "fc_norm": config.norm_pooled and config.pool != "token",
        "global_pool": _theirs(POOLS, config.pool),
        **activation,
    }


def _theirs(table: Mapping[str, str], ours: str) -> str:
    return next(theirs for theirs, value in table.items() if value == ours)


def _crop(size: int, edge: int) -> float:
    """The shortest fraction from which timm's floor(size / fraction) is `edge` again."""
    for digits in range(2, 8):
        if (crop := round(size / edge, digits)) and math.floor(size / crop) == edge:
            return crop
    return size / (edge + 0.5)
