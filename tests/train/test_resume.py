"""Runs that go on after stops at odd moments, on other machines, and from folders of other versions."""

import errno
import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitlab
from changing import before_step, changed, lose_at, signal_at, spoil_at
from killing import differences
from short_runs import write_damaged_folder
from vitlab.api.train import run_folder
from vitlab.core.errors import CheckpointError, ConfigError, DataError, Error
from vitlab.data.batch import Batch
from vitlab.models.contract import Model
from vitlab.objectives.contract import Metrics
from vitlab.training import checkpoints, session
from vitlab.training.finish import RunOutcome
from vitlab.training.recipe import Recipe
from vitlab.training.run import RunError, locked, resuming
from vitlab.training.scoring import Scoring
from vitlab.training.step import Stepper, Turn


def steps_kept(run: Path) -> list[int]:
    return [step for step, _ in checkpoints.complete(run / "checkpoints")]


def run(recipe: Recipe, folder: Path) -> RunOutcome:
    return session.train(recipe, folder, device="cpu", show=False)


def resume(folder: Path, recipe: Recipe | None = None) -> RunOutcome:
    return session.resume(folder, recipe=recipe, device="cpu", show=False)


def test_a_signal_while_steps_are_skipped_leaves_the_last_good_checkpoint(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        spoil_at(9, patch)
        signal_at(13, signal.SIGTERM, patch)
        assert run(changed(short, max_skipped=7), tmp_path / "run").status == 143
    assert steps_kept(tmp_path / "run")[-1] == 8
    assert resume(tmp_path / "run").step == 24


def test_steps_before_the_data_fail_are_kept(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was killed, say; while steps are skipped the last good checkpoint stays."""

    def fail(stepper: Stepper) -> None:
        raise DataError(f"step {stepper.state.progress.step}")

    run(short, tmp_path / "whole")
    for spoilt, step, kept in ((24, 5, 5), (24, 8, 8), (9, 13, 8)):
        folder = tmp_path / f"{spoilt}-{step}"
        with monkeypatch.context() as patch:
            spoil_at(spoilt, patch)
            before_step(step, fail, patch, Stepper)
            with pytest.raises(DataError, match=f"step {step}"):
                run(changed(short, max_skipped=7), folder)
        assert steps_kept(folder)[-1] == kept
        assert resume(folder).step == 24
        assert differences(tmp_path / "whole", folder) == []


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_folder_that_was_moved_gets_no_second_one(
    keep: str, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor does what is written to it: the run ends at once, and resumes where its folder is."""
    folder, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    with monkeypatch.context() as patch:
        before_step(9, lambda _: folder.rename(elsewhere) and None, patch, Stepper)
        with pytest.raises(RunError, match="moved or deleted while the run was under way"):
            run(changed(short, keep=keep), folder)
    assert not folder.exists()
    assert resume(elsewhere).step == 24
    run(changed(short, keep=keep), tmp_path / "whole")
    assert differences(tmp_path / "whole", elsewhere) == []


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you tried to"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_memory_that_runs_out_is_a_sentence(
    error: Exception, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Stepper) -> None:
        raise error

    before_step(9, fail, monkeypatch, Stepper)
    with pytest.raises(RunError, match=r"memory ran out in steps of 16 images: .* resume \(vitlab train --resume"):
        run(short, tmp_path / "run")


def test_a_folder_that_is_gone_does_not_hide_what_ended_the_run(tmp_path: Path) -> None:
    def lose() -> None:
        with locked(tmp_path / "run"):
            shutil.rmtree(tmp_path / "run")
            raise RunError("why it ended")

    with pytest.raises(RunError, match="why it ended"):
        lose()


def test_a_signal_before_any_step_was_made(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gradients, made = Stepper.gradients, list[Batch]()

    def lost(self: Stepper, turn: Turn, batch: Batch) -> tuple[Tensor, Metrics]:
        loss, metrics = gradients(self, turn, batch)
        made.append(batch)
        if len(made) == 2:
            signal.raise_signal(signal.SIGTERM)
        return loss * float("nan"), metrics

    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "gradients", lost)
        assert run(short, tmp_path / "run").status == 143
    assert resume(tmp_path / "run").step == 24


def test_the_last_and_the_best_are_kept(short: Recipe, tmp_path: Path) -> None:
    """Also where checkpoints are due at other steps than evaluations."""
    scores = iter([0.2, 0.8, 0.5, 0.4])
    recipe = changed(short, checkpoint_every="5 steps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Scoring, "score", lambda *_: {"score": next(scores, 0.0), "loss": 1.0, "count": 1.0})
        run(recipe, tmp_path / "run")
    assert steps_kept(tmp_path / "run") == [12, 24]


@pytest.mark.parametrize("keep", ["best", "last"])
def test_the_score_is_that_of_the_weights(short: Recipe, tmp_path: Path, keep: str) -> None:
    outcome = vitlab.train(changed(short, keep=keep), out=tmp_path / "run", device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    scores = [line["val score"] for line in lines if "val score" in line]
    expected = {"best val score": max(scores)} if keep == "best" else {"val score": scores[-1]}
    assert {name: value for name, value in outcome.scores.items() if "val" in name} == expected
    [(name, value)] = expected.items()
    assert f"| {name} | {value:.4g} |" in (tmp_path / "run" / "model" / "README.md").read_text()


def test_a_test_part_that_cannot_be_read_costs_its_score_alone(
    short: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_damaged_folder(tmp_path / "data", {"val": list(range(12))})
    (tmp_path / "data" / "val").rename(tmp_path / "data" / "test")
    fields = {"data.source": str(tmp_path / "data"), "data.resident": False, "data.workers": 0}
    ended = session.train(changed(short, **fields), tmp_path / "run", device="cpu")
    assert ended.reason == "done"
    assert "The test part is not scored: " in capsys.readouterr().err
    assert not any(name.startswith("test") for name in ended.scores)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["step"] == 24


def test_more_unreadable_files_may_be_allowed_later(short: Recipe, tmp_path: Path) -> None:
    write_damaged_folder(tmp_path / "data", {"train": list(range(0, 60, 5))})
    fields = {"data.source": str(tmp_path / "data"), "data.resident": False, "data.workers": 0}
    recipe = changed(short, **fields)
    with pytest.raises(Error, match="10 are allowed"):
        run(recipe, tmp_path / "run")
    assert resume(tmp_path / "run", changed(recipe, **{"data.max_unreadable": 0.5})).step == 24


def test_a_mistake_found_late_leaves_the_folder_free(short: Recipe, tmp_path: Path) -> None:
    with pytest.raises(Error, match="mlflow"):
        run(changed(short, tracker="mlflow"), tmp_path / "run")
    with pytest.raises(ConfigError, match="15 is odd"):
        run(changed(short, batch_size=15), tmp_path / "run")
    with pytest.raises(ConfigError, match="patience"):
        run(changed(short, **{"patience": 2, "data.val_fraction": 0.0}), tmp_path / "run")
    assert run(short, tmp_path / "run").step == 24


DEEP = '{"version": 1, "family": "vit", "config": {"depth": %d}}'


def test_a_run_of_an_older_version_goes_on(short: Recipe, tmp_path: Path) -> None:
    """It lacks fields that came later, which are at their defaults."""
    run(short, tmp_path / "run")
    for name in ("recipe.json", "environment.json"):
        content = json.loads((tmp_path / "run" / name).read_text())
        del content.get("recipe", content)["optimizer"]["nesterov"]
        (tmp_path / "run" / name).write_text(json.dumps(content))
    assert resume(tmp_path / "run").step == 24


@pytest.mark.parametrize(
    ("name", "content", "sentence"),
    [
        ("checkpoints/*/progress.json", '{"step": 24, "lately": 1}', "there is no field 'lately'"),
        ("checkpoints/*/progress.json", "[]", "the checkpoint cannot be read"),
        ("checkpoints/*/progress.json", '{"step": 1' + "0" * 30 + "}", r"step is 1e\+30, which no run reaches"),
        ("data.json", "{}", "changed since"),
        ("metrics.jsonl", '{"step": 1, "note": "\xe9"}\n', r"metrics\.jsonl cannot be read \(it is not UTF-8\)"),
        ("architecture.json", DEEP % 10**9, r"architecture\.json: depth is 1e\+09, which no model has"),
        ("architecture.json", DEEP % 10**5, r"architecture\.json: depth is 100000; at most 10000 layers"),
    ],
)
def test_damaged_files_are_one_sentence(short: Recipe, tmp_path: Path, name: str, content: str, sentence: str) -> None:
    run(changed(short, **{"schedule.total": "4 steps"}), tmp_path / "run")
    for path in (tmp_path / "run").glob(name):
        path.write_text(content, encoding="latin-1")
        (path.parent / "checksums.json").unlink(missing_ok=True)  # which would say no more than that it is damaged
    with pytest.raises((RunError, CheckpointError), match=sentence):
        resume(tmp_path / "run")


def test_what_a_kill_left_behind_is_cleared_up(short: Recipe, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    run(short, folder)
    (folder / "model").rename(folder / ".model.abcdefgh.old")
    (folder / ".model.stuvwxyz.partial").mkdir()
    (folder / ".model.stuvwxyz.partial" / "model.safetensors").write_bytes(b"half")
    (folder / ".recipe.json.stuvwxyz.partial.json").write_text("{")
    resume(folder)
    assert not list(folder.glob(".*.old")) + list(folder.glob(".*.partial*"))
    assert vitlab.load(folder).labels == ("0", "1", "2")


def test_no_score_is_logged_twice(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal put the evaluation off, it was made up for, and the process was lost before it was in a checkpoint."""
    with monkeypatch.context() as patch:
        signal_at(5, signal.SIGTERM, patch)
        lose_at(6, patch)
        run(short, tmp_path / "run")
        with pytest.raises(KeyboardInterrupt):
            resume(tmp_path / "run")
    resume(tmp_path / "run")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "val score" in line] == [6, 12, 18, 24]


def test_in_a_thread_a_run_listens_to_no_signals(short: Recipe, tmp_path: Path) -> None:
    ended: list[RunOutcome] = []
    thread = threading.Thread(target=lambda: ended.append(run(short, tmp_path / "run")))
    thread.start()
    thread.join()
    assert [outcome.step for outcome in ended] == [24]


def test_the_command_that_goes_on_survives_a_shell() -> None:
    assert resuming(Path("it's a run")) == """vitlab train --resume 'it'"'"'s a run'"""


@pytest.mark.parametrize(("given", "trained"), [(None, 0.1), (0.0, 0.0), (0.3, 0.3)])
def test_dropout_is_the_sources_own_unless_it_is_given(
    short: Recipe, tmp_path: Path, given: float | None, trained: float
) -> None:
    vitlab.save(vitlab.create("vit-digits", depth=1, dropout=0.1, num_classes=3), tmp_path / "first")
    first: dict[str, Any] = {"model.source": str(tmp_path / "first"), "model.pretrained": True, "model.set": ()}
    run(changed(short, **first, **{"model.dropout": given, "schedule.total": "4 steps"}), tmp_path / "run")
    model: Model = vitlab.load(tmp_path / "run")
    assert model.config.dropout == trained


@pytest.mark.parametrize("freeze", ["head", "all", True, None])
def test_what_to_freeze_is_checked(freeze: Any, tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"freeze must be none or backbone, not "):
        vitlab.finetune("digits", "gone", freeze=freeze, out=tmp_path / "run")


def test_paths_are_taken_wherever_names_are(small_set: Path, tmp_path: Path) -> None:
    vitlab.save(vitlab.create("vit-digits", depth=1, num_classes=7), tmp_path / "first")
    ended = vitlab.finetune(small_set, tmp_path / "first", steps=2, batch_size=8, out=tmp_path / "run", device="cpu")
    assert ended.step == 2
    for wrong in (None, 5):
        with pytest.raises(Error, match="`data` must be a path or a name, not "):
            vitlab.finetune(wrong, "gone")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("recipe", [None, 5, {}, Path("digits")])
def test_a_recipe_is_one_or_the_name_of_one(recipe: Any, tmp_path: Path) -> None:
    with pytest.raises(Error, match="A recipe is a Recipe or the name of one, not "):
        vitlab.train(recipe, out=tmp_path / "run")


def test_several_processes_agree_on_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Alone a run takes the next free one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "digits").mkdir(parents=True)
    assert run_folder(None, "digits") == Path("runs/digits-2")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert run_folder(None, "digits") == Path("runs/digits")


def test_a_run_whose_steps_were_all_skipped_keeps_no_checkpoint(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        spoil_at(0, patch)
        assert run(changed(short, max_skipped=100), tmp_path / "run").step == 24
    assert steps_kept(tmp_path / "run") == []


@pytest.mark.parametrize(
    "name", ["model/weights.py", "metrics.jsonl", "environment.json", "checkpoints/step-000000006/a"]
)
def test_a_folder_with_something_that_a_run_would_write_over(short: Recipe, tmp_path: Path, name: str) -> None:
    path = tmp_path / "mine" / name
    path.parent.mkdir(parents=True)
    path.write_text('{"step": 3, "loss": 1}\n')
    with pytest.raises(RunError, match=f"holds {name.partition('/')[0]}, which is no run's"):
        run(short, tmp_path / "mine")
    assert [file for file in (tmp_path / "mine").rglob("*") if file.is_file()] == [path]


def test_a_start_that_was_cut_off_does_not_take_the_folder(short: Recipe, tmp_path: Path) -> None:
    run(short, tmp_path / "whole")
    (tmp_path / "run").mkdir()
    shutil.copy(tmp_path / "whole" / "environment.json", tmp_path / "run")
    (tmp_path / "run" / "metrics.jsonl").touch()
    assert run(short, tmp_path / "run").step == 24
