"""V-MoE's sharded checkpoints, written by the msgpack library in the layout of the authors' code."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unit.weights.comparing import IMAGES, assert_same
from unit.weights.test_vmoe_files import logits, random_weights
from vitlab.core.errors import CheckpointError
from vitlab.weights.flax_shards import FlaxShards
from vitlab.weights.load import load
from vitlab.weights.msgpack import Extension, MessageError, unpack

Array = np.ndarray[Any, Any]
MAGIC = "__msgpack_array_chunk_a87ca2__"


def pack(value: Any) -> bytes:
    data = msgpack.packb(value, use_bin_type=True)
    assert data is not None
    return data


def packed(*values: Any) -> bytes:
    return pack(values)


def slice_nd(bounds: list[tuple[int, int]]) -> bytes:
    return packed(*(packed(start, stop, None) for start, stop in bounds))


def halves(array: Array) -> list[list[tuple[int, int]]]:
    """Bounds that cut the first axis in two, where it can be."""
    rest, first = [(0, side) for side in array.shape[1:]], array.shape[0] if array.ndim else 0
    cuts = [(0, first // 2), (first // 2, first)] if first > 1 else [(0, first)]
    return [[cut, *rest] for cut in cuts] if array.ndim else [[]]


def write(path: Path, arrays: Mapping[str, Array], *, version: str | None = "20220622", dtype: str = "") -> Path:
    """Two shards that take the slices in turn; every slice's values in two pieces."""
    tree: dict[str, Any] = {}
    for name, array in arrays.items():
        *parents, last = name.split("/")
        place = tree
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = array
    shards: list[dict[str, Any]] = [{MAGIC: True}, {MAGIC: True}]
    numbers = iter(range(len(arrays)))

    def indexed(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: indexed(node[key]) for key in sorted(node)}
        number, cuts, kind = next(numbers), halves(node), dtype or node.dtype.name
        for i, cut in enumerate(cuts):
            flat = node[tuple(slice(*pair) for pair in cut)].flatten()
            pieces = [flat[: flat.size // 2], flat[flat.size // 2 :]]
            ext = [msgpack.ExtType(1, packed(p.shape, kind, p.tobytes())) for p in pieces]
            where = msgpack.ExtType(6, slice_nd(cut))
            shards[(number + i) % 2].setdefault(str(number), []).append([ext, where])
        about = packed(node.shape, kind, False, {})
        which = [(number + i) % 2 for i in range(len(cuts))]
        return msgpack.ExtType(8, packed(about, [slice_nd(cut) for cut in cuts], which))

    index = {"shard_count": 2, "index": indexed(tree)} | ({} if version is None else {"version": version})
    path.with_suffix(".index").write_bytes(pack(index))
    for i, shard in enumerate(shards):
        path.with_suffix(f".data-{i:05d}-of-00002").write_bytes(pack(shard))
    return path.with_suffix(".index")


@pytest.mark.parametrize("version", ["20220622", None])
@pytest.mark.parametrize("prefix", ["", "params/"])
def test_a_checkpoint_of_the_authors_kind_computes_what_it_should(
    tmp_path: Path, version: str | None, prefix: str
) -> None:
    weights = random_weights((1, 3))
    path = write(tmp_path / "vmoe", {f"{prefix}{name}": value for name, value in weights.items()}, version=version)
    model = load(path)
    assert not model.load_report.unused
    assert_same(model, logits(weights, IMAGES, (1, 3)), exactly=False)


def test_every_value_is_where_it_was(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    arrays = {
        "b/z": rng.standard_normal((5, 3, 2)).astype(np.float32),
        "b-": rng.standard_normal(7),  # after 'b' in its dictionary, before 'b/' as a flat name
        "a": np.array(3, np.int32),
        "b/a/c": rng.standard_normal((4, 6)).astype(np.float16),
    }
    file = FlaxShards(write(tmp_path / "x", arrays))
    assert list(file) == ["a", "b/a/c", "b/z", "b-"]
    for name, value in arrays.items():
        assert file.shapes[name] == value.shape
        assert np.array_equal(file[name].numpy(), value)


def test_bfloat16(tmp_path: Path) -> None:
    value = torch.randn(6, 4).bfloat16()
    file = FlaxShards(write(tmp_path / "x", {"w": value.view(torch.int16).numpy()}, dtype="bfloat16"))
    assert torch.equal(file["w"], value)


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    arrays = {"w": np.ones((4, 2), np.float32)}
    with pytest.raises(CheckpointError, match="version 2031 of the authors' format"):
        FlaxShards(write(tmp_path / "new", arrays, version="2031"))
    with pytest.raises(CheckpointError, match="save its parameters alone"):
        FlaxShards(write(tmp_path / "old", {"opt_state/w": arrays["w"]}, version=None))
    path = write(tmp_path / "x", arrays)
    shard = path.with_suffix(".data-00001-of-00002")
    shard.write_bytes(shard.read_bytes()[:-3])
    with pytest.raises(CheckpointError, match="'w' is damaged"):
        FlaxShards(path)["w"]
    shard.unlink()
    with pytest.raises(CheckpointError, match=r"00001-of-00002: no such file"):
        FlaxShards(path)["w"]
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"not an index .*ends too early"):
        load(path)
    path.write_bytes(b"\x93\x01\x02\x03")
    with pytest.raises(CheckpointError, match="not an index"):
        load(path)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=4) | st.integers(0, 9), inner),
    max_leaves=40,
)


@given(VALUES)
def test_messages_are_the_librarys(value: Any) -> None:
    data = pack(value)
    assert unpack(data) == msgpack.unpackb(data, strict_map_key=False) == value


@pytest.mark.parametrize("size", [0, 1, 2, 4, 8, 16, 31, 255, 256, 70_000])
def test_lengths(size: int) -> None:
    assert unpack(pack(bytes(size))) == bytes(size)
    assert unpack(pack("x" * size)) == "x" * size
    assert unpack(pack([1] * size)) == [1] * size
    assert unpack(pack({str(i): i for i in range(size)})) == {str(i): i for i in range(size)}
    assert unpack(pack(msgpack.ExtType(5, bytes(size)))) == Extension(5, memoryview(bytes(size)))


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_message_error(data: bytes) -> None:
    try:
        unpack(data)
    except MessageError:
        return
    msgpack.unpackb(data, strict_map_key=False, raw=True)


def test_deep_nesting_is_refused() -> None:
    with pytest.raises(MessageError, match="containers lie in each other"):
        unpack(b"\x91" * 1000 + b"\x01")
