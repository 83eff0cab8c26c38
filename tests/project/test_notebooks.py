"""The notebooks of docs/notebooks: one for each of the three people, run from top to bottom."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import notebooks
from shown import shown

# what makes them short by default, and what they show, by their types
SHORT: dict[str, dict[str, Any]] = {
    "practitioner": {"per_class": 8, "epochs": 0.5},
    "researcher": {"epochs": 1, "seeds": (0, 1)},
    "student": {},
}
SHOWN = {
    "practitioner": ["Predictions", "RunOutcome", "Report", "Predictions"],
    "researcher": ["RunOutcome", "Result", "Result", "Result", "Comparison", "Comparison", "Result"],
    "student": ["ViT", "Image", "Prediction", "Image", "Inspection"],
}


def test_there_is_one_for_each_of_the_three_people() -> None:
    assert set(notebooks.NAMES) == set(SHORT)


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_notebooks_are_stored_without_what_they_show(name: str) -> None:
    book = notebooks.read(name)
    assert (book["nbformat"], book["nbformat_minor"]) == (4, 5)
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    ids = [cell["id"] for cell in book["cells"]]
    assert len(set(ids)) == len(ids)
    assert "".join(book["cells"][0]["source"]).startswith("# ")
    for cell in book["cells"]:
        assert cell["cell_type"] == "markdown" or (cell["outputs"] == [] and cell["execution_count"] is None)


@pytest.mark.parametrize("name", notebooks.NAMES)
def test_every_cell_runs_and_shows_what_it_made(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    kinds, pages = list[str](), dict[str, Any]()
    for value in notebooks.displayed(name, SHORT[name]):
        kinds.append(type(value).__name__)
        if hasattr(value, "_repr_html_"):
            pages[kinds[-1]] = shown(value)
    assert kinds == SHOWN[name]
    said = capsys.readouterr().out
    if name == "practitioner":
        assert "of 8 right" in said
        assert {row[-1] for row in pages["Predictions"].rows} == {"china", "flower"}
        assert (tmp_path / pages["Report"].links[0]).is_file()
    if name == "researcher":
        assert "100 epochs" in said  # the recipe as it stands
        assert "parameters" in pages["Result"].text
    if name == "student":
        assert "positions='none': features change by 0.00000" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", notebooks.NAMES)
def test_notebooks_run_as_they_are_in_a_process_of_their_own(name: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", notebooks.__file__, name]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    kinds = [line.split()[0] for line in run.stdout.splitlines() if line.split(" ")[0] in SHOWN[name]]
    assert kinds == SHOWN[name]
