"""Runs that are killed: when, and what is left of it in what they learned."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import load_file


def until_written(folder: Path, ended: Callable[[], bool]) -> None:
    """Wait until a run writes something, a partial checkpoint at the earliest, or has ended."""
    before = set((folder / "checkpoints").glob("*"))
    while not ended() and before == set((folder / "checkpoints").glob("*")):
        time.sleep(0.001)


def differences(whole: Path, broken: Path) -> list[str]:
    """The weights of two runs that are not equal to the bit, and the lines of metrics that are not but for times."""
    a, b = (load_file(folder / "model" / "model.safetensors") for folder in (whole, broken))
    found = [name for name in {**a, **b} if name not in a or name not in b or not torch.equal(a[name], b[name])]
    lines = [
        [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()] for folder in (whole, broken)
    ]
    timeless = [[{k: v for k, v in line.items() if "second" not in k} for line in run] for run in lines]
    if len(timeless[0]) != len(timeless[1]):
        return [*found, f"{len(timeless[0])} and {len(timeless[1])} lines of metrics"]
    return found + [f"metrics: {one}, {other}" for one, other in zip(*timeless, strict=True) if one != other]
