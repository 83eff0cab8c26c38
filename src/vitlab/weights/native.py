"""vitlab's own format: a folder of config, preprocess, labels and checksums (.json), model.safetensors and a card.

A LICENSE that lies in it belongs to the weights: it is kept, and goes into the folders of models tuned from them.
"""

import contextlib
import dataclasses
import json
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

import torch
from safetensors.torch import save_file
from torch import Tensor

from vitlab.core.checksums import NAME as CHECKSUMS
from vitlab.core.checksums import checksum, read_checksums, write_checksums
from vitlab.core.config import from_dict, to_dict
from vitlab.core.errors import CannotHoldError, CheckpointError, ConfigError, Error, MissingDependencyError
from vitlab.core.files import atomic_folder, leftovers, sync
from vitlab.core.preprocess import Preprocess
from vitlab.core.registry import is_file_reference, permit
from vitlab.models import FAMILIES
from vitlab.models.contract import Model
from vitlab.models.create import empty_model, family_name, family_of
from vitlab.weights import card
from vitlab.weights.claims import MOST_LAYERS, check_sizes, claimed_model
from vitlab.weights.files.tensors import PICKLES, read_json
from vitlab.weights.format import Contents, Format, Location
from vitlab.weights.mapping import same

StoredType: TypeAlias = Literal["float32", "float16", "bfloat16"]

VERSION = 1
TEXTS = (card.NAME, card.LICENSE)  # for people; what they wrote there is kept
FILES = ("config.json", "model.safetensors", "preprocess.json", "labels.json", CHECKSUMS, *TEXTS)


@final
class Native(Format):
    name = "vitlab"

    def recognizes(self, location: Location) -> bool:
        return location.settings is not None and location.settings.get("format") == "vitlab"

    def read(self, location: Location, hints: Mapping[str, Any]) -> Contents:
        del hints
        assert location.settings is not None
        num_tensors = len(location.tensors.shapes)
        config = read_config(location.settings, location.folder / "config.json", num_tensors=num_tensors)
        preprocess_file, labels_file = location.folder / "preprocess.json", location.folder / "labels.json"
        preprocess = from_dict(Preprocess, read_json(preprocess_file), where=str(preprocess_file))
        labels, several = None, False
        if labels_file.exists():
            said = read_json(labels_file)
            names, several = said.get("labels"), said.get("multi_label") is True
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise CheckpointError(f"{labels_file}: 'labels' must be a list of texts.")
            labels = tuple(names)
        names = claimed_model(config, None, location.tensors, location.where).state_dict()
        task = location.settings.get("task", "classification")
        if not isinstance(task, str):
            raise CheckpointError(f"{location.folder / 'config.json'}: 'task' must be a text.")
        rules = [same(name, name) for name in names]
        sums = read_checksums(location.folder)
        edited, own = _edited(location.folder, sums), sums.get(location.tensors.path.name)
        return Contents(
            config,
            rules,
            preprocess,
            labels,
            edited,
            multi_label=several,
            task=task,
            license=card.license_of(location.folder),
            checksum=own,
        )

    def write(self, model: Model, path: Path) -> None:
        write_folder(model, path)


def write_folder(model: Model, path: Path, dtype: StoredType | None = None) -> None:
    """The model as a native folder; `dtype` is that of its stored weights, by default the model's own.

    Whatever they are stored in, weights are loaded as float32.
    """
    check_replaceable(path, FILES, lambda settings: settings.get("format") == "vitlab")
    terms = model.license or card.license_of(path)
    with atomic_folder(path) as folder:
        write_json(folder / "config.json", config_settings(model))
        write_json(folder / "preprocess.json", to_dict(model.preprocess))
        if model.labels is not None:
            several = {"multi_label": True} if model.multi_label else {}
            write_json(folder / "labels.json", {"labels": list(model.labels), **several})
        save_file(_stored(model, dtype), folder / "model.safetensors", metadata={"format": "pt"})
        with ThreadPoolExecutor(1) as beside:  # the checksums are taken while the disk is busy
            synced = beside.submit(sync, folder / "model.safetensors")
            write_checksums(folder, {file.name: checksum(file) for file in sorted(folder.iterdir())})
            synced.result()
        card.write(folder, card.own_text(path) or _card(model, path))
        if terms is not None:
            (folder / card.LICENSE).write_text(terms, encoding="utf-8")


def _edited(folder: Path, sums: Mapping[str, str]) -> list[str]:
    """Words on settings that are not those that were saved: somebody may have meant that."""
    settings = [name for name in sums if name in FILES and name.endswith(".json") and (folder / name).is_file()]
    changed = [name for name in settings if checksum(folder / name) != sums[name]]
    return [f"{name} was changed after it was saved: its checksum is not that in {CHECKSUMS}." for name in changed]


def config_settings(model: Model) -> dict[str, Any]:
    """What config.json says of a model."""
    family, config = family_name(model.config), to_dict(model.config)
    task = {} if model.task == "classification" else {"task": model.task}
    return {"format": "vitlab", "version": VERSION, "family": family, "config": config, **task}


def read_config(settings: Mapping[str, Any], where: Path, *, num_tensors: int = MOST_LAYERS) -> Any:
    """The model's configuration that config.json describes."""
    if not isinstance(settings.get("version"), int) or settings["version"] > VERSION:
        raise CheckpointError(
            f"{where}: version {settings.get('version')!r} of the native format is newer than this vitlab reads."
        )
    if not isinstance(settings.get("family"), str) or not isinstance(settings.get("config"), Mapping):
        raise CheckpointError(f"{where}: 'family' or 'config' is missing.")
    check_sizes(settings["config"], str(where), num_tensors=num_tensors)
    return from_dict(family_of(settings["family"]).config, settings["config"], where=str(where))


def with_family(location: Location, family: str) -> Location:
    """A native folder whose family is code in a file, with the file that the caller gave for it."""
    stored = None if location.settings is None else location.settings.get("family")
    if not isinstance(stored, str) or not is_file_reference(stored):
        raise ConfigError(f"{location.where}: family='{family}' is for models whose family is in a file: leave it out.")
    permit(family)
    return dataclasses.replace(location, settings={**(location.settings or {}), "family": family})


def is_own(names: Collection[str]) -> bool:
    """Whether tensors are named as one of our families names those of its example, most of them at least."""
    for family in FAMILIES:
        with contextlib.suppress(MissingDependencyError):
            own = empty_model(from_dict(family.config, family.example, where=family.name)).state_dict()
            if sum(name in names for name in own) > len(own) / 2:
                return True
    return False


def _stored(model: Model, dtype: StoredType | None) -> dict[str, Tensor]:
    """Every tensor under each of its names: a module that is used in several places is stored once for each."""
    state: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, value in model.state_dict().items():
        plain = _as_type(name, value.detach().cpu().contiguous(), dtype)
        state[name] = plain.clone() if plain.data_ptr() in seen else plain
        seen.add(plain.data_ptr())
    return state


def _as_type(name: str, value: Tensor, dtype: StoredType | None) -> Tensor:
    if dtype is None or not value.is_floating_point():
        return value
    changed = value.to(getattr(torch, dtype))
    if value.isfinite().all() and not changed.isfinite().all():
        raise CannotHoldError(f"'{name}' has values that {dtype} cannot hold: keep them in float32, or in bfloat16.")
    return changed


def _card(model: Model, path: Path) -> str:
    """The model's card; that of a run's model has the run's name and says how it was trained."""
    path = path.resolve()
    run = card.run_facts(path.parent) if path.name == "model" else None
    return card.model_card(model, path.name if run is None else path.parent.name, run=run)


def check_replaceable(path: Path, files: Collection[str], is_ours: Callable[[Mapping[str, Any]], bool]) -> None:
    """Refuse to put a folder where a file is meant, or in place of one that holds anything but such a model."""
    if path.suffix in (".safetensors", ".npz", *PICKLES):
        raise Error(f"{path}: this format is a folder; give a name without '{path.suffix}'.")
    inside = {item.name for item in path.iterdir()} if path.is_dir() else set[str]()
    if inside <= {*TEXTS} & {*files}:  # texts wait for their model
        return
    try:
        settings = read_json(path / "config.json")
    except CheckpointError:
        settings = {}
    killed = {left.name for name in files for left in leftovers(path, name)}
    others = sorted(inside - set(files) - killed)
    if others or not is_ours(settings):
        what = f"holds '{others[0]}'" if others else "is no model folder of this format"
        raise Error(f"{path} exists and {what}; it is left as it is. Choose another name.")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Indented JSON with a newline at its end."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
