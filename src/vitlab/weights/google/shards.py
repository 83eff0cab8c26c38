"""The sharded checkpoints in which V-MoE's authors published its weights: `NAME.index` and `NAME.data-nnnnn-of-NNNNN`.

All are MessagePack. The index has the tree of arrays, at each leaf the shape, the slices that the array was cut into
and the shard of each; a shard has, by an array's number in the flattened tree, its slices and their values. In a tree
of dictionaries JAX numbers the leaves with each dictionary's keys sorted. Their code's E3 ensembles are written in the
same way under the same names, but route otherwise: they are not V-MoEs.
"""

import math
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

import msgpack
import numpy as np
import torch
from msgpack import ExtType
from torch import Tensor

from vitlab.core.errors import CheckpointError
from vitlab.weights.files.container import TensorFile, reason

VERSIONS = (None, "20220622")
ARRAY, SLICES, INDEX = 1, 6, 8  # the codes of Flax's arrays, and of two extensions of the authors' code
MAGIC = "__msgpack_array_chunk_a87ca2__"  # a key of every shard
MAX_ITEMS = 1 << 14  # of a list or a dictionary: room is made for as many as a file says
DAMAGE = (msgpack.UnpackException, ValueError, TypeError, KeyError, IndexError, AttributeError, OSError, RecursionError)
Bounds: TypeAlias = tuple[tuple[int, int], ...]  # start and stop along each axis


@dataclass(frozen=True)
class _Leaf:
    """What the index says of an array."""

    number: int
    shape: tuple[int, ...]
    dtype: str
    shards: tuple[tuple[Bounds, int], ...]  # each slice, and the shard that has it


@final
class FlaxShards(TensorFile):
    """A sharded checkpoint by the flat names of its tree, 'Encoder/encoder_norm/scale'."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            content = unpack(path.read_bytes())
            version, self._count, tree = content.get("version"), int(content["shard_count"]), content["index"]
            if version not in VERSIONS:
                raise CheckpointError(f"{path}: version {version} of the authors' format is not known here.")
            if version is None and "opt_state" in tree:
                raise CheckpointError(
                    f"{path}: an old checkpoint of a whole training, whose arrays cannot be told apart by number; save"
                    " its parameters alone."
                )
            found = list(_leaves(tree))
            self._leaves = {name: _leaf(number, item) for number, (name, item) in enumerate(found)}
        except DAMAGE as error:
            raise CheckpointError(f"{path}: not an index of a sharded checkpoint ({reason(error)}).") from error
        if not self._leaves:
            raise CheckpointError(f"{path}: there are no arrays in it.")
        self.shapes = {name: leaf.shape for name, leaf in self._leaves.items()}
        self._shards: dict[int, dict[str, memoryview]] = {}

    def __getitem__(self, name: str) -> Tensor:
        leaf = self._leaves[name]
        try:
            kind = np.dtype(np.int16 if leaf.dtype == "bfloat16" else leaf.dtype)
            parts = [(bounds, self._part(leaf, bounds, shard, kind)) for bounds, shard in leaf.shards]
            if sum(part.size for _, part in parts) != math.prod(leaf.shape):
                raise ValueError("its slices are not the whole")
            whole = np.empty(leaf.shape, kind)
            for bounds, part in parts:
                whole[tuple(slice(*pair) for pair in bounds)] = part
            value = torch.from_numpy(whole)
            return value.view(torch.bfloat16) if leaf.dtype == "bfloat16" else value
        except DAMAGE as error:
            raise CheckpointError(f"{self.path}: the array '{name}' is damaged ({reason(error)}).") from error

    def _part(self, leaf: _Leaf, bounds: Bounds, shard: int, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """A slice's values, from a shard that may have split them again."""
        for pieces, where in unpack(self._shard(shard)[str(leaf.number)]):
            if _bounds(where.data) == bounds:
                values = [_values(piece, leaf.dtype, kind) for piece in pieces]
                return np.concatenate(values).reshape([stop - start for start, stop in bounds])
        raise ValueError(f"shard {shard} has other slices of it")

    def _shard(self, number: int) -> dict[str, memoryview]:
        if number not in self._shards:
            path = self.path.with_suffix(f".data-{number:05d}-of-{self._count:05d}")
            if not path.is_file():
                raise CheckpointError(f"{path}: no such file; the checkpoint is incomplete.")
            self._shards[number] = _messages(path)
        return self._shards[number]


def unpack(data: bytes | memoryview) -> Any:
    """The one value that `data` holds; values of types that a program added stay bytes and their code."""
    most = min(len(data), MAX_ITEMS)
    return msgpack.unpackb(data, max_array_len=most, max_map_len=most)


def _messages(path: Path) -> dict[str, memoryview]:
    """A shard's entries by their keys, each as it lies in the file: together they may be larger than the memory."""
    found: dict[str, memoryview] = {}
    with path.open("rb") as stream:
        data = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        unpacker = msgpack.Unpacker(stream, max_buffer_size=max(len(data), 1 << 20))
        for _ in range(unpacker.read_map_header()):
            key, start = unpacker.unpack(), unpacker.tell()
            unpacker.skip()
            found[key] = data[start : unpacker.tell()]
        if unpacker.tell() != len(data) or MAGIC not in found:
            raise ValueError(f"{path.name} is no shard")
    return found


def _leaves(tree: Any, prefix: str = "") -> Iterator[tuple[str, ExtType]]:
    """The leaves by their flat names, in the order in which JAX numbers them."""
    for key in sorted(tree):
        if isinstance(tree[key], dict):
            yield from _leaves(tree[key], f"{prefix}{key}/")
        elif isinstance(tree[key], ExtType) and tree[key].code == INDEX:
            yield f"{prefix}{key}", tree[key]
        else:
            raise ValueError(f"'{prefix}{key}' is no array")


def _leaf(number: int, item: ExtType) -> _Leaf:
    about, slices, shards = unpack(item.data)
    shape, dtype, *_ = unpack(about)
    bounds = tuple(_bounds(part) for part in slices)
    return _Leaf(number, tuple(int(side) for side in shape), str(dtype), tuple(zip(bounds, shards, strict=True)))


def _bounds(data: memoryview) -> Bounds:
    """(start, stop) along each axis; a step there is none."""
    return tuple((start, stop) for start, stop, _ in map(unpack, unpack(data)))


def _values(piece: ExtType, dtype: str, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Values that Flax wrote: a shape, the name of a type, and bytes."""
    if piece.code != ARRAY:
        raise ValueError("a slice holds no values")
    _, theirs, data = unpack(piece.data)
    if theirs != dtype:
        raise ValueError(f"{theirs} where the index says {dtype}")
    return np.frombuffer(data, kind)
