"""Native folders to the Hugging Face hub, through its own client: one commit, there whole or not at all."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.constants import is_offline_mode
from huggingface_hub.errors import HfHubHTTPError, HFValidationError
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    validate_repo_id,
)

from vitlab.core.checksums import NAME as CHECKSUMS
from vitlab.core.errors import Error
from vitlab.core.record import read_json
from vitlab.weights import card, hub, native


class PushError(Error):
    """An upload that the hub, or what is to be uploaded, does not allow."""


@dataclass(frozen=True)
class Pushed:
    """What was uploaded, and where it is."""

    repository: str  # owner/name
    url: str
    commit: str
    files: tuple[str, ...]


def push(
    source: Path, repository: str, *, private: bool = False, message: str | None = None, license: str | None = None
) -> Pushed:
    """Upload a run's model, or a native folder, to 'hf-hub:owner/name', with its card.

    The repository is made where there is none. A card that a user wrote is uploaded as it is.
    """
    name = _repository(repository)
    folder = native_folder(source)
    if is_offline_mode():
        raise PushError(f"HF_HUB_OFFLINE is set, so that nothing can be uploaded to {repository}: unset it.")
    if get_token() is None:
        raise PushError("You are not known to the hub: log in with `hf auth login`, or set HF_TOKEN.")
    title = source.resolve().name if folder == source / "model" else name.partition("/")[2]
    text = card.own_text(folder) or card.card_of(folder, title, license=license, source=f"{hub.PREFIX}{name}")
    additions = {file: folder / file for file in native.FILES if (folder / file).is_file() and file != card.NAME}
    api = HfApi()
    with _in_sentences(name), _bars_at_a_terminal():
        api.create_repo(name, private=private or None, exist_ok=True)
        if private and not api.repo_info(name).private:
            raise PushError(f"{name} is there already, and public: make it private on the hub, or choose another name.")
        operations: list[CommitOperationAdd | CommitOperationDelete] = [
            CommitOperationAdd(path_in_repo=card.NAME, path_or_fileobj=text.encode(errors="surrogateescape")),
            *(CommitOperationAdd(path_in_repo=file, path_or_fileobj=path) for file, path in additions.items()),
        ]
        stale = [file for file in ("labels.json", CHECKSUMS) if file not in additions and api.file_exists(name, file)]
        operations += [CommitOperationDelete(path_in_repo=file) for file in stale]  # of another model before this one
        done = api.create_commit(name, operations=operations, commit_message=message or f"{title}, by vitlab")
    return Pushed(name, f"{api.endpoint}/{name}", done.oid, (card.NAME, *additions))


def native_folder(source: Path) -> Path:
    """The native folder that a source is, or that a run has."""
    if not source.is_dir():
        raise PushError(f"{source} is no folder: give a run's, or one of the native format.")
    folder = source if (source / "config.json").is_file() else source / "model"
    if not (folder / "config.json").is_file():
        what = "The run has no model yet: wait for its first evaluation" if (source / "recipe.json").exists() else ""
        raise PushError(f"{source} holds no model.{what and f' {what}.'}")
    if read_json(folder / "config.json").get("format") != "vitlab":
        raise PushError(f"{folder} is not of the native format: `vitlab convert {folder} DEST` makes such a folder.")
    if not (folder / "model.safetensors").is_file():
        raise PushError(f"{folder} is not whole: model.safetensors is missing.")
    return folder


def _repository(text: str) -> str:
    name = text.removeprefix(hub.PREFIX)
    try:
        validate_repo_id(name)
    except HFValidationError:
        name = ""
    if not text.startswith(hub.PREFIX) or name.count("/") != 1:
        raise PushError(f"'{text}' names no repository of the hub; write {hub.PREFIX}owner/name.")
    return name


@contextlib.contextmanager
def _in_sentences(name: str) -> Iterator[None]:
    """What the client raises, as one sentence."""
    try:
        yield
    except Error:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status == 401:
            raise PushError("The hub does not accept your token: log in again with `hf auth login`.") from error
        if status in (403, 404):
            raise PushError(
                f"Your token may not write to {name}: check the name, and that the token has the right to write there."
            ) from error
        raise PushError(f"The hub refused the upload to {name} ({_said(error)}).") from error
    except Exception as error:  # the client lets errors of its HTTP library through, whichever it is
        raise PushError(f"{name} cannot be uploaded ({_last(error)}).") from error


def _said(error: HfHubHTTPError) -> str:
    """The status, and the hub's own words where it has any."""
    words = (error.server_message or "").strip().splitlines()
    return f"HTTP status {error.response.status_code}" + (f": {words[0].rstrip('.')}" if words else "")


def _last(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, HfHubHTTPError):
        return _said(error)
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


@contextlib.contextmanager
def _bars_at_a_terminal() -> Iterator[None]:
    """The client's progress bars where somebody sees them, and never its warnings about a card's head."""
    silent = not sys.stderr.isatty() and not are_progress_bars_disabled()
    if silent:
        disable_progress_bars()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        if silent:
            enable_progress_bars()
