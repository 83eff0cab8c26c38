"""Files with a bit that flipped, and one that holds far less than it claims."""

import random
import struct
import zipfile
from pathlib import Path

import numpy as np


def flipped(content: bytes, rng: random.Random) -> bytes:
    """The bytes with one bit of them changed."""
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def write_bomb(path: Path, name: str, size: int) -> None:
    """A `.npz` with an array of so many bytes, zeros, of which a hundredth is there."""
    told = {"descr": "|u1", "fortran_order": False, "shape": (size,)}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{name}.npy", "w") as file:
        np.lib.format.write_array_header_1_0(file, told)
        file.write(bytes(size // 100))
    data = bytearray(path.read_bytes())
    struct.pack_into("<I", data, data.rindex(b"PK\x01\x02") + 24, size)
    path.write_bytes(data)
