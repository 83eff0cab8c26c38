"""A study's folder that was moved or copied: its runs name each other by paths, which follow it."""

from pathlib import Path
from typing import Any

from vitlab.core.record import read_json, write_json

PLACE = "place.json"  # a study's file: where its folder was when it was last used
RECORDS = ("recipe.json", "environment.json")  # of a run, with the paths of what it started from


def follow_move(folder: Path) -> None:
    """Bring the paths in the records of the study's runs up to date, where its folder was elsewhere before."""
    path, here = folder / PLACE, str(folder)
    before = read_json(path)["folder"] if path.exists() else here
    if before != here:
        for record in (record for name in RECORDS for record in folder.glob(f"runs/*/{name}")):
            kept = read_json(record)
            if (moved := replaced(kept, before, here)) != kept:
                write_json(record, moved)
    if before != here or not path.exists():
        write_json(path, {"folder": here})


def replaced(content: Any, folder: str, other: str) -> Any:
    """JSON values with the paths below a folder as paths below another one."""
    if isinstance(content, dict):
        return {name: replaced(value, folder, other) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [replaced(value, folder, other) for value in content]
    if isinstance(content, str) and content.startswith(f"{folder}/"):
        return other + content[len(folder) :]
    return content
