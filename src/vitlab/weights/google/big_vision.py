"""Google's `.npz` as big_vision has it: positions at the top, mean or attention pooling, layers perhaps stacked."""

from typing import final

from torch import Tensor

from vitlab.core.errors import CheckpointError
from vitlab.core.preprocess import Preprocess
from vitlab.models.vit import ViTConfig
from vitlab.weights.files.container import TensorFile
from vitlab.weights.format import Location
from vitlab.weights.google.vit import FlaxFormat
from vitlab.weights.google.vit_jax import POSITIONS as VIT_JAX_POSITIONS
from vitlab.weights.google.vit_names import BY_KIND, Names, Shapes, find_block, find_prefix

POSITIONS = ("pos_embedding", "Transformer/pos_embedding")  # the second before 2022


@final
class BigVision(FlaxFormat):
    """big_vision: positions are added before the class token joins; in older files it has one too."""

    name = "big_vision"
    no_positions = "sincos2d"
    attention_pool = True
    class_positions = (0, 1)

    def tensors(self, location: Location) -> TensorFile:
        file, prefix = location.tensors, find_prefix(location.tensors.shapes)
        stack = f"{prefix}Transformer/encoderblock"
        stacked = prefix is not None and any(name.startswith(f"{stack}/") for name in file.shapes)
        return Unstacked(file, stack) if stacked else file

    def names(self, shapes: Shapes) -> Names | None:
        prefix = find_prefix(shapes)
        if prefix is None or find_block(shapes, prefix) is not BY_KIND or f"{prefix}{VIT_JAX_POSITIONS}" in shapes:
            return None
        return Names(prefix, BY_KIND, next((name for name in POSITIONS if f"{prefix}{name}" in shapes), None))

    def names_to_write(self, config: ViTConfig) -> Names:
        return Names("", BY_KIND, POSITIONS[0] if config.positions == "learned" else None)

    def preprocess(self, config: ViTConfig) -> tuple[Preprocess, str]:
        size = config.image_size
        if config.num_classes == 0:
            return Preprocess(size=size), "big_vision's for image towers (resized to the input size, values -1 to 1)"
        edge = round(min(size) * 256 / 224)
        words = f"big_vision's for classifiers (shorter side {edge} px, centre cropped, values -1 to 1)"
        return Preprocess(size=size, resize="shortest", shortest_edge=edge), words


@final
class Unstacked(TensorFile):
    """Scanned layers one by one: 'encoderblock/x' of [L, ...] as 'encoderblock_0/x' to 'encoderblock_{L-1}/x'."""

    def __init__(self, file: TensorFile, stack: str) -> None:
        super().__init__(file.path)
        self._file = file
        self._parts: dict[str, tuple[str, int]] = {}
        depths: set[int] = set()
        for name, shape in file.shapes.items():
            if not name.startswith(f"{stack}/"):
                self.shapes[name] = shape
                continue
            depths.add(shape[0] if shape else 0)
            if len(depths) > 1 or not shape or 0 in shape:
                raise CheckpointError(
                    f"{file.path}: '{name}' does not stack as many layers as the others; it is damaged."
                )
            for i in range(shape[0]):
                part = f"{stack}_{i}{name.removeprefix(stack)}"
                self.shapes[part], self._parts[part] = shape[1:], (name, i)

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._parts:
            return self._file[name]
        return self._file.part(*self._parts[name])
