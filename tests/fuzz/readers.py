"""Every reader with its valid files, and what has to hold of whatever it makes of changed ones."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from fuzz import seeds
from vitlab.core.errors import LONGEST, Error
from vitlab.core.words import one_line
from vitlab.data.contract import Masks
from vitlab.data.decoding import decode, read_mask
from vitlab.data.open import open_data
from vitlab.weights.load import load, save

LARGEST = 64  # px that a model is tried at
TRIED = 2  # images of each split that are decoded


@dataclass(frozen=True)
class Reader:
    """Something that reads files: `write` makes a folder for each case, `read` is given a changed copy of one."""

    name: str
    write: Callable[[Path], None]
    read: Callable[[Path], None]
    share: float = 1.0  # of the cases that others get: where each starts a process


def check_sentence(error: Error) -> None:
    """That an error can be shown to a user as it is."""
    text = str(error)
    assert text == one_line(text), f"control characters in {text!r}"
    assert "Traceback" not in text, text
    assert 0 < len(text) <= LONGEST, f"{len(text)} characters: {text[:300]!r}"
    assert text.endswith((".", "?", "!", ")")), f"no sentence: {text!r}"


def tried(reader: Reader, folder: Path) -> bool:
    """Whether files were taken; those that are refused are in one sentence."""
    try:
        reader.read(folder)
    except Error as error:
        check_sentence(error)
        return False
    return True


def _model(name: str) -> Callable[[Path], None]:
    """A model that computes, and that is the same after it was saved."""

    def read(folder: Path) -> None:
        model = load(folder / name)
        again = folder / "again"
        save(model, again)
        other = load(again)
        assert other.config == model.config
        assert other.labels == model.labels
        state = other.state_dict()
        assert all(torch.equal(value, state[name]) for name, value in model.state_dict().items())
        if max(model.config.image_size) <= LARGEST:
            images = torch.zeros(1, getattr(model.config, "channels", 3), *model.config.image_size)
            with torch.inference_mode():
                answer = model(images)
            assert len(answer) == 1
            assert model.config.num_classes in (0, answer.shape[-1])

    return read


def _data(folder: Path) -> None:
    """A data set whose labels are classes and whose images, each, decode or are refused in a sentence."""
    opened = next(
        iter(sorted((folder / "set").glob("*.csv")) or sorted((folder / "set").glob("*.npz"))), folder / "set"
    )
    dataset = open_data(_only(opened))
    for split in dataset.splits.values():
        for target in split.targets.values():
            assert len(target) == len(split)
            if not isinstance(target, Masks) and target.kind == "class":
                assert target.values.dtype == np.int64
                assert ((target.values >= 0) & (target.values < dataset.num_classes)).all()
        for i in range(min(len(split), TRIED)):
            try:
                pixels = decode(split.images.read(i), split.images.where(i))
                for target in split.targets.values():
                    if isinstance(target, Masks):
                        read_mask(target, i, pixels.shape[:2])
            except Error as error:
                check_sentence(error)


def _only(folder: Path) -> Path:
    """The set itself, where a maker put it deeper."""
    while folder.is_dir() and len(inside := list(folder.iterdir())) == 1 and inside[0].is_dir():
        folder = inside[0]
    return folder


WEIGHTS = (
    Reader("native", seeds.native, _model(".")),
    Reader("npz", seeds.google_npz, _model("model.npz")),
    Reader("safetensors", seeds.safetensors, _model("model.safetensors")),
    Reader("pth", seeds.pth, _model("model.pth")),
    Reader("hf", seeds.hf, _model(".")),
    Reader("timm", seeds.timm, _model(".")),
    Reader("vmoe", seeds.vmoe, _model("model.index")),
)
DATA = (
    Reader("tar", seeds.made("shards"), _data),
    Reader("csv", seeds.made("table"), _data),
    Reader("idx", seeds.idx, _data),
    Reader("mat", seeds.mat, _data, share=0.2),
    Reader("arrays", seeds.arrays, _data),
    Reader("cifar", seeds.cifar, _data),
    Reader("lists", seeds.made("pets", "dtd", "food101", "vtab", "stl10"), _data),
    Reader("masks", seeds.made("masks", "camvid"), _data),
)
READERS = {reader.name: reader for reader in (*WEIGHTS, *DATA)}
