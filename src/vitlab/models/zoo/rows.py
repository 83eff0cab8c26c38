"""The zoo: the rows of all families. A row is data; `create.py` builds it."""

from collections.abc import Iterator, Mapping
from typing import Final, final

from vitlab.core.errors import unknown_name
from vitlab.core.registry import is_file_reference
from vitlab.models import FAMILIES
from vitlab.models.timm.build import PREFIX
from vitlab.models.zoo.row import ZooRow, matches
from vitlab.models.zoo.timm_rows import timm_row, timm_rows


@final
class Zoo(Mapping[str, ZooRow]):
    """Every row of an installed family by its name; families are imported when one is looked for."""

    def _rows(self) -> dict[str, ZooRow]:
        return {row.name: row for family in FAMILIES for row in family.rows}

    def __getitem__(self, name: str) -> ZooRow:
        return self._rows()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows())

    def __len__(self) -> int:
        return len(self._rows())


ZOO: Final = Zoo()


def find_row(name: str) -> ZooRow:
    """The row of that name, or an error with near matches.

    'timm:<name>' is a row where timm is installed, and 'mine.py:NAME' one of its family's defaults.
    """
    if name.startswith(PREFIX):
        return timm_row(name)
    if is_file_reference(name):
        return ZooRow(name, name, {}, "", "all", name.rpartition(":")[0])
    if name not in ZOO:
        raise unknown_name("model", name, ZOO, " `vitlab models` lists them.")
    return ZOO[name]


def list_models(pattern: str = "*") -> list[ZooRow]:
    """The rows whose names match a glob; a plain word matches anywhere in a name. timm's are listed by 'timm:...'."""
    if pattern.startswith(PREFIX):
        return timm_rows(pattern.lower() if any(c in pattern for c in "*?[") else f"*{pattern.lower()}*")
    return [row for row in ZOO.values() if matches(row.name, pattern)]
