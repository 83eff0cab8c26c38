"""What is kept of a piece of work: JSON that is there whole or not at all, and what it was done with."""

import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch

from vitlab.core.errors import Error
from vitlab.core.files import atomic_file
from vitlab.core.reading import parse_json, read_text

OLD_METRICS: Mapping[str, str] = {
    "rate": "lr",
    "seconds a step": "seconds per step",
    "images a second": "images per second",
}
PACKAGES = ("vitlab", "torch", "numpy", "pillow", "simplejpeg", "safetensors")


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """JSON, whole or not at all."""
    with atomic_file(path) as partial:
        partial.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def finite(values: Mapping[str, Any]) -> dict[str, Any]:
    """The same with None, JSON's null, for numbers that are not finite: JSON has none."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value for name, value in values.items()
    }


def read_json(path: Path, kind: type[Error] = Error) -> dict[str, Any]:
    """The JSON object in a file, or an error of that kind that names it."""
    try:
        content = parse_json(read_text(path))
    except FileNotFoundError:
        raise kind(f"There is no file {path}.") from None
    except OSError as error:
        raise kind(f"{path}: cannot be read ({error.strerror or error}).") from error
    except ValueError as error:
        raise kind(f"{path}: cannot be read as JSON ({error}).") from error
    if not isinstance(content, dict):
        raise kind(f"{path}: holds no JSON object.")
    return content


def read_metrics(path: Path) -> tuple[dict[str, Any], ...]:
    """The whole lines of a run's log; one that is being written, or that a crash cut short, is left out."""
    if not path.exists():
        return ()
    found: list[dict[str, Any]] = []
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line: Any = parse_json(text)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            found.append({OLD_METRICS.get(str(name), str(name)): value for name, value in line.items()})
    return tuple(found)


def environment(decoder: str) -> dict[str, Any]:
    """What a run ran on, without names of people or machines."""
    versions = {name: version_of(name) for name in PACKAGES}
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "command": ["vitlab", *sys.argv[1:]],
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}",
        "packages": versions,
        "gpus": gpus,
        "threads": torch.get_num_threads(),
        "processes": int(os.environ.get("WORLD_SIZE", "1")),
        "decoder": decoder,
        "commit": _commit(),
    }


def version_of(name: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    """The commit of the source tree, where vitlab runs from one."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return git.stdout.strip() or None


VERSION: Final = version_of("vitlab") or "0+unknown"  # unknown: run from a checkout that was never installed
