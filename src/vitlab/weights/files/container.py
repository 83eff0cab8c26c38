"""What a file of named tensors gives, whatever its container."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import final

from torch import Tensor

WRAPPERS = ("module.", "_orig_mod.", "model.")  # of DataParallel and averages, torch.compile, Lightning


class TensorFile(Mapping[str, Tensor], ABC):
    """Names to tensors; a tensor is read when it is asked for, and `shapes` costs no reading."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.metadata: dict[str, str] = {}
        self.assumed: list[str] = []  # sentences on what was chosen among the file's contents

    @abstractmethod
    def __getitem__(self, name: str) -> Tensor: ...

    def part(self, name: str, index: int) -> Tensor:
        """`self[name][index]`; a container that can reads nothing else."""
        return self[name][index].clone()

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


@final
class Renamed(TensorFile):
    """A file's tensors under other names."""

    def __init__(self, file: TensorFile, names: Mapping[str, str]) -> None:
        super().__init__(file.path)
        self.metadata, self.assumed = file.metadata, file.assumed
        self._file, self._names = file, names
        self.shapes = {ours: file.shapes[theirs] for ours, theirs in names.items()}

    def __getitem__(self, name: str) -> Tensor:
        return self._file[self._names[name]]


def unwrapped(file: TensorFile) -> TensorFile:
    """The tensors by the names that they have in the model itself, where wrappers put theirs before all of them.

    Names without a dot are the wrappers' own, as an average's count is.
    """
    names = {name: name for name in file.shapes}
    while wrapper := _wrapper(names):
        names = {name.removeprefix(wrapper): theirs for name, theirs in names.items()}
    return file if len(names) < len(file.shapes) or all(k == v for k, v in names.items()) else Renamed(file, names)


def _wrapper(names: Mapping[str, str]) -> str:
    dotted = [name for name in names if "." in name]
    return next((item for item in WRAPPERS if dotted and all(name.startswith(item) for name in dotted)), "")


def reason(error: BaseException) -> str:
    """The first line of what an error says, to be part of a sentence."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
