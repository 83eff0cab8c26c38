"""V-MoE's sharded checkpoints, written by the msgpack library in the layout of the authors' code."""

import contextlib
import tracemalloc
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
from unit.weights.google.test_vmoe import logits, random_weights
from vitlab.core.errors import CheckpointError
from vitlab.weights.google.shards import FlaxShards, unpack
from vitlab.weights.load import load

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
    with pytest.raises(CheckpointError, match=r"not an index .*incomplete"):
        load(path)
    path.write_bytes(b"\x93\x01\x02\x03")
    with pytest.raises(CheckpointError, match="not an index"):
        load(path)


def test_a_shard_that_is_longer_or_lacks_its_mark_is_none(tmp_path: Path) -> None:
    path = write(tmp_path / "x", {"w": np.ones((4, 2), np.float32)})
    shard = path.with_suffix(".data-00001-of-00002")
    whole = shard.read_bytes()
    for content in (whole + b"\x01", whole.replace(MAGIC.encode(), MAGIC[::-1].encode()), b"", b"\x93\x01\x02\x03"):
        shard.write_bytes(content)
        with pytest.raises(CheckpointError, match="'w' is damaged"):
            FlaxShards(path)["w"]


def test_only_the_entry_that_is_asked_for_is_copied(tmp_path: Path) -> None:
    arrays = {name: np.full(1_000_000, 3, np.float32) for name in "abcdefgh"}
    file = FlaxShards(write(tmp_path / "x", arrays))
    tracemalloc.start()
    try:
        assert file["a"].sum() == 3_000_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * arrays["a"].nbytes  # of eight: the value, and what it is made of


LONGER_THAN_IT_IS = {
    "a list": b"\xdd\xff\xff\xff\xff",
    "lists in lists": b"\xdd\x00\x00\x3f\xff" * 900 + bytes(20_000),
    "a dictionary": b"\xdf\xff\xff\xff\xff",
    "bytes": b"\xc6\xff\xff\xff\xff",
    "a text": b"\xdb\xff\xff\xff\xff",
    "an added type": b"\xc9\xff\xff\xff\xff\x01",
    "nesting": b"\x91" * 10_000 + b"\x01",
}


@pytest.mark.parametrize("name", LONGER_THAN_IT_IS)
def test_a_length_that_lies_takes_no_memory(name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"exceeds|incomplete|^$"):
            unpack(LONGER_THAN_IT_IS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 200_000_000


@given(st.binary(max_size=60))
def test_any_bytes_give_a_value_or_a_value_error(data: bytes) -> None:
    with contextlib.suppress(ValueError):
        unpack(data)


def test_an_added_type_stays_bytes() -> None:
    """Also those that other programs take for objects, as pickles or arrays are."""
    assert unpack(pack(msgpack.ExtType(1, b"cos\nsystem\n"))) == msgpack.ExtType(1, b"cos\nsystem\n")
