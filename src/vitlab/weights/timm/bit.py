"""BiT as timm has it: `resnetv2_50x1_bit` and the like, as a state dict or a folder with the hub's config.json."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from vitlab.core.config import replace
from vitlab.core.errors import CannotHoldError, CheckpointError, ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.bit import BiTConfig
from vitlab.models.contract import Model
from vitlab.weights.format import Contents, Format, Location, cannot_hold
from vitlab.weights.mapping import Rule, reshaped, same, to_theirs
from vitlab.weights.metadata import read_notes
from vitlab.weights.resnet_names import TIMM, read_sizes, resnet_rules
from vitlab.weights.timm.files import reader_of, write_timm
from vitlab.weights.timm.hub_config import Said, labels_of, preprocess_of, pretrained_settings, said_by

Shapes = Mapping[str, tuple[int, ...]]
# Entry points by units per stage, and the width factor that each has itself
ENTRY_POINTS: dict[tuple[int, ...], tuple[str, int]] = {
    (3, 4, 6, 3): ("resnetv2_50x1_bit", 1),
    (3, 4, 23, 3): ("resnetv2_101x1_bit", 1),
    (3, 8, 36, 3): ("resnetv2_152x2_bit", 2),
}


def rules(config: BiTConfig) -> list[Rule]:
    """Every parameter of ours with timm's name for it; its head is a convolution of 1 x 1."""
    found = resnet_rules(config, TIMM)
    found += [same(f"norm.{leaf}", f"norm.{leaf}") for leaf in ("weight", "bias")]
    if config.num_classes:
        shape = (config.num_classes, config.num_features)
        found.append(reshaped("head.weight", "head.fc.weight", our_shape=shape, their_shape=(*shape, 1, 1)))
        found.append(same("head.bias", "head.fc.bias"))
    return found


def config_of(shapes: Shapes, said: Said, hints: Mapping[str, Any], where: str, assumed: list[str]) -> BiTConfig:
    """The configuration behind timm's shapes, with its own epsilon."""
    if said.architecture and "_bit" not in said.architecture:
        raise CheckpointError(f"{where}: timm's '{said.architecture}' is not one of BiT's: its convolutions differ.")
    for name in shapes:
        if name.endswith("running_mean") or name == "stem.norm.weight":
            raise CheckpointError(f"{where}: not one of BiT's ResNets: it has no place for '{name}'.")
    layers, width, channels = read_sizes(shapes, TIMM, "", where)
    sizes = said.sizes(where) or ([hints["image_size"]] if "image_size" in hints else [])
    if not sizes:
        sizes = [(224, 224)]
        assumed.append("The file does not say its image size: 224 px was assumed.")
    try:
        config = BiTConfig(
            layers=layers,
            width=width,
            channels=channels,
            num_classes=shapes.get("head.fc.weight", (0,))[0],
            image_size=sizes[0],
            weight_eps=1e-8,
        )
        return replace(config, said.notes.config, where="vitlab's notes in it")
    except ConfigError as error:
        raise CheckpointError(f"{where}: {error}") from error


@final
class TimmBiT(Format):
    name = "timm"
    configs = (BiTConfig,)

    def recognizes(self, location: Location) -> bool:
        shapes = location.tensors.shapes
        return "stem.conv.weight" in shapes and "stages.0.blocks.0.conv3.weight" in shapes

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        where, assumed = location.where, list[str]()
        said = said_by(location.settings, read_notes(location), where)
        config = config_of(location.tensors.shapes, said, hints, where, assumed)
        preprocess = _preprocess(config, said, where, assumed)
        return Contents(config, rules(config), preprocess, labels_of(said, where), assumed)

    def write(self, model: Model, path: Path) -> None:
        config = model.config
        if not isinstance(config, BiTConfig):
            raise cannot_hold(self.name)
        if config.activation == "post":
            raise CannotHoldError("The timm format holds pre-activation BiT only; save this one with format='vitlab'.")
        tensors = to_theirs(rules(config), model.state_dict())
        read_back = reader_of(tensors, path, config.image_size, config_of, _preprocess)
        write_timm(model, path, tensors, settings=lambda: _settings(model, config), read_back=read_back)


def _preprocess(config: BiTConfig, said: Said, where: str, assumed: list[str]) -> Preprocess:
    if said.notes.preprocess is not None or "mean" in said.pretrained:
        return preprocess_of(config, said, where, assumed)
    assumed.append("No preprocessing in the file: BiT's was assumed (resized to the input size, values -1 to 1).")
    return Preprocess(size=config.image_size)


def _settings(model: Model, config: BiTConfig) -> dict[str, Any]:
    """The config.json with which timm builds the model."""
    entry, factor = ENTRY_POINTS.get(config.layers, ("", 1))
    if not entry or config.width % factor or config.groups != 32:
        raise CannotHoldError(
            f"timm has no entry point for a BiT of layers={config.layers} and width={config.width}; write a single"
            " .safetensors file, or use format 'vitlab'."
        )
    own = config.width // factor
    widths = {} if own == 64 else {"stem_chs": own, "channels": [own * 4 * 2**i for i in range(4)]}
    return {
        "architecture": entry,
        "num_classes": config.num_classes,
        "num_features": config.num_features,
        **({} if model.labels is None else {"label_names": list(model.labels)}),
        "model_args": {"num_classes": config.num_classes, "in_chans": config.channels, **widths},
        "pretrained_cfg": {
            **pretrained_settings(model),
            "fixed_input_size": False,
            "pool_size": [-(-side // 32) for side in config.image_size],
            "first_conv": "stem.conv",
            "classifier": "head.fc",
        },
    }
