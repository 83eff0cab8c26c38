"""Counters, gauges and histograms in Prometheus' text format (version 0.0.4)."""

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, final

Labels: TypeAlias = tuple[tuple[str, str], ...]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)


@final
@dataclass(eq=False)
class Counter:
    """A number that only grows, for each set of labels."""

    name: str
    help: str
    values: dict[Labels, float] = field(default_factory=dict)

    def add(self, amount: float = 1, **labels: str) -> None:
        key = tuple(labels.items())
        self.values[key] = self.values.get(key, 0) + amount

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "counter")
        for labels, value in self.values.items():
            yield f"{self.name}{_braces(labels)} {_number(value)}"


@final
@dataclass(eq=False)
class Gauge:
    """A number that is read when it is asked for."""

    name: str
    help: str
    read: Callable[[], float]
    labels: Labels = ()

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "gauge")
        yield f"{self.name}{_braces(self.labels)} {_number(self.read())}"


@final
@dataclass(eq=False)
class Histogram:
    """How many observations were at most each bound, for each set of labels."""

    name: str
    help: str
    bounds: Sequence[float]
    counts: dict[Labels, list[int]] = field(default_factory=dict)
    sums: dict[Labels, float] = field(default_factory=dict)

    def observe(self, value: float, **labels: str) -> None:
        key = tuple(labels.items())
        counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
        counts[bisect.bisect_left(self.bounds, value)] += 1
        self.sums[key] = self.sums.get(key, 0) + value

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.help, "histogram")
        for labels, counts in self.counts.items():
            so_far = 0
            for bound, count in zip((*map(_number, self.bounds), "+Inf"), counts, strict=True):
                so_far += count
                yield f"{self.name}_bucket{_braces((*labels, ('le', bound)))} {so_far}"
            yield f"{self.name}_sum{_braces(labels)} {_number(self.sums[labels])}"
            yield f"{self.name}_count{_braces(labels)} {so_far}"


def render(families: Sequence[Counter | Gauge | Histogram]) -> str:
    """The whole exposition."""
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _head(name: str, text: str, kind: str) -> Iterator[str]:
    yield f"# HELP {name} {text}"
    yield f"# TYPE {name} {kind}"


def _braces(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{name}="{_escaped(value)}"' for name, value in labels)
    return "{" + ",".join(pairs) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)
