"""The small pieces: markup, words, charts, records and advice."""

import json
import math
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitlab.core.markup import Html, join, tag
from vitlab.core.thumbnails import thumbnail
from vitlab.core.words import command, count, duration, flops, listed, millions, number, percent, short
from vitlab.data.contract import DataSet, Split
from vitlab.data.places import evenly
from vitlab.objectives.cross_entropy import Loss
from vitlab.reporting.advice import next_steps, notes, with_option
from vitlab.reporting.charts import Curve, Scale, line_chart, reliability_chart, thinned, tick_labels, ticks
from vitlab.reporting.confusion import matrix
from vitlab.reporting.curves import curves
from vitlab.reporting.drawn import drawn
from vitlab.reporting.facts import Facts
from vitlab.reporting.glossary import TERMS, Glossary
from vitlab.reporting.record import RunRecord, read_run
from vitlab.tasks import results as looked
from vitlab.tasks.classification import Classification
from vitlab.tasks.classification_results import ClassesTested, Number, confused
from vitlab.tasks.results import ReportContext
from vitlab.tasks.sections import Bar, Folded, Heading, Matrix, Remark, Section, Span, Table, Text

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


def test_texts_are_escaped_and_markup_is_not() -> None:
    inner = tag("b", "<x> & 'y'")
    assert inner == "<b>&lt;x&gt; &amp; &#x27;y&#x27;</b>"
    assert tag("p", inner, None, title='"', class_="a", data_x=None) == f'<p title="&quot;" class="a">{inner}</p>'
    assert tag("img", src="a&b", alt="") == '<img src="a&amp;b" alt="">'
    assert join(["a<", Html("<br>")], " ") == "a&lt; <br>"
    assert tag("rect", fill_opacity=0.1 + 0.2, x=3) == '<rect fill-opacity="0.3" x="3"></rect>'


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        (percent(0.8675), "86.8%"),
        (percent(1), "100%"),
        (percent(0.99999), "over 99.9%"),
        (percent(1e-9), "under 0.1%"),
        (percent(0), "0%"),
        (number(0.61912), "0.619"),
        (number(3.6e-7), "3.6e-7"),
        (number(1234.5), "1,234"),
        (count(1, "picture"), "1 picture"),
        (count(1259, "class", "classes"), "1,259 classes"),
        (duration(0.4), "under 1 s"),
        (duration(59.6), "1 min"),
        (duration(192), "3 min 12 s"),
        (duration(3600 * 5 + 425), "5 h 7 min"),
        (duration(3600 * 52), "2 days 4 h"),
        (flops(361e9), "361 gigaFLOPs"),
        (flops(12), "12 FLOPs"),
        (millions(86.6e6), "86.6 million"),
        (short("a" * 100, 11), "aaaaa…aaaaa"),
        (short(" a\n b "), "a b"),
        (listed(["a"]), "a"),
        (listed(["a", "b", "c"]), "a, b and c"),
        (listed([str(i) for i in range(100)], 4), "0, 1, 2 and 97 more"),
    ],
)
def test_words(context: str, expected: str) -> None:
    assert context == expected


@given(st.lists(st.text(min_size=1), min_size=1))
def test_a_shell_reads_a_command_as_its_words(words: list[str]) -> None:
    assert shlex.split(command(*words)) == words


@given(NUMBERS, NUMBERS, st.integers(2, 8))
def test_ticks_are_round_even_and_hold_all(a: float, b: float, about: int) -> None:
    low, high = sorted((a, b))
    found = ticks(low, high, about)
    assert 2 <= len(found) <= about + 3
    step = found[1] - found[0]
    slack = 1e-6 * max(abs(low), abs(high), step)
    assert found[0] <= low + slack
    assert found[-1] >= high - slack
    np.testing.assert_allclose(np.diff(found), step, rtol=1e-6, atol=slack)
    if high - low > 1e-3:
        leading = step / 10 ** math.floor(math.log10(step) + 1e-9)
        assert min(abs(leading - nice) for nice in (1, 2, 2.5, 5)) < 1e-4


@given(st.integers(1, 2000), st.integers(2, 50))
def test_a_thinned_line_keeps_its_mean_and_its_end(num: int, most: int) -> None:
    points = [(float(i), float(i * i)) for i in range(num)]
    kept = thinned(points, most)
    assert len(kept) <= most
    assert kept[-1] == points[-1]
    assert [x for x, _ in kept] == sorted(x for x, _ in kept)
    if num <= most:
        assert kept == points


def test_a_chart_places_values_and_tells_the_last() -> None:
    assert Scale((0, 1, 2), 100, 0).place(0.5) == 75
    chart = line_chart([Curve("a", "a", [(0, 1), (4, 3)])], label="x", x_label="steps", form=lambda v: f"{v:g}!")
    assert "points=" in chart
    assert chart.count("3!") == 2  # on the axis and at the end
    flat = line_chart([Curve("a", "a", [(1, 0)])], label="x", x_label="steps", form=number)
    assert "nan" not in flat


def test_a_long_last_value_has_room_beside_its_curve() -> None:
    for words in ("1", "0.781%", "over 99.9%"):
        drawn = line_chart([Curve("a", "a", [(0, 1), (5, 3)])], label="x", x_label="steps", form=lambda _, w=words: w)
        places = re.findall(rf'<text[^>]*class="end a"[^>]*>{words}<', drawn)
        assert len(places) == 1
        x = re.search(r' x="([0-9.]+)"', places[0])
        assert x is not None
        assert float(x[1]) + 8 * len(words) <= 400


def test_a_matrix_has_a_square_for_each_confusion() -> None:
    confusion = {(0, 0): 5, (0, 1): 2, (1, 0): 2, (2, 1): 4}
    names, counts = tuple(f"<{i}>" for i in range(100)), (7, 4, 8, *[0] * 97)
    picture = matrix(Matrix(classes=names, confusion=confusion, counts=counts))
    assert picture.count("<rect") == 1 + len(confusion)
    assert "&lt;2&gt; taken for &lt;1&gt;: 4 of 8 (50.0%)" in picture
    assert confused(confusion, counts, 2) == [(2, 1, 4, 0.5), (1, 0, 2, 0.5)]


def classes_told(num: int, tested: ClassesTested | None, **fields: Any) -> ReportContext:
    found = looked.Tested(part="test", of=60, num=60, scores={}, sums=torch.zeros(0), labels=(), details=tested)
    classes = tuple(f"<{i}>" for i in range(num))
    return ReportContext(loss=Loss(), classes=classes, tested=None if tested is None else found, **fields)


def test_confusions_of_many_classes_are_a_table_alone() -> None:
    for num, drawn_ in ((100, True), (101, False)):
        found = ClassesTested(
            numbers={}, per_class=(1.0,) * num, per_class_counts=(8,) * num, confusion={(0, 0): 5, (2, 1): 4}
        )
        (section,) = (
            each for each in Classification().sections(classes_told(num, found)) if each.title == "What it confuses"
        )
        assert any(isinstance(block, Matrix) for block in section.blocks) == drawn_
        (table,) = (block for block in section.blocks if isinstance(block, Table))
        assert table.rows == (("<2>", "<1>", "4", "50.0%"),)


def test_a_section_of_every_kind_of_block_is_drawn() -> None:
    table = Table(head=("a", (Span("b", term="loss"),)), rows=(("<x>", Bar(0.25, "a quarter")),), caption="all")
    blocks = (Heading("h & h"), Text((Span("s", "strong"), "one\ntwo"), faint=True), Folded("more", (table,)))
    heading, text, folded = drawn(Section("t", blocks), Glossary.of({}))
    assert heading == "<h3>h &amp; h</h3>"
    assert text == '<p class="faint"><strong>s</strong>one<br>two</p>'
    assert folded.startswith('<details><summary>more</summary><table class="classes"><caption>all</caption>')
    assert "width:25.0%" in folded
    assert 'href="#term-loss"' in folded
    assert '<th scope="row">&lt;x&gt;</th>' in folded


@given(st.integers(1, 500), st.integers(1, 500))
def test_places_are_even_and_distinct(num: int, limit: int) -> None:
    places = evenly(num, limit)
    assert len(places) == len(set(places.tolist())) == min(num, limit)
    assert places[0] == 0
    assert places.max() < num


def test_thumbnails_are_small() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (900, 1200, 3), dtype=np.uint8)
    small = thumbnail(Image.fromarray(noise))
    assert (small.width, small.height) == (176, 132)
    assert small.source.startswith("data:image/jpeg;base64,")
    assert len(small.source) < 40_000
    tiny = thumbnail(Image.fromarray(noise[:8, :12]))
    assert tiny.tiny
    assert (tiny.width, tiny.height) == (12, 8)


def test_every_term_is_explained_without_markup() -> None:
    glossary = Glossary.of(Classification.terms)
    assert set(glossary.terms) == {*TERMS, *Classification.terms}
    for name, words in glossary.terms.items():
        assert words.endswith(".")
        assert 'href="#term-' in glossary.term(name)


def record(**fields: Any) -> RunRecord:
    given_: dict[str, Any] = {
        "folder": Path("runs/a b"),
        "recipe": {"data": {"source": "my data"}, "schedule": {"total": "20 epochs"}, "name": "x"},
        "environment": {"command": ["vitlab", "train", "x", "--out", "runs/a b"], "threads": 2},
        "data": {},
        "lines": (),
        "result": {"step": 100},
        "state": "done",
    }
    return RunRecord(**(given_ | fields))


def scores(*values: float) -> tuple[dict[str, Any], ...]:
    return tuple({"step": 10 * (i + 1), "val score": value} for i, value in enumerate(values))


def test_a_record_reads_what_is_whole(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"data": {"source": "x"}}')
    lines = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}, {"step": 3, "loss": 1.5}]
    (tmp_path / "metrics.jsonl").write_text("\n".join(map(json.dumps, lines)) + '\n[1]\n{"loss": 1}\n{"step": 4, "l')
    found = read_run(tmp_path)
    assert found.series("loss") == [(1, 2.0), (3, 1.5)]
    assert (found.step, found.state) == (3, "unfinished")
    assert found.field("data.source") == "x"
    assert found.field("data.source.deeper", 7) == 7
    assert found.device == "not recorded"


@pytest.mark.parametrize(
    ("environment", "device"),
    [
        ({"gpus": ["H"], "processes": 8}, "8 x H"),
        ({"gpus": ["H"], "command": ["vitlab", "train", "x", "--device", "cpu"], "threads": 1}, "CPU, 1 thread"),
        ({"gpus": ["H"], "command": ["vitlab", "train", "x", "--device=cuda:1"]}, "H"),
        ({"gpus": [], "threads": 2}, "CPU, 2 threads"),
    ],
)
def test_the_device_in_words(environment: dict[str, Any], device: str) -> None:
    assert record(environment=environment).device == device


def test_an_option_is_changed_wherever_it_stands() -> None:
    words = ["vitlab", "train", "--a", "1", "--b=2", "--ab", "3"]
    assert with_option(words, "--a", "9") == ["vitlab", "train", "--b=2", "--ab", "3", "--a", "9"]
    assert with_option(words, "--b", None) == ["vitlab", "train", "--a", "1", "--ab", "3"]


def test_advice_on_learning() -> None:
    (longer,) = notes(record(lines=scores(0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)), [])
    assert longer.command == "vitlab train x --schedule.total '40 epochs'"
    (worse,) = notes(record(lines=scores(0.5, 0.8, 0.7, 0.6, 0.6), result={"step": 50}), [])
    assert "got worse afterwards" in worse.text
    assert notes(record(lines=scores(0.7, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8, 0.8)), []) == []
    (skipped,) = notes(record(result={"step": 100, "skipped": 2}), [])
    assert skipped.text.startswith("2 steps were left out")
    (unreadable,) = notes(record(result={"step": 100, "unreadable": 3}), [])
    assert unreadable.text.startswith("3 training pictures could not be read")
    lines = ({"step": 50, "val loss": None}, {"step": 100, "val loss": 2.0}, {"step": 100, "loss": 1.0})
    (lost,) = notes(record(lines=lines), [])
    assert lost.text.startswith("On validation pictures the loss was no number in 1 of 2 evaluations")


def test_advice_names_a_command_that_the_run_could_have_been() -> None:
    rising = scores(0.1, 0.2, 0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7, 0.75)

    def advised(*words: str, total: str = "20 epochs") -> str | None:
        recipe = {"schedule": {"total": total}, "optimizer": {"lr": 0.003}}
        (note,) = notes(record(lines=rising, recipe=recipe, environment={"command": ["vitlab", *words]}), [])
        return note.command

    assert advised("train", "x", "--epochs", "20") == "vitlab train x --schedule.total '40 epochs'"
    assert advised("finetune", "photos", "--steps=500", total="500 steps") == "vitlab finetune photos --steps 1000"
    for length in (["--epochs", "5"], ["--schedule.total", "500 steps"]):  # of which one alone may be given
        assert advised("finetune", "photos", *length, total="500 steps") == "vitlab finetune photos --steps 1000"
    assert advised("finetune", "photos", total="20 epochs") is None
    assert advised("finetune", "photos", "--epochs", "2", total="35 steps") == "vitlab finetune photos --steps 70"
    assert advised("train", "--resume", "runs/a") is None
    assert advised("demo") is None


def test_the_best_state_of_an_unsteady_run_comes_with_a_lower_learning_rate() -> None:
    lines = [{"step": 10 * i, "accuracy": 0.366, "loss": 2.0} for i in range(1, 11)]
    lines += [
        {"step": 10 * (i + 1), "val score": value, "val accuracy": value, "val count": 10_000}
        for i, value in enumerate((0.2, 0.41, 0.42, 0.38, 0.368))
    ]
    recipe = {"schedule": {"total": "100 steps"}, "optimizer": {"lr": 0.003}}
    (note,) = notes(record(lines=tuple(lines), recipe=recipe), [])
    assert "unsteadily" in note.text
    assert note.command == "vitlab train x --optimizer.lr 0.001"


def test_advice_on_uneven_classes_and_poor_answers() -> None:
    labels = np.array([0] * 50 + [1] * 10)

    class Unread:
        def __len__(self) -> int:
            return 60

        def read(self, index: int) -> bytes:
            raise AssertionError(index)

        def where(self, index: int) -> str:
            return f"image {index}"

    split = Split.labelled(Unread(), labels)
    dataset = DataSet("set", ("many", "few"), {"train": split}, "print")
    (uneven,) = Classification().remarks(classes_told(2, None, dataset=dataset))
    assert "“many” has 5 times as many" in uneven.text
    assert [note.command for note in notes(record(), [uneven])] == ["vitlab train x --data.balanced"]
    tuned = record(environment={"command": ["vitlab", "finetune", "photos", "--out", "runs/a"]})
    assert [note.command for note in notes(tuned, [uneven])] == ["vitlab finetune photos --data.balanced"]
    resumed = record(environment={"command": ["vitlab", "train", "--resume", "runs/a"]})
    assert [note.command for note in notes(resumed, [uneven])] == [None]
    assert Classification().remarks(classes_told(2, None, dataset=dataset, balanced=True)) == []
    found = ClassesTested(
        numbers={"accuracy": Number(value=0.5, low=0.38, high=0.62), "calibration error": Number(value=0.3)},
        guess=0.5,
        per_class=(0.4, 1.0),
        per_class_counts=(50, 10),
        confusion={(0, 0): 20, (0, 1): 30, (1, 1): 10},
        reliability=((0.8, 0.5, 60),),
    )
    context = replace(classes_told(2, found), classes=dataset.classes)
    texts = " ".join(remark.text for remark in Classification().remarks(context))
    assert texts.startswith("With 60 pictures looked at, the result is uncertain by about 12 percentage points")
    assert "hardly better" in texts
    assert "mistake" not in texts  # of a model that all but guesses, it is the answer that it gives to all
    assert "or start from trained weights (vitlab finetune)" in texts
    tuned = Classification().remarks(replace(context, pretrained=True))
    assert "trained weights" not in " ".join(remark.text for remark in tuned)  # which is how it started
    few = replace(found, numbers={"accuracy": Number(value=1.0, low=0.342, high=1.0)})
    unsure = " ".join(remark.text for remark in Classification().remarks(classes_told(2, few)))
    assert "better than one and the same answer for all pictures (50.0%) cannot be told from so few" in unsure
    assert "learned little" not in unsure
    better = classes_told(2, replace(found, guess=0.3))
    told = " ".join(remark.text for remark in Classification().remarks(replace(better, classes=dataset.classes)))
    assert "hardly better" not in told
    assert "“many” for “few”: 30 times, 60.0% of those pictures" in told
    assert "about 12 percentage points" in texts
    assert "surer than it should be: on average it says 80.0% and is right 50.0%" in texts
    assert context.tested is not None
    steps = next_steps(record(), replace(context.tested, of=90), has_model=True)
    assert steps[-1].command == "vitlab report 'runs/a b' --images 90"
    assert notes(record(), [Remark("so")])[0].text == "so"


def test_a_certainty_within_the_interval_of_what_is_right_is_not_called_wrong() -> None:
    found = ClassesTested(
        numbers={"accuracy": Number(value=0.8125, low=0.57, high=0.934), "calibration error": Number(value=0.207)},
        guess=0.25,
        per_class=(0.5, 1.0),
        per_class_counts=(8, 8),
        confusion={(0, 0): 5, (0, 1): 3, (1, 1): 8},
        reliability=((0.895, 0.8125, 16),),
    )
    assert "surer than it should" not in " ".join(
        remark.text for remark in Classification().remarks(classes_told(2, found))
    )
    surely = replace(found, reliability=((0.98, 0.8125, 16),))
    assert "surer than it should" in " ".join(
        remark.text for remark in Classification().remarks(classes_told(2, surely))
    )


def test_the_ring_is_where_the_run_chose_its_model() -> None:
    """Of equal scores the one with the lowest loss, as `Progress.is_better` has it."""
    seen = ((0, 0.99, 0.1), (10, 0.9, 0.5), (20, 0.9, 0.2), (30, 0.9, 0.4))
    lines = tuple({"step": s, "val score": a, "val accuracy": a, "val loss": b, "val count": 16} for s, a, b in seen)
    run = record(lines=lines)
    assert run.best is not None
    assert run.best["step"] == 20
    reached = Facts(record=replace(run, result={})).logged
    assert reached is not None
    assert reached.scores["loss"] == 0.2
    assert record(lines=lines[:1]).best is None  # the scores before the first step choose nothing
    chart = "".join(curves(Facts(record=run, total_steps=30)))
    (ring,) = re.findall(r'<circle class="ring" cx="([0-9.]+)"', chart)
    assert float(ring) == pytest.approx(_across(chart, 20, of=(0, 30)), abs=1)


def _across(chart: str, step: int, *, of: tuple[int, int]) -> float:
    """Where a step is, between the first and the last point of the line."""
    *_, line = re.findall(r'<polyline[^>]*points="([^"]+)"', chart)
    first, last = (float(point.split(",")[0]) for point in (line.split()[0], line.split()[-1]))
    return first + (last - first) * (step - of[0]) / (of[1] - of[0])


def test_a_training_loss_that_ends_higher_is_explained_by_what_made_it_so() -> None:
    lines = tuple({"step": step, "loss": 0.37, "val loss": 0.29} for step in (10, 20, 30))
    smoothed = record(lines=lines, recipe={"loss": {"label_smoothing": 0.1}})
    text = "".join(curves(Facts(record=smoothed)))
    assert "(0.37 against 0.29) is as it should be: the loss on training pictures asks for answers" in text
    assert "varied" not in text
    assert "blended" not in text
    both = {"augmentation": {"mixup": 0.2, "policy": "randaugment"}}
    text = "".join(curves(Facts(record=record(lines=lines, recipe=both))))
    assert "training pictures are varied and training pictures are blended" in text
    ended = "".join(curves(Facts(record=record(lines=lines, recipe=both, result={"step": 30}), mixed_steps=20)))
    assert "is as it should be: training pictures are varied." in ended
    assert "as it should be" not in "".join(curves(Facts(record=record(lines=lines))))  # nothing made it harder
    lower = tuple({**line, "loss": 0.1} for line in lines)
    assert "as it should be" not in "".join(curves(Facts(record=record(lines=lower, recipe=both))))


def test_ticks_close_to_each_other_read_differently() -> None:
    assert tick_labels(ticks(0, 2, 5), number) == ["0", "0.5", "1", "1.5", "2"]
    close = tick_labels([4.95, 4.9525, 4.955], number)
    assert close == ["4.9500", "4.9525", "4.9550"]
    assert tick_labels([0.9991, 0.9992], lambda value: f"{100 * value:.3g}%") == ["99.91%", "99.92%"]
    assert tick_labels([1.0, 1.0], number) == ["1", "1"]


def test_a_reliability_chart_names_both_axes() -> None:
    chart = reliability_chart([(0.8, 0.5, 1), (0.9, 1.0, 3)], label="x")
    assert ">how sure it was</text>" in chart
    assert ">how often it was right</text>" in chart
    assert "1 picture: 80% sure, right 50% of the time" in chart


def test_a_learning_rate_that_was_logged_once_is_not_drawn() -> None:
    lines = [{"step": step, "loss": 1.0, "lr": 1e-3 / step} for step in (10, 20)]
    assert "Learning rate" in "".join(curves(Facts(record=record(lines=lines))))
    assert "Learning rate" not in "".join(curves(Facts(record=record(lines=lines[:1]))))


def test_the_end_of_mixing_is_told_beside_the_curves() -> None:
    recipe = {"augmentation": {"mixup": 0.8, "policy": "none"}, "batch_size": 4}
    lines = tuple({"step": step, "loss": 1.0} for step in (10, 50, 100))
    run = record(lines=lines, recipe=recipe)
    told = "".join(curves(Facts(record=run, total_steps=100, mixed_steps=85)))
    assert "After step 85 training pictures were no longer blended with each other (augmentation.mix_until)." in told
    assert "no longer blended" not in "".join(curves(Facts(record=run, total_steps=100)))
    dropping = tuple({"step": step, "loss": 2.0 if step <= 85 else 1.5} for step in range(5, 101, 5))
    fell = "".join(curves(Facts(record=record(lines=dropping, recipe=recipe), total_steps=100, mixed_steps=85)))
    assert "which makes them easier: the loss on them drops from 2 to 1.5 there." in fell
    early = record(lines=lines[:2], result={}, state="unfinished")
    assert "no longer blended" not in "".join(curves(Facts(record=early, total_steps=100, mixed_steps=85)))
