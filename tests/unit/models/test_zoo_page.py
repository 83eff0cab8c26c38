"""docs/zoo.md says what the zoo's tables say."""

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from vitlab.core.config import from_dict
from vitlab.models import FAMILIES
from vitlab.models.create import family_of
from vitlab.models.zoo.facts import Facts, count_facts, kept_facts
from vitlab.models.zoo.row import ZooRow
from vitlab.models.zoo.rows import ZOO, list_models

DOCS = Path(__file__).parents[3] / "docs"


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


def test_the_kept_counts_have_every_row_as_its_table_does() -> None:
    """All are counted again under `slow`; one of each family here."""
    kept, ours = kept_facts(), list(ZOO.values())
    assert [fact["name"] for fact in kept] == [row.name for row in ours], "run python docs/zoo.py"
    smallest: dict[str, ZooRow] = {}
    for row, fact in zip(ours, kept, strict=True):
        config = from_dict(family_of(row.family).config, row.config, where=row.name)
        assert fact["image_size"] == list(config.image_size)
        assert fact["num_classes"] == config.num_classes
        assert (fact["published_parameters"], fact["published_counts"]) == (row.published, row.counts)
        if row.family not in smallest or fact["layers"] < _layers(kept, smallest[row.family]):
            smallest[row.family] = row
    for row in smallest.values():
        assert count_facts(row) in kept, "run python docs/zoo.py"


def _layers(kept: list[Facts], row: ZooRow) -> int:
    return next(fact["layers"] for fact in kept if fact["name"] == row.name)


@pytest.mark.slow
def test_the_page_is_current(zoo: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert zoo.main(["--check"]) == 0, "run python docs/zoo.py"
    assert "The zoo is current" in capsys.readouterr().out
