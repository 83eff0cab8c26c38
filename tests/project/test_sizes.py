"""A module that passes 400 lines is asked what it mixes, a function that passes 80 too."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "vitlab"
FILES = {path.relative_to(SOURCE): path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def test_no_module_has_more_than_400_lines() -> None:
    lines = {str(path): len(text.splitlines()) for path, text in FILES.items()}
    assert not {path: number for path, number in lines.items() if number > 400}


def test_no_function_has_more_than_80_lines() -> None:
    long: dict[str, int] = {}
    for path, text in FILES.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
                lines = node.end_lineno - first + 1
                if lines > 80:
                    long[f"{path}: {node.name}"] = lines
    assert not long
