"""Interleaved timing: every candidate once a round, so that a noisy machine is noisy for all of them."""

import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch


@dataclass(frozen=True)
class Timing:
    """Seconds a round, round by round in step with the other candidates."""

    rounds: list[float]

    @property
    def median(self) -> float:
        return statistics.median(self.rounds)

    def speed_over(self, other: "Timing") -> tuple[float, float, float]:
        """How many times as fast as `other`: the median of the paired rounds, and its quartiles."""
        ratios = sorted(theirs / ours for ours, theirs in zip(self.rounds, other.rounds, strict=True))
        low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return middle, low, high


def interleave(candidates: Mapping[str, Callable[[], object]], *, rounds: int, warmup: int = 2) -> dict[str, Timing]:
    """Time each candidate once a round, in an order shuffled anew each round."""
    for _ in range(warmup):
        for run in candidates.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    order = list(candidates)
    shuffle = random.Random(0).shuffle
    for _ in range(rounds):
        shuffle(order)
        for name in order:
            start = time.perf_counter()
            candidates[name]()
            seconds[name].append(time.perf_counter() - start)
    return {name: Timing(values) for name, values in seconds.items()}


def machine() -> str:
    """The hardware and the versions that matter, in a sentence."""
    names = [line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")]
    return (
        f"{names[0] if names else platform.processor()}, {torch.get_num_threads()} threads, float32,"
        f" Python {platform.python_version()}, torch {torch.__version__}"
    )


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []
