"""Which CoAtNet a timm checkpoint is: by its shapes, and for what they cannot tell by the architecture's name."""

import math
import re
from collections.abc import Mapping
from typing import Any

from vitlab.core.config import replace
from vitlab.core.errors import CannotHoldError, CheckpointError, ConfigError
from vitlab.models.coatnet import CoAtNetConfig
from vitlab.models.contract import Model
from vitlab.weights.timm.hub_config import Said, pretrained_settings

Shapes = Mapping[str, tuple[int, ...]]
PREFIX = "stages.{}.blocks.{}."
TABLE = "attn.rel_pos.relative_position_bias_table"
MLP = "attn.rel_pos.mlp.fc1.weight"

# What no shape tells of the paper's reading (`coatnet_0_224`), and of timm's first and later variants
PAPER: dict[str, Any] = {
    "conv_activation": "gelu",
    "pre_activation": False,
    "downsample": "conv",
    "pooling": "mean",
    "squeeze_activation": "silu",
}
FIRST = PAPER | {"conv_activation": "silu", "pre_activation": True, "squeeze_activation": "relu"}
LATER = PAPER | {"conv_activation": "silu"}
POOL, SILU = {"downsample": "pool"}, {"squeeze_activation": "silu"}

# Entry points of timm 1.0.30 without their resolution, by what tells them apart where a file does not name them:
# blocks a stage, the first width, squeeze before the norm, relative attention by an MLP
VARIANTS: dict[str, tuple[tuple[tuple[int, ...], int, bool, bool], dict[str, Any]]] = {
    "coatnet_pico_rw": (((2, 3, 5, 2), 64, False, False), LATER),
    "coatnet_nano_rw": (((3, 4, 6, 3), 64, False, False), LATER | POOL),
    "coatnet_rmlp_nano_rw": (((3, 4, 6, 3), 64, False, True), LATER),
    "coatnet_0_rw": (((2, 3, 7, 2), 96, True, False), FIRST | POOL),
    "coatnet_rmlp_0_rw": (((2, 3, 7, 2), 96, False, True), FIRST),
    "coatnet_1_rw": (((2, 6, 14, 2), 96, True, False), FIRST),
    "coatnet_rmlp_1_rw": (((2, 6, 14, 2), 96, True, True), FIRST | POOL | {"pooling": "max"}),
    "coatnet_rmlp_1_rw2": (((2, 6, 14, 2), 96, False, True), FIRST),
    "coatnet_2_rw": (((2, 6, 14, 2), 128, False, False), FIRST | SILU),
    "coatnet_rmlp_2_rw": (((2, 6, 14, 2), 128, False, True), FIRST | SILU),
    "coatnet_3_rw": (((2, 6, 14, 2), 192, False, False), FIRST | SILU),
    "coatnet_rmlp_3_rw": (((2, 6, 14, 2), 192, False, True), FIRST | SILU),
    **{f"coatnet_{number}": (((), 0, False, False), PAPER) for number in range(6)},
}

# Arguments of entry points that say what shapes do not, and their values here
ARGUMENTS: dict[str, tuple[str, dict[Any, Any]]] = {
    "conv_act_layer": ("conv_activation", {"gelu": "gelu", "silu": "silu"}),
    "conv_pre_norm_act": ("pre_activation", {True: True, False: False}),
    "conv_stride_mode": ("downsample", {"dw": "conv", "pool": "pool"}),
    "conv_pool_type": ("pooling", {"avg2": "mean", "max": "max"}),
    "conv_attn_act_layer": ("squeeze_activation", {"silu": "silu", "relu": "relu"}),
}
IN_SHAPES = {  # by shapes
    *("conv_expand_output", "conv_output_bias", "conv_attn_early", "conv_attn_ratio", "transformer_pool_type"),
    *("transformer_dim_head", "transformer_expand_first", "transformer_shortcut_bias", "transformer_rel_pos_type"),
    *("transformer_rel_pos_dim", "transformer_init_values"),
}


def config_of(shapes: Shapes, said: Said, hints: Mapping[str, Any], where: str, assumed: list[str]) -> CoAtNetConfig:
    """The configuration behind timm's shapes; `assumed` gets a sentence for what nothing says."""
    found = _from_shapes(shapes, where)
    assumptions = _assume(found, said, where, assumed)
    sizes = said.sizes(where) + ([hints["image_size"]] if "image_size" in hints else [])
    found["image_size"] = _image_size(shapes, found, sizes, where, assumed)
    try:
        config = CoAtNetConfig(**found, **assumptions, resize_rule="timm")
        noted = {name: value for name, value in said.notes.config.items() if name != "image_size"}
        return replace(config, noted, where="vitlab's notes in it")
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error


def _from_shapes(shapes: Shapes, where: str) -> dict[str, Any]:
    """The fields that shapes tell."""

    def shape(name: str, axes: tuple[int, ...]) -> tuple[int, ...]:
        found = shapes.get(name)
        if found is None or len(found) not in axes or min(found) < 1:
            raise CheckpointError(f"{where}: '{name}' is missing or has a shape that no CoAtNet has.")
        return found

    depths = _depths(shapes, where)
    kinds: list[str] = []
    widths: list[int] = []
    for stage, depth in enumerate(depths):
        starts = [PREFIX.format(stage, place) for place in range(depth)]
        conv = [f"{start}conv1_1x1.weight" in shapes for start in starts]
        if len(set(conv)) > 1:
            raise CheckpointError(
                f"{where}: not a CoAtNet that vitlab has: stage {stage + 1} mixes two kinds of block."
            )
        kinds.append("conv" if conv[0] else "attention")
        widths.append(shape(f"{starts[0]}{'conv3_1x1' if conv[0] else 'attn.proj'}.weight", (2, 4))[0])
    stem = shape("stem.conv1.weight", (4,))[0], shape("stem.conv2.weight", (4,))[0]
    fields: dict[str, Any] = {
        "channels": shape("stem.conv1.weight", (4,))[1],
        "stem": stem,
        "kinds": tuple(kinds),
        "depths": depths,
        "widths": tuple(widths),
        "strides": (2,) * len(depths),
        "num_classes": shapes.get("head.fc.weight", (0,))[0],
        "norm_pooled": "head.norm.weight" in shapes,
        "representation": shapes.get("head.pre_logits.fc.weight", (None,))[0],
    }
    inputs = stem[1]
    for stage, (kind, width) in enumerate(zip(kinds, widths, strict=True)):
        start = PREFIX.format(stage, 0)
        if kind == "conv":
            hidden = shape(f"{start}conv1_1x1.weight", (2, 4))[0]
            early = f"{start}se_early.fc1.weight" in shapes
            inner = shape(f"{start}{'se_early' if early else 'se'}.fc1.weight", (2, 4))[0]
            fields |= {"squeeze": inner / hidden, "squeeze_early": early}
            fields["conv_bias"] = f"{start}conv3_1x1.bias" in shapes
            attention = hidden // 4
        else:
            attention = shape(f"{start}attn.qkv.weight", (2, 4))[0] // 3
            fields["shortcut_bias"] = f"{start}shortcut.expand.bias" in shapes or inputs == width
            fields["layer_scale"] = 1e-6 if f"{start}ls1.gamma" in shapes else None
            if start + MLP in shapes:
                heads = shape(f"{start}attn.rel_pos.mlp.fc2.weight", (2,))[0]
                fields |= {"relative": "mlp", "relative_hidden": shapes[start + MLP][0]}
            else:
                heads = shape(start + TABLE, (2,))[1]
            fields["head_width"] = attention // heads
        if inputs != width:
            fields["widens"] = "first" if attention == width else "last"
        inputs = width
    return fields


def _depths(shapes: Shapes, where: str) -> tuple[int, ...]:
    found = {
        (int(m[1]), int(m[2])) for name in shapes if (m := re.match(r"stages\.(\d{1,9})\.blocks\.(\d{1,9})\.", name))
    }
    stages = range(len({stage for stage, _ in found}))
    depths = tuple(sum(1 for stage, _ in found if stage == number) for number in stages)
    if found != {(stage, place) for stage, depth in enumerate(depths) for place in range(depth)}:
        raise CheckpointError(f"{where}: blocks are missing between others; the file is damaged.")
    return depths


def _assume(found: Mapping[str, Any], said: Said, where: str, assumed: list[str]) -> dict[str, Any]:
    """The fields that no shape tells: by the architecture and its arguments, by our notes, or by known variants."""
    name = re.sub(r"_\d+$", "", said.architecture)
    if name in VARIANTS:
        return VARIANTS[name][1] | _arguments(said.args, where)
    if said.architecture:
        raise CheckpointError(f"{where}: timm's '{said.architecture}' is not a CoAtNet that vitlab has.")
    if PAPER.keys() <= said.notes.config.keys():
        return {}
    key = (found["depths"], found["widths"][0], found.get("squeeze_early", False), found.get("relative") == "mlp")
    alike = [variant for variant, (of, _) in VARIANTS.items() if of == key and found.get("widens") == "last"]
    variant = alike[0] if alike else "coatnet_0_rw" if found.get("widens") == "last" else "coatnet_0"
    assumed.append(
        f"The file does not name its architecture: activations and pooling of timm's '{variant}' were assumed."
    )
    return VARIANTS[variant][1]


def _arguments(args: Mapping[str, Any], where: str) -> dict[str, Any]:
    """What an entry point's arguments change."""
    fields: dict[str, Any] = {}
    for name, value in args.items():
        if name in ARGUMENTS:
            field, values = ARGUMENTS[name]
            if value not in values:
                raise CheckpointError(f"{where}: vitlab's CoAtNet has no {name}={value!r}.")
            fields[field] = values[value]
        elif name.startswith(("conv_", "transformer_")) and name not in IN_SHAPES:
            raise CheckpointError(f"{where}: vitlab does not know what '{name}' changes in a CoAtNet.")
    if args.get("transformer_pool_type", args.get("conv_pool_type")) != args.get("conv_pool_type"):
        raise CheckpointError(f"{where}: vitlab's CoAtNet pools by one rule in all of its shortcuts.")
    return fields


def _image_size(
    shapes: Shapes, found: Mapping[str, Any], sizes: list[tuple[int, int]], where: str, assumed: list[str]
) -> tuple[int, int]:
    """The size that is said and fits the tables of biases; else a square one that does."""
    stage = next((number for number, kind in enumerate(found["kinds"]) if kind == "attention"), None)
    rows = None if stage is None else shapes.get(PREFIX.format(stage, 0) + TABLE, (None,))[0]
    if stage is None or rows is None:
        if not sizes:
            assumed.append("The file does not say its image size: 224 px was assumed.")
        return (sizes or [(224, 224)])[0]
    stride = 2 ** (stage + 2)
    for size in sizes:
        if rows == math.prod(2 * math.ceil(side / stride) - 1 for side in size):
            return size
    side = math.isqrt(rows)
    if side * side != rows or side % 2 == 0:
        raise CheckpointError(f"{where} has {rows} biases, not a square grid's: give image_size=(height, width).")
    return (side + 1) // 2 * stride, (side + 1) // 2 * stride


def hub_settings(model: Model, config: CoAtNetConfig) -> dict[str, Any]:
    """The config.json with which timm builds the model: an entry point, and arguments that say everything else."""
    height, width = config.image_size
    arguments = {
        name: next(theirs for theirs, ours in values.items() if ours == getattr(config, field))
        for name, (field, values) in ARGUMENTS.items()
    }
    hidden = config.expansion * config.squeeze
    if config.expansion != 4:
        raise CannotHoldError("The timm format holds CoAtNets of expansion=4 only; use format 'vitlab'.")
    return {
        "architecture": "coatnet_0_224" if config.norm_pooled else "coatnet_0_rw_224",
        "num_classes": config.num_classes,
        "num_features": config.widths[-1],
        **({} if model.labels is None else {"label_names": list(model.labels)}),
        "model_args": {
            "img_size": height if height == width else [height, width],
            "in_chans": config.channels,
            "num_classes": config.num_classes,
            "embed_dim": list(config.widths),
            "depths": list(config.depths),
            "block_type": ["C" if kind == "conv" else "T" for kind in config.kinds],
            "stem_width": list(config.stem),
            "head_hidden_size": config.representation,
            **arguments,
            "conv_expand_output": config.widens == "first",
            "conv_output_bias": config.conv_bias,
            "conv_attn_early": config.squeeze_early,
            "conv_attn_ratio": hidden if config.widens == "first" else config.squeeze,
            "transformer_pool_type": arguments["conv_pool_type"],
            "transformer_dim_head": config.head_width,
            "transformer_expand_first": config.widens == "first",
            "transformer_shortcut_bias": config.shortcut_bias,
            "transformer_rel_pos_type": config.relative,
            "transformer_rel_pos_dim": config.relative_hidden,
            "transformer_init_values": config.layer_scale,
        },
        "pretrained_cfg": {
            **pretrained_settings(model),
            "fixed_input_size": True,
            "pool_size": [-(-side // 2 ** (len(config.widths) + 1)) for side in config.image_size],
            "first_conv": "stem.conv1",
            "classifier": "head.fc",
        },
    }
