"""timm's files on disk: one file of tensors, or the hub's folder with a config.json."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitlab.core.errors import CannotHoldError, CheckpointError, Error
from vitlab.core.files import atomic_file, atomic_folder
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.weights.files.tensors import read_json
from vitlab.weights.format import check_holds
from vitlab.weights.metadata import Notes, notes_of
from vitlab.weights.native import write_json
from vitlab.weights.timm.hub_config import Said, labels_of, said_by

C = TypeVar("C")
Shapes: TypeAlias = Mapping[str, tuple[int, ...]]
logger = logging.getLogger("vitlab")

SINGLE = (".safetensors", ".pth", ".pt")
OTHER_FILES = (".npz", ".bin", ".ckpt", ".onnx", ".json")


def write_timm(
    model: Model,
    path: Path,
    tensors: Mapping[str, Tensor],
    *,
    settings: Callable[[], dict[str, Any]],
    read_back: Callable[[Said], tuple[Any, Preprocess]],
) -> None:
    """A model's tensors under timm's names, whole or not at all.

    `settings` makes the folder's config.json; `read_back` says which configuration and preprocessing the tensors would
    be read as, beside what the file says.
    """
    contents = {name: value.detach().cpu() for name, value in tensors.items()}
    notes = notes_of(model)
    if path.suffix in SINGLE:
        beside = path.parent / "config.json"  # reading will follow it
        found = read_json(beside) if beside.is_file() else None
        said = said_by(found, notes if path.suffix == ".safetensors" else Notes(), str(path))
        preprocess = _check_read_back(model, read_back, said)
        with atomic_file(path) as partial:
            if path.suffix == ".safetensors":
                save_file(contents, partial, metadata=notes.header())
            else:
                torch.save(contents, partial)
        if model.preprocess != preprocess or model.labels != labels_of(said, str(path)):
            logger.warning("%s: it holds neither preprocessing nor class names; .safetensors and folders do.", path)
    elif path.suffix in OTHER_FILES:
        raise Error(f"{path}: timm's files end in {', '.join(SINGLE)}; a name without an ending makes a folder.")
    else:
        written = settings()
        _check_read_back(model, read_back, said_by(written, Notes(), str(path)))
        _check_replaceable(path)
        with atomic_folder(path) as folder:
            write_json(folder / "config.json", written)
            save_file(contents, folder / "model.safetensors", metadata=notes.header())


def reader_of(
    tensors: Mapping[str, Tensor],
    path: Path,
    image_size: tuple[int, int],
    config_of: Callable[[Shapes, Said, Mapping[str, Any], str, list[str]], C],
    preprocess: Callable[[C, Said, str, list[str]], Preprocess],
) -> Callable[[Said], tuple[C, Preprocess]]:
    """The `read_back` of a format that has all from names and shapes but the image's size."""
    shapes = {name: tuple(value.shape) for name, value in tensors.items()}

    def read_back(said: Said) -> tuple[C, Preprocess]:
        found = config_of(shapes, said, {"image_size": image_size}, str(path), [])
        return found, preprocess(found, said, str(path), [])

    return read_back


def _check_read_back(model: Model, read_back: Callable[[Said], tuple[Any, Preprocess]], said: Said) -> Preprocess:
    try:
        config, preprocess = read_back(said)
    except CheckpointError as error:
        raise CannotHoldError(f"Write .safetensors, which can say more; such a file cannot: {error}") from error
    check_holds("timm", model.config, config)
    return preprocess


def _check_replaceable(path: Path) -> None:
    """Only an empty folder, or one that is of this format, is replaced."""
    if path.is_dir() and any(path.iterdir()):
        beside = path / "config.json"
        if not beside.is_file() or "architecture" not in read_json(beside):
            raise Error(f"{path} exists and is not a timm folder; it is left as it is. Choose another name.")
