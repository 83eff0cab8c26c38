"""The models in the package: native folders beside this file, which `load` takes as 'vitlab/NAME'."""

from pathlib import Path

PREFIX = "vitlab/"
DEFAULT = "vitlab/tiny"  # the model where none is named
FOLDER = Path(__file__).parent


def names() -> list[str]:
    """Of the models that this installation holds."""
    return [f"{PREFIX}{folder.name}" for folder in sorted(FOLDER.iterdir()) if (folder / "config.json").is_file()]


def folder_of(name: str) -> Path | None:
    """The native folder of a model in the package; None where the name is of none that is there."""
    return FOLDER / name.removeprefix(PREFIX) if name in names() else None
