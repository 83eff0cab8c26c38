"""MATLAB files as arrays."""

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.core.errors import DataError
from vitlab.core.reading import check_regular, most_inflated

READER = Path(__file__).with_name("matlab_process.py")
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}  # each would count as memory that is used
SECONDS, BYTES_PER_SECOND = 60, 1_000_000  # that a file is read for at most; it takes a hundredth


def read_mat(path: Path, *names: str) -> list[np.ndarray[Any, Any]]:
    """Arrays of numbers by name from a `.mat` file of MATLAB 5 to 7, or a struct array's fields, 'synsets.WNID'.

    They are read in another process, which a damaged file may crash.
    """
    try:
        check_regular(path)
        size = path.stat().st_size
        command = [sys.executable, "-P", "-W", "ignore", str(READER), str(path)]
        done = subprocess.run(
            [*command, str(most_inflated(size)), *names],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            env={**os.environ, **ONE_THREAD},
            timeout=SECONDS + size / BYTES_PER_SECOND,
        )
    except FileNotFoundError:
        raise DataError(f"There is no {path}, which belongs to the data set.") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    except subprocess.TimeoutExpired:
        raise DataError(f"{path} is damaged: its reader did not come to an end.") from None
    if done.returncode:
        said = (done.stderr.decode(errors="replace").splitlines() or [""])[-1]
        why = said if done.returncode == 1 else "its reader crashed"
        raise DataError(f"{path} is damaged, or not a MATLAB file of the set: {why}.")
    stream = io.BytesIO(done.stdout)
    return [np.lib.format.read_array(stream, allow_pickle=False) for _ in names]


def whole_numbers(values: np.ndarray[Any, Any], path: Path) -> np.ndarray[Any, Any]:
    """An array of whole numbers as int64 [N], whatever MATLAB made of it."""
    if values.dtype.kind not in "iuf":
        raise DataError(f"{path} holds {values.dtype} where numbers were expected.")
    return values.reshape(-1).astype(np.int64)
