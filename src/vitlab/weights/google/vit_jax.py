"""Google's `.npz` as the paper's code (vit_jax) and its public checkpoints have it."""

from typing import final

from vitlab.core.preprocess import Preprocess
from vitlab.models.hybrid import HybridConfig
from vitlab.models.vit import ViTConfig
from vitlab.weights.google.vit import FlaxFormat
from vitlab.weights.google.vit_names import COUNTED, Names, Shapes, find_block, find_prefix

POSITIONS = "Transformer/posembed_input/pos_embedding"


@final
class Google(FlaxFormat):
    """vit_jax: positions in a module of the encoder, the class token's among them; plain ViTs and hybrids."""

    name = "google"
    configs = (ViTConfig, HybridConfig)
    no_positions = "none"
    attention_pool = False
    class_positions = (1,)

    def names(self, shapes: Shapes) -> Names | None:
        prefix = find_prefix(shapes)
        if prefix is None:
            return None
        block, placed = find_block(shapes, prefix), f"{prefix}{POSITIONS}" in shapes
        if block is not COUNTED and not placed:
            return None
        return Names(prefix, block or COUNTED, POSITIONS if placed else None)

    def names_to_write(self, config: ViTConfig) -> Names:
        return Names("", COUNTED, POSITIONS if config.positions == "learned" else None)

    def preprocess(self, config: ViTConfig) -> tuple[Preprocess, str]:
        return Preprocess(size=config.image_size), "the paper's (resized straight to the input size, values -1 to 1)"
