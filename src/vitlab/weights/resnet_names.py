"""timm's and transformers' names of a ResNet: modules and layouts as ours, under other names."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from vitlab.core.errors import CheckpointError
from vitlab.models.resnet import ResNetSpec
from vitlab.weights.mapping import Rule, same


@dataclass(frozen=True)
class Modules:
    """What a library calls a ResNet's parts; stages and units are numbered from 0."""

    root: str
    root_norm: str
    unit: str


TIMM = Modules("stem.conv", "stem.norm", "stages.{}.blocks.{}")
TIMM_STEM = Modules("conv", "norm", "stages.{}.blocks.{}")  # a hybrid's without stages
TRANSFORMERS = Modules("embedder.convolution", "embedder.norm", "encoder.stages.{}.layers.{}")
PARTS = {f"{part}{number}": f"{part}{number}" for part in ("conv", "norm") for number in (1, 2, 3)} | {
    "conv_proj": "downsample.conv",
    "norm_proj": "downsample.norm",
}


def resnet_rules(spec: ResNetSpec, names: Modules, prefix: str = "") -> list[Rule]:
    """Our stem and units, and theirs."""
    post = spec.activation == "post"
    rules = [same("root.conv.weight", f"{prefix}{names.root}.weight")]
    rules += _norm("root.norm", prefix + names.root_norm) if post else []
    for i, (stage, unit) in enumerate(spec.unit_names):
        theirs = prefix + names.unit.format(stage - 1, unit - 1)
        for ours, part in PARTS.items():
            if (ours.endswith("_proj") and unit > 1) or (ours == "norm_proj" and not post):
                continue
            if ours.startswith("conv"):
                rules.append(same(f"units.{i}.{ours}.weight", f"{theirs}.{part}.weight"))
            else:
                rules += _norm(f"units.{i}.{ours}", f"{theirs}.{part}")
    return rules


def read_sizes(
    shapes: Mapping[str, tuple[int, ...]], names: Modules, prefix: str, where: str
) -> tuple[tuple[int, ...], int, int]:
    """Units per stage, the stem's width, and the channels of images."""
    root = shapes.get(f"{prefix}{names.root}.weight", ())
    if len(root) != 4 or min(root) < 1:
        raise CheckpointError(f"{where}: '{prefix}{names.root}.weight' is missing or no convolution's.")
    pattern = re.escape(prefix) + names.unit.replace(".", r"\.").replace("{}", r"(\d{1,9})") + r"\.conv1\.weight"
    found = {(int(match[1]), int(match[2])) for name in shapes if (match := re.fullmatch(pattern, name))}
    stages = range(len({stage for stage, _ in found}))
    layers = tuple(sum(1 for stage, _ in found if stage == number) for number in stages)
    if 0 in layers or found != {(stage, unit) for stage, count in enumerate(layers) for unit in range(count)}:
        raise CheckpointError(f"{where}: units are missing between others of its ResNet; the file is damaged.")
    return layers, root[0], root[1]


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [same(f"{ours}.{leaf}", f"{theirs}.{leaf}") for leaf in ("weight", "bias")]
