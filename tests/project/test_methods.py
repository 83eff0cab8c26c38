"""The benchmark of methods: its cells, what is kept of them, and the table that is made of what is there."""

from pathlib import Path

import pytest

import methods
from methods import METHODS, Study, cells, table
from vitlab.recipes import recipe_names


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return Study("cifar10", "data/cifar10", 4.0, "cuda", tmp_path)


def test_every_method_has_a_recipe_for_cifar10() -> None:
    assert [name for name, method in METHODS.items() if method.named("cifar10") not in recipe_names()] == []


def test_a_line_that_a_kill_left_half_is_none(study: Study) -> None:
    cell = {"method": "mae", "seed": 0, "labels": 0.1, "measure": "knn"}
    assert study.find(**cell) is None
    study.add({**cell, "accuracy": 0.5})
    with study.results.open("a") as file:
        file.write('{"data": "cifar10", "minutes": 4.0, "method": "dino", "see')
    assert study.find(**cell) == {"data": "cifar10", "minutes": 4.0, **cell, "accuracy": 0.5}
    assert study.find(**(cell | {"seed": 1})) is None
    assert Study("cifar10", "", 2.0, "cuda", study.out).find(**cell) is None  # another time is another cell
    assert len(study.lines()) == 1


def test_cells_of_methods_with_and_without_labels(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    """All get the same time: a run for each part of the labels, or one without and a short one for each part."""
    timed: list[tuple[str, float]] = []
    monkeypatch.setattr(methods, "timed", lambda *given: timed.append((" ".join(given[2]), given[4])) or {})
    monkeypatch.setattr(methods, "evaluated", lambda *given: {"part": given[3]})

    def made(name: str) -> list[str]:
        timed.clear()
        found = list(cells(study, name, 3, [0.01, 1.0]))
        for _, make in found:
            make()
        return [f"{cell['measure']} {cell.get('labels', '')}".strip() for cell, _ in found]

    assert made("supervised") == ["accuracy 0.01", "accuracy 1.0"]
    assert timed[0] == ("train cifar10 --data.source data/cifar10 --seed 3 --data.labelled 0.01", 4.0)
    assert made("fixmatch") == ["accuracy 0.01"]  # with all labels, no image is without
    assert made("dino-ibot") == [
        "pretraining", "knn 0.01", "linear 0.01", "accuracy 0.01", "knn 1.0", "linear 1.0", "accuracy 1.0"
    ]  # fmt: skip
    assert [minutes for _, minutes in timed] == [3.0, 1.0, 1.0]
    assert "--objective.patch-weight 1" in timed[0][0]
    assert "--model.pretrained --model.set --data.labelled 0.01" in timed[1][0]
    assert made("noisy-student") == ["teacher 0.01", "accuracy 0.01"]
    assert [minutes for _, minutes in timed] == [2.0, 2.0]


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
