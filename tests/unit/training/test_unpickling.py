"""Checkpoints from somebody else: what they hold is read, what they name is not called."""

import copyreg
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
)

from batches import stepping
from vitlab.core.errors import CheckpointError
from vitlab.models.create import create
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training import checkpoints
from vitlab.training.optimizers import Optimizer
from vitlab.training.state import State
from vitlab.training.unpickling import RefusedError, read_index


@pytest.fixture
def state() -> State:
    torch.manual_seed(0)
    model = create("vit-digits", depth=1)
    feed: Any = None
    return stepping(model, Supervised(CrossEntropy()), Optimizer(ema=0.9), feed)[0]


@pytest.fixture
def path(tmp_path: Path, state: State) -> Path:
    return checkpoints.write(tmp_path / "checkpoints", state)


class Runs:
    """An object whose pickle makes a folder when it is read."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return os.mkdir, (str(self.marker),)


def test_the_index_is_what_torch_reads(path: Path) -> None:
    expected, found = FileSystemReader(path).read_metadata(), read_index(path / ".metadata")
    assert found.state_dict_metadata == expected.state_dict_metadata
    assert found.planner_data == expected.planner_data
    assert found.version == expected.version
    for key, place in expected.storage_data.items():
        same = found.storage_data[key]
        assert (same.relative_path, same.offset, same.length) == (place.relative_path, place.offset, place.length)


def test_an_index_that_names_enumerations_as_other_pythons_do(path: Path) -> None:
    """Python 3.11.2 writes a member as an attribute of its class, later ones by its value."""
    metadata = FileSystemReader(path).read_metadata()
    written = io.BytesIO()
    pickler = pickle.Pickler(written)
    by_name = {_MEM_FORMAT_ENCODING: lambda member: (getattr, (_MEM_FORMAT_ENCODING, member.name))}
    pickler.dispatch_table = {**copyreg.dispatch_table, **by_name}
    pickler.dump(metadata)
    assert b"getattr" in written.getvalue()
    (path / ".metadata").write_bytes(written.getvalue())
    assert read_index(path / ".metadata").state_dict_metadata == metadata.state_dict_metadata


@pytest.mark.parametrize("where", ["whole", "inside"])
def test_an_index_that_would_run_something(path: Path, state: State, tmp_path: Path, where: str) -> None:
    marker = tmp_path / "ran"
    metadata = FileSystemReader(path).read_metadata()
    metadata.planner_data["more"] = Runs(marker)
    (path / ".metadata").write_bytes(pickle.dumps(Runs(marker) if where == "whole" else metadata))
    with pytest.raises(CheckpointError) as caught:
        checkpoints.read(path, state)
    said = str(caught.value)
    assert str(path) in said
    assert f".metadata asks for {os.mkdir.__module__}.mkdir; it was not run" in said
    assert "\n" not in said
    assert not marker.exists()
    pickle.loads((path / ".metadata").read_bytes())
    assert marker.exists()  # it would have


def test_a_value_that_would_run_something(path: Path, state: State, tmp_path: Path) -> None:
    """In the place of a weight, said to be an object, which torch unpickles; it is appended to the file."""
    marker, name = tmp_path / "ran", "model.model.head.weight"
    metadata = FileSystemReader(path).read_metadata()
    metadata.state_dict_metadata[name] = BytesStorageMetadata()
    value = io.BytesIO()
    torch.save(Runs(marker), value)
    place = metadata.storage_data[MetadataIndex("optimiser.param_groups.0.weight_decay")]
    file = path / place.relative_path
    start = file.stat().st_size
    with file.open("ab") as stream:
        stream.write(value.getvalue())
    metadata.storage_data[MetadataIndex(name)] = type(place)(place.relative_path, start, len(value.getvalue()))
    (path / ".metadata").write_bytes(pickle.dumps(metadata))
    with pytest.raises(CheckpointError) as caught:
        checkpoints.read(path, state)
    said = str(caught.value)
    assert str(path) in said
    assert f"'{name}' is damaged, or more than numbers and texts; it was not run" in said
    assert "\n" not in said
    assert not marker.exists()


def test_files_of_other_folders_are_not_read(path: Path) -> None:
    metadata = FileSystemReader(path).read_metadata()
    key, place = next(iter(metadata.storage_data.items()))
    for file in ("../secret", "/etc/passwd", "..\\secret"):
        metadata.storage_data[key] = type(place)(file, place.offset, place.length)
        (path / ".metadata").write_bytes(pickle.dumps(metadata))
        with pytest.raises(RefusedError, match="which is not in its folder"):
            read_index(path / ".metadata")


def opcodes(name: str, state: bytes) -> bytes:
    """A pickle that gives a name, not an instance of it, a state."""
    module, _, last = name.rpartition(".")
    return b"\x80\x02c" + module.encode() + b"\n" + last.encode() + b"\n" + state + b"b."


@pytest.mark.parametrize(
    "name", ["torch.distributed.checkpoint.metadata.Metadata", "torch.Size", "torch.serialization._get_layout"]
)
def test_what_a_pickle_names_cannot_be_changed(tmp_path: Path, name: str) -> None:
    """A state of two parts sets attributes, also those of a class that has no `__setstate__`."""
    before = dict(vars(Metadata))
    slots = b"(N}X\x07\x00\x00\x00versionX\x01\x00\x00\x00xst"
    (tmp_path / ".metadata").write_bytes(opcodes(name, slots))
    with pytest.raises(RefusedError):
        read_index(tmp_path / ".metadata")
    assert dict(vars(Metadata)) == before


def test_an_extension_code_is_a_name_too(tmp_path: Path) -> None:
    copyreg.add_extension("os", "mkdir", 240)
    try:
        (tmp_path / ".metadata").write_bytes(b"\x80\x02\x82\xf0.")
        with pytest.raises(RefusedError, match=r"asks for os\.mkdir"):
            read_index(tmp_path / ".metadata")
    finally:
        copyreg.remove_extension("os", "mkdir", 240)


@pytest.mark.parametrize("content", [b"", b"\x80\x04N.", b"no pickle at all", pickle.dumps({"a": 1})])
def test_an_index_that_is_none_is_one_sentence(path: Path, state: State, content: bytes) -> None:
    (path / ".metadata").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"the checkpoint cannot be read \(\.metadata ") as caught:
        checkpoints.read(path, state)
    assert "\n" not in str(caught.value)
