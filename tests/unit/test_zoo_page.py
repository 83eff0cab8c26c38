"""docs/zoo.md says what the zoo's tables say."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from vitlab.models import FAMILIES
from vitlab.models.zoo import ZOO, list_models

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def zoo() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_zoo", DOCS / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def table_lines() -> dict[str, list[str]]:
    """The cells of each row by the name in it."""
    lines = [line for line in (DOCS / "zoo.md").read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return {row[0].strip("`"): row for row in cells}


def test_the_page_has_every_row(zoo: ModuleType) -> None:
    """Its numbers that need counting are under `slow`; `python docs/zoo.py` writes them."""
    lines = table_lines()
    rows = {row.name: row for row in [*ZOO.values(), *zoo.timm_models()]}
    assert list(lines) == [row.name for members in zoo.sections(rows.values()).values() for row in members]
    for name, row in rows.items():
        cells = lines[name]
        assert (cells[0], cells[1], cells[2], cells[5]) == zoo.fixed_cells(row), "run python docs/zoo.py"


def test_every_family_has_a_section_and_its_command_lists_it(zoo: ModuleType) -> None:
    page = (DOCS / "zoo.md").read_text(encoding="utf-8")
    for family in FAMILIES:
        title, command = zoo.heading(family.name)
        assert f"\n## {title}\n\n    {command}\n" in page
        assert family.name in {row.family for row in list_models(shlex.split(command)[2])}


def test_every_family_of_ours_names_its_recipes(zoo: ModuleType) -> None:
    page = re.sub(r"\s+", " ", (DOCS / "zoo.md").read_text(encoding="utf-8"))
    for family in set(FAMILIES.names()) - {"timm"}:
        names = zoo.recipes_of(family)
        assert names, f"{family} has no recipe"
        assert f"Recipes: {', '.join(f'`{name}`' for name in names)}." in page, "run python docs/zoo.py"


@pytest.mark.slow
def test_the_page_is_current(zoo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert zoo.main(["--check"]) == 0, "run python docs/zoo.py"
    assert "is current" in capsys.readouterr().out
