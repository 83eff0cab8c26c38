"""What every study promises: it describes itself, and from the results of its cells makes a table, figure and words."""

import contextlib
import dataclasses
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from studied import Inventing
from vitlab.cli import main
from vitlab.cli.study import parse_arguments
from vitlab.core.errors import Error
from vitlab.studies import STUDIES, executors
from vitlab.studies.contract import Study, StudyResult
from vitlab.studies.running import run_study, study_to_dict

NAMES = STUDIES.names()
TRAINING = [name for name in NAMES if STUDIES.find(name).scales]  # a study without a scale trains nothing
INVENTED = [name for name in TRAINING if name != "bias"]  # which looks into the networks that it trained
SHORT = ("positions", "optimizers", "resolution")  # a grid, one with a choice, and one whose runs follow others
ALL = [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in INVENTED]
LARGER = [(name, scale) for name in INVENTED for scale in STUDIES.find(name).scales[1:]]
LARGER.remove(("vtab-groups", "imagenet"))  # which needs VTAB


@pytest.fixture
def inventing(monkeypatch: pytest.MonkeyPatch) -> Inventing:
    executor = Inventing()
    monkeypatch.setitem(executors.EXECUTORS, "inventing", lambda: executor)
    return executor


def made(study: Study, folder: Path, **changes: Any) -> StudyResult:
    given: dict[str, Any] = {"scale": "digits", "folder": folder, "seeds": 2, "device": "cpu", **changes}
    return run_study(study, {}, executor="inventing", **given)


@contextlib.contextmanager
def pictures(path: Path, number: int) -> Iterator[str]:
    """A set that can stand in for another: so many pictures of two classes, and ten to test."""
    images, labels = np.zeros((number + 10, 4, 4, 3), np.uint8), np.arange(number + 10) % 2
    images[::3] = 255
    np.savez(path, x_train=images[10:], y_train=labels[10:], x_test=images[:10], y_test=labels[:10])
    yield str(path)


@pytest.mark.parametrize("name", NAMES)
def test_it_describes_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option has a default and a text in the help, and the options' class a sentence."""
    study = STUDIES.find(name)
    assert re.fullmatch(r"[a-z][a-z0-9-]*", study.name)
    assert study.summary
    assert "\n" not in study.summary
    study.options()  # all have defaults
    assert main(["study", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert study.options.__doc__ is not None
    assert study.options.__doc__.split(":")[0] in text
    for field in dataclasses.fields(study.options):
        assert re.search(rf"^\W*--{field.name.replace('_', '-')} .*?\(default:", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("name", NAMES)
def test_its_examples_are_command_lines(name: str) -> None:
    study = STUDIES.find(name)
    assert study.examples
    for example in study.examples:
        given = parse_arguments(name, study, shlex.split(example))
        assert given.scale in (study.scales or (given.scale,))


@pytest.mark.parametrize("name", ALL)
def test_its_result(name: str, tmp_path: Path, inventing: Inventing) -> None:
    """A table with a line per row, sentences, and a figure; as files too, which JSON can hold."""
    result = made(STUDIES.find(name), tmp_path / "study")
    assert inventing.cells
    assert result.tables
    for table in result.tables:
        assert table.rows
        assert all(len(row) == len(table.columns) for row in table.rows)
    assert result.findings
    assert all(sentence.endswith(".") and "nan" not in sentence for sentence in result.findings)
    assert result.figure is not None
    assert result.cost["runs"] == len({cell.folder for cell in inventing.cells})
    assert result.cost["exaflops"] > 0
    assert (tmp_path / "study" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert result.findings[0] in (tmp_path / "study" / "study.md").read_text()
    assert (tmp_path / "study" / "study.json").exists()
    assert study_to_dict(result)["study"] == name


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), LARGER)
def test_all_scales(name: str, scale: str, tmp_path: Path, inventing: Inventing) -> None:
    """Every model and recipe of a larger scale can be built; the paper's take gigabytes."""
    number = 300_000 if scale == "imagenet" else 2_000  # so that a warm-up fits in
    with pictures(tmp_path / "set.npz", number) as data:
        result = made(STUDIES.find(name), tmp_path / "study", scale=scale, data=data, seeds=1)
    assert result.tables[0].rows
    tasks = {str(path) for path in (tmp_path / "study" / "tasks").glob("*.npz")}
    trained = {cell.recipe["data"]["source"] for cell in inventing.cells}
    assert trained - tasks == {data}


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_or_scale_is_refused(name: str, tmp_path: Path, inventing: Inventing) -> None:
    del inventing
    study = STUDIES.find(name)
    with pytest.raises(Error, match=f"study {name}: there is no field 'color'"):
        run_study(study, {"color": 1}, scale="digits", folder=tmp_path, executor="inventing")
    if name in TRAINING:
        with pytest.raises(Error, match=f"The study {name} has the scales digits, .*, not 'jft'"):
            made(study, tmp_path, scale="jft")


def test_a_failed_row_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = Inventing([f"none, seed {seed}" for seed in range(2)])
    monkeypatch.setitem(executors.EXECUTORS, "inventing", lambda: executor)
    result = made(STUDIES.find("positions"), tmp_path)
    assert set(result.failed) == {"none, seed 0", "none, seed 1"}
    assert len(result.tables[0].rows) == 8
    assert "No result: none, seed 0 (it was to fail)." in result.markdown()
