"""Reads a `.mat` file in a process of its own: scipy's reader can crash over a damaged one, or take all memory.

    python matlab_process.py FILE BYTES NAME ...

Each NAME is an array of numbers, or a field of a struct array, 'synsets.WNID', of which each element has one value.
They go to standard output as NumPy writes them, one behind another; what is wrong is the one line on standard error.
It imports nothing of vitlab, so that it starts quickly.
"""

import io
import resource
import sys
from typing import Any

import numpy as np


def main(path: str, most: int, names: list[str]) -> str | None:
    """What is wrong; None where the arrays were written."""
    from scipy.io import loadmat

    resource.setrlimit(resource.RLIMIT_DATA, (most, most))
    arrays = [name.partition(".")[0] for name in names]
    try:
        with open(path, "rb") as file:  # noqa: PTH123  the reader wants a file of io's
            found = loadmat(file, variable_names=arrays)
        if missing := [name for name in arrays if name not in found]:
            return f"it holds no array '{missing[0]}'"
        plain = [_plain(found[array], name) for array, name in zip(arrays, names, strict=True)]
    except Exception as error:  # noqa: BLE001  a damaged file can raise almost anything
        return (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
    for values in plain:
        stream = io.BytesIO()
        np.save(stream, values, allow_pickle=False)
        sys.stdout.buffer.write(stream.getbuffer())
    return None


def _plain(values: Any, name: str) -> Any:
    """An array as NumPy can write it."""
    _, _, field = name.partition(".")
    if field:
        values = np.array([np.asarray(value).item() for value in values[field].reshape(-1)])
    if not isinstance(values, np.ndarray) or values.dtype.hasobject:
        raise ValueError(f"'{name}' is no array of numbers or texts")
    return values


if __name__ == "__main__":
    wrong = main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
    sys.exit(wrong)
