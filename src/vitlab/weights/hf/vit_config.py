"""transformers' config.json to our configuration and back, for the plain ViTs that it has."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vitlab.core.config import from_dict
from vitlab.core.errors import CheckpointError
from vitlab.models.contract import Model
from vitlab.models.positions import ROTARY_BASE
from vitlab.models.vit import ViTConfig
from vitlab.models.vit_config import Gelu

Shapes = Mapping[str, tuple[int, ...]]

GELUS: dict[str, Gelu] = {
    "gelu": "exact",
    "gelu_python": "exact",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "gelu_fast": "tanh",
    "quick_gelu": "quick",
}
ACTS: dict[Gelu, str] = {"exact": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}

MULTI_LABEL = "multi_label_classification"  # its name for images that may have several classes

SIZES: dict[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
    "qkv_bias": True,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
}
DINOV2 = {
    **{name: value for name, value in SIZES.items() if name != "intermediate_size"},
    "mlp_ratio": 4,
    "patch_size": 14,
    "layer_norm_eps": 1e-6,
    "layerscale_value": 1.0,
    "use_swiglu_ffn": False,
}
DINOV3 = {
    **{name: value for name, value in SIZES.items() if name != "qkv_bias"},
    "hidden_size": 384,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
    "layer_norm_eps": 1e-5,
    "query_bias": True,
    "key_bias": False,
    "value_bias": True,
    "layerscale_value": 1.0,
    "use_gated_mlp": False,
    "num_register_tokens": 0,
    "rope_theta": ROTARY_BASE,
}


@dataclass(frozen=True)
class Family:
    """One of transformers' model types: the name its tower has inside other models, and its config's defaults.

    `fixed` are our fields that config.json does not vary. The defaults are those of transformers 5.22; a folder of an
    older version leaves out fields that came later.
    """

    tower: str
    classes: tuple[str, str]  # its classes without and with a classifier; '' where there is none that ours can be
    defaults: Mapping[str, Any]
    fixed: Mapping[str, Any] = field(default_factory=dict)


FAMILIES: dict[str, Family] = {
    "vit": Family("vit.", ("ViTModel", "ViTForImageClassification"), SIZES),
    "vit_mae": Family("vit.", ("ViTMAEModel", ""), SIZES),
    "vit_msn": Family("vit.", ("ViTMSNModel", "ViTMSNForImageClassification"), {**SIZES, "layer_norm_eps": 1e-6}),
    "ijepa": Family(
        "ijepa.", ("IJepaModel", "IJepaForImageClassification"), SIZES, {"class_token": False, "pool": "mean"}
    ),
    "deit": Family("deit.", ("DeiTModel", "DeiTForImageClassificationWithTeacher"), SIZES, {"positions_for_prefix": 2}),
    "dinov2": Family("dinov2.", ("Dinov2Model", "Dinov2ForImageClassification"), DINOV2),
    "dinov2_with_registers": Family(
        "dinov2_with_registers.",
        ("Dinov2WithRegistersModel", "Dinov2WithRegistersForImageClassification"),
        {**DINOV2, "patch_size": 16, "num_register_tokens": 4},
        {"resize_rule": "timm"},  # the only one whose bicubic resizing is antialiased, which is timm's rule
    ),
    "dinov3_vit": Family(
        "", ("DINOv3ViTModel", ""), DINOV3, {"positions": "none", "rotary": True, "rotary_unit": "image"}
    ),
    "clip_vision_model": Family(
        "vision_model.",
        ("CLIPVisionModel", ""),
        {**SIZES, "patch_size": 32, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5},
        {"qkv_bias": True, "norm_stem": True, "norm_pooled": True, "patch_bias": False},
    ),
    "siglip_vision_model": Family(
        "vision_model.",
        ("SiglipVisionModel", "SiglipForImageClassification"),
        {**SIZES, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6},
        {"qkv_bias": True, "class_token": False},
    ),
}
TOWERS = {  # of models for images and texts
    **dict.fromkeys(("clip", "chinese_clip", "metaclip_2"), "clip_vision_model"),
    "siglip": "siglip_vision_model",
}
ALIASES = dict.fromkeys(("chinese_clip_vision_model", "metaclip_2_vision_model"), "clip_vision_model")  # save in name
DINOV2S = ("dinov2", "dinov2_with_registers")
BIASED = ("query", "key", "value")  # the projections whose biases DINOv3 has or leaves out one by one
ANY_SIZE = (*DINOV2S, "dinov3_vit")  # meant for other sizes than that of their positions, or without any
SQUARE = ("clip_vision_model", "siglip_vision_model", *DINOV2S)  # images of one side only


def vision_settings(settings: Mapping[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    """The model type of the image tower, and its settings with the defaults filled in."""
    kind: Any = settings.get("model_type")
    if kind in TOWERS:
        # transformers lets the older field win over the newer one where a file has both
        inner = settings.get("vision_config_dict") or settings.get("vision_config") or {}
        if not isinstance(inner, Mapping):
            raise CheckpointError(f"{where}: 'vision_config' must be an object.")
        kind, settings = TOWERS[kind], inner
    kind = ALIASES.get(kind, kind)
    if kind not in FAMILIES:
        known = ", ".join([*FAMILIES, *TOWERS])
        raise CheckpointError(f"{where}: the model type '{kind}' is not a plain ViT that vitlab reads ({known}).")
    given = {name: value for name, value in settings.items() if value is not None}
    return kind, {**FAMILIES[kind].defaults, **given}


def read_config(kind: str, values: Mapping[str, Any], shapes: Shapes, where: str, assumed: list[str]) -> ViTConfig:
    """The configuration of a model type with all its settings; classifiers and poolers show in the tensors alone."""
    family, side = FAMILIES[kind], _integer(values, "patch_size", where)
    size = _pair(values, "image_size", where)
    covered = (size[0] // side * side, size[1] // side * side)
    if covered != size and min(covered) > 0:
        assumed.append(
            f"Patches of {side} px do not divide {size[0]} x {size[1]}: as in transformers, what is left over at the"
            f" right and the bottom is not seen, so the image size is {covered[0]} x {covered[1]}."
        )
    gated = kind == "dinov3_vit" and bool(values["use_gated_mlp"])
    gelus = {"silu": "exact"} if gated else GELUS  # a gated MLP has no GELU
    if str(values["hidden_act"]) not in gelus:
        raise CheckpointError(f"{where}: hidden_act '{values['hidden_act']}' is none of {', '.join(gelus)}.")
    width, heads = _integer(values, "hidden_size", where), _integer(values, "num_attention_heads", where)
    if values.get("head_dim", width // heads) != width // heads:
        raise CheckpointError(f"{where}: head_dim {values['head_dim']} is not the width {width} by {heads} heads.")
    depth: Any = values["num_hidden_layers"]
    if isinstance(depth, int) and depth > len(shapes):
        raise CheckpointError(f"{where}: num_hidden_layers is {depth}, but the file has {len(shapes)} tensors in all.")
    fields: dict[str, Any] = {
        "image_size": covered if min(covered) > 0 else size,
        "patch_size": side,
        "width": width,
        "depth": depth,
        "mlp_dim": _mlp_dim(kind, width, values, where),
        "heads": heads,
        "num_classes": next((shapes[name][0] for name in _CLASSIFIERS if shapes.get(name)), 0),
        "channels": values["num_channels"],
        "qkv_bias": values.get("qkv_bias"),
        "norm_eps": values["layer_norm_eps"],
        "gelu": gelus[values["hidden_act"]],
        "resize_rule": "hf",
        **family.fixed,
    }
    if kind == "deit":
        # DeiTForImageClassification has the second token in the sequence and reads the first alone
        second = {"num_registers": 1} if "classifier.weight" in shapes else {"distill_token": True}
        fields.update(second)
    elif kind in DINOV2S:
        fields["layer_scale"], fields["gated_mlp"] = values["layerscale_value"], values["use_swiglu_ffn"]
        fields["num_registers"] = values["num_register_tokens"] if kind == "dinov2_with_registers" else 0
    elif kind == "dinov3_vit":
        if values["rope_theta"] != ROTARY_BASE:
            raise CheckpointError(f"{where}: rope_theta is {values['rope_theta']}; vitlab's is {ROTARY_BASE:g} alone.")
        fields["layer_scale"], fields["gated_mlp"] = values["layerscale_value"], gated
        fields["num_registers"] = values["num_register_tokens"]
        fields["qkv_bias"] = any(values[f"{part}_bias"] for part in BIASED)
    elif kind == "siglip_vision_model":
        pooler = any(name.endswith("head.probe") for name in shapes)
        fields["pool"] = "attention" if pooler and not fields["num_classes"] else "mean"
        if not pooler and not fields["num_classes"]:
            assumed.append("The folder has no pooling head: the mean of the tokens is taken.")
    return from_dict(ViTConfig, fields, where=where)


def kind_of(config: ViTConfig) -> str:
    """The model type that comes closest to a configuration."""
    if config.rotary:
        return "dinov3_vit"
    if not config.class_token:
        return "siglip_vision_model"
    if config.norm_stem:
        return "clip_vision_model"
    if config.distill_token or (config.num_registers == 1 and config.positions_for_prefix > 1):
        return "deit"
    if config.num_registers:
        return "dinov2_with_registers"
    return "dinov2" if config.layer_scale is not None or config.gated_mlp else "vit"


def write_settings(kind: str, config: ViTConfig) -> dict[str, Any]:
    """config.json for a configuration, as far as the model type can say it."""
    family = FAMILIES[kind]
    height, width = config.image_size
    values: dict[str, Any] = {
        "architectures": [family.classes[config.num_classes > 0]],
        "model_type": kind,
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.heads,
        "image_size": height if height == width or kind in SQUARE else [height, width],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "hidden_act": "silu" if kind == "dinov3_vit" and config.gated_mlp else ACTS[config.gelu],
        "layer_norm_eps": config.norm_eps,
    }
    if "intermediate_size" in family.defaults:
        values["intermediate_size"] = config.mlp_dim
    else:
        hidden = config.mlp_dim * 3 / 2 if config.gated_mlp else config.mlp_dim
        values["mlp_ratio"] = max(round(hidden / config.width), 1)
        values["use_swiglu_ffn"] = config.gated_mlp
        values["layerscale_value"] = 1.0 if config.layer_scale is None else config.layer_scale
    if "qkv_bias" in family.defaults.keys() - family.fixed.keys():
        values["qkv_bias"] = config.qkv_bias
    if kind == "dinov2":
        values["use_mask_token"] = False
    elif kind == "dinov2_with_registers":
        values["num_register_tokens"] = config.num_registers
    elif kind == "dinov3_vit":
        values |= {f"{part}_bias": config.qkv_bias for part in BIASED}
        values["use_gated_mlp"], values["num_register_tokens"] = config.gated_mlp, config.num_registers
        values["layerscale_value"] = 1.0 if config.layer_scale is None else config.layer_scale
    elif kind == "deit" and not config.distill_token and config.num_classes:
        values["architectures"] = ["DeiTForImageClassification"]
    elif kind == "siglip_vision_model":
        values["vision_use_head"] = config.pool == "attention"
        if config.num_classes:
            return {"architectures": values.pop("architectures"), "model_type": "siglip", "vision_config": values}
    return values


def read_labels(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """For `Contents`: the class names, and whether an image may have several."""
    return {"labels": _names(settings, where), "multi_label": settings.get("problem_type") == MULTI_LABEL}


def _names(settings: Mapping[str, Any], where: str) -> tuple[str, ...] | None:
    """The class names of id2label, or None where they are absent or transformers' own LABEL_0, LABEL_1, ..."""
    names = settings.get("id2label")
    if not isinstance(names, Mapping) or not names:
        return None
    try:
        ordered = {int(key): str(value) for key, value in names.items()}
    except ValueError as error:
        raise CheckpointError(f"{where}: the keys of 'id2label' must be class numbers.") from error
    if sorted(ordered) != list(range(len(ordered))):
        raise CheckpointError(f"{where}: the keys of 'id2label' must be the class numbers from 0, none left out.")
    labels = tuple(ordered[i] for i in range(len(ordered)))
    return None if all(label == f"LABEL_{i}" for i, label in enumerate(labels)) else labels


def write_labels(model: Model) -> dict[str, Any]:
    """id2label and label2id, also for classes without names: transformers counts classes by them."""
    if not model.config.num_classes:
        return {}
    names = model.labels or tuple(f"LABEL_{i}" for i in range(model.config.num_classes))
    several = {"problem_type": MULTI_LABEL} if model.multi_label else {}
    by_number = {str(i): name for i, name in enumerate(names)}
    return {"id2label": by_number, "label2id": {n: i for i, n in enumerate(names)}, **several}


_CLASSIFIERS = ("classifier.weight", "cls_classifier.weight")


def _mlp_dim(kind: str, width: int, values: Mapping[str, Any], where: str) -> int:
    """DINOv2's is a multiple of the width; SwiGLU keeps two thirds of it, rounded up to a multiple of 8."""
    if kind not in DINOV2S or "mlp_ratio" not in values:
        return values["intermediate_size"]
    if not isinstance(values["mlp_ratio"], int | float) or not 0 < values["mlp_ratio"] < 1000:
        raise CheckpointError(f"{where}: 'mlp_ratio' must be a positive number, not {values['mlp_ratio']!r}.")
    hidden = int(width * values["mlp_ratio"])
    return (int(hidden * 2 / 3) + 7) // 8 * 8 if values["use_swiglu_ffn"] else hidden


def _pair(values: Mapping[str, Any], name: str, where: str) -> tuple[int, int]:
    value = values[name]
    both = list(value) if isinstance(value, list | tuple) else [value, value]
    if len(both) != 2 or not all(isinstance(item, int) and item > 0 for item in both):
        raise CheckpointError(f"{where}: '{name}' must be a positive whole number, or two, not {value!r}.")
    return both[0], both[1]


def _integer(values: Mapping[str, Any], name: str, where: str) -> int:
    first, second = _pair(values, name, where)
    if first != second:
        raise CheckpointError(f"{where}: vitlab takes square patches only, and '{name}' is {first} x {second}.")
    return first
