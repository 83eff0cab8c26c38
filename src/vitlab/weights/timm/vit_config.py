"""Which ViT or hybrid a timm checkpoint is: by its shapes, its config.json, and what the architecture's name tells."""

import contextlib
import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from vitlab.core.config import replace
from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.models.hybrid import HybridConfig
from vitlab.models.resnet import ResNetSpec
from vitlab.models.vit import ViTConfig
from vitlab.weights.format import check_holds, head_count, image_size_of, layer_indices
from vitlab.weights.resnet_names import TIMM, TIMM_STEM, read_sizes
from vitlab.weights.timm.hub_config import GELUS, POOLS, Said

Shapes = Mapping[str, tuple[int, ...]]
BACKBONE = "patch_embed.backbone."
RESNET: dict[str, Any] = {"group_eps": 1e-5, "weight_eps": 1e-8, "weight_eps_of": "variance"}  # not the official code's

REGISTERS = ("reg_token", "register_tokens", "storage_tokens")  # timm's, DINOv2's and DINOv3's own
PERIODS = "rope_embed.periods"  # of DINOv3's own files: one for four values of a head
DINOV3: dict[str, Any] = {"norm_eps": 1e-5, "positions": "none", "rotary": True, "rotary_unit": "image"}

# What an entry point of timm 1.0.30 sets and no shape tells; a test compares with all of timm's models.
ARCHITECTURES: tuple[tuple[str, dict[str, Any]], ...] = (
    (r"^vit\w*_clip_", {"norm_eps": 1e-5}),
    ("_quickgelu_", {"gelu": "quick"}),
    ("patch32_siglip|large_patch16_siglip(_gap)?_512|so400m_patch16_siglip|giantopt", {"gelu": "tanh"}),
    ("vit_base_patch16_gap_224", {"heads": 16}),
    ("test_vit2?$", {"heads": 2}),
    ("dinov3|lingbot", DINOV3),
)
# Models whose tensors are named and shaped like a plain ViT's, but that compute something else.
LOOK_ALIKES = {
    "rope|eva02|sapiens2|_pe_": "it turns queries and keys by their positions, and not as DINOv3 does",
    "_rpn_": "its norms come after attention and MLP",
    "test_vit3": "its attention pooling includes the register tokens",
}


def config_of(shapes: Shapes, said: Said, hints: Mapping[str, Any], where: str, assumed: list[str]) -> ViTConfig:
    """The configuration behind a plain ViT's shapes; names come without a prefix, and `assumed` gets sentences."""
    width, channels, patch, other = dimensions(shapes, "patch_embed.proj.weight", 4, where)
    if patch != other:
        raise CheckpointError(f"{where}: its patches are {patch} x {other} px; vitlab's are square.")
    resnet: dict[str, Any] = {}
    if any(name.startswith(BACKBONE) for name in shapes):
        layers, resnet_width, channels, stride = _resnet(shapes, channels, where)
        resnet = {"resnet_layers": layers, "resnet_width": resnet_width, **RESNET}
        patch *= stride
    registers = next((name for name in REGISTERS if name in shapes), None)
    up = next((name for name in ("fc1", "w12", "fc1_g", "w1") if f"blocks.0.mlp.{name}.weight" in shapes), "fc1")
    down = "w3" if up in ("w12", "w1") else "fc2"
    mlp_dim = dimensions(shapes, f"blocks.0.mlp.{down}.weight", 2, where)[1]
    hidden = dimensions(shapes, f"blocks.0.mlp.{up}.weight", 2, where)[0]
    config: dict[str, Any] = {
        "patch_size": patch,
        "width": width,
        "depth": layer_indices(shapes, "blocks.{}.norm1.weight", where),
        "mlp_dim": mlp_dim,
        "num_classes": dimensions(shapes, "head.weight", 2, where)[0] if "head.weight" in shapes else 0,
        "channels": channels,
        "class_token": "cls_token" in shapes,
        "distill_token": "dist_token" in shapes,
        "num_registers": dimensions(shapes, registers, 3, where)[1] if registers else 0,
        "pool": _pool(shapes, said, where),
        "resize_rule": "timm",
        "norm_stem": "norm_pre.weight" in shapes,
        "norm_pooled": "fc_norm.weight" in shapes,
        "gated_mlp": up in ("fc1_g", "w1") or hidden == 2 * mlp_dim,
        "patch_bias": "patch_embed.proj.bias" in shapes,
        "qkv_bias": bool(shapes.keys() & {"blocks.0.attn.qkv.bias", "blocks.0.attn.q_bias"}),
        "qk_norm": "blocks.0.attn.q_norm.weight" in shapes,
        "layer_scale": 1e-5 if shapes.keys() & {"blocks.0.ls1.gamma", "blocks.0.gamma_1"} else None,
    }
    if "pre_logits.fc.weight" in shapes:  # timm until 0.6
        config["representation"] = dimensions(shapes, "pre_logits.fc.weight", 2, where)[0]
    config |= _origin(config, said, assumed, where)
    if PERIODS in shapes:
        config |= DINOV3 | {"heads": width // (4 * dimensions(shapes, PERIODS, 1, where)[0])}
    if config["qk_norm"]:
        config["heads"] = width // dimensions(shapes, "blocks.0.attn.q_norm.weight", 1, where)[0]
    noted = {name: value for name, value in said.notes.config.items() if name != "image_size"}
    if "heads" not in config:  # a noted number is checked and set below
        sizes: dict[str, Any] = {"mlp_dim": mlp_dim, "dinov3": config.get("rotary", hints.get("rotary", False))}
        config["heads"] = 1 if "heads" in noted else head_count(width, hints, assumed, where, **sizes)
    config |= _places(shapes, said, config, hints, assumed, where)
    if not said.architecture and "blocks.0.gamma_1" in shapes and config.get("positions_for_prefix") == 0:
        assumed.append("Taken for DeiT III: RoPE-ViT with added positions has the same tensors, and is no plain ViT.")
    kind = HybridConfig if resnet else ViTConfig
    return replace(kind(**config, **resnet), noted, where=where)


def _resnet(shapes: Shapes, features: int, where: str) -> tuple[tuple[int, ...], int, int, int]:
    """A hybrid's units per stage, its stem's width, the channels of images, and the stride of its feature map."""
    names = TIMM if f"{BACKBONE}{TIMM.root}.weight" in shapes else TIMM_STEM
    layers, width, channels = read_sizes(shapes, names, BACKBONE, where)
    spec = ResNetSpec(layers=layers, width=width, groups=1)
    if spec.num_features != features:
        raise CheckpointError(
            f"{where}: patches are cut from {features} features, but its ResNet makes {spec.num_features}."
        )
    return layers, width, channels, spec.stride


def check_look_alike(said: Said, where: str) -> None:
    """Refuse what only its architecture's name tells from a plain ViT."""
    for pattern, why in LOOK_ALIKES.items():
        if re.search(pattern, said.architecture):
            raise CheckpointError(f"{where}: timm's '{said.architecture}' is not a plain ViT: {why}.")
    if turned := next((name for name in said.args if name.startswith(("rope_", "use_rot_pos_emb"))), None):
        raise CheckpointError(
            f"{where}: vitlab has DINOv3's own rotary positions; '{turned}' of its config.json is set."
        )
    if said.args.get("pool_include_prefix"):
        raise CheckpointError(f"{where}: vitlab pools patches only; 'pool_include_prefix' of its config.json is set.")


def dimensions(shapes: Shapes, name: str, number: int, where: str) -> tuple[int, ...]:
    """The shape of a tensor that must be there with that many axes."""
    shape = shapes.get(name)
    if shape is None:
        raise CheckpointError(f"{where}: the tensor '{name}' is missing; the file is incomplete, or no plain ViT's.")
    if len(shape) != number or min(shape) < 1:
        raise CheckpointError(f"{where}: '{name}' has an impossible shape ({list(shape)}).")
    return shape


def _pool(shapes: Shapes, said: Said, where: str) -> str:
    if "attn_pool.latent" in shapes:
        return "attention"
    if said.pool and (said.pool not in POOLS or said.pool == "map"):
        raise CheckpointError(f"{where}: vitlab has no pooling '{said.pool}', or its tensors are missing.")
    if said.pool:
        return POOLS[said.pool]
    return "token" if "cls_token" in shapes and "fc_norm.weight" not in shapes else "mean"


def _origin(config: Mapping[str, Any], said: Said, assumed: list[str], where: str) -> dict[str, Any]:
    """Norm epsilon, GELU and heads as far as the architecture's name or its arguments tell them."""
    found: dict[str, Any] = {"norm_eps": 1e-6, "gelu": "exact"}
    for pattern, fields in ARCHITECTURES:
        if re.search(pattern, said.architecture):
            found |= fields
    if "norm_layer" in said.args:  # by name, it comes with timm's default
        found["norm_eps"] = 1e-6
    if "num_heads" in said.args:
        found["heads"] = said.args["num_heads"]
        if not isinstance(found["heads"], int) or found["heads"] < 1:
            raise CheckpointError(f"{where}: 'num_heads' of the config.json beside it must be a positive whole number.")
    if "act_layer" in said.args and not config["gated_mlp"]:
        activation = str(said.args["act_layer"])
        if activation not in GELUS:
            raise CheckpointError(f"{where}: vitlab's ViT has GELU, not '{activation}'.")
        found["gelu"] = GELUS[activation]
    if said.architecture or said.notes.config:
        return found
    if config["norm_stem"]:
        found["norm_eps"] = 1e-5
        assumed.append(
            "A norm before the encoder, as CLIP has: norm_eps=1e-5 and gelu='exact' assumed (OpenAI's: 'quick')."
        )
    elif config["pool"] == "attention" or not (config["class_token"] or config["norm_pooled"]):
        assumed.append("Pooled as SigLIP's are: gelu='exact' assumed (some of SigLIP's: 'tanh').")
    return found


def _places(
    shapes: Shapes, said: Said, config: Mapping[str, Any], hints: Mapping[str, Any], assumed: list[str], where: str
) -> dict[str, Any]:
    """The image size, and how many of the prefix tokens have a position."""
    patch, num_prefix = config["patch_size"], config["class_token"] + config["distill_token"] + config["num_registers"]
    sizes = said.sizes(where)
    if "pos_embed" not in shapes:
        known = (config.get("positions"), said.notes.config.get("positions"), said.args.get("pos_embed"))
        if "none" not in (*known, hints.get("positions")):
            raise CheckpointError(
                f"{where}: it has no 'pos_embed', and is no plain ViT that vitlab knows: give positions='none' if it"
                " has none, and for a DINOv3 without config.json rotary=True, rotary_unit='image' and norm_eps=1e-5."
            )
        if not sizes:
            sizes = [hints.get("image_size", (224, 224))]
            assumed.append(f"The file does not say its image size: {sizes[0][0]} x {sizes[0][1]} px were assumed.")
        return {"positions": "none", "image_size": tuple(side // patch * patch for side in sizes[0])}
    if config.get("positions") == "none":
        raise CheckpointError(f"{where}: it has 'pos_embed', and so is not the model that it is said to be.")
    rows = dimensions(shapes, "pos_embed", 3, where)[1]
    # timm: none of the prefix tokens or all; DINOv2's own files: the class token
    choices = [placed for placed in sorted({0, min(1, num_prefix), num_prefix}) if placed < rows]
    for height, width in sizes:
        for placed in choices:
            if rows - placed == (height // patch) * (width // patch):
                used = (height // patch * patch, width // patch * patch)
                if used != (height, width):
                    assumed.append(
                        f"Patches of {patch} px do not divide {height} x {width}: {used[0]} x {used[1]} px are used."
                    )
                return {"positions_for_prefix": placed, "image_size": used}
    for placed in sorted(choices, key=lambda placed: math.isqrt(rows - placed) ** 2 != rows - placed):  # squares first
        with contextlib.suppress(CheckpointError):
            return {"positions_for_prefix": placed, "image_size": image_size_of(rows - placed, patch, hints, where)}
    raise CheckpointError(f"{where} has {rows} positions, not a square grid: give its image_size=(height, width).")


def check_holds_timm(config: ViTConfig) -> None:
    """Refuse to write what timm's VisionTransformer cannot be."""
    placed = min(config.positions_for_prefix, config.num_prefix)
    if config.positions == "learned" and placed not in (0, config.num_prefix):
        raise CannotHoldError(
            f"The timm format gives positions to all prefix tokens or to none; this model has {placed} of"
            f" {config.num_prefix}. Use format 'vitlab'."
        )
    nearest: dict[str, Any] = {
        "image_size": tuple(side * config.patch_size for side in config.grid),
        "norm": "pre",
        "pool": "token" if config.pool == "token+mean" else config.pool,
        "representation": None,
        "positions": "none" if config.positions == "none" and not config.distill_token else "learned",
        "positions_at": "stem",
        "patch_bias": not config.norm_stem,
    }
    if config.distill_token:
        nearest |= {"num_registers": 0, "positions_for_prefix": 2}
    if config.pool == "attention":
        nearest["gated_mlp"] = False
    check_holds("timm", config, dataclasses.replace(config, **nearest))
