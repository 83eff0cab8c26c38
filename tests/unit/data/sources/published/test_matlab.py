"""MATLAB files that would crash scipy's reader, or fill the memory: a sentence, and this process goes on."""

import signal
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from scipy.io import savemat

from vitlab.core.errors import DataError
from vitlab.data.sources.published import matlab
from vitlab.data.sources.published.matlab import read_mat


def test_arrays_as_they_were_saved(tmp_path: Path) -> None:
    path = tmp_path / "a file.mat"
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    structs = np.zeros((2, 1), [("ID", "O"), ("WNID", "O")])
    structs["ID"][:, 0], structs["WNID"][:, 0] = [3, 5], ["n01440764", "n02119789"]
    savemat(path, {"X": pixels, "y": [[1.0], [2.0]], "synsets": structs}, do_compression=True)
    labels, found, numbers, words = read_mat(path, "y", "X", "synsets.ID", "synsets.WNID")
    np.testing.assert_array_equal(found, pixels)
    assert labels.tolist() == [[1], [2]]
    assert numbers.tolist() == [3, 5]
    assert words.tolist() == ["n01440764", "n02119789"]
    with pytest.raises(DataError, match=r"a file\.mat is damaged, or .*: 'synsets' is no array of numbers or texts\.$"):
        read_mat(path, "synsets")
    with pytest.raises(DataError, match=r"There is no .*other\.mat, which belongs to the data set\.$"):
        read_mat(tmp_path / "other.mat", "y")


@pytest.mark.parametrize("wrong", [signal.SIGSEGV, signal.SIGABRT])
def test_a_reader_that_crashes(tmp_path: Path, wrong: int, monkeypatch: pytest.MonkeyPatch) -> None:
    savemat(tmp_path / "a.mat", {"y": [1, 2]})
    crash = tmp_path / "crash.py"
    crash.write_text(f"import os, sys\nsys.stderr.write('boom')\nos.kill(os.getpid(), {int(wrong)})\n")
    monkeypatch.setattr(matlab, "READER", crash)
    with pytest.raises(DataError, match=r"a\.mat is damaged, or not a MATLAB file of the set: its reader crashed\.$"):
        read_mat(tmp_path / "a.mat", "y")


@pytest.mark.skipif(sys.platform != "linux", reason="where memory can be limited")
def test_a_file_that_claims_more_memory_than_there_is(tmp_path: Path) -> None:
    """A matrix of 2**34 bytes of zeros, deflated as far as a test can wait for."""
    size = 1 << 34
    head = struct.pack("<IIII", 6, 8, 9, 0)  # flags: an array of bytes
    head += struct.pack("<II", 5, 8) + struct.pack("<ii", size >> 10, 1 << 10) + struct.pack("<I4s", 1 << 16 | 1, b"y")
    head += struct.pack("<II", 2, size & 0xFFFFFFFF)
    element = zlib.compress(struct.pack("<II", 14, 0xFFFFFFF8) + head + bytes(1 << 20))
    path = tmp_path / "bomb.mat"
    path.write_bytes(b"MATLAB 5.0".ljust(124) + b"\0\1IM" + struct.pack("<II", 15, len(element)) + element)
    with pytest.raises(DataError, match=r"bomb\.mat is damaged, or not a MATLAB file of the set: .+\.$"):
        read_mat(path, "y")
