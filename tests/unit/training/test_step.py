"""One step: accumulation, clipping, skipping, and checkpoints that go on to the bit."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from batches import labelled, stepping
from vitlab.core.errors import CheckpointError
from vitlab.data.batch import Batch
from vitlab.models.contract import Model
from vitlab.models.create import create
from vitlab.objectives.contract import Metrics, Objective, Phase
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training import checkpoints
from vitlab.training.captured import count, judge
from vitlab.training.optimizers import Optimizer, build
from vitlab.training.state import State
from vitlab.training.step import Stepper

NOW = torch.zeros(())


def make(accumulate: int = 1, ema: float | None = None, **optimizer: Any) -> tuple[State, Stepper]:
    torch.manual_seed(0)
    model = create("vit-digits", depth=2, dropout=optimizer.pop("dropout", 0.0))
    spec = Optimizer(**{"lr": 1e-2, **optimizer})
    return stepping(model, Supervised(CrossEntropy()), spec, Batches(), accumulate=accumulate, ema=ema, seed=3)


class Batches:
    """A feed of random batches, some of them spoilt."""

    spoilt: frozenset[int] = frozenset()

    damaged: dict[int, str] = {}  # noqa: RUF012

    def batch(self, step: int) -> Batch:
        return batch(step, spoilt=step in self.spoilt)

    def close(self) -> None:
        pass


def batch(step: int, *, spoilt: bool = False) -> Batch:
    generator = torch.Generator().manual_seed(step)
    images = torch.randn(8, 3, 8, 8, generator=generator)
    if spoilt:
        images[3] = float("nan")
    labels = torch.randint(0, 10, (8,), generator=generator)
    return labelled(images, torch.nn.functional.one_hot(labels, 10).float())


def weights(state: State) -> list[torch.Tensor]:
    return [value.clone() for value in state.model.state_dict().values()]


@pytest.mark.parametrize("parts", [3, 4, 5])  # of 8 images: three parts of 3, 3 and 2
@pytest.mark.parametrize("weighted", [False, True])
def test_accumulation_equals_the_large_batch(parts: int, weighted: bool) -> None:
    (whole, step_whole), (cut, step_cut) = make(name="sgd"), make(accumulate=parts, name="sgd")
    if weighted:
        for objective in (whole.objective, cut.objective):
            assert isinstance(objective, Supervised)
            assert isinstance(objective.criterion, CrossEntropy)
            objective.criterion.class_weights = torch.linspace(0.1, 3, 10)
    for i in range(5):
        step_whole(i, 1.0)
        step_cut(i, 1.0)
    for a, b in zip(weights(whole), weights(cut), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert step_whole.read() == pytest.approx(step_cut.read(), rel=1e-4)


def test_clipping_is_torchs() -> None:
    state, stepper = make(clip=0.01, name="sgd", momentum=0.0, lr=1.0)
    before = weights(state)
    loss, _ = state.objective.loss(state.model, batch(0), NOW)
    gradients = torch.autograd.grad(loss, list(state.model.parameters()))
    norm = torch.cat([g.flatten() for g in gradients]).norm()
    assert norm > 0.01
    stepper(0, 1.0)
    moved = torch.cat([(a - b).flatten() for a, b in zip(weights(state), before, strict=True)])
    assert moved.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert stepper.read()["gradient norm"] == pytest.approx(norm.item(), rel=1e-4)


def test_what_is_not_finite_changes_nothing() -> None:
    state, stepper = make(ema=0.9)
    stepper.feed.spoilt = frozenset({1})  # pyright: ignore[reportAttributeAccessIssue]
    stepper(0, 1.0)
    before, averaged = weights(state), [value.clone() for value in state.ema.values] if state.ema else []
    assert stepper(1, 1.0) is False
    assert all(torch.equal(a, b) for a, b in zip(weights(state), before, strict=True))
    assert state.ema is not None
    assert all(torch.equal(a, b) for a, b in zip(state.ema.values, averaged, strict=True))
    assert stepper(2, 1.0) is True
    assert stepper.read()["loss"] < 10


def test_dropout_depends_on_the_step_alone() -> None:
    state, stepper = make(dropout=0.3)
    torch.manual_seed(5)
    stepper(0, 1.0)
    other, step_other = make(dropout=0.3)
    torch.manual_seed(99)
    step_other(0, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(weights(state), weights(other), strict=True))


@pytest.mark.parametrize("name", ["adamw", "sgd", "lion", "muon"])
def test_a_checkpoint_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    state, stepper = make(name=name, ema=0.9, dropout=0.1)
    for i in range(3):
        stepper(i, 1.0)
    state.progress.step = 3
    path = checkpoints.write(tmp_path / "a folder", state)
    again, step_again = make(name=name, ema=0.9, dropout=0.1)
    checkpoints.read(path, again)
    assert again.progress.step == 3
    for i in range(3, 6):
        stepper(i, 1.0)
        step_again(i, 1.0)
    assert all(torch.equal(a, b) for a, b in zip(weights(state), weights(again), strict=True))
    assert state.ema is not None
    assert again.ema is not None
    assert all(torch.equal(a, b) for a, b in zip(state.ema.values, again.ema.values, strict=True))


def test_last_and_best_are_kept_and_partial_ones_ignored(tmp_path: Path) -> None:
    state, _ = make()
    for step in (1, 2, 3, 4):
        state.progress.step = step
        if step == 2:
            state.progress.best_step = 2
        checkpoints.write(tmp_path, state)
    (tmp_path / ".step-000000009.partial").mkdir()
    assert [step for step, _ in checkpoints.complete(tmp_path)] == [2, 4]


def test_damaged_checkpoints_are_named(tmp_path: Path) -> None:
    state, _ = make()
    path = checkpoints.write(tmp_path, state)
    next(path.glob("*.distcp")).write_bytes(b"")
    with pytest.raises(CheckpointError, match="cannot be read"):
        checkpoints.read(path, state)


def test_a_full_disk_keeps_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = make()
    state.progress.step = 1
    checkpoints.write(tmp_path, state)
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr(checkpoints.shutil, "disk_usage", lambda _: usage)
    state.progress.step = 2
    with pytest.raises(checkpoints.DiskFullError, match=r"make room and resume.*step-000000001"):
        checkpoints.write(tmp_path, state)
    kept = checkpoints.complete(tmp_path)
    assert [step for step, _ in kept] == [1]
    assert json.loads((kept[0][1] / "progress.json").read_text())["step"] == 1


@pytest.mark.parametrize("size", [0.01, 10.0])
def test_what_a_captured_step_divides_by_is_torchs_clipping(size: float) -> None:
    gradient = torch.randn(50, generator=torch.Generator().manual_seed(0)) * size
    parameter = torch.nn.Parameter(torch.zeros(50))
    parameter.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_([parameter], 1.0)
    bad, scale = torch.zeros(()), torch.zeros(())
    assert judge(torch.tensor(1.0), norm, bad, scale, 1.0)
    assert bad == 0
    torch.testing.assert_close(gradient / scale, parameter.grad)


def test_a_captured_step_that_is_not_finite_is_counted_and_its_metrics_are_not() -> None:
    sums, counts = [torch.zeros(())], [torch.zeros((), dtype=torch.int64) for _ in range(3)]
    expected = [(2.0, [1, 0, 0]), (2.0, [1, 1, 1]), (2.0, [1, 2, 2]), (5.0, [2, 2, 0])]  # made, skipped, in a row
    for loss, (total, numbers) in zip((2.0, torch.nan, torch.inf, 3.0), expected, strict=True):
        value, bad = torch.tensor(loss), torch.zeros(())
        good = judge(value, torch.tensor(1.0), bad, None, None)
        assert bad == (not good)
        count(good, [value], sums, *counts)
        assert (sums[0].item(), [each.item() for each in counts]) == (total, numbers)
    assert not judge(torch.tensor(1.0), torch.tensor(torch.nan), torch.zeros(()), None, None)
    assert not judge(torch.tensor(1.0), torch.tensor(1.0), torch.ones(()), None, None)  # an earlier turn was not


class Headed(Objective):
    """With a head of its own, and a note of the steps that were made."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.made = torch.nn.Linear(10, 10), list[int]()

    def loss(self, model: Model, batch: Batch, progress: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        self.seen = progress.item()
        return (self.own(model(batch.images)) - batch.targets["label"]).square().mean(), {}

    def after_step(self, model: Model, made: torch.Tensor) -> None:
        del model
        assert bool(made)
        self.made.append(round(self.seen * 100))


def test_an_objectives_own_head_is_trained_and_told_of_every_step_made() -> None:
    torch.manual_seed(0)
    model, objective = create("vit-digits", depth=1), Headed()
    spec = Optimizer(name="sgd", momentum=0.0, weight_decay=0.0, lr=0.5)
    before, feed = objective.own.weight.detach().clone(), Batches()
    feed.spoilt = frozenset({1})
    _, stepper = stepping(model, objective, spec, feed)
    stepper(0, 1.0)
    assert objective.own.weight.grad is not None
    torch.testing.assert_close(objective.own.weight.detach(), before - 0.5 * objective.own.weight.grad)
    stepper(1, 1.0)
    stepper(2, 1.0)
    assert objective.made == [0, 2]


class Players(Objective):
    """The model imitates the labels until a critic no longer tells them apart; they take turns."""

    def __init__(self) -> None:
        super().__init__()
        self.critic = torch.nn.Linear(10, 1)

    def phases(self, model: Model) -> tuple[Phase, ...]:
        del model
        return (
            Phase("generator", self.loss, lambda name: name.startswith("model.")),
            Phase("critic", self.tell, lambda name: name.startswith("objective."), {"lr": 0.25}),
        )

    def loss(self, model: Model, batch: Batch, progress: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        del progress
        return -self.critic(model(batch.images).softmax(dim=-1)).mean(), {}

    def tell(self, model: Model, batch: Batch, progress: torch.Tensor) -> tuple[torch.Tensor, Metrics]:
        del progress
        made, real = self.critic(model(batch.images).softmax(dim=-1)), self.critic(batch.targets["label"])
        return made.mean() - real.mean(), {"gap": (real.mean() - made.mean()).detach()}


def playing(**optimizer: Any) -> tuple[State, Stepper]:
    torch.manual_seed(0)
    model = create("vit-digits", depth=1)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    spec = Optimizer(**{"name": "sgd", "momentum": 0.0, "weight_decay": 0.0, "lr": 0.5, **optimizer})
    return stepping(model, Players(), spec, Batches())


def test_two_players_take_turns_and_each_phase_changes_its_own_parameters_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each by its own gradient: the model's with the critic as it was, the critic's with the model as it has become."""
    state, stepper = playing()
    objective: Any = state.objective
    took, seen = Stepper._take, dict[str, tuple[set[str], dict[str, torch.Tensor]]]()

    def watched(self: Stepper, turn: Any, *args: Any) -> Metrics | None:
        before = {name: value.detach().clone() for name, value in state.learner.named_parameters()}
        loss = objective.loss if turn.name == "generator" else objective.tell
        own = [name for name in before if name.startswith("model." if turn.name == "generator" else "objective.")]
        values = dict(state.learner.named_parameters())
        for value in values.values():
            value.requires_grad_(True)
        gradients = torch.autograd.grad(loss(state.model, batch(0), NOW)[0], [values[name] for name in own])
        lr = 0.5 if turn.name == "generator" else 0.25
        made = took(self, turn, *args)
        for name, gradient in zip(own, gradients, strict=True):
            torch.testing.assert_close(values[name].detach(), before[name] - lr * gradient)
        moved = {name for name, value in values.items() if not torch.equal(value, before[name])}
        seen[turn.name] = (moved, before)
        return made

    monkeypatch.setattr(Stepper, "_take", watched)
    assert stepper(0, 1.0)
    assert list(seen) == ["generator", "critic"]
    assert seen["critic"][0] == {"objective.critic.weight"}  # its bias is in both terms, and has no gradient
    assert "model.head.weight" in seen["generator"][0]
    assert all(name.startswith("model.") for name in seen["generator"][0])
    read = stepper.read()
    assert {"loss", "gradient norm", "critic loss", "critic gradient norm", "critic gap"} <= read.keys()
    assert read["critic gap"] == pytest.approx(-read["critic loss"])


def test_players_that_take_turns_go_on_to_the_bit(tmp_path: Path) -> None:
    state, stepper = playing(name="adamw")
    for i in range(3):
        stepper(i, 1.0)
    path = checkpoints.write(tmp_path / "kept", state)
    again, step_again = playing(name="adamw")
    checkpoints.read(path, again)
    for i in range(3, 6):
        stepper(i, 1.0)
        step_again(i, 1.0)
    ours, theirs = state.learner.state_dict(), again.learner.state_dict()
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


def test_a_checkpoint_resumes_where_parameters_are_grouped_otherwise(tmp_path: Path) -> None:
    """As by a later version: each keeps what its optimizer knows of it, and has this run's settings."""

    class Together(Headed):
        def param_groups(self) -> list[dict[str, Any]]:
            return [{"params": list(self.parameters()), "lr_scale": 0.5}]

    spec = Optimizer(weight_decay=0.1)
    first, step = stepping(create("vit-digits", depth=1), Together(), spec, Batches())
    step(0, 1.0)
    path = checkpoints.write(tmp_path / "kept", first)
    again, _ = stepping(create("vit-digits", depth=1), Headed(), spec, Batches())
    checkpoints.read(path, again)
    for own, other in zip(first.learner.parameters(), again.learner.parameters(), strict=True):
        assert torch.equal(own, other)
        known = [state.all_optimizers[0].state[p] for state, p in ((first, own), (again, other))]
        assert known[0].keys() == known[1].keys()
        assert all(torch.equal(known[0][name], known[1][name]) for name in known[0])
    of_head = again.all_optimizers[0].param_groups[-2:]
    assert [(group["rate"], group["weight_decay"]) for group in of_head] == [(1.0, 0.1), (1.0, 0.0)]


def test_an_objectives_groups_may_have_their_own_rate_and_decay() -> None:
    class Slow(Headed):
        def param_groups(self) -> list[dict[str, Any]]:
            return [{"params": list(self.parameters()), "lr_scale": 0.1, "weight_decay": 0.3}]

    spec = Optimizer(weight_decay=0.05)
    [optimizer] = build(create("vit-digits", depth=1), Slow().param_groups(), spec)
    assert (optimizer.param_groups[-1]["rate"], optimizer.param_groups[-1]["weight_decay"]) == (0.1, 0.3)
    [optimizer] = build(create("vit-digits", depth=1), Headed().param_groups(), spec)
    weight, bias = optimizer.param_groups[-2:]
    assert (weight["weight_decay"], bias["weight_decay"], weight["rate"]) == (0.05, 0.0, 1.0)


def test_a_damaged_checkpoint_says_what_to_resume_from(tmp_path: Path) -> None:
    state, _ = make()
    state.progress.best_step = 1
    for step in (1, 2):
        state.progress.step = step
        path = checkpoints.write(tmp_path, state)
    next(path.glob("*.distcp")).write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"Move it away to resume from .*step-000000001\."):
        checkpoints.read(path, state)
    (path / ".metadata").unlink()
    assert [step for step, _ in checkpoints.complete(tmp_path)] == [1]  # a step is valid only when complete
    said: list[str] = []
    assert checkpoints.newest(tmp_path, said.append) == tmp_path / "step-000000001"
    assert ".metadata is missing" in said[0]


def test_what_a_kill_left_of_older_checkpoints_goes(tmp_path: Path) -> None:
    state, _ = make()
    state.progress.step = 9
    checkpoints.write(tmp_path, state)
    for name in ("step-000000003", "step-000000006", ".step-000000008.partial"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-000000003" / "progress.json").write_text("{}")
    checkpoints.prune(tmp_path, None)
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000009"]


def test_a_second_interrupt_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state, _ = make()

    def failing(cause: BaseException) -> None:
        def save(*_: object, **__: object) -> None:
            raise checkpoints.dcp.CheckpointException("failed", {0: (cause, None)})  # pyright: ignore[reportArgumentType]

        monkeypatch.setattr(checkpoints.dcp, "save", save)

    failing(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        checkpoints.write(tmp_path, state)
    failing(OSError(errno.EACCES, os.strerror(errno.EACCES)))
    with pytest.raises(checkpoints.DiskFullError, match="mend that and resume"):
        checkpoints.write(tmp_path, state)
    failing(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)))
    with pytest.raises(checkpoints.DiskFullError, match="make room and resume"):
        checkpoints.write(tmp_path, state)
    assert not list(tmp_path.iterdir())
