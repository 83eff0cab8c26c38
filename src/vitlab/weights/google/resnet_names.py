"""Google's names and layouts of a ResNet, in hybrids and in BiT: a kernel is [row, column, in, out]."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from einops import rearrange

from vitlab.core.errors import CheckpointError
from vitlab.models.resnet import ResNetSpec
from vitlab.weights.google.vit_names import Shapes
from vitlab.weights.mapping import Rule, reshaped


@dataclass(frozen=True)
class Spelling:
    """What a dialect calls a ResNet's parts."""

    root: str  # the stem's kernel
    unit: str  # of a stage and a number, both from 1
    kernels: tuple[str, str, str, str]  # of a unit's three convolutions and its projection
    norms: tuple[str, str, str, str]
    scale: str = "scale"
    bias: str = "bias"
    norm_axes: int = 1  # 4: [1, 1, 1, C]
    root_norm: str = "gn_root"


CONVS = ("conv1/kernel", "conv2/kernel", "conv3/kernel", "conv_proj/kernel")
NORMS = ("gn1", "gn2", "gn3", "gn_proj")
LINEN = Spelling("conv_root/kernel", "block{}/unit{}", CONVS, NORMS)  # hybrids, and big_vision's V1
PAPER = Spelling("root_block/conv_root/kernel", "block{}/unit{:02d}", CONVS, NORMS, norm_axes=4)  # big_vision's V2
TENSORFLOW = Spelling(  # BiT's own files
    "resnet/root_block/standardized_conv2d/kernel",
    "resnet/block{}/unit{:02d}",
    tuple(f"{part}/standardized_conv2d/kernel" for part in ("a", "b", "c", "a/proj")),  # pyright: ignore[reportArgumentType]
    ("a/group_norm", "b/group_norm", "c/group_norm", ""),
    scale="gamma",
    bias="beta",
)


def resnet_rules(spec: ResNetSpec, names: Spelling, prefix: str = "") -> list[Rule]:
    """Our stem and units, and theirs."""
    rules = [kernel("root.conv.weight", prefix + names.root)]
    post = spec.activation == "post"
    if post:
        rules += group_norm("root.norm", prefix + names.root_norm, names)
    for i, (stage, unit) in enumerate(spec.unit_names):
        ours, theirs = f"units.{i}", f"{prefix}{names.unit.format(stage, unit)}/"
        for number, (conv, norm) in enumerate(zip(names.kernels[:3], names.norms[:3], strict=True), 1):
            rules.append(kernel(f"{ours}.conv{number}.weight", theirs + conv))
            rules += group_norm(f"{ours}.norm{number}", theirs + norm, names)
        if unit == 1:
            rules.append(kernel(f"{ours}.conv_proj.weight", theirs + names.kernels[3]))
            rules += group_norm(f"{ours}.norm_proj", theirs + names.norms[3], names) if post else []
    return rules


def kernel(ours: str, theirs: str) -> Rule:
    """A convolution's, [row, column, in, out] there."""
    return Rule(
        ours,
        (theirs,),
        lambda t: rearrange(t[0], "h w i o -> o i h w"),
        lambda t: [rearrange(t, "o i h w -> h w i o")],
    )


def group_norm(ours: str, theirs: str, names: Spelling) -> list[Rule]:
    """Scale and bias, read from one axis or four: Flax has written both."""
    shape = (-1,) if names.norm_axes == 1 else (1,) * (names.norm_axes - 1) + (-1,)
    return [
        reshaped(f"{ours}.{leaf}", f"{theirs}/{name}", our_shape=(-1,), their_shape=shape)
        for leaf, name in (("weight", names.scale), ("bias", names.bias))
    ]


def read_sizes(shapes: Shapes, names: Spelling, prefix: str, where: str) -> tuple[tuple[int, ...], int, int]:
    """Units per stage, the stem's width, and the channels of images."""
    root = shapes[prefix + names.root]
    if len(root) != 4 or min(root) < 1:
        raise CheckpointError(f"{where}: '{prefix}{names.root}' has the shape {list(root)}, not that of a ResNet.")
    pattern = re.escape(prefix + names.unit.format(1, 1) + "/" + names.kernels[0])
    pattern = (
        pattern.replace("block1", r"block(\d{1,9})")
        .replace("unit01", r"unit(\d{1,9})")
        .replace("unit1", r"unit(\d{1,9})")
    )
    found = {(int(match[1]), int(match[2])) for name in shapes if (match := re.fullmatch(pattern, name))}
    stages = range(1, len({stage for stage, _ in found}) + 1)
    layers = tuple(sum(1 for stage, _ in found if stage == number) for number in stages)
    wanted = {(stage, unit) for stage, count in enumerate(layers, 1) for unit in range(1, count + 1)}
    if 0 in layers or found != wanted:
        raise CheckpointError(f"{where}: units are missing between others of its ResNet; the file is damaged.")
    return layers, root[3], root[2]


def fits(name: str, found: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a tensor has its shape; group norms may have one axis or four."""
    if tuple(found) == tuple(wanted):
        return True
    is_norm = re.search(r"(^|/)(gn\w+|norm-pre-head|group_norm)/\w+$", name) is not None
    return is_norm and [side for side in found if side != 1] == [side for side in wanted if side != 1]
