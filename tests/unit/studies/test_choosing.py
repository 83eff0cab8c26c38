"""A choice is made on held-out scores alone, and one that fails is not chosen."""

from pathlib import Path

import pytest

from studied import Inventing, invented
from vitlab.recipes.scales import scale_recipe, with_model
from vitlab.studies.choosing import choose
from vitlab.studies.context import Context
from vitlab.studies.contract import StudyError

ROWS = {"row": {f"depth {depth}": with_model(scale_recipe("digits"), depth=depth) for depth in (1, 2, 3)}}


def chosen(folder: Path, *failing: str) -> str:
    study = Context(study="trial", scale="digits", folder=folder, executor=Inventing(failing))
    found = choose(study, ROWS, what="depths")["row"]
    assert found.recipe == ROWS["row"][found.option]
    assert [option for option, score in found.scores.items() if score is None] == [
        name.split(", ")[1] for name in failing
    ]
    return found.option


def test_the_best_that_ended(tmp_path: Path) -> None:
    names = sorted(ROWS["row"], key=lambda option: -invented(f"row, {option}, seed 0"))
    assert chosen(tmp_path) == names[0]
    assert chosen(tmp_path, f"row, {names[0]}, seed 0") == names[1]
    with pytest.raises(StudyError, match="row: every option failed"):
        chosen(tmp_path, *(f"row, {option}, seed 0" for option in ROWS["row"]))
