"""Checksums of files against the algorithm's published values, and a list of them that is damaged itself."""

from pathlib import Path

import pytest

from vitlab.core.checksums import BLOCK, check, checksum, read_checksums, write_checksums
from vitlab.core.errors import CheckpointError


def test_the_algorithm_is_xxh3(tmp_path: Path) -> None:
    """Values that its authors' `xxhsum -H3` prints."""
    for content, expected in ((b"", "2d06800538d394c2"), (b"a", "e6c632b61e964e1f")):
        (tmp_path / "file").write_bytes(content)
        assert checksum(tmp_path / "file") == expected


@pytest.mark.parametrize("place", [0, BLOCK - 1, BLOCK, 2 * BLOCK])
def test_every_block_counts(tmp_path: Path, place: int) -> None:
    content = bytearray(2 * BLOCK + 1)
    (tmp_path / "file").write_bytes(content)
    before = checksum(tmp_path / "file")
    content[place] = 1
    (tmp_path / "file").write_bytes(content)
    assert checksum(tmp_path / "file") != before
    with pytest.raises(CheckpointError, match="is damaged"):
        check(tmp_path / "file", before)


def test_every_bit_of_the_list_counts(tmp_path: Path) -> None:
    sums = {"progress.json": "00ff00ff00ff00ff", "é": "0123456789abcdef"}
    write_checksums(tmp_path, sums)
    assert read_checksums(tmp_path) == sums
    path = tmp_path / "checksums.json"
    whole = path.read_bytes()
    for place in range(len(whole)):
        for bit in range(8):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1 << bit]) + whole[place + 1 :])
            try:
                found = read_checksums(tmp_path)
            except CheckpointError as error:
                assert "the checksums are damaged" in str(error)  # noqa: PT017 (either is well)
            else:
                assert found != sums


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"files": 3}', '{"files": {"a": 3}}', "[" * 100_000])
def test_a_list_that_is_none_is_one_sentence(tmp_path: Path, content: str) -> None:
    (tmp_path / "checksums.json").write_text(content)
    with pytest.raises(CheckpointError, match="the checksums are damaged. Delete"):
        read_checksums(tmp_path)


def test_a_folder_from_before_has_none(tmp_path: Path) -> None:
    assert read_checksums(tmp_path) == {}
