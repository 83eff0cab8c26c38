"""The tests of a module are found by its name: tests/unit/ROOM/test_MODULE.py, or test_MODULE_TOPIC.py."""

from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_each_unit_test_names_a_module() -> None:
    astray: list[str] = []
    for path in sorted((ROOT / "tests" / "unit").rglob("test_*.py")):
        room = ROOT / "src" / "vitlab" / path.parent.relative_to(ROOT / "tests" / "unit")
        words = path.stem.removeprefix("test_").split("_")
        names = ["_".join(words[: i + 1]) for i in range(len(words))]
        if not any((room / f"{name}.py").exists() or (room / name / "__init__.py").exists() for name in names):
            astray.append(str(path.relative_to(ROOT)))
    assert not astray
