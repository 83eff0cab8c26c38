"""MATLAB files as arrays."""

from pathlib import Path
from typing import Any

import numpy as np

from vitlab.core.errors import DataError


def read_mat(path: Path, *names: str) -> list[np.ndarray[Any, Any]]:
    """Arrays of numbers by name from a `.mat` file of MATLAB 5 to 7."""
    from scipy.io import loadmat  # scikit-learn brings scipy along; it is slow to import

    try:
        with path.open("rb") as file:
            found = loadmat(file, variable_names=list(names))
    except FileNotFoundError:
        raise DataError(f"There is no {path}, which belongs to the data set.") from None
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # a damaged file can raise almost anything
        said = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise DataError(f"{path} is damaged, or not a MATLAB file: {said}.") from error
    missing = [name for name in names if name not in found]
    if missing:
        raise DataError(f"{path} holds no array '{missing[0]}'.")
    return [found[name] for name in names]


def whole_numbers(values: np.ndarray[Any, Any], path: Path) -> np.ndarray[Any, Any]:
    """An array of whole numbers as int64 [N], whatever MATLAB made of it."""
    if values.dtype.kind not in "iuf":
        raise DataError(f"{path} holds {values.dtype} where numbers were expected.")
    return values.reshape(-1).astype(np.int64)
