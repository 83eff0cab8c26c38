"""Uploads to the hub."""

from pathlib import Path
from typing import TYPE_CHECKING

from vitlab.data.decoding import StrPath

if TYPE_CHECKING:
    from vitlab.weights.push import Pushed


def push(
    source: StrPath, repository: str, *, private: bool = False, message: str | None = None, license: str | None = None
) -> "Pushed":
    """Upload a run's model, or a native folder, to 'hf-hub:owner/name'; the repository is made where there is none."""
    from vitlab.weights import push as pushing

    return pushing.push(Path(source), repository, private=private, message=message, license=license)
