"""How names and layouts of a checkpoint format correspond to ours: one list of rules, read in both directions."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitlab.core.errors import CheckpointError

Read = Callable[[Sequence[Tensor]], Tensor]
Write = Callable[[Tensor], Sequence[Tensor]]


@dataclass(frozen=True)
class Rule:
    """One of our parameters, the tensors of the file that hold it, and the way there and back."""

    ours: str
    theirs: tuple[str, ...]
    read: Read
    write: Write
    part: bool = False  # the file's tensor is several of ours behind one another, in the order of their rules


def same(ours: str, theirs: str) -> Rule:
    return Rule(ours, (theirs,), lambda t: t[0], lambda t: [t])


def transposed(ours: str, theirs: str) -> Rule:
    """A dense kernel [in, out] for a weight [out, in]."""
    return Rule(ours, (theirs,), lambda t: t[0].T, lambda t: [t.T])


def reshaped(ours: str, theirs: str, *, our_shape: Sequence[int], their_shape: Sequence[int]) -> Rule:
    """The same values in the same order under another shape."""
    return Rule(ours, (theirs,), lambda t: t[0].reshape(*our_shape), lambda t: [t.reshape(*their_shape)])


def concatenated(ours: str, theirs: Sequence[str], sizes: Sequence[int]) -> Rule:
    """Several tensors that lie behind one another along our first axis (q, k, v; class token, registers)."""
    return Rule(ours, tuple(theirs), lambda t: torch.cat(list(t)), lambda t: t.split(list(sizes)))


def qkv_biases(ours: str, theirs: Sequence[str | None], width: int) -> Rule:
    """The biases of q, k and v behind one another; None for those that a file leaves out, which are zeros."""

    def read(t: Sequence[Tensor]) -> Tensor:
        there = iter(t)
        return torch.cat([t[0].new_zeros(width) if name is None else next(there) for name in theirs])

    def write(t: Tensor) -> Sequence[Tensor]:
        return [part for name, part in zip(theirs, t.chunk(3), strict=True) if name is not None]

    return Rule(ours, tuple(name for name in theirs if name is not None), read, write)


def part_of(ours: str, theirs: str, start: int, stop: int) -> Rule:
    """Rows `start` to `stop` of a tensor whose other rows are other parameters of ours."""
    return Rule(ours, (theirs,), lambda t: t[0][start:stop], lambda t: [t], part=True)


def read_through(rule: Rule, *, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Rule:
    """The rule with each of the file's tensors changed first: `read` on the way in, `write` on the way out."""
    return Rule(
        rule.ours,
        rule.theirs,
        lambda t: rule.read([read(item) for item in t]),
        lambda t: [write(item) for item in rule.write(t)],
        rule.part,
    )


@dataclass
class LoadReport:
    """What loading changed, assumed, left out or did not find; empty when the file was taken as it is."""

    assumed: list[str] = field(default_factory=list)
    adapted: list[str] = field(default_factory=list)
    fresh: list[str] = field(default_factory=list)  # our parameters that the file does not hold
    unused: list[str] = field(default_factory=list)  # the file's tensors that the model has no place for

    def lines(self) -> list[str]:
        """The report, a sentence a line."""
        lines = [*self.assumed, *self.adapted]
        if self.fresh:
            lines.append(f"Not in the file, so freshly initialised: {_some(self.fresh)}.")
        if self.unused:
            lines.append(f"In the file, but not used: {_some(self.unused)}.")
        return lines


def to_theirs(rules: Iterable[Rule], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our state dict under a format's names; every one of our tensors must have a rule."""
    named: dict[str, Tensor] = {}
    covered: set[str] = set()
    for rule in rules:
        covered.add(rule.ours)
        for name, value in zip(rule.theirs, rule.write(state[rule.ours]), strict=True):
            assert name not in named or rule.part, name
            named[name] = torch.cat([named[name], value]) if name in named else value.contiguous()
    left_out = sorted(set(state) - covered)
    assert not left_out, f"no rule for {left_out}"
    return named


def check_shape(name: str, value: Tensor, shape: Sequence[int], where: str) -> None:
    """Refuse a tensor that does not fit the model."""
    if tuple(value.shape) != tuple(shape):
        raise CheckpointError(
            f"{where}: '{name}' has the shape {list(value.shape)} where the model needs {list(shape)};"
            " give the field that differs as a keyword, or use a matching file."
        )


def check_finite(name: str, value: Tensor, where: str) -> None:
    """Refuse NaN and infinity: a model with one answers nothing."""
    if value.numel() == 0 or not value.is_floating_point():
        return
    low, high = value.aminmax()
    if not (torch.isfinite(low) and torch.isfinite(high)):
        raise CheckpointError(f"{where}: '{name}' holds values that are not finite; the file is damaged or diverged.")


def _some(names: Sequence[str], limit: int = 6) -> str:
    shown = ", ".join(names[:limit])
    return shown if len(names) <= limit else f"{shown} and {len(names) - limit} more"
