"""The body of a captured step on a CPU, with stand-ins for streams and the generator: the same run as eager steps.

What a graph makes of it is told on a GPU alone, by tests/gpu.
"""

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from changing import changed
from short_runs import short_recipe, write_small_set
from vitlab.core.config import Choice
from vitlab.training import captured, session
from vitlab.training.execution import Execution, decide
from vitlab.training.recipe import Recipe
from vitlab.training.step import Stepper, Turn


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


def check_weights(folder: Path) -> None:
    """The models of a captured run and of an eager one are the same."""
    found, expected = (load_file(folder / run / "model" / "model.safetensors") for run in ("captured", "eager"))
    for name, value in expected.items():
        torch.testing.assert_close(
            found[name], value, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}"
        )


SGD = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05, "schedule.total": "6 steps"}
KINDS: dict[str, dict[str, object]] = {
    "plain": {},
    "sam": {"optimizer.sam": 0.5},
    "gsam": {"optimizer.sam": 0.5, "optimizer.sam_kind": "gsam", "optimizer.sam_rho_min": 0.1},
    "batch norm": {"optimizer.sam": 0.5, "model.source": "sasa-digits", "model.set": (), "model.image_size": 32},
}


@pytest.mark.parametrize("kind", [*list(KINDS)[:-1], pytest.param("batch norm", marks=pytest.mark.slow)])
def test_it_trains_as_eager_steps_do(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """With dropout, whose draws both passes share, clipping, averaged weights and a schedule."""
    dropout = {} if kind == "batch norm" else {"model.dropout": 0.1}
    recipe = changed(
        short(tmp_path),
        **{"keep": "last", "model.drop_path": 0.0, "model.dropout": 0.0, **SGD, **dropout, **KINDS[kind]},
    )
    session.train(recipe, tmp_path / "eager", device="cpu", show=False)
    used: list[int] = request.getfixturevalue("on_cpu")
    session.train(recipe, tmp_path / "captured", device="cpu", show=False)
    assert used == list(range(6))
    check_weights(tmp_path)


def test_a_step_that_is_not_finite_changes_nothing(tmp_path: Path, on_cpu: list[int]) -> None:
    """Also the weights that a gradient without bounds has made uphill: they are put back."""
    fields = {"optimizer.sam": 0.05, "optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 1e-3}
    steps = {"schedule.total": "3 steps", "schedule.warmup": "0 steps", "max_skipped": 2, "log_every": "1 step"}
    recipe = changed(short(tmp_path), **fields, **steps, **{"loss.label_smoothing": 0.0})
    spoilt = captured.CapturedStepper._backward
    seen: list[torch.Tensor] = []

    def backward(self: captured.CapturedStepper, turn: Turn, draws: Any = None) -> Any:
        made = spoilt(self, turn, draws)
        if len(on_cpu) == 2:  # the second step
            if not seen:
                seen.extend(p.detach().clone() for p in turn.parameters)
                for p in turn.parameters:
                    assert p.grad is not None
                    p.grad.fill_(torch.inf)
        elif len(on_cpu) == 3 and len(seen) == len(turn.parameters):
            assert all(torch.equal(p, before) for p, before in zip(turn.parameters, seen, strict=True))
            seen.append(torch.zeros(()))
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(captured.CapturedStepper, "_backward", backward)
        ended = session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert (ended.step, len(on_cpu)) == (3, 3)
    assert len(seen) > 1
    assert seen[-1].shape == ()


def players(folder: Path) -> Recipe:
    """A student and a teacher with dropout, whose draws each turn has for itself; all of it matters after six steps."""
    drawn = {"model.dropout": 0.1, "model.drop_path": 0.0, "augmentation.mixup": 0.0, "augmentation.cutmix": 0.0}
    recipe = changed(short(folder), **SGD, **drawn, **{"keep": "last", "data.labelled": 0.25, "log_every": "1 step"})
    options = {"labels": "sampled", "sign": "theory", "ratio": 2, "wait": 0.0, "ramp": 0.2}
    return dataclasses.replace(recipe, objective=Choice("meta-pseudo-labels", options))


def logged(run: Path) -> list[dict[str, float]]:
    """What was measured of each step, its time aside."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    timed = ("second", "time", "wait", "memory")
    return [{name: line[name] for name in line if not any(word in name for word in timed)} for line in lines]


@pytest.mark.parametrize("sam", [None, 0.5])
def test_players_take_turns_as_in_eager_steps(
    tmp_path: Path, request: pytest.FixtureRequest, sam: float | None
) -> None:
    """The teacher, which is in no `model/`, is compared by what is logged of its turns."""
    recipe = changed(players(tmp_path), **{"optimizer.sam": sam})
    session.train(recipe, tmp_path / "eager", device="cpu", show=False)
    used: list[int] = request.getfixturevalue("on_cpu")
    session.train(recipe, tmp_path / "captured", device="cpu", show=False)
    assert used == list(range(6))
    check_weights(tmp_path)
    steps = logged(tmp_path / "eager")
    assert sum("teacher gradient norm" in line for line in steps) == 6
    for one, other in zip(logged(tmp_path / "captured"), steps, strict=True):
        assert one == pytest.approx(other, rel=1e-3, abs=1e-5)


def test_a_turn_that_is_not_finite_ends_the_step(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """The student's turn before it stays made, as in eager steps; the teacher's is not, nor is the baseline's."""
    recipe = changed(players(tmp_path), max_skipped=3)

    def spoil(kind: type[Stepper], name: str, patch: pytest.MonkeyPatch, turn_at: int) -> None:
        made, calls = getattr(kind, name), list[str]()

        def gradients(self: Any, *given: Any) -> Any:
            found, turn = made(self, *given), next(each for each in given if isinstance(each, Turn))
            calls.append(turn.name)
            if turn.name == "teacher" and calls.count("teacher") == turn_at:
                for p in turn.parameters:
                    assert p.grad is not None
                    p.grad.fill_(torch.nan)
            return found

        patch.setattr(kind, name, gradients)

    with pytest.MonkeyPatch.context() as patch:
        spoil(Stepper, "gradients", patch, 3)
        assert session.train(recipe, tmp_path / "eager", device="cpu", show=False).step == 6
    request.getfixturevalue("on_cpu")
    with pytest.MonkeyPatch.context() as patch:
        spoil(captured.CapturedStepper, "_backward", patch, 3)
        assert session.train(recipe, tmp_path / "captured", device="cpu", show=False).step == 6
    check_weights(tmp_path)
    eager, found = ([line for line in logged(tmp_path / run) if "skipped" in line] for run in ("eager", "captured"))
    assert eager[-1]["skipped"] == 1
    assert found[-1] == pytest.approx(eager[-1], rel=1e-3, abs=1e-5)
