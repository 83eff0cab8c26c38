"""The body of a captured step on a CPU, with stand-ins for streams and the generator: the same run as eager steps.

What a graph makes of it is told on a GPU alone, by tests/gpu.
"""

import contextlib
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from changing import changed
from short_runs import short_recipe, write_small_set
from vitlab.training import captured, session
from vitlab.training.execution import Execution, decide
from vitlab.training.recipe import Recipe


class Streams:
    """A stream: all that is launched on it is done at once."""

    def __init__(self, *_: Any, **__: Any) -> None: ...
    def wait_stream(self, _: object) -> None: ...
    def wait_event(self, _: object) -> None: ...
    def record_event(self) -> None: ...


class Draws:
    """A state of the generator, or the generator itself: its state is torch's own, and others can take its place."""

    def __init__(self, state: torch.Tensor | None = None) -> None:
        self.state = state

    def clone_state(self) -> "Draws":
        return Draws(torch.get_rng_state())

    graphsafe_get_state = clone_state

    def graphsafe_set_state(self, other: "Draws") -> None:
        assert other.state is not None
        torch.set_rng_state(other.state)

    def manual_seed(self, seed: int) -> None:
        self.state = torch.Generator().manual_seed(seed).get_state()


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Runs are captured as if this were a GPU, and never come to the graph; the steps that were made so."""

    def capturing(*args: Any) -> Execution:
        return dataclasses.replace(decide(*args), capture=True)

    monkeypatch.setattr(session, "decide", capturing)
    monkeypatch.setattr(captured, "WARM_UP", 10**9)
    monkeypatch.setattr(captured, "_generator", Draws)
    monkeypatch.setattr(torch.cuda, "Stream", Streams)
    monkeypatch.setattr(torch.cuda, "current_stream", Streams)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "manual_seed", torch.manual_seed)
    used, made = list[int](), captured.CapturedStepper.__call__
    monkeypatch.setattr(
        captured.CapturedStepper,
        "__call__",
        lambda self, step, factor: (used.append(step), made(self, step, factor))[1],
    )
    return used


def short(folder: Path) -> Recipe:
    return short_recipe(write_small_set(folder / "small.npz"))


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "sam": {"optimizer.sam": 0.5},
    "gsam": {"optimizer.sam": 0.5, "optimizer.sam_kind": "gsam", "optimizer.sam_rho_min": 0.1},
    "batch norm": {"optimizer.sam": 0.5, "model.source": "sasa-digits", "model.set": (), "model.image_size": 32},
}


@pytest.mark.parametrize("kind", [*list(KINDS)[:-1], pytest.param("batch norm", marks=pytest.mark.slow)])
def test_it_trains_as_eager_steps_do(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """With dropout, whose draws both passes share, clipping, averaged weights and a schedule."""
    sgd = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05, "schedule.total": "6 steps"}
    dropout = {} if kind == "batch norm" else {"model.dropout": 0.1}
    recipe = changed(
        short(tmp_path),
        **{"keep": "last", "model.drop_path": 0.0, "model.dropout": 0.0, **sgd, **dropout, **KINDS[kind]},
    )
    session.train(recipe, tmp_path / "eager", device="cpu", show=False)
    used: list[int] = request.getfixturevalue("on_cpu")
    session.train(recipe, tmp_path / "captured", device="cpu", show=False)
    assert used == list(range(6))
    found, expected = weights(tmp_path / "captured"), weights(tmp_path / "eager")
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


def test_a_step_that_is_not_finite_changes_nothing(tmp_path: Path, on_cpu: list[int]) -> None:
    """Also the weights that a gradient without bounds has made uphill: they are put back."""
    fields = {"optimizer.sam": 0.05, "optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 1e-3}
    steps = {"schedule.total": "3 steps", "schedule.warmup": "0 steps", "max_skipped": 2, "log_every": "1 step"}
    recipe = changed(short(tmp_path), **fields, **steps, **{"loss.label_smoothing": 0.0})
    spoilt = captured.CapturedStepper._backward
    seen: list[torch.Tensor] = []

    def backward(self: captured.CapturedStepper) -> Any:
        made = spoilt(self)
        if len(on_cpu) == 2:  # the second step
            if not seen:
                seen.extend(p.detach().clone() for p in self._turn.parameters)
                for p in self._turn.parameters:
                    assert p.grad is not None
                    p.grad.fill_(torch.inf)
        elif len(on_cpu) == 3 and len(seen) == len(self._turn.parameters):
            assert all(torch.equal(p, before) for p, before in zip(self._turn.parameters, seen, strict=True))
            seen.append(torch.zeros(()))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured.CapturedStepper, "_backward", backward)
        ended = session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert (ended.step, len(on_cpu)) == (3, 3)
    assert len(seen) > 1
    assert seen[-1].shape == ()
