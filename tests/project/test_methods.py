"""The benchmark of methods: its cells, what is kept of them, and the table that is made of what is there."""

import dataclasses
import fcntl
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

import methods
import rehearsal
from methods import METHODS, Study, cells, missing, table
from methods_jobs import Job
from vitlab.recipes import find_recipe, recipe_names
from vitlab.training.captured import CapturedStepper
from vitlab.training.step import Stepper


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study("cifar10", "data/cifar10", 4.0, "cuda", tmp_path, tmp_path / "results.jsonl")


def test_every_method_has_a_recipe_for_cifar10() -> None:
    assert [name for name, method in METHODS.items() if method.named("cifar10") not in recipe_names()] == []


def test_a_line_that_a_kill_left_half_is_none(study: Study) -> None:
    cell = {"method": "mae", "seed": 0, "labels": 0.1, "measure": "knn"}
    assert study.find(**cell) is None
    study.add({**cell, "accuracy": 0.5})
    with study.results.open("a") as file:
        file.write('{"data": "cifar10", "minutes": 4.0, "method": "dino", "see')
    assert study.find(**cell) == {"data": "cifar10", "minutes": 4.0, "model": None, **cell, "accuracy": 0.5}
    assert study.find(**(cell | {"seed": 1})) is None
    assert dataclasses.replace(study, minutes=2.0).find(**cell) is None  # another time is another cell
    smaller = dataclasses.replace(study, model="vit-ti4-32")  # and so is another model
    assert smaller.find(**cell) is None
    assert smaller.folder("mae", 0) != study.folder("mae", 0)
    assert methods.base(smaller, "cifar10", 0)[-2:] == ["--model.source", "vit-ti4-32"]
    assert len(study.lines()) == 1


def test_cells_of_methods_with_and_without_labels(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """All get the same time: a run for each part of the labels, or one without and a short one for each part."""
    timed: list[tuple[str, float]] = []
    monkeypatch.setattr(methods, "timed", lambda *given: timed.append((" ".join(given[2]), given[4])) or {})
    monkeypatch.setattr(methods, "evaluated", lambda *given: {"part": given[3]})

    def made(name: str) -> list[str]:
        timed.clear()
        found = list(cells(study, name, 3, [0.01, 1.0]))
        for cell in found:
            cell.make()
        return [f"{cell.line['measure']} {cell.line.get('labels', '')}".strip() for cell in found]

    assert made("supervised-quarter") == ["accuracy 0.01", "accuracy 1.0"]
    assert [minutes for _, minutes in timed] == [1.0, 1.0]
    assert made("supervised") == ["accuracy 0.01", "accuracy 1.0"]
    labels = "--data.labelled 0.01 --data.subset-seed 3"  # others with each seed
    assert timed[0] == (f"train cifar10 --data.source data/cifar10 --seed 3 {labels}", 4.0)
    assert made("meta-pseudo-labels") == ["accuracy 0.01"]  # with all labels, no image is without
    assert made("dino-ibot") == [
        "pretraining", "knn 0.01", "linear 0.01", "accuracy 0.01", "knn 1.0", "linear 1.0", "accuracy 1.0"
    ]  # fmt: skip
    assert [minutes for _, minutes in timed] == [3.0, 1.0, 1.0]
    assert "--objective.patch-weight 1" in timed[0][0]
    assert f"--model.pretrained --model.set {labels}" in timed[1][0]
    assert timed[2][0].endswith("--data.labelled 1")
    assert made("noisy-student") == ["teacher 0.01", "accuracy 0.01"]
    assert [minutes for _, minutes in timed] == [2.0, 2.0]
    assert made("simclr-half")[:2] == ["pretraining", "knn 0.01"]
    assert [minutes for _, minutes in timed] == [2.0, 2.0, 2.0]
    started = timed[0]
    for name, rest in (("simclr-fixmatch", [2.0]), ("simclr-noisy-student", [1.0, 1.0])):
        assert made(name)[0] == "pretraining"
        assert timed[0] == started
        assert [minutes for _, minutes in timed[1:]] == rest
        folder = study.folder("simclr-half", 3)
        assert all(
            f"--model.source {folder} --model.pretrained --model.set {labels}" in words for words, _ in timed[1:]
        )


def test_from_scratch_the_decay_follows_the_number_of_steps(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recipe's is for 235 epochs of 49,015 images in batches of 512."""
    commands: list[str] = []
    monkeypatch.setattr(methods, "paced", lambda *_: {"seconds_per_step": 0.01})
    monkeypatch.setattr(methods, "train", lambda _, words, *__: commands.append(" ".join(words)) or {"val": 0.5})
    for name in ("supervised", "supervised-quarter", "fixmatch"):
        for cell in cells(study, name, 0, [0.1]):
            cell.make()
    whole, steps = 235 * 49015 / 512, 4 * 60 / 0.01
    decays = [f"--optimizer.weight-decay {0.0475 * whole / number:.3g}" for number in (steps, steps / 4)]
    assert [command.endswith(decay) for command, decay in zip(commands, decays, strict=False)] == [True, True]
    assert "--optimizer.weight-decay" not in commands[2]


def test_options_are_chosen_by_the_held_out_part(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """With seed 0, one of whose trials is the cell; other seeds, other parts and a teacher have the best."""
    val = {"0.05": 0.4, "0.2": 0.6, "0.8": 0.5, "0.75": 0.7}
    test = {"0.05": 0.9, "0.2": 0.3, "0.8": 0.2, "0.75": 0.1}  # which decides nothing
    commands: list[str] = []

    def timed(_: Study, __: str, words: list[str], folder: Path, *___: object) -> methods.Line:
        commands.append(" ".join(words))
        (folder / "model").mkdir(parents=True, exist_ok=True)
        return {"val": val.get(words[-1], 0.0), "accuracy": test.get(words[-1], 0.5), "command": commands[-1]}

    monkeypatch.setattr(methods, "timed", timed)
    monkeypatch.setattr(methods, "evaluated", lambda *_: {"accuracy": 0.4})
    assert methods.fill(study, [(0, "few-labels")], [0.01], 60, option="decay 0.05") == []
    assert [line["measure"] for line in study.lines()] == ["trial"]
    assert methods.fill(study, [(0, "few-labels"), (1, "few-labels")], [0.01, 0.1], 60) == []
    few = {"method": "few-labels", "labels": 0.01, "measure": "accuracy"}
    assert [line["accuracy"] for line in study.lines() if few.items() <= line.items()] == [0.3, 0.3]
    assert [command.split("--seed ")[1] for command in commands] == [
        *(f"0 --data.labelled 0.01 --optimizer.weight-decay {decay}" for decay in ("0.05", "0.2", "0.8")),
        "0 --data.labelled 0.1",
        "1 --data.labelled 0.01 --data.subset-seed 1 --optimizer.weight-decay 0.2",
        "1 --data.labelled 0.1 --data.subset-seed 1",
    ]
    commands.clear()
    assert methods.fill(study, [(0, "noisy-student")], [0.01], 60) == []
    assert commands[0].endswith("--optimizer.weight-decay 0.2")
    commands.clear()
    assert methods.fill(study, [(0, "mae"), (1, "mae")], [0.01, 0.1], 60) == []
    tuned = [command.split("--data.labelled ")[1].split() for command in commands if "--data.labelled" in command]
    assert [(words[0], words[-1]) for words in tuned] == [
        ("0.1", "0.1"), ("0.1", "0.75"), ("0.01", "0.75"), ("0.1", "0.75"), ("0.01", "0.75")
    ]  # fmt: skip


def test_a_run_that_is_gone_is_made_again_for_what_still_needs_it_alone(study: Study) -> None:
    found = list(cells(study, "mae", 0, [0.1]))
    for cell in found:
        study.add({**cell.line, "accuracy": 0.5})
    assert missing(study, found) == []
    lines = study.results.read_text().splitlines(keepends=True)
    study.results.write_text("".join(lines[:-1]))  # all but the fine-tuned one
    assert missing(study, found) == [found[0], found[-1]]
    assert found[0].leaves is not None
    (found[0].leaves / "model").mkdir(parents=True)
    assert missing(study, found) == [found[-1]]


def test_what_fails_or_is_left_out_leaves_out_what_needs_it_alone(
    study: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    def timed(_: Study, name: str, __: list[str], folder: Path, *___: object) -> methods.Line:
        if name == "dino":
            raise methods.FailedError("status 2")
        (folder / "model").mkdir(parents=True, exist_ok=True)
        return {"accuracy": 0.5, "val": 0.5}

    monkeypatch.setattr(methods, "timed", timed)
    monkeypatch.setattr(methods, "evaluated", lambda *_: {"accuracy": 0.4})
    failed = methods.fill(study, [(0, "dino"), (0, "mae")], [0.1], budget=60)
    assert [each.split("}: ")[1] for each in failed] == ["status 2", *["the run that it needs is not there"] * 5]
    measures = ["pretraining", "knn", "linear", "trial", "trial", "accuracy"]
    assert [line["measure"] for line in study.lines()] == measures
    assert len(methods.fill(study, [(0, "supervised"), (0, "fixmatch")], [0.1], budget=5)) == 2  # 4 minutes and 2 more
    assert len(methods.fill(study, [(0, "supervised"), (0, "fixmatch")], [0.1], budget=7)) == 0


def test_measures_may_be_made_apart(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run without labels, then what is fine-tuned and what is frozen, in any order."""

    def timed(_: Study, __: str, ___: list[str], folder: Path, *____: object) -> methods.Line:
        (folder / "model").mkdir(parents=True, exist_ok=True)
        return {"accuracy": 0.5, "val": 0.5}

    monkeypatch.setattr(methods, "timed", timed)
    monkeypatch.setattr(methods, "evaluated", lambda *_: {"accuracy": 0.4})
    made = lambda *measures: methods.fill(study, [(0, "mae")], [0.1], 60, measures)  # noqa: E731
    assert len(made("knn")) == 1  # nothing to measure yet
    assert made("pretraining", "accuracy") == []
    assert [line["measure"] for line in study.lines()] == ["pretraining", "trial", "trial", "accuracy"]
    assert made("linear", "knn") == []
    assert [line["measure"] for line in study.lines()][4:] == ["knn", "linear"]
    assert made("pretraining", "accuracy", "knn", "linear") == []
    assert len(study.lines()) == 6


def test_the_table_is_made_of_what_is_there() -> None:
    def line(method: str, seed: int, measure: str, accuracy: float) -> methods.Line:
        cell = {"method": method, "seed": seed, "labels": 0.1, "measure": measure, "accuracy": accuracy}
        return {**cell, "command": f"vitlab {method} {seed} {measure}"}

    pace = {"measure": "pace", "run": "mae", "images_per_second": 12345.6, "captured": False}
    lines = [line("mae", 0, "knn", 0.3), line("mae", 1, "knn", 0.4), line("supervised", 0, "accuracy", 0.8125), pace]
    found = list(table(lines, [0.1]))
    assert found[0] == "| method | k-NN, 10% | linear, 10% | trained on the labels, 10% | images per second |"
    assert found[1].count("|") == found[0].count("|")
    assert found[2] == "| supervised |  |  | 81.25 |  |"
    assert found[3] == "| mae | 35.00 ± 7.07 (2) |  |  | 12,346, not captured |"
    assert [text.strip() for text in found[5:]] == [each["command"] for each in lines[:3]]


@pytest.mark.parametrize("kind", [Stepper, CapturedStepper])
def test_what_is_timed_is_made_in_turn_with_other_processes(
    kind: type[Stepper], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, held = tmp_path / "pace.lock", list[bool]()

    def is_held() -> bool:
        with lock.open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    monkeypatch.setattr(kind, "__call__", lambda *_: held.append(is_held()) or time.sleep(0.002) or True)
    with rehearsal.rehearsing(lock) as found:
        stepper = object.__new__(kind)
        for number in range(rehearsal.REHEARSED + 1):
            assert stepper(number, 1.0)
        raise AssertionError("nothing is done after the last step")
    assert not is_held()
    assert found.kinds == {kind}
    assert found.seconds_per_step >= 0.002
    assert held == [False] + [True] * (rehearsal.REHEARSED - 1)  # the first one compiles


def test_the_quickest_turn_is_the_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock whose steps take a second, but for some that others disturb: one of each turn but the third."""
    clock, slow = 0.0, {number for number in range(7, rehearsal.REHEARSED, rehearsal.TIMED) if number // 20 != 3}

    def step(_: object, number: int, __: float) -> bool:
        nonlocal clock
        clock += 50.0 if number in slow else 1.0
        return True

    monkeypatch.setattr(rehearsal.time, "perf_counter", lambda: clock)
    monkeypatch.setattr(Stepper, "__call__", step)
    with rehearsal.rehearsing(tmp_path / "pace.lock") as found:
        for number in range(rehearsal.REHEARSED):
            assert object.__new__(Stepper)(number, 1.0)
    assert len(slow) == 5
    assert found.seconds_per_step == 1.0


def test_none_is_timed_before_all_have_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process waits for another, which arrives later, or fails; not longer than it is told to."""
    lock, steps = tmp_path / "pace.lock", list[float]()
    monkeypatch.setattr(Stepper, "__call__", lambda *_: steps.append(time.monotonic()) or True)

    def rehearse(most: float) -> float:
        steps.clear()
        with rehearsal.rehearsing(lock, 2, most):
            for number in range(rehearsal.REHEARSED):
                assert object.__new__(Stepper)(number, 1.0)
        return steps[1] - steps[0]

    assert rehearse(0.2) >= 0.2
    code = "import sys, time; from pathlib import Path; import rehearsal; time.sleep(0.3)\n"
    code += "with rehearsal.rehearsing(Path(sys.argv[1]), 2): raise SystemExit"
    paths = {**os.environ, "PYTHONPATH": str(Path(rehearsal.__file__).parent)}
    shutil.rmtree(rehearsal.arrivals(lock))
    other = subprocess.Popen([sys.executable, "-c", code, str(lock)], env=paths)
    assert 0.3 <= rehearse(60) < 50
    assert other.wait() == 0


def test_each_kind_of_step_is_paced_once(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts from a run, or needs one, has the pace of a method that does not."""
    study = dataclasses.replace(study, device="cpu")

    taught = list[str]()

    def train(_: Study, words: list[str], folder: Path, *__: object) -> methods.Line:
        folder.mkdir(parents=True)
        if words[1].startswith("dino"):
            raise methods.FailedError("status 2")
        if "--objective.teacher" in words:
            taught.extend([words[1], words[words.index("--objective.teacher") + 1]])
        return {}

    monkeypatch.setattr(methods, "train", train)
    monkeypatch.setattr(methods, "recipe_of", lambda _: find_recipe("cifar10"))
    names = ["mae", "dino", "noisy-student", "supervised-quarter", "simclr-half", "simclr-fixmatch"]
    assert methods.pace_all(study, names) == ["the pace of dino: status 2"]
    assert [line["run"] for line in study.lines()] == ["mae", "noisy-student"]
    assert taught[0] == "noisy-student-cifar10"
    assert Path(taught[1]).is_dir()  # a teacher was trained for it
    shared = {"simclr-half": "simclr", "supervised-quarter": "supervised", "simclr-fixmatch": "fixmatch"}
    for name, run in shared.items():
        assert methods.paced(study, name, ["train", "cifar10"])["run"] == run
    assert [line["run"] for line in study.lines()] == ["mae", "noisy-student", *shared.values()]


def test_jobs_wait_for_what_chooses_their_options_and_what_they_measure() -> None:
    names, labels = ["supervised", "mae", "few-labels", "fixmatch", "noisy-student"], [0.01, 0.1, 1.0]
    jobs = {job.name: job for job in methods.jobs_of(names, [0, 1], labels, ["script"])}
    assert next(iter(jobs)) == "mae-0"  # the longest chain
    cells = "--methods mae --seeds 0 --labels 0.1 --measures pretraining accuracy"
    assert " ".join(jobs["mae-0"].words) == f"script {cells}"
    assert jobs["mae-0-others"].words[-5:] == ("--labels", "0.01", "1", "--measures", "accuracy")
    trials = [name for name in jobs if name.startswith("few-labels-0-0.01-")]  # each by itself
    assert trials == [f"few-labels-0-0.01-decay-{decay}" for decay in ("0.05", "0.2", "0.8")]
    assert jobs[trials[0]].words[-4:] == ("--labels", "0.01", "--option", "decay 0.05")
    after = {name: job.after for name, job in jobs.items() if job.after}
    assert len(after.pop("fixmatch-0-0.01")) == 5
    assert after == {
        "mae-0-others": ("mae-0",),
        "mae-0-frozen": ("mae-0",),
        "few-labels-0-0.01": tuple(trials),
        "noisy-student-0-0.01": ("few-labels-0-0.01",),
        "mae-1": ("mae-0",),
        "few-labels-1-0.01": ("few-labels-0-0.01",),
        "fixmatch-1-0.01": ("fixmatch-0-0.01",),
        "noisy-student-1-0.01": ("few-labels-0-0.01",),
        "mae-1-others": ("mae-1",),
        "mae-1-frozen": ("mae-1",),
    }
    started = methods.jobs_of(["simclr-half", "simclr-fixmatch"], [1], [0.01], ["script"])
    assert [(job.name, job.after) for job in started][1] == ("simclr-fixmatch-1-0.01", ("simclr-half-1",))
    assert "fixmatch-0-1" not in jobs  # no image would be without a label
    assert [job.after for job in methods.jobs_of(["noisy-student"], [0], [0.01], ["script"])] == [()]


def job(name: str, code: str, *after: str) -> Job:
    return Job(name, (sys.executable, "-c", code), after)


def test_jobs_run_in_an_order_that_they_allow(tmp_path: Path) -> None:
    note = f"open({str(tmp_path / 'order')!r}, 'a').write"
    jobs = [job("c", f"{note}('c')", "b"), job("a", f"{note}('a'); print('said')"), job("b", f"{note}('b')", "a")]
    said = list[str]()
    assert methods.run_jobs(jobs, 2, tmp_path / "logs", said.append, 0.01) == []
    assert (tmp_path / "order").read_text() == "abc"
    assert (tmp_path / "logs" / "a.log").read_text() == "said\n"
    assert [line.split(" after ")[0] for line in said] == ["a: done", "b: done", "c: done"]


def test_jobs_that_need_a_failed_one_are_left_out_and_where_most_fail_all_are_ended(tmp_path: Path) -> None:
    jobs = [
        job("a", "raise SystemExit(3)"),
        job("b", "", "a"),
        job("c", ""),
        job("d", "", "b"),
        job("e", ""),
        job("f", ""),
    ]
    said = list[str]()
    assert methods.run_jobs(jobs, 1, tmp_path, said.append, 0.01) == ["a", "b", "d"]
    assert f"a: failed, {tmp_path / 'a.log'} says why" in said[0]
    waiting = [job(str(number), "raise SystemExit(1)") for number in range(3)]
    waiting += [job("long", "import time; time.sleep(600)"), job("never", "", "long")]
    assert sorted(methods.run_jobs(waiting, 4, tmp_path, said.append, 0.01)) == ["0", "1", "2", "long", "never"]
    assert said[-1] == "3 of 3 failed: the others are ended."
