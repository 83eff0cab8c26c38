"""V-MoE's names in Flax, as the authors' public code spells them, in an `.npz` or in the authors' sharded files.

Those (`flax_shards.py`) are read by the name of their `.index`. Beside a ViT's names under `Encoder/`:
`Moe/Router/dense/kernel` [D, E], and `Moe/Mlp/Dense_{0,1}/{kernel,bias}` with the experts as their first axis.
"""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, final

from torch import Tensor

from vitlab.core.errors import CheckpointError, ConfigError
from vitlab.models.contract import Model
from vitlab.models.vit import ViTConfig
from vitlab.models.vmoe import VMoEConfig
from vitlab.weights.format import Contents, Format, Location, cannot_hold, check_holds
from vitlab.weights.google.vit_jax import POSITIONS, Google
from vitlab.weights.google.vit_names import (
    PREFIXES,
    Block,
    Names,
    Shapes,
    each_of_theirs,
    their_shapes,
    vit_rules,
    write_flax,
)
from vitlab.weights.mapping import Rule, same, transposed
from vitlab.weights.metadata import Notes, read_notes

PARTS = Block("LayerNorm_0", "SelfAttention", "LayerNorm_1", "Mlp")
OURS, THEIRS = "Transformer/", "Encoder/"  # the encoder in vit_jax, which V-MoE's code is built on, and in V-MoE
ROUTER = re.compile(r"encoderblock_(\d+)/Moe/Router/dense/kernel")
GROUP = 8  # images, in all of the authors' configurations


@final
class GoogleVMoE(Format):
    """V-MoE's dialect of Google's `.npz`: a ViT's in vit_jax's layout but for the experts."""

    name = "google"
    configs = (VMoEConfig,)

    def __init__(self) -> None:
        self.dense = Google()

    def recognizes(self, location: Location) -> bool:
        return _prefix(location.tensors.shapes) is not None

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        shapes, where, notes = location.tensors.shapes, location.where, read_notes(location)
        prefix = _prefix(shapes)
        assert prefix is not None
        placed = f"{prefix}{POSITIONS}".replace(OURS, THEIRS) in shapes
        names = Names(prefix, PARTS, POSITIONS if placed else None)
        assumed = [
            f"How tokens are routed is not in the file: the authors' two experts per token, capacity 1.05 and groups of"
            f" {GROUP} images were assumed."
        ]
        config = self._config(shapes, names, hints, notes.config, where, assumed)
        rules = _rules(config, names)
        for name, shape in their_shapes(rules, config).items():
            if shapes.get(name, shape) != shape:
                raise CheckpointError(
                    f"{where}: '{name}' has the shape {list(shapes[name])} where the other tensors call for"
                    f" {list(shape)}; the file is damaged, or another model's."
                )
        preprocess, words = self.dense.preprocess(config)
        if notes.preprocess is None:
            assumed.append(f"No preprocessing in the file: {words} was assumed.")
        return Contents(config, rules, notes.preprocess or preprocess, notes.labels, assumed)

    def _config(
        self,
        shapes: Shapes,
        names: Names,
        hints: Mapping[str, Any],
        noted: Mapping[str, Any],
        where: str,
        assumed: list[str],
    ) -> VMoEConfig:
        root = f"{names.prefix}{THEIRS}"
        routers = {
            int(match[1]): shape
            for name, shape in shapes.items()
            if name.startswith(root) and (match := ROUTER.fullmatch(name.removeprefix(root)))
        }
        as_dense = {name.replace(THEIRS, OURS): shape for name, shape in shapes.items()}
        if 0 in routers:  # a ViT is told by its first block, whose MLP is then one of many
            kernel = shapes.get(f"{root}encoderblock_0/Moe/Mlp/Dense_0/kernel", ())
            as_dense[f"{names.prefix}{OURS}encoderblock_0/{PARTS.mlp}/Dense_0/kernel"] = kernel[1:]
        try:
            dense = self.dense.read_config(as_dense, names, hints, noted, where, assumed)
        except CheckpointError as error:
            raise CheckpointError(str(error).replace(OURS, THEIRS)) from error
        every, last = _placement(tuple(sorted(routers)), dense.depth, where)
        sizes = {shape[-1] for shape in routers.values()}
        if len(sizes) != 1:
            raise CheckpointError(f"{where}: layers of {sorted(sizes)} experts; vitlab's have equally many.")
        num = sizes.pop()
        try:
            return VMoEConfig(
                **_fields(dense), num_experts=num, num_selected=min(2, num), every=every, last=last, group=GROUP
            )
        except ConfigError as error:
            raise CheckpointError(f"{where}: {error}") from error

    def write(self, model: Model, path: Path) -> None:
        config = model.config
        if type(config) is not VMoEConfig:
            raise cannot_hold(self.name)
        dense = ViTConfig(**{item.name: getattr(config, item.name) for item in dataclasses.fields(ViTConfig)})
        read_back = VMoEConfig(
            **_fields(self.dense._read_back(dense, str(path))),
            num_experts=config.num_experts,
            num_selected=min(2, config.num_experts),
            every=config.every,
            last=config.last,
            **{name: getattr(config, name) for name in TRAINING},
        )
        check_holds(self.name, config, read_back)
        names = Names("", PARTS, POSITIONS if config.positions == "learned" else None)
        noted = {"image_size": config.image_size, "resize_rule": config.resize_rule}
        notes = Notes(noted, model.preprocess, model.labels)
        write_flax(path, self.name, each_of_theirs(_rules(config, names), model.state_dict()), notes)


TRAINING = ("group", "router_noise", "importance_weight", "load_weight")  # changes nothing about trained weights


def _prefix(shapes: Shapes) -> str | None:
    """Where the parameters lie in a file of V-MoE's; None for another file."""
    for prefix in PREFIXES:
        root = f"{prefix}{THEIRS}"
        if any(name.startswith(root) and ROUTER.fullmatch(name.removeprefix(root)) for name in shapes):
            return prefix
    return None


def _placement(layers: tuple[int, ...], depth: int, where: str) -> tuple[int, int | None]:
    """`every` and `last` behind the layers with experts; every second one where that fits."""
    for every in (2, *(n for n in range(1, depth + 1) if n != 2)):
        places = tuple(range(every - 1, depth, every))
        if layers == places:
            return every, None
        if layers == places[-len(layers) :]:
            return every, len(layers)
    raise CheckpointError(f"{where}: experts in the layers {list(layers)}, a placement that vitlab's V-MoE has not.")


def _rules(config: VMoEConfig, names: Names) -> list[Rule]:
    """A ViT's, and in layers with experts theirs in place of the MLP's."""
    replaced = tuple(f"blocks.{i}.mlp." for i in config.expert_layers)
    rules = [
        dataclasses.replace(rule, theirs=tuple(name.replace(OURS, THEIRS) for name in rule.theirs))
        for rule in vit_rules(config, names)
        if not rule.ours.startswith(replaced)
    ]
    for i in config.expert_layers:
        ours, theirs = f"blocks.{i}.mlp", f"{names.prefix}{THEIRS}encoderblock_{i}/Moe"
        rules.append(transposed(f"{ours}.router.dense.weight", f"{theirs}/Router/dense/kernel"))
        for part, dense in (("up", "Dense_0"), ("down", "Dense_1")):
            rules.append(_kernels(f"{ours}.experts.{part}.weight", f"{theirs}/Mlp/{dense}/kernel"))
            rules.append(same(f"{ours}.experts.{part}.bias", f"{theirs}/Mlp/{dense}/bias"))
    return rules


def _kernels(ours: str, theirs: str) -> Rule:
    """A dense kernel an expert, [E, in, out] there."""

    def write(weight: Tensor) -> list[Tensor]:
        return [weight.mT]

    return Rule(ours, (theirs,), lambda t: t[0].mT, write)


def _fields(config: ViTConfig) -> dict[str, Any]:
    return {item.name: getattr(config, item.name) for item in dataclasses.fields(config)}
