import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vitlab.core.errors import ConfigError, Error
from vitlab.evaluation.contract import EvaluationError, Metric, Result
from vitlab.evaluation.results import (
    figure,
    markdown,
    number,
    read_result,
    result_rows,
    result_to_dict,
    write_result,
)

RESULT = Result(
    protocol="fewshot",
    model="runs/mine",
    data="digits",
    metrics={
        "5-shot": Metric(value=0.8855, count=400, spread=0.0004, spread_of="3 seeds, standard deviation"),
        "log loss": Metric(value=1.25, count=400, unit="number"),
    },
    counts={"train": 1397, "test": 400},
    seeds=(0, 1, 2),
    settings={"shots": [1, 5], "recipe": {"name": "digits"}},
    selected={"l2": {"value": 0.5, "on": "val", "scores": {"0.5": 0.9}}},
    details={"confusion": [[1, 2], [3, 4]]},
    cost={"parameters": 1.0},
    seconds=1.5,
    environment={"python": "3"},
)


def test_a_result_comes_back_as_it_was(tmp_path: Path) -> None:
    write_result(RESULT, tmp_path / "deep" / "result.json")
    assert read_result(tmp_path / "deep" / "result.json") == RESULT
    assert [file.name for file in (tmp_path / "deep").iterdir()] == ["result.json"]


def test_the_file_is_plain_json_with_the_promised_fields(tmp_path: Path) -> None:
    write_result(RESULT, tmp_path / "result.json")
    document = json.loads((tmp_path / "result.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert document["metrics"]["5-shot"]["spread"] == 0.0004
    assert document["seeds"] == [0, 1, 2]
    assert document["selected"]["l2"]["on"] == "val"
    assert document["counts"] == {"train": 1397, "test": 400}


def test_arrays_and_numbers_that_are_not_finite_become_json() -> None:
    details = {"matrix": np.arange(4).reshape(2, 2), "one": np.float32(0.5), "none": float("nan"), 3: (Path("a"), True)}
    plain = result_to_dict(Result(protocol="a", model="m", data="d", metrics=RESULT.metrics, details=details))
    assert plain["details"] == {"matrix": [[0, 1], [2, 3]], "one": 0.5, "none": None, "3": ["a", True]}


def test_a_metric_that_is_not_finite_is_refused() -> None:
    broken = Result(protocol="a", model="m", data="d", metrics={"x": Metric(value=float("nan"), count=1)})
    with pytest.raises(EvaluationError, match="a on d: x is nan"):
        result_to_dict(broken)


def changed(**fields: Any) -> dict[str, Any]:
    document = result_to_dict(RESULT) | fields
    return {name: value for name, value in document.items() if value is not None}


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (changed(format="other"), "is no result of vitlab's"),
        (changed(format=None), "is no result of vitlab's"),
        (changed(metric={}), "there is no field 'metric'. Did you mean metrics"),
        (changed(metrics={}), "at least one metric"),
        (changed(metrics={"a": 3}), "must be a table"),
        (changed(metrics={"a": {"value": "high", "count": 1}}), "value must be a number"),
        (changed(metrics={"a": {"value": 1.0}}), "the field 'count' is missing"),
        (changed(metrics={"a": {"value": 1.0, "count": 1, "unit": "percent"}}), "unit must be fraction | number"),
        (changed(seeds=["a"]), "seeds"),
        (changed(model=None), "the field 'model' is missing"),
    ],
)
def test_another_file_is_refused_in_one_sentence(tmp_path: Path, document: dict[str, Any], sentence: str) -> None:
    (tmp_path / "result.json").write_text(json.dumps(document))
    with pytest.raises(ConfigError) as caught:
        read_result(tmp_path / "result.json")
    assert sentence in str(caught.value)
    assert "result.json" in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "\x00"])
def test_a_file_that_is_no_json_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "result.json").write_text(content)
    with pytest.raises(Error, match="result.json"):
        read_result(tmp_path / "result.json")
    with pytest.raises(Error, match="There is no file"):
        read_result(tmp_path / "gone.json")


def test_figures_are_written_as_the_paper_writes_them() -> None:
    assert figure(RESULT.metrics["5-shot"], percent_sign=False) == "88.55 ± 0.04"
    assert figure(RESULT.metrics["5-shot"]) == "88.55 ± 0.04%"
    assert figure(Metric(value=1.0, count=3)) == "100.00%"
    assert figure(Metric(value=137.04, count=3, spread=2.0, unit="number")) == "137.0 ± 2"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (4262.0, "4262"), (4257.99, "4258"), (35.13, "35.13"), (0.004778, "0.004778"), (1.81e-7, "1.81e-07")],
)
def test_numbers_keep_four_figures(value: float, text: str) -> None:
    assert number(value) == text


def test_a_markdown_table_has_a_rule_and_escaped_cells() -> None:
    lines = markdown(["metric", ">value"], [["top-1", "88.55%"], ["a|b", "1"]]).splitlines()
    assert lines[0] == "| metric |  value |"
    assert lines[1] == "| ------ | -----: |"
    assert lines[3] == "| a\\|b   |      1 |"
    assert len({len(line) for line in lines}) == 1
    assert result_rows(RESULT)[0] == ["5-shot", "88.55 ± 0.04%", "400", "3 seeds, standard deviation"]
