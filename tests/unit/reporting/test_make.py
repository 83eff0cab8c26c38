"""Whole pages: their numbers beside scikit-learn's, and what they say where something is missing."""

import fcntl
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import binomtest
from sklearn import metrics

from report_pages import Page
from shown import shown
from unit.reporting.made_runs import HOSTILE, MadeRun, make_run, without_data, write_metrics
from vitlab.cli import VERBS
from vitlab.core.errors import Error, ImageError
from vitlab.core.record import read_json, write_json
from vitlab.data.sources.pixels import MappedPixels
from vitlab.reporting.make import Plan, Report, make_report

SECTIONS = [
    "What stands out",
    "How it learned",
    "How well it does",
    "Its best and its worst answers",
    "What it confuses",
    "Class by class",
    "Can its certainty be trusted?",
    "Inside the model",
    "What it cost",
    "How to do it again",
    "What to do next",
    "The terms",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return make_run(tmp_path_factory.mktemp("made") / "one label")


@pytest.fixture(scope="module")
def report(run: MadeRun) -> Report:
    return make_report(run.folder, run.plan)


@pytest.fixture(scope="module")
def page(run: MadeRun, report: Report) -> Page:
    assert report.path == run.folder / "report.html"
    assert report.images == 60
    assert report.missing == ()
    return Page(report.path.read_text(encoding="utf-8"))


@pytest.fixture
def copy(run: MadeRun, tmp_path: Path) -> MadeRun:
    """The run in a folder that may be changed, its data gone: nothing is measured, so that the test is fast."""
    folder = tmp_path / "run"
    shutil.copytree(run.folder, folder)
    return without_data(replace(run, folder=folder))


def made(run: MadeRun) -> Page:
    page = Page(make_report(run.folder, run.plan).path.read_text(encoding="utf-8"))
    page.check()
    return page


def percent(share: float) -> str:
    return f"{100 * share:.1f}%"


def test_one_file_that_asks_for_nothing_with_all_sections(page: Page) -> None:
    page.check()
    assert [title for title in page.headings if title in SECTIONS] == SECTIONS
    assert len(page.source) < 1e6  # read at once, also over a slow line
    assert len(page.images) == 24


def test_a_notebook_shows_what_the_page_says_first(
    run: MadeRun, report: Report, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run.folder.parent)
    in_notebook = shown(report)
    assert report.title == page.headings[0]
    assert report.lead in page.text
    assert report.lead in in_notebook.text
    assert percent(metrics.accuracy_score(run.labels, run.logits.argmax(axis=1))) in in_notebook.text
    assert in_notebook.links == ["run/report.html"]
    assert repr(report).startswith(f"<Report {report.path}: finished. A vision model")


def test_numbers_are_those_of_scikit_learn(page: Page, run: MadeRun) -> None:
    said, labels = run.logits.argmax(axis=1), run.labels
    right = int((said == labels).sum())
    value, interval = page.row("accuracy: right answers")
    assert value == percent(metrics.accuracy_score(labels, said))
    expected = binomtest(right, len(labels)).proportion_ci(method="wilson")
    assert interval == f"{percent(expected.low)} to {percent(expected.high)}"
    top = metrics.top_k_accuracy_score(labels, run.logits, k=5, labels=range(7))
    assert page.row("right answer among the first five")[0] == percent(float(top))
    assert page.row("balanced accuracy")[0] == percent(float(metrics.balanced_accuracy_score(labels, said)))
    value, interval = page.row("log loss")
    losses = -np.log(run.shares[np.arange(len(labels)), labels])
    assert value == f"{metrics.log_loss(labels, run.shares, labels=range(7)):.3f}"
    half = 1.959964 * losses.std(ddof=1) / np.sqrt(len(losses))
    assert interval == f"{losses.mean() - half:.3f} to {losses.mean() + half:.3f}"
    assert f"it was right {right} times: {percent(right / len(labels))}" in page.text


def test_every_confusion_is_drawn(page: Page, run: MadeRun) -> None:
    counts = metrics.confusion_matrix(run.labels, run.logits.argmax(axis=1), labels=range(7))
    drawn = [words for words in page.hovers if " taken for " in words]
    assert len(drawn) == np.count_nonzero(counts)
    for truth, said in zip(*np.nonzero(counts), strict=True):
        start = f"{HOSTILE[truth]} taken for {HOSTILE[said]}: {counts[truth, said]} of {counts[truth].sum()} ("
        assert any(words.startswith(start) for words in drawn)
    table = [cells for cells in page.rows if len(cells) == 4][1:]
    wrong = np.sort(counts[~np.eye(7, dtype=bool)])[::-1]
    assert [int(cells[2]) for cells in table] == wrong[: len(table)].tolist()


def test_the_surest_answers_are_shown(page: Page, run: MadeRun) -> None:
    said, sure = run.logits.argmax(axis=1), run.shares.max(axis=1)
    for wrong, mark in ((False, "✓"), (True, "✗")):
        chosen = (said != run.labels) == wrong
        surest = int(np.flatnonzero(chosen)[sure[chosen].argmax()])
        words = f"{mark} said {' '.join(HOSTILE[said[surest]].split())} ({sure[surest]:.0%})"
        assert page.text.index(words) == page.text.index(f"{mark} said")  # the first of its kind


def test_per_class_counts_and_shares(page: Page, run: MadeRun) -> None:
    train = run.plan().dataset.splits["train"].labels
    said = run.logits.argmax(axis=1)
    for k in (1, 3, 5):  # names that are shown whole
        held = run.labels == k
        expected = [f"{(train == k).sum()}", f"{(said[held] == k).sum()} of {held.sum()}"]
        assert [HOSTILE[k], *expected] in page.rows


def test_hostile_names_stay_words(page: Page) -> None:
    assert "<script" not in page.source
    assert HOSTILE[0] in page.text
    assert "made <i>up</i>: telling 7 kinds of pictures apart" in page.text
    assert "</style><b>" not in page.source
    assert "<b>set" not in page.source
    assert any("<b>set" in (image["title"] or "") for image in page.images)
    assert "</style><b>" in page.text


def test_cost_and_commands(page: Page, run: MadeRun) -> None:
    assert page.row("time") == ["3 min 20 s"]
    assert page.row("pictures looked at, repeats included") == ["1,200"]
    assert page.row("speed in training") == ["6 pictures per second"]
    assert page.row("device") == ["CPU, 1 thread"]
    assert f"vitlab train made --out '{run.folder}' '--optimizer.lr=0.1 <b>'" in page.commands
    assert f"vitlab predict PICTURE.jpg --model '{run.folder}/model'" in page.commands
    assert {words.split()[1] for words in page.commands if words.startswith("vitlab ")} <= set(VERBS)
    assert not any("--resume" in words for words in page.commands)
    assert page.row("threads") == ["1"]
    assert not any(row[0] == "recipe" for row in page.rows)  # the whole recipe stands below, as JSON


def test_fewer_pictures_are_said_to_be_fewer(copy: MadeRun, run: MadeRun) -> None:
    report = make_report(copy.folder, run.plan, images=20)
    assert report.images == 20
    page = Page(report.path.read_text(encoding="utf-8"))
    assert "Measured for this report on 20 of the 60 test pictures." in page.text
    assert f"vitlab report {copy.folder} --images 60" in page.commands


def test_pictures_that_cannot_be_read_are_not_said_to_be_left_out_by_choice(
    copy: MadeRun, run: MadeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = MappedPixels.read

    def damaged(images: MappedPixels, index: int) -> object:
        if len(images) == 60 and index == 7:
            raise ImageError("7 is damaged.")
        return read(images, index)

    monkeypatch.setattr(MappedPixels, "read", damaged)
    page = Page(make_report(copy.folder, run.plan).path.read_text(encoding="utf-8"))
    assert "Measured for this report on 59 of the 60 test pictures. 1 could not be read." in page.text
    assert "chosen evenly" not in page.text
    assert not any("--images" in words for words in page.commands)


def test_a_run_that_scored_its_test_part_is_told_by_that_score(copy: MadeRun, run: MadeRun) -> None:
    result = read_json(copy.folder / "result.json")
    said = int((run.logits.argmax(axis=1) == run.labels).sum())
    right = said + 1  # as if the run had computed in another precision
    for images, beside in ((60, False), (20, True)):
        write_json(copy.folder / "result.json", {**result, "test accuracy": right / 60, "test count": 60.0})
        report = make_report(copy.folder, run.plan, images=images)
        page = Page(report.path.read_text(encoding="utf-8"))
        assert f"Shown 60 pictures that it had never seen, it was right {right} times" in page.text
        assert (page.row("accuracy: right answers")[0] == percent(right / 60)) is not beside
        assert (f"The run itself measured {percent(right / 60)} on all 60 when it ended." in page.text) is beside


def test_what_no_picture_was_held_out_for_is_not_spoken_of(copy: MadeRun, page: Page, run: MadeRun) -> None:
    (copy.folder / "metrics.jsonl").write_text('{"step": 5, "loss": 1.0}\n{"step": 10, "loss": 0.5}\n')
    alone = made(copy)
    assert "The line that matters" in page.text
    assert "The line that matters" not in alone.text
    evaluate = f"vitlab evaluate accuracy --model {copy.folder} --data DATA"
    assert evaluate in alone.commands
    assert f"vitlab evaluate accuracy --model '{run.folder}' --data DATA" not in page.commands
    assert "Measure it on other data:" in alone.text
    assert "Measure it on other data, or again:" in page.text


def test_one_picture_is_not_pictures(copy: MadeRun) -> None:
    (copy.folder / "metrics.jsonl").write_text(
        '{"step": 5, "val score": 1.0, "val accuracy": 1.0, "val loss": 0.1, "val count": 1}\n'
    )
    assert "Shown 1 picture that was kept apart, it was right 1 time: 100%" in made(copy).text


def test_a_killed_run_says_so_and_how_to_go_on(copy: MadeRun) -> None:
    (copy.folder / "result.json").unlink()
    write_metrics(copy.folder, 20)
    with (copy.folder / "metrics.jsonl").open("a") as stream:
        stream.write('{"step": 25, "lo')  # what a crash left
    page = made(copy)
    assert "stopped before its end" in page.text
    assert "20 steps were logged so far." in page.text
    assert any(words.startswith("vitlab train --resume ") for words in page.commands)
    assert "Shown 50 pictures that were kept apart, it was right 35 times: 70.0%" in page.text
    assert "The data could not be opened" in page.text


def test_a_run_under_way_shows_how_far_it_is(copy: MadeRun, run: MadeRun) -> None:
    (copy.folder / "result.json").unlink()
    shutil.rmtree(copy.folder / "model")
    write_metrics(copy.folder, 10)
    with (copy.folder / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        page = made(replace(copy, plan=run.plan))
    assert "training is under way" in page.text
    assert "Step 10 of 40 (25.0%); about 2 min 30 s left." in page.text
    assert "There is no model yet" in page.text
    assert "What it confuses" not in page.headings
    assert "How it learned" in page.headings


def test_a_run_that_was_only_begun(copy: MadeRun) -> None:
    for name in ("result.json", "metrics.jsonl", "data.json", "environment.json"):
        (copy.folder / name).unlink()
    shutil.rmtree(copy.folder / "model")
    page = made(copy)
    assert "Nothing was logged yet." in page.text


def test_data_that_changed_is_not_measured(copy: MadeRun, run: MadeRun) -> None:
    plan = run.plan()
    other = Plan(replace(plan.dataset, fingerprint="another"), plan.steps)
    report = make_report(copy.folder, lambda: other)
    assert report.images == 0
    assert report.missing == ("The data changed since the run was started, so the model was not measured on it.",)


def test_a_report_that_fails_leaves_the_old_one(copy: MadeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    (copy.folder / "report.html").write_text("the old one")

    def fail(facts: object) -> str:
        raise RuntimeError(type(facts))

    monkeypatch.setattr("vitlab.reporting.make.page", fail)
    with pytest.raises(RuntimeError):
        make_report(copy.folder, copy.plan)
    assert (copy.folder / "report.html").read_text() == "the old one"
    assert not list(copy.folder.glob(".report*"))


@pytest.mark.parametrize(("name", "sentence"), [("nothing", "There is no folder"), ("", "recipe.json is missing")])
def test_what_is_no_run_is_refused(tmp_path: Path, name: str, sentence: str) -> None:
    def plan() -> Plan:
        raise AssertionError

    with pytest.raises(Error, match=sentence):
        make_report(tmp_path / name, plan)


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return make_run(tmp_path_factory.mktemp("made") / "several labels", several=True, classes=HOSTILE[:4])


def test_several_labels_an_image(several: MadeRun) -> None:
    page = made(several)
    expected = metrics.average_precision_score(several.labels, several.logits, average="macro")
    value, interval = page.row("mean average precision (mAP)")
    assert value == percent(float(expected))
    low, high = (float(words.strip("%")) for words in interval.split(" to "))
    assert low < 100 * float(expected) < high
    exact = ((several.logits > 0) == (several.labels == 1)).all(axis=1)
    assert page.row("all labels right")[0] in (percent(exact.mean()), "0%")
    assert "naming 4 things in pictures" in page.text
    assert "What it confuses" not in page.headings
    precision = metrics.average_precision_score(several.labels[:, 1], several.logits[:, 1])
    assert page.row(HOSTILE[1])[1] == percent(float(precision))
