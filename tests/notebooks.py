"""A notebook run from top to bottom without Jupyter; as a program, one in a process of its own."""

import ast
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.ipynb")))
# While a checkout lacks the model that the package has by default, another may take its place.
MODEL = os.environ.get("VITLAB_NOTEBOOK_MODEL", "vitlab/tiny")


def read(name: str) -> dict[str, Any]:
    return json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))


def displayed(name: str, parameters: Mapping[str, Any]) -> Iterator[Any]:
    """The value of each code cell's last expression; `parameters` are set after the cell that is tagged so."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for place, cell in enumerate(read(name)["cells"], start=1):
        if cell["cell_type"] != "code":
            continue
        source = "".join(cell["source"]).replace('"vitlab/tiny"', repr(MODEL))
        where = f"{name}.ipynb, cell {place}"
        code = ast.parse(source, where)
        last = code.body.pop() if isinstance(code.body[-1], ast.Expr) else None
        exec(compile(code, where, "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), where, "eval"), names)
            if value is not None:
                yield value
        if "parameters" in cell["metadata"].get("tags", ()):
            assert names.keys() >= parameters.keys()
            names.update(parameters)


if __name__ == "__main__":
    for shown in displayed(sys.argv[1], {}):
        print(type(shown).__name__, len(shown._repr_html_() if hasattr(shown, "_repr_html_") else repr(shown)))
