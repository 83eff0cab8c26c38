import dataclasses

import numpy as np

from shown import HOSTILE, shown
from vitlab.evaluation.compare import compare
from vitlab.evaluation.contract import KNOWN, Metric, Result

RESULT = Result(
    protocol="fewshot",
    model="mine",
    data="pets",
    metrics={
        "5-shot": Metric(value=0.91237, count=3, spread=0.0123, spread_of="3 seeds, standard deviation"),
        "images per second": Metric(value=137.0, count=64, unit="number"),
    },
    settings={"split": "test", "notes": ("Read as a folder.", "val was held out of train.")},
    selected={"l2": {"value": 64.0, "on": "val"}},
    details={"confusion": np.zeros((100, 100))},
    seconds=12.34,
)


def test_a_line_per_metric_and_what_must_be_said() -> None:
    page = shown(RESULT)
    assert page.text.startswith("mine: fewshot on pets (test), 12.3 s")
    assert page.rows == [
        ["metric", "value", "count", "spread"],
        ["5-shot", "91.24 ± 1.23%", "3", "3 seeds, standard deviation"],
        ["images per second", "137", "64", ""],
    ]
    assert "Chosen on val: l2 64.0." in page.text
    assert "val was held out of train." in page.text
    assert "Read as" not in page.text
    assert repr(RESULT) == "<Result of fewshot of mine on pets: 5-shot 91.24 ± 1.23%, images per second 137>"


def test_what_is_no_finding_is_called_so() -> None:
    known = dataclasses.replace(RESULT, settings={KNOWN: True})
    assert "This is no few-shot finding" in shown(known).text


def test_names_are_escaped_and_long_results_cut() -> None:
    metrics = {f"{HOSTILE} {i}": Metric(value=0.5, count=1) for i in range(30)}
    result = Result(
        protocol=HOSTILE,
        model=HOSTILE,
        data=HOSTILE,
        metrics=metrics,
        selected={HOSTILE: {"value": HOSTILE, "on": HOSTILE}},
    )
    page = shown(result)
    assert len(page.rows) == 25
    assert page.rows[0] == ["metric", "value", "count"]
    assert "… and 6 more" in page.text
    assert "\x1b" not in repr(result)
    shown(compare([result]))


def test_models_stand_side_by_side_with_the_papers() -> None:
    other = dataclasses.replace(RESULT, model="yours", metrics={"5-shot": Metric(value=0.5, count=3)})
    page = shown(compare([RESULT, other]))
    assert page.rows[0] == ["", "mine", "yours"]
    assert ["91.24 ± 1.23", "50.00"] in [row[1:] for row in page.rows]
    published = shown(compare([], published="v2"))
    assert any("published" in cell for cell in published.rows[0])
    assert "88.55 ± 0.04" in [cell for row in published.rows for cell in row]  # table 2: ViT-H/14, ImageNet
