"""Checkpoints of the Hugging Face hub, through its own client, cache and offline mode."""

import sys
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils import tqdm

from vitlab.core.checksums import NAME as CHECKSUMS
from vitlab.core.errors import CheckpointError
from vitlab.core.hub import answering
from vitlab.weights import sources

PREFIX = sources.HUB

# What `load` reads of a repository: settings, and the first kind of weights that is there; never two kinds.
SETTINGS = (
    *("config.json", "preprocess.json", "labels.json", CHECKSUMS, "LICENSE"),
    *("preprocessor_config.json", "processor_config.json"),
)
WEIGHTS = (
    ("model.safetensors", "model.safetensors.index.json", "model-*-of-*.safetensors"),
    ("pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*-of-*.bin"),
    ("*.npz",),
)


def download(source: str, *, named: str | None = None) -> Path:
    """The local folder of 'hf-hub:owner/name' or 'hf-hub:owner/name@revision', from the cache where it can.

    `named` is the name of the checkpoint that lies there, where it was asked for by that.
    """
    asked = source if named is None else f"{named} ({source})"
    with answering() as silent:
        try:
            return _download(source, silent)
        except LocalEntryNotFoundError as error:
            raise CheckpointError(
                f"{asked} is not, or not whole, in the local cache, and the hub cannot be reached"
                f" ({silent or _cause(error)}).{sources.at_hand()}"
            ) from error


def _download(source: str, silent: str) -> Path:
    name, _, revision = source.removeprefix(PREFIX).partition("@")
    try:
        for weights in WEIGHTS:
            patterns = [*SETTINGS, *weights]
            found = snapshot_download(name, revision=revision or None, allow_patterns=patterns, tqdm_class=_Bar)
            if any(file for pattern in weights for file in Path(found).glob(pattern)):
                return Path(found)
    except HFValidationError as error:
        raise CheckpointError(f"'{source}' names no repository of the hub; write hf-hub:owner/name.") from error
    except GatedRepoError as error:
        raise CheckpointError(
            f"{source} is open only to those who accepted its terms: accept them on the hub's page of {name}, and log"
            " in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(f"{source}: the repository has no revision '{revision or 'main'}'.") from error
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"{source}: the hub has no repository {name}, or it is private; check the name, or log in with"
            " `hf auth login`."
        ) from error
    except LocalEntryNotFoundError:
        raise
    except Exception as error:  # the client lets errors of its HTTP library through, whichever it is
        raise CheckpointError(f"{source} cannot be fetched from the hub ({_cause(error)}).") from error
    if silent:
        raise CheckpointError(f"{source} is in the local cache without its weights, and {silent}.{sources.at_hand()}")
    raise CheckpointError(
        f"{source} holds no weights that vitlab reads: model.safetensors, pytorch_model.bin or a .npz file."
    )


class _Bar(tqdm):
    """The client's progress bar, at a terminal only."""

    def __init__(self, *args: Any, **options: Any) -> None:
        if not sys.stderr.isatty():
            options["disable"] = True
        super().__init__(*args, **options)


def _cause(error: BaseException) -> str:
    """The first line of what went wrong in the end."""
    while error.__cause__ is not None:
        error = error.__cause__
    if isinstance(error, HfHubHTTPError):
        return f"HTTP status {error.response.status_code}"
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
