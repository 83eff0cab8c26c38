"""CvT's checkpoints: transformers' folders (`microsoft/cvt-13` and the like), and the authors' own .pth files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from safetensors.torch import save_file

from vitlab.core.config import replace
from vitlab.core.errors import CannotHoldError, CheckpointError, ConfigError
from vitlab.core.files import atomic_folder
from vitlab.models.contract import Model
from vitlab.models.create import empty_model
from vitlab.models.cvt import CvTConfig
from vitlab.weights.format import Contents, Format, Location, cannot_hold, check_holds, layer_indices
from vitlab.weights.hf.preprocess import DEFAULTS as PREPROCESS
from vitlab.weights.hf.preprocess import find_preprocess, write_preprocess
from vitlab.weights.hf.vit_config import read_labels, write_labels
from vitlab.weights.mapping import Rule, reshaped, same, to_theirs
from vitlab.weights.native import check_replaceable, write_json

Shapes = Mapping[str, tuple[int, ...]]
FILES = ("config.json", "model.safetensors", "preprocessor_config.json")
HEAD_WIDTH = 64  # of every published CvT


@dataclass(frozen=True)
class Names:
    """What a library calls CvT's parts; stages and blocks are numbered from 0."""

    stage: str
    block: str
    embedding: dict[str, str]  # conv, norm
    parts: dict[str, str]  # of a block
    projection: tuple[str, str, str]  # {} is query, key or value, or its initial; conv, norm, linear
    initials: bool
    norm: str
    head: str


TRANSFORMERS = Names(
    stage="encoder.stages.{}.",
    block="layers.{}.",
    embedding={
        "conv": "embedding.convolution_embeddings.projection",
        "norm": "embedding.convolution_embeddings.normalization",
    },
    parts={
        "norm1": "layernorm_before",
        "attention.out": "attention.output.dense",
        "norm2": "layernorm_after",
        "up": "intermediate.dense",
        "down": "output.dense",
    },
    projection=(
        "attention.attention.convolution_projection_{}.convolution_projection.convolution",
        "attention.attention.convolution_projection_{}.convolution_projection.normalization",
        "attention.attention.projection_{}",
    ),
    initials=False,
    norm="layernorm",
    head="classifier",
)
AUTHORS = Names(
    stage="stage{}.",
    block="blocks.{}.",
    embedding={"conv": "patch_embed.proj", "norm": "patch_embed.norm"},
    parts={"norm1": "norm1", "attention.out": "attn.proj", "norm2": "norm2", "up": "mlp.fc1", "down": "mlp.fc2"},
    projection=("attn.conv_proj_{}.conv", "attn.conv_proj_{}.bn", "attn.proj_{}"),
    initials=True,
    norm="norm",
    head="head",
)
TOWER = "cvt."

# What config.json may leave out; the rest of what vitlab's CvT can be stands in `_check_settings`.
SETTINGS: dict[str, list[Any]] = {
    "num_heads": [1, 3, 6],
    "patch_stride": [4, 2, 2],
    "patch_padding": [2, 1, 1],
    "stride_kv": [2, 2, 2],
    "stride_q": [1, 1, 1],
    "padding_kv": [1, 1, 1],
    "padding_q": [1, 1, 1],
    "cls_token": [False, False, True],
    "qkv_projection_method": ["dw_bn"] * 3,
}


def rules(config: CvTConfig, names: Names, tower: str = "") -> list[Rule]:
    """Every tensor of ours with a library's name for it, running statistics too."""
    return [_rule(ours, config, names, tower) for ours in empty_model(config).state_dict()]


def _rule(ours: str, config: CvTConfig, names: Names, tower: str) -> Rule:
    last = tower + names.stage.format(len(config.widths) - 1)
    if ours == "class_token":
        width = config.widths[-1]
        return reshaped(ours, f"{last}cls_token", our_shape=(1, width), their_shape=(1, 1, width))
    owner, _, leaf = ours.rpartition(".")
    if owner in ("norm", "head"):
        return same(ours, f"{names.norm if owner == 'norm' else names.head}.{leaf}")
    kind, index, part = owner.split(".", 2)
    if kind == "embeddings":
        return same(ours, f"{tower}{names.stage.format(index)}{names.embedding[part]}.{leaf}")
    stage, block = config.places[int(index)]
    start = tower + names.stage.format(stage) + names.block.format(block)
    return same(ours, f"{start}{_part(part, names)}.{leaf}")


def _part(ours: str, names: Names) -> str:
    """A module of a block: 'attention.conv_q.conv', 'attention.q', 'norm1', ..."""
    if ours in names.parts:
        return names.parts[ours]
    initial, inner = ours.removeprefix("attention.").removeprefix("conv_")[0], ours.rpartition(".")[2]
    which = initial if names.initials else {"q": "query", "k": "key", "v": "value"}[initial]
    return names.projection[{"conv": 0, "norm": 1}.get(inner, 2)].format(which)


def config_of(shapes: Shapes, names: Names, tower: str, said: Mapping[str, Any], where: str) -> CvTConfig:
    """The configuration behind shapes, and what only settings tell: `said` has lists with a number per stage."""

    def shape(name: str, axes: int) -> tuple[int, ...]:
        found = shapes.get(name)
        if found is None or len(found) != axes or min(found) < 1:
            raise CheckpointError(f"{where}: '{name}' is missing or has a shape that no CvT has.")
        return found

    stages = layer_indices(shapes, f"{tower}{names.stage}{names.embedding['conv']}.weight", where)
    starts = [tower + names.stage.format(stage) for stage in range(stages)]
    patches = [shape(f"{start}{names.embedding['conv']}.weight", 4) for start in starts]
    widths = tuple(patch[0] for patch in patches)
    norm1, linear = names.parts["norm1"], _part("attention.q", names)
    first = f"{starts[0]}{names.block.format(0)}" if starts else ""
    heads = said.get("num_heads") or [max(width // HEAD_WIDTH, 1) for width in widths]
    try:
        return CvTConfig(
            widths=widths,
            depths=tuple(layer_indices(shapes, f"{start}{names.block}{norm1}.weight", where) for start in starts),
            heads=tuple(heads),
            patch_sizes=tuple(patch[-1] for patch in patches),
            patch_strides=tuple(said["patch_stride"]),
            patch_paddings=tuple(said["patch_padding"]),
            mlp_ratio=shape(f"{first}{names.parts['up']}.weight", 2)[0] / widths[0],
            num_classes=shapes.get(f"{names.head}.weight", (0,))[0],
            channels=patches[0][1],
            class_token=f"{starts[-1]}cls_token" in shapes,
            kernel=shape(f"{first}{_part('attention.conv_k.conv', names)}.weight", 4)[-1],
            stride_kv=said["stride_kv"][0],
            qkv_bias=f"{first}{linear}.bias" in shapes,
        )
    except (ConfigError, TypeError, IndexError) as error:
        raise CheckpointError(f"{where}: {error}") from error


def _check_settings(settings: Mapping[str, Any], where: str) -> dict[str, list[Any]]:
    """The settings with a value per stage; refused where they are something that vitlab's CvT is not."""
    said = {name: settings.get(name, default) for name, default in SETTINGS.items()}
    for name, values in said.items():
        if not isinstance(values, list) or not values:
            raise CheckpointError(f"{where}: '{name}' must be a list with a value per stage, not {values!r}.")
    kernel = settings.get("kernel_qkv", [3])[0]
    uniform = {"stride_q": 1, "padding_q": kernel // 2, "padding_kv": kernel // 2, "qkv_projection_method": "dw_bn"}
    for name, value in (uniform | {"stride_kv": said["stride_kv"][0]}).items():
        if set(said[name]) != {value}:
            raise CheckpointError(
                f"{where}: not a CvT that vitlab has: '{name}' is {said[name]}, not {value} throughout."
            )
    if any(said["cls_token"][:-1]):
        raise CheckpointError(f"{where}: not a CvT that vitlab has: a class token in another stage than the last.")
    return said


@final
class HuggingFaceCvT(Format):
    name = "hf"
    configs = (CvTConfig,)

    def recognizes(self, location: Location) -> bool:
        named = (location.settings or {}).get("model_type")
        first = f"{TRANSFORMERS.stage.format(0)}{TRANSFORMERS.embedding['conv']}.weight"
        return named == "cvt" or (
            named is None and any(name in location.tensors.shapes for name in (first, TOWER + first))
        )

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        settings, shapes, assumed = location.settings or {}, location.tensors.shapes, list[str]()
        where = str(location.folder / "config.json") if settings else location.where
        tower = TOWER if any(name.startswith(TOWER) for name in shapes) else ""
        said = _said(settings, where, hints, assumed)
        config = replace(config_of(shapes, TRANSFORMERS, tower, said, where), {"gelu": "exact"}, where=where)
        preprocess, _ = find_preprocess(location.folder, "cvt", config.image_size, assumed)
        # config.json names no size: the network takes any, and the preprocessing decides
        size = hints.get("image_size") or preprocess.size
        config = replace(config, {"image_size": size}, where=where)
        found = rules(config, TRANSFORMERS, tower)
        if f"{TRANSFORMERS.norm}.weight" not in shapes:  # CvtModel, which ends before the norm
            found = [rule for rule in found if not rule.ours.startswith("norm.")]
        return Contents(config, found, preprocess.with_size(size), assumed=assumed, **read_labels(settings, where))

    def write(self, model: Model, path: Path) -> None:
        config = model.config
        if not isinstance(config, CvTConfig):
            raise cannot_hold(self.name)
        if config.image_size != model.preprocess.size:
            raise CannotHoldError(
                f"The hf format has no image size but the preprocessing's, {model.preprocess.size}: give the model that"
                " one, or use format 'vitlab'."
            )
        for number, depth in enumerate(config.depths, 1):
            if depth < number:  # transformers 5 looks up a block's rate of stochastic depth by its stage
                raise CannotHoldError(
                    f"transformers cannot build this CvT: its stage {number} needs {number} blocks or more. Use format"
                    " 'vitlab'."
                )
        check_replaceable(path, FILES, lambda settings: settings.get("model_type") == "cvt")
        state = {name: value.detach().cpu() for name, value in model.state_dict().items()}
        tensors = to_theirs(rules(config, TRANSFORMERS, TOWER), state)
        settings = _settings(config)
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        read_back = config_of(shapes, TRANSFORMERS, TOWER, _check_settings(settings, str(path)), str(path))
        fixed = {"image_size": config.image_size, "gelu": "exact"}
        check_holds(self.name, config, replace(read_back, fixed, where=str(path)))
        labels = write_labels(model) or {"id2label": {}, "label2id": {}}
        with atomic_folder(path) as folder:
            write_json(folder / "config.json", {**settings, **labels})
            write_json(folder / "preprocessor_config.json", write_preprocess(model.preprocess))
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _said(settings: Mapping[str, Any], where: str, hints: Mapping[str, Any], assumed: list[str]) -> Mapping[str, Any]:
    """config.json's settings, or the published models' where there is none."""
    if settings:
        return _check_settings(settings, where)
    heads = {"num_heads": list(hints["heads"]) if "heads" in hints else None}
    assumed.append("No config.json beside the file: strides of 4, 2 and 2, and heads of width 64 were assumed.")
    return {**SETTINGS, **heads}


def _settings(config: CvTConfig) -> dict[str, Any]:
    """The config.json with which transformers builds the model."""
    stages = len(config.widths)
    each: dict[str, Any] = {
        "mlp_ratio": config.mlp_ratio,
        "attention_drop_rate": 0.0,
        "drop_rate": 0.0,
        "qkv_bias": config.qkv_bias,
        "qkv_projection_method": "dw_bn",
        "kernel_qkv": config.kernel,
        "padding_kv": config.kernel // 2,
        "stride_kv": config.stride_kv,
        "padding_q": config.kernel // 2,
        "stride_q": 1,
    }
    return {
        "architectures": ["CvtForImageClassification"],
        "model_type": "cvt",
        "num_channels": config.channels,
        "patch_sizes": list(config.patch_sizes),
        "patch_stride": list(config.patch_strides),
        "patch_padding": list(config.patch_paddings),
        "embed_dim": list(config.widths),
        "num_heads": list(config.heads),
        "depth": list(config.depths),
        "drop_path_rate": [0.0] * stages,
        "cls_token": [False] * (stages - 1) + [config.class_token],
        **{name: [value] * stages for name, value in each.items()},
    }


@final
class AuthorsCvT(Format):
    """The authors' state dicts, whose MLPs have the quick GELU; read only."""

    name = "timm"  # whose names they resemble, so that they are looked for there
    configs = ()

    def recognizes(self, location: Location) -> bool:
        return f"{AUTHORS.stage.format(0)}{AUTHORS.embedding['conv']}.weight" in location.tensors.shapes

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        where, assumed = location.where, list[str]()
        said = _said({}, where, hints, assumed)
        config = config_of(location.tensors.shapes, AUTHORS, "", said, where)
        size = hints.get("image_size") or config.image_size
        config = replace(config, {"image_size": size}, where=where)
        assumed.append(f"The file does not say its image size or preprocessing: {size[0]} x {size[1]} px were assumed.")
        return Contents(config, rules(config, AUTHORS), PREPROCESS["cvt"].with_size(size), None, assumed)

    def write(self, model: Model, path: Path) -> None:
        del model, path
        raise cannot_hold(self.name)
