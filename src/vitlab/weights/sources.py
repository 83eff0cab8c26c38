"""The sources that can be had without a download, and those that a mistyped name may mean."""

from difflib import SequenceMatcher
from pathlib import Path

from huggingface_hub import constants

from vitlab.core.errors import did_you_mean, near_names
from vitlab.core.files import near_paths
from vitlab.core.words import listed
from vitlab.weights import box
from vitlab.weights.published import PUBLISHED

HUB = "hf-hub:"
RUNS = "runs"  # where runs go unless they are told otherwise
WEIGHTS = ("*.safetensors", "*.bin", "*.npz")


def cached() -> list[str]:
    """The repositories whose weights are in the hub's cache."""
    return [
        HUB + "/".join(folder.name.removeprefix("models--").split("--", 1))
        for folder in sorted(Path(constants.HF_HUB_CACHE).glob("models--*--*"))
        if any(file.exists() for kind in WEIGHTS for file in folder.glob(f"snapshots/*/{kind}"))
    ]


def runs() -> list[str]:
    """The runs here that have a model, the last one first."""
    found = Path(RUNS).glob("*/model/config.json")
    return [str(path.parents[1]) for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


def at_hand() -> str:
    """A sentence on what can be had here, for one who cannot have what he asked for."""
    parts = [f"{listed(box.names())} (in the package)"] if box.names() else []
    parts += [f"{listed(names)} (in the cache)"] if (names := cached()) else []
    parts += [listed(names)] if (names := runs()) else []
    return f" Here there are {'; '.join([*parts, 'and any file or folder of weights'])}." if parts else ""


def mistyped(text: str) -> str:
    """' Did you mean ...?' of paths that are there and of names of checkpoints, or an empty string."""
    names = [*box.names(), *PUBLISHED, *cached(), *runs(), *PUBLISHED.values()]
    found = dict.fromkeys([*near_paths(Path(text)), *near_names(text, names)])
    return did_you_mean(sorted(found, key=lambda name: -SequenceMatcher(None, text.lower(), name.lower()).ratio())[:3])
