"""transformers' folders: config.json, model.safetensors (or .bin, or shards) and preprocessor_config.json."""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.core.files import atomic_folder
from vitlab.models.contract import Model
from vitlab.models.vit import ViTConfig
from vitlab.weights.format import (
    Contents,
    Format,
    Location,
    check_holds,
    head_count,
    image_size_of,
    layer_indices,
    plain_vit,
)
from vitlab.weights.hf.preprocess import read_preprocess, write_preprocess
from vitlab.weights.hf.vit_config import (
    BIASED,
    DINOV2S,
    FAMILIES,
    Shapes,
    kind_of,
    read_config,
    read_labels,
    vision_settings,
    write_labels,
    write_settings,
)
from vitlab.weights.hf.vit_names import CLIP, DEIT, DINOV2, DINOV3, REGISTERS, VIT, names_of, rules
from vitlab.weights.mapping import to_theirs
from vitlab.weights.native import check_replaceable, write_json

FILES = ("config.json", "model.safetensors", "preprocessor_config.json")
MASKED = {"dinov2_with_registers": (1,), "dinov3_vit": (1, 1)}  # always with a mask token, for pre-training alone


@final
class HuggingFace(Format):
    name = "hf"

    def recognizes(self, location: Location) -> bool:
        if location.settings is not None and isinstance(location.settings.get("model_type"), str):
            return True
        patches = tuple(f"{names.patches}.weight" for names in (VIT, CLIP, DINOV3))
        return any(name.endswith(patches) for name in location.tensors.shapes)

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        shapes, assumed = location.tensors.shapes, list[str]()
        where = str(location.folder / "config.json")
        settings = location.settings or {}
        if isinstance(settings.get("model_type"), str):
            kind, values = vision_settings(settings, where)
        else:
            where = location.where
            kind, values = guess_settings(shapes, hints, where, assumed)
        config = _pooled(kind, read_config(kind, values, shapes, where, assumed), location.tensors)
        tower = _tower(kind, shapes)
        names = names_of(kind, config.gated_mlp, tower, shapes)
        preprocess = read_preprocess(location.folder, kind, config, assumed)
        found = rules(config, kind, tower, names, location.where)
        if values.get("pooler_act", "tanh") != "tanh":  # else whoever asks for a representation gets the pooler
            found = [rule for rule in found if not rule.ours.startswith("representation.")]
        return Contents(config, found, preprocess, assumed=assumed, **read_labels(settings, where))

    def write(self, model: Model, path: Path) -> None:
        config = plain_vit(model, self.name)
        check_replaceable(path, FILES, lambda settings: "model_type" in settings)
        kind = kind_of(config)
        if config.num_classes and not FAMILIES[kind].classes[1]:
            what, why = ("norm_stem=True", "the classifier of its CLIP reads other features")
            if kind == "dinov3_vit":
                what, why = ("rotary=True", "its DINOv3 has no classifier")
            raise CannotHoldError(
                f"The {self.name} format cannot hold num_classes={config.num_classes} with {what}: {why}. Use format"
                " 'vitlab', or load it with num_classes=0."
            )
        settings = write_settings(kind, config)
        tower = FAMILIES[kind].tower
        if not config.num_classes and tower != "vision_model.":  # CLIP's and SigLIP's towers had it always before 5.0
            tower = ""
        state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
        fitting = [
            rule for rule in rules(config, kind, tower, names_of(kind, config.gated_mlp, tower)) if rule.ours in state
        ]
        tensors = to_theirs(fitting, {rule.ours: state[rule.ours] for rule in fitting})
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        read_back = read_config(*vision_settings(settings, str(path)), shapes, str(path), [])
        check_holds(self.name, config, _pooled(kind, read_back, tensors))
        assert len(fitting) == len(state), "check_holds should have refused this"
        if kind in MASKED:
            tensors[f"{tower}embeddings.mask_token"] = torch.zeros(*MASKED[kind], config.width)
        with atomic_folder(path) as folder:
            write_json(folder / "config.json", {**settings, **write_labels(model)})
            write_json(folder / "preprocessor_config.json", write_preprocess(model.preprocess))
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _pooled(kind: str, config: ViTConfig, tensors: Mapping[str, Tensor]) -> ViTConfig:
    """What a DINOv2's classifier reads: the mean of the patches beside the class token, unless its weights are zero."""
    if kind not in DINOV2S or not config.num_classes or not tensors["classifier.weight"][:, config.width :].any():
        return config
    return dataclasses.replace(config, pool="token+mean")


def _tower(kind: str, shapes: Shapes) -> str:
    """The prefix that the tower's names have in this file."""
    tower = FAMILIES[kind].tower
    return tower if any(name.startswith(f"{tower}embeddings.") for name in shapes) else ""


def guess_settings(
    shapes: Shapes, hints: Mapping[str, Any], where: str, assumed: list[str]
) -> tuple[str, dict[str, Any]]:
    """Model type and settings for tensors without a config.json, from their names and shapes."""

    def has(ending: str) -> bool:
        return any(name.endswith(ending) for name in shapes)

    if has(f"{CLIP.patches}.weight"):
        kind = "clip_vision_model" if has(CLIP.tokens[0]) else "siglip_vision_model"
    elif has(f"{DINOV3.patches}.weight"):
        kind = "dinov3_vit"
    elif has(REGISTERS.tokens[1]):
        kind = "dinov2_with_registers"
    elif has(DEIT.tokens[1]):
        kind = "deit"
    else:
        kind = "dinov2" if has(DINOV2.scales[0]) else "vit" if has(VIT.tokens[0]) else "ijepa"
    tower = _tower(kind, shapes)
    gated = has("mlp.weights_in.weight") or has("mlp.gate_proj.weight")
    names = names_of(kind, gated, tower, shapes)
    layer, up = tower + names.layer, names.up[-1]
    try:
        width, channels, side, _ = shapes[f"{tower}{names.patches}.weight"]
        hidden = shapes[f"{layer}0.{up}.weight"][0] // (2 if up == "mlp.weights_in" else 1)
        registers = shapes[tower + REGISTERS.tokens[1]][1] if REGISTERS.tokens[1] in names.tokens else 0
        size = hints.get("image_size", (224, 224))  # of a model without positions
        if names.positions:
            places = shapes[tower + names.positions][-2] - (2 if kind == "deit" else len(names.tokens[:1]))
            size = image_size_of(places, side, hints, where)
    except (KeyError, ValueError, IndexError) as error:
        raise CheckpointError(
            f"{where}: tensors of a transformers model are missing in it or have odd shapes."
        ) from error
    defaults = {name: value for name, value in FAMILIES[kind].defaults.items() if name != "mlp_ratio"}
    if kind == "dinov3_vit" and gated:
        defaults["hidden_act"] = "silu"
    assumed.append(
        f"No config.json beside the file: the activation ({defaults['hidden_act']}) and norm epsilon"
        f" ({defaults['layer_norm_eps']}) of the model type '{kind}' were assumed."
    )
    return kind, {
        **defaults,
        "hidden_size": width,
        "num_hidden_layers": layer_indices(shapes, f"{layer}{{}}.{names.out}.weight", where),
        "num_attention_heads": head_count(width, hints, assumed, where, mlp_dim=hidden, dinov3=kind == "dinov3_vit"),
        "intermediate_size": hidden,
        "image_size": list(size),
        "patch_size": side,
        "num_channels": channels,
        "num_register_tokens": registers,
        "qkv_bias": f"{layer}0.{names.qkv[0]}.bias" in shapes,
        **{f"{part}_bias": there for part, there in zip(BIASED, names.biased, strict=True)},
        "use_swiglu_ffn": gated,
        "use_gated_mlp": gated,
    }
