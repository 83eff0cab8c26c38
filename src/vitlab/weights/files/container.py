"""What a file of named tensors gives, whatever its container."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path

from torch import Tensor


class TensorFile(Mapping[str, Tensor], ABC):
    """Names to tensors; a tensor is read when it is asked for, and `shapes` costs no reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.metadata: dict[str, str] = {}

    @abstractmethod
    def __getitem__(self, name: str) -> Tensor: ...

    def part(self, name: str, index: int) -> Tensor:
        """`self[name][index]`; a container that can reads nothing else."""
        return self[name][index].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def reason(error: BaseException) -> str:
    """The first line of what an error says, to be part of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
