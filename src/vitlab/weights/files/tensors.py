"""Files of named tensors, read one at a time: .npz, .safetensors, V-MoE's .index, and pickles that may not run code."""

import argparse
import pickle
import zipfile
from pathlib import Path
from typing import Any, final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from vitlab.core import record
from vitlab.core.errors import CheckpointError
from vitlab.core.reading import check_regular
from vitlab.core.words import listed
from vitlab.weights.files.container import TensorFile, reason
from vitlab.weights.files.npz import NpzFile
from vitlab.weights.google.shards import FlaxShards

PICKLES = (".pth", ".pt", ".bin", ".ckpt", ".tar")


def open_tensors(path: Path) -> TensorFile:
    """The tensors of a file, whatever container its first bytes say it is."""
    try:
        check_regular(path)
        with path.open("rb") as stream:
            head = stream.read(16)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; a checkpoint file was expected.") from error
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read ({error.strerror}); a checkpoint file was expected.") from error
    if not head:
        raise CheckpointError(f"{path}: the file is empty.")
    if path.suffix == ".npz":
        return NpzFile(path)
    if path.suffix == ".safetensors" or head[8:9] == b"{":
        return SafetensorsFile(path)
    if path.suffix in PICKLES:
        return PickleFile(path)
    if path.suffix == ".index":
        return FlaxShards(path)
    raise CheckpointError(
        f"{path}: not a checkpoint that vitlab knows; it reads .npz, .safetensors, .index and"
        f" {', '.join(PICKLES[:3])} files."
    )


@final
class SafetensorsFile(TensorFile):
    """Hugging Face's safetensors; opened anew after some tensors so that mapped pages do not pile up.

    For each one would be slow: a header that names sixty thousand tensors is read at every opening.
    """

    MAPPED = 64 << 20  # bytes

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._file: Any = None
        self._mapped = 0
        try:
            with safe_open(path, framework="pt") as file:
                self.metadata = dict(file.metadata() or {})
                for name in file.keys():  # noqa: SIM118 (not a mapping)
                    self.shapes[name] = tuple(file.get_slice(name).get_shape())
        except (SafetensorError, OSError, ValueError) as error:
            raise CheckpointError(f"{path}: not a safetensors file, or truncated ({reason(error)}).") from error

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        try:
            if self._file is None:
                self._file, self._mapped = safe_open(self.path, framework="pt"), 0
            value = self._file.get_tensor(name).clone()
        except (SafetensorError, OSError, ValueError, RuntimeError, AttributeError) as error:
            raise CheckpointError(f"{self.path}: '{name}' cannot be read ({reason(error)}).") from error
        self._mapped += value.nbytes
        if self._mapped > self.MAPPED:
            self._file = None
        return value


@final
class PickleFile(TensorFile):
    """A state dict of torch.save, read with weights_only so that nothing in it can run."""

    SHARED = 8  # how many times its size a file's tensors may have: some models use a tensor in several places
    DEEPEST = 3  # keys above a state dict
    AVERAGES = ("state_dict_ema", "model_ema", "params_ema")  # before what they are averages of, as in timm
    NESTED = (
        *AVERAGES,
        *("state_dict", "model", "model_state", "model_state_dict", "module", "teacher", "params", "net", "state"),
    )

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        try:
            with torch.serialization.safe_globals([argparse.Namespace]):  # the options of a training script
                content = torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
        except pickle.UnpicklingError as error:
            if "Weights only load failed" in str(error) or "weights_only" in str(error):
                raise CheckpointError(
                    f"{path}: the pickle holds more than tensors and could run code; it is not read."
                    " Save its state dict alone, or as .safetensors."
                ) from error
            raise CheckpointError(f"{path}: not a torch checkpoint, or damaged ({reason(error)}).") from error
        except Exception as error:  # torch raises many kinds for damaged files
            raise CheckpointError(f"{path}: not a torch checkpoint, or damaged ({reason(error)}).") from error
        self._tensors = self._find(content)
        for name, value in self._tensors.items():
            if value.is_nested or value.is_quantized or value.layout is not torch.strided or value.device.type != "cpu":
                raise CheckpointError(
                    f"{path}: '{name}' is no plain tensor (it is nested, quantised, sparse or without values); save the"
                    " state dict of a plain model."
                )
        claimed, held = sum(value.nbytes for value in self._tensors.values()), path.stat().st_size
        if claimed > self.SHARED * held:
            raise CheckpointError(
                f"{path}: its tensors claim {claimed:.3g} bytes, and the file has {held:.3g}; save it with tensors that"
                " are no views of smaller ones."
            )
        self.shapes = {name: tuple(value.shape) for name, value in self._tensors.items()}

    def _find(self, content: Any) -> dict[str, Tensor]:
        found = self._state_dicts(content)
        if not found:
            raise CheckpointError(f"{self.path}: no state dict of tensors was found in it.")
        taken, *others = found
        if others:
            self.assumed.append(f"It holds several state dicts: '{taken}' is taken, and not {listed(others)}.")
        return found[taken]

    def _state_dicts(self, content: Any, path: tuple[str, ...] = ()) -> dict[str, dict[str, Tensor]]:
        """State dicts by their keys, the one to take first; numbers that lie beside one, as a score, are none."""
        if not isinstance(content, dict) or len(path) > self.DEEPEST:
            return {}
        inner = [self._state_dicts(content.get(name), (*path, name)) for name in self.NESTED]
        tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
        return {key: state for found in inner for key, state in found.items()} or (
            {".".join(path): tensors} if tensors else {}
        )

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name].clone()


@final
class ShardedFile(TensorFile):
    """Several files behind one index."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        index = read_json(path).get("weight_map")
        if not isinstance(index, dict):
            raise CheckpointError(f"{path}: 'weight_map' is missing.")
        folder = path.parent.resolve()
        parts: dict[str, TensorFile] = {}
        for part in sorted({str(value) for value in index.values()}):
            if (folder / part).parent != folder:
                raise CheckpointError(f"{path}: '{part}' lies outside the folder; it is not read.")
            parts[part] = open_tensors(path.parent / part)
        self._parts = parts
        self._index = {str(name): str(part) for name, part in index.items()}
        for name, part in self._index.items():
            if name not in parts[part].shapes:
                raise CheckpointError(f"{path}: '{name}' is not in {part}; the checkpoint is incomplete.")
            self.shapes[name] = parts[part].shapes[name]

    def __getitem__(self, name: str) -> Tensor:
        return self._parts[self._index[name]][name]


def open_folder(folder: Path) -> TensorFile:
    """The weights of a folder: safetensors first, then pickles, whole or in shards, or the only .npz."""
    for stem in ("model.safetensors", "pytorch_model.bin"):
        if (folder / stem).exists():
            return open_tensors(folder / stem)
        if (folder / f"{stem}.index.json").exists():
            return ShardedFile(folder / f"{stem}.index.json")
    arrays = sorted(folder.glob("*.npz"))
    if len(arrays) == 1:
        return open_tensors(arrays[0])
    raise CheckpointError(f"{folder}: no model.safetensors, pytorch_model.bin or single .npz in this folder.")


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file, or a CheckpointError."""
    return record.read_json(path, CheckpointError)
