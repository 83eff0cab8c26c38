"""The pickles of the CIFAR sets, read without calling anything that they name.

A pickle is a program. This reader knows dictionaries, lists, texts, numbers and arrays of bytes or whole numbers; the
four names that an array needs are answered by stand-ins of our own, any other name is refused.
"""

import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, final

import numpy as np

from vitlab.core.errors import DataError
from vitlab.data.contract import Array


def read_pickle(path: Path) -> dict[str, Any]:
    """A dictionary with texts as keys; its arrays as NumPy's, its texts as bytes where Python 2 wrote them."""
    try:
        with path.open("rb") as file:
            content = _Reader(file, encoding="bytes").load()
            found = {_text(key): _finished(value) for key, value in content.items()}
    except FileNotFoundError:
        raise DataError(f"There is no {path}, which belongs to the data set.") from None
    except _RefusedError as error:
        raise DataError(f"{path} is not a CIFAR file: {error}; it was not run.") from error
    except OSError as error:
        raise DataError(f"Cannot read {path}: {error.strerror or error}.") from error
    except Exception as error:  # a damaged pickle can raise almost anything
        said = (str(error).splitlines() or [""])[0].rstrip(".") or type(error).__name__
        raise DataError(f"{path} is damaged, or not a CIFAR file: {said}.") from error
    return found


class _RefusedError(pickle.UnpicklingError):
    pass


@final
class _Reader(pickle.Unpickler):
    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in _STAND_INS:
            raise _RefusedError(f"it asks for {module_name}.{global_name}")
        return _STAND_INS[module_name, global_name]


@final
class _StandIn:
    """A callable whose attributes a pickle cannot set."""

    __slots__ = ("_call",)

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *arguments: Any) -> Any:
        return self._call(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise _RefusedError("it changes what it names")


@final
class _Type:
    """NumPy's dtype, as its first argument: 'u1', 'i8'."""

    __slots__ = ("code", "order")

    def __init__(self, code: str) -> None:
        self.code = code
        self.order = "|"

    def __setstate__(self, state: Any) -> None:
        self.order = _text(state[1])


@final
class _Values:
    """NumPy's array: its shape, type and bytes, once they are known."""

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


def _dtype(code: Any, *_: Any) -> _Type:
    return _Type(_text(code))


def _reconstruct(*_: Any) -> _Values:
    return _Values()


def _encode(text: Any, encoding: Any = "latin1") -> bytes:
    if not isinstance(text, str) or _text(encoding) != "latin1":
        raise _RefusedError("it holds an unusual text")
    return text.encode("latin1")


_STAND_INS = {
    ("numpy.core.multiarray", "_reconstruct"): _StandIn(_reconstruct),
    ("numpy._core.multiarray", "_reconstruct"): _StandIn(_reconstruct),
    ("numpy", "ndarray"): _StandIn(_reconstruct),
    ("numpy", "dtype"): _StandIn(_dtype),
    ("_codecs", "encode"): _StandIn(_encode),  # how Python 3 writes bytes in protocol 2
}


def _finished(value: Any) -> Any:
    """Arrays built, at the top and in lists."""
    if isinstance(value, list):
        return [_finished(item) for item in value]
    return _array(value) if isinstance(value, _Values) else value


def _array(values: _Values) -> Array:
    _, shape, kind, fortran, data = values.state
    if not isinstance(kind, _Type) or kind.code[:1] not in ("u", "i") or not isinstance(data, bytes):
        raise _RefusedError("it holds an array of something else than whole numbers")
    dtype = np.dtype(kind.code).newbyteorder(">" if kind.order == ">" else "<")
    if math.prod(shape) * dtype.itemsize != len(data):
        raise _RefusedError("an array's shape does not fit its bytes")
    return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")


def _text(value: Any) -> str:
    if not isinstance(value, str | bytes):
        raise _RefusedError("it holds a key that is no text")
    return value.decode("latin1") if isinstance(value, bytes) else value
