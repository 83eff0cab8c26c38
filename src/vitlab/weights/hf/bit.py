"""transformers' Bit: `google/bit-50` and the like, folders with config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from safetensors.torch import save_file

from vitlab.core.config import replace
from vitlab.core.errors import CannotHoldError, CheckpointError, ConfigError
from vitlab.core.files import atomic_folder
from vitlab.models.bit import BiTConfig
from vitlab.models.contract import Model
from vitlab.weights.format import Contents, Format, Location, cannot_hold, check_holds
from vitlab.weights.hf.preprocess import find_preprocess, write_preprocess
from vitlab.weights.hf.vit_config import read_labels, write_labels
from vitlab.weights.mapping import Rule, same, to_theirs
from vitlab.weights.native import check_replaceable, write_json
from vitlab.weights.resnet_names import TRANSFORMERS, read_sizes, resnet_rules

FILES = ("config.json", "model.safetensors", "preprocessor_config.json")
TOWER = "bit."
ROOT = f"{TRANSFORMERS.root}.weight"
# What config.json may leave out, and the values that vitlab's BiT can be
DEFAULTS: dict[str, Any] = {
    "layer_type": "preactivation",
    "hidden_act": "relu",
    "global_padding": None,
    "num_groups": 32,
    "embedding_dynamic_padding": False,
    "output_stride": 32,
    "width_factor": 1,
}


def rules(config: BiTConfig, tower: str) -> list[Rule]:
    """Every parameter of ours with transformers' name for it."""
    found = resnet_rules(config, TRANSFORMERS, tower)
    if config.activation == "pre":
        found += [same(f"norm.{leaf}", f"{tower}norm.{leaf}") for leaf in ("weight", "bias")]
    if config.num_classes:
        found += [same(f"head.{leaf}", f"classifier.1.{leaf}") for leaf in ("weight", "bias")]
    return found


def config_of(settings: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]], where: str) -> BiTConfig:
    """The configuration behind the tensors' shapes and what only config.json says."""
    said = {name: settings.get(name, default) for name, default in DEFAULTS.items()}
    tower = _tower(shapes)
    same_padding = str(said["global_padding"]).upper() == "SAME"
    if (
        said["hidden_act"] != "relu"
        or said["output_stride"] != 32
        or bool(said["embedding_dynamic_padding"]) != same_padding
    ):
        raise CheckpointError(
            f"{where}: not a BiT that vitlab has: those have hidden_act 'relu', output_stride 32, and 'same' padding in"
            " both the stem's pooling and the convolutions, or in neither."
        )
    if said["layer_type"] == "bottleneck" and not same_padding:
        raise CheckpointError(
            f"{where}: its stem pads before the norm (bottleneck without 'same' padding); BiT's do not."
        )
    layers, width, channels = read_sizes(shapes, TRANSFORMERS, tower, where)
    post = {} if said["layer_type"] == "preactivation" else {"activation": "post"}
    try:
        config = BiTConfig(
            layers=layers,
            width=width,
            channels=channels,
            num_classes=shapes.get("classifier.1.weight", (0,))[0],
            weight_eps=1e-8,
            padding="same" if same_padding else "symmetric",
        )
        return replace(config, {"groups": said["num_groups"], **post}, where=where)
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error


@final
class HuggingFaceBiT(Format):
    name = "hf"
    configs = (BiTConfig,)

    def recognizes(self, location: Location) -> bool:
        named = (location.settings or {}).get("model_type")
        return named == "bit" or (
            named is None and any(name in location.tensors.shapes for name in (ROOT, TOWER + ROOT))
        )

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        settings, assumed = location.settings or {}, list[str]()
        where, shapes = str(location.folder / "config.json"), location.tensors.shapes
        config = config_of(settings, shapes, where if settings else location.where)
        if not settings:
            assumed.append("No config.json beside the file: norms of 32 groups and padding on all sides were assumed.")
        preprocess, _ = find_preprocess(location.folder, "bit", config.image_size, assumed)
        # config.json names no size: the network takes any, and the preprocessing decides
        size = hints.get("image_size") or preprocess.size
        config = replace(config, {"image_size": size}, where=where)
        found = rules(config, _tower(shapes))
        return Contents(config, found, preprocess.with_size(size), assumed=assumed, **read_labels(settings, where))

    def write(self, model: Model, path: Path) -> None:
        config = model.config
        if not isinstance(config, BiTConfig):
            raise cannot_hold(self.name)
        if config.image_size != model.preprocess.size:
            raise CannotHoldError(
                f"The hf format has no image size but the preprocessing's, {model.preprocess.size}: give the model that"
                " one, or use format 'vitlab'."
            )
        check_replaceable(path, FILES, lambda settings: settings.get("model_type") == "bit")
        tower = TOWER if config.num_classes else ""
        tensors = to_theirs(rules(config, tower), {k: v.detach().cpu() for k, v in model.state_dict().items()})
        settings = {
            "architectures": ["BitForImageClassification" if config.num_classes else "BitModel"],
            "model_type": "bit",
            **DEFAULTS,
            "num_channels": config.channels,
            "embedding_size": config.width,
            "hidden_sizes": [4 * config.width * 2**i for i in range(len(config.layers))],
            "depths": list(config.layers),
            "layer_type": "preactivation" if config.activation == "pre" else "bottleneck",
            "global_padding": "SAME" if config.padding == "same" else None,
            "embedding_dynamic_padding": config.padding == "same",
            "num_groups": config.groups,
        }
        shapes = {name: tuple(value.shape) for name, value in tensors.items()}
        try:
            read_back = config_of(settings, shapes, str(path))
        except CheckpointError as error:
            raise CannotHoldError(f"The hf format cannot hold this model: {error}") from error
        check_holds(self.name, config, replace(read_back, {"image_size": config.image_size}, where=str(path)))
        with atomic_folder(path) as folder:
            write_json(folder / "config.json", {**settings, **write_labels(model)})
            write_json(folder / "preprocessor_config.json", write_preprocess(model.preprocess))
            save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def _tower(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return TOWER if TOWER + ROOT in shapes else ""
