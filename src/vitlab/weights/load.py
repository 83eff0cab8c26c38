"""`load` and `save`: any source to a model, and a model to any format."""

import dataclasses
import functools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitlab.core import checksums
from vitlab.core.config import check_names, to_dict
from vitlab.core.errors import CannotHoldError, CheckpointError, near_matches, unknown_name
from vitlab.core.imagenet import imagenet_labels
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.models.create import as_size, change, configured
from vitlab.models.timm.adapter import TimmModel
from vitlab.models.timm.build import PREFIX as TIMM_PREFIX
from vitlab.models.timm.build import TimmConfig
from vitlab.models.zoo.rows import ZOO
from vitlab.weights import box, hub, surgery
from vitlab.weights.claims import check_kind, check_sizes, claimed_model
from vitlab.weights.files.container import TensorFile, unwrapped
from vitlab.weights.files.tensors import open_folder, open_tensors, read_json
from vitlab.weights.format import Contents, Format, FormatOf, Location
from vitlab.weights.mapping import LoadReport, Rule, check_finite, check_shape
from vitlab.weights.native import Native, StoredType, is_own, with_family, write_folder
from vitlab.weights.published import PUBLISHED
from vitlab.weights.sources import at_hand, mistyped
from vitlab.weights.timm.pretrained import load_timm, resized

logger = logging.getLogger("vitlab")
COUNTER = ".num_batches_tracked"  # of a batch norm, which no answer depends on: files may lack it


@functools.cache
def formats() -> dict[str, Format]:
    """Every format by name, in the order in which they are asked whether a checkpoint is theirs."""
    from vitlab.weights.google.big_vision import BigVision
    from vitlab.weights.google.bit import BigVisionBiT, GoogleBiT
    from vitlab.weights.google.vit_jax import Google
    from vitlab.weights.google.vmoe import GoogleVMoE
    from vitlab.weights.hf.bit import HuggingFaceBiT
    from vitlab.weights.hf.cvt import AuthorsCvT, HuggingFaceCvT
    from vitlab.weights.hf.vit import HuggingFace
    from vitlab.weights.timm.bit import TimmBiT
    from vitlab.weights.timm.coatnet import TimmCoAtNet
    from vitlab.weights.timm.vit import Timm
    from vitlab.weights.torchvision import Torchvision

    known = (
        Native(),
        FormatOf(GoogleBiT(), GoogleVMoE(), Google()),
        FormatOf(BigVisionBiT(), BigVision()),
        FormatOf(TimmBiT(), TimmCoAtNet(), AuthorsCvT(), Timm()),
        FormatOf(HuggingFaceBiT(), HuggingFaceCvT(), HuggingFace()),
        Torchvision(),
    )
    return {item.name: item for item in known}


def load(
    source: str | Path,
    *,
    num_classes: int | None = None,
    image_size: int | tuple[int, int] | None = None,
    family: str | None = None,
    **config: Any,
) -> Model:
    """A model with weights from any source that DESIGN calls one; keywords change fields of its configuration.

    Head and positions adapt to `num_classes` and `image_size`. What was adapted, assumed or not used is in
    `model.load_report` and logged as warnings. A model whose family is code in a file needs `family`, "mine.py:NAME":
    what a saved model names is not run.
    """
    changes = dict(config) if image_size is None else {"image_size": as_size(image_size), **config}
    if str(source).startswith(TIMM_PREFIX):
        classes = {} if num_classes is None else {"num_classes": num_classes}
        return _reported(load_timm(str(source), classes | changes), str(source))
    location = locate(source) if family is None else with_family(locate(source), family)
    contents = _read(location, changes)
    if num_classes is not None:
        changes = surgery.transfer_config(contents.config, num_classes) | changes
    new = change(contents.config, changes, where=location.where)
    preprocess = contents.preprocess or Preprocess(size=contents.config.image_size)
    if "image_size" in changes:  # without it they may differ: DINOv2's positions are for 518 px, its inputs 224
        preprocess = preprocess.with_size(new.image_size)
    assumed = [*location.tensors.assumed, *contents.assumed]
    report = LoadReport(assumed=assumed, adapted=surgery.describe(contents.config, new))
    if isinstance(new, TimmConfig) and new.image_size != contents.config.image_size:
        same_size = dataclasses.replace(new, image_size=contents.config.image_size)
        model = claimed_model(same_size, preprocess, location.tensors, location.where)
        assert isinstance(model, TimmModel)
        _fill(model, location, contents, report)
        model.resize(new.image_size)
        report.adapted.append(resized(contents.config, new))
    else:
        model = claimed_model(new, preprocess, location.tensors, location.where)
        _fill(model, location, contents, report)
    model.labels = _labels(contents, new, location, report)
    model.task, model.license = contents.task, contents.license
    model.multi_label = contents.multi_label and not surgery.replaces_head(contents.config, new)
    model.load_report = report
    return _reported(model, location.where)


def read_configuration(source: str | Path, *, image_size: int | tuple[int, int] | None = None, **config: Any) -> Any:
    """The configuration of the model that `load` makes, without reading its weights."""
    if str(source).startswith(TIMM_PREFIX):
        return configured(str(source), image_size=image_size, **config)
    changes = dict(config) if image_size is None else {"image_size": as_size(image_size), **config}
    location = locate(source)
    return change(_read(location, changes).config, changes, where=location.where)


def _reported(model: Model, where: str) -> Model:
    for line in model.load_report.lines():
        logger.warning("%s: %s", where, line)
    return model.eval()


def save(model: Model, path: str | Path, format: str = "vitlab", *, dtype: StoredType | None = None) -> None:
    """The model at `path` in one of the formats vitlab, google, big_vision, timm, hf, torchvision.

    `dtype`, for vitlab's own, is what the weights are stored in: float16 halves the file. They load as float32.
    """
    if format not in formats():
        raise unknown_name("checkpoint format", format, formats(), f" The formats are {', '.join(formats())}.")
    if model.multi_label and format not in ("vitlab", "hf"):
        logger.warning("The %s format cannot say that images may have several labels: its readers take one.", format)
    if model.is_dense and format != "vitlab":
        raise CannotHoldError(f"The {format} format has no place for a head on patches: save it in vitlab's own.")
    if dtype is None:
        formats()[format].write(model, Path(path))
    elif format != "vitlab":
        raise CannotHoldError(f"The {format} format is written in the model's own precision: leave dtype out.")
    else:
        write_folder(model, Path(path), dtype)


def locate(source: str | Path) -> Location:
    """Where a source's tensors and settings lie."""
    text = str(source)
    if text.startswith(hub.PREFIX):
        return _folder(hub.download(text))
    if (packaged := box.folder_of(text)) is not None:
        return dataclasses.replace(_folder(packaged), name=text)
    path = Path(source)
    if path.is_dir():
        return _folder(path)
    if path.exists():
        beside = path.parent / "config.json"
        settings = read_json(beside) if beside.exists() and path.suffix != ".npz" else None
        return _location(open_tensors(path), settings, path.parent)
    if text in PUBLISHED:
        return _folder(hub.download(PUBLISHED[text], named=text))
    if text in ZOO:
        raise CheckpointError(
            f"'{text}' is a model of the zoo without weights of its own: create it with vitlab.create('{text}'), or"
            f" load one of its checkpoints.{near_matches(text, PUBLISHED)}"
        )
    if text == box.DEFAULT:
        raise CheckpointError(f"This installation came without the weights of {text}: name another model.{at_hand()}")
    raise CheckpointError(f"'{text}' is no file, folder, hf-hub: source or checkpoint name.{mistyped(text)}")


def _folder(path: Path) -> Location:
    """A folder with config.json and weights; a run's folder stands for its `model/`."""
    if not (path / "config.json").exists():
        if (path / "model" / "config.json").exists():
            path = path / "model"
        elif (path / "recipe.json").is_file():
            raise CheckpointError(f"{path}: this run has no model yet; resume it (vitlab train --resume).")
    settings = read_json(path / "config.json") if (path / "config.json").exists() else None
    return _location(open_folder(path), settings, path)


def _location(tensors: TensorFile, settings: Mapping[str, Any] | None, folder: Path) -> Location:
    """A checkpoint, without what wrappers of a model put before its names; our own models' names are as they are."""
    own = settings is not None and settings.get("format") == Native.name
    return Location(tensors if own else unwrapped(tensors), settings, folder)


def _read(location: Location, hints: Mapping[str, Any]) -> Contents:
    for item in formats().values():
        if item.recognizes(location):
            contents = item.read(location, hints)
            tensors = location.tensors if contents.tensors is None else contents.tensors
            check_sizes(to_dict(contents.config), location.where, num_tensors=len(tensors.shapes))
            if contents.preprocess is not None:
                check_sizes(to_dict(contents.preprocess), location.where)
            if not isinstance(contents.config, TimmConfig):  # there, other names are arguments of timm's
                check_names(type(contents.config), hints, where=location.where)
            return contents
    if is_own(location.tensors.shapes):
        raise CheckpointError(
            f"{location.where}: these are vitlab's own weights without their config.json: give the whole folder."
        )
    names = ", ".join(list(location.tensors)[:3])
    raise CheckpointError(
        f"{location.where}: the names in it ({names}, ...) belong to no checkpoint format that vitlab knows."
    )


def _fill(model: Model, location: Location, contents: Contents, report: LoadReport) -> None:
    """Every tensor from the file, one at a time; a replaced head gets fresh weights."""
    if contents.checksum is not None:
        checksums.check(location.tensors.path, contents.checksum)
    old, new = contents.config, model.config
    tensors = location.tensors if contents.tensors is None else contents.tensors
    wanted = dict(model.state_dict())
    new_head, new_positions = surgery.replaces_head(old, new), surgery.replaces_positions(old, new)
    replaced = (*(("head.",) if new_head else ()), *(("positions.",) if new_positions else ()))
    rules: dict[str, Rule] = {}
    explained: set[str] = set()  # the file's tensors that are used, or whose replacement is reported
    for rule in contents.rules:
        if rule.ours.startswith(replaced):
            explained.update(rule.theirs)
        elif rule.ours in wanted:
            missing = [name for name in rule.theirs if name not in tensors.shapes]
            if missing and rule.ours.endswith(COUNTER):
                continue
            if missing:
                raise CheckpointError(f"{location.where}: '{missing[0]}' is missing; the file is incomplete.")
            rules[rule.ours] = rule
            explained.update(rule.theirs)
    if new_head:
        report.adapted.append(surgery.new_head(old, new))
    report.unused.extend(name for name in tensors.shapes if name not in explained)

    absent = [name for name in wanted if name not in rules]
    fresh = [name for name in absent if not name.endswith(COUNTER)]
    for name in fresh:
        if not name.startswith(replaced):
            report.fresh.append(name)
        _set(model, name, torch.empty_like(wanted[name], device="cpu"))
    unstored = {name: value for name, value in model.named_buffers() if name not in wanted}
    for name, value in unstored.items():
        _set(model, name, torch.empty_like(value, device="cpu"))
    if fresh or unstored:
        model.initialize()  # the rest is still on the meta device, where this costs nothing
    for name in set(absent) - set(fresh):
        _set(model, name, torch.zeros_like(wanted[name], device="cpu"))
    for name, rule in rules.items():
        values = [tensors[theirs] for theirs in rule.theirs]
        for theirs, value in zip(rule.theirs, values, strict=True):
            check_kind(theirs, value, wanted[name].dtype, location.where)
            check_finite(theirs, value, location.where)
        try:
            value = rule.read(values)
        except (RuntimeError, IndexError) as error:
            shapes = ", ".join(str(list(item.shape)) for item in values)
            raise CheckpointError(f"{location.where}: '{rule.theirs[0]}' has a wrong shape ({shapes}).") from error
        value = value.float() if value.is_floating_point() else value.to(wanted[name].dtype)
        value = surgery.adapt(name, value, old, new)
        check_shape(rule.theirs[0], value, wanted[name].shape, location.where)
        _set(model, name, value.contiguous())


def _set(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, last = name.rpartition(".")
    owner = model.get_submodule(path)
    if last in dict(owner.named_buffers(recurse=False)):
        setattr(owner, last, value)
    else:
        owner.register_parameter(last, nn.Parameter(value))


def _labels(contents: Contents, new: Any, location: Location, report: LoadReport) -> tuple[str, ...] | None:
    """The file's class names where they fit the head, or ImageNet's for a thousand classes."""
    if surgery.replaces_head(contents.config, new) or new.num_classes == 0:
        return None
    if contents.labels is not None:
        if len(contents.labels) != new.num_classes:
            raise CheckpointError(
                f"{location.where}: {len(contents.labels)} class names for {new.num_classes} classes; mend the labels."
            )
        return contents.labels
    if new.num_classes == 1000:
        report.assumed.append("No class names in the file: with 1000 classes, ImageNet's were assumed.")
        return imagenet_labels()
    return None
