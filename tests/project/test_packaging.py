"""What is promised of the package as such: a cheap import, pinned versions, one version number."""

import importlib.metadata
import importlib.resources
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import vitlab

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def pins() -> dict[str, Requirement]:
    lines = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#"))
    return {canonicalize_name(requirement.name): requirement for requirement in map(Requirement, lines)}


def requirements() -> list[Requirement]:
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    return [requirement for group in groups for requirement in map(Requirement, group) if requirement.name != "vitlab"]


def test_import_is_light() -> None:
    code = "import sys, vitlab; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "vitlab" in loaded
    assert not {"torch", "numpy", "PIL", "einops", "jaxtyping", "tyro", "rich"} & set(loaded)


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_make_bench_starts_what_needs_no_arguments() -> None:
    command = ["make", "--assume-old=.venv/.dev", "--no-print-directory", "bench", "PY=echo"]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
    started = [Path(line).stem for line in told if not line.startswith("==")]
    assert started == ["checkpoints", "loading", "models", "same_bits", "serving", "training"]


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_dependency_is_pinned_to_a_version_it_allows(requirement: Requirement) -> None:
    (pin,) = pins()[canonicalize_name(requirement.name)].specifier
    assert pin.operator == "=="
    assert requirement.specifier.contains(pin.version)


def test_constraints_are_versions_only() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line) for line in lines)
    assert lines == sorted(lines)


def test_one_version_number() -> None:
    assert importlib.metadata.version("vitlab") == PROJECT["version"]
    assert vitlab.__version__ == PROJECT["version"]


def test_the_wheel_holds_all_that_is_read_at_run_time() -> None:
    """What lies beside the code: the model in the package, the explorer page, tables; as hatchling would take it."""
    wheel = pytest.importorskip("hatchling.builders.wheel", reason="hatchling builds the package")
    builder = wheel.WheelBuilder(str(ROOT))
    taken = {Path(file.distribution_path) for file in builder.recurse_included_files()}
    source = ROOT / "src"
    data = [path for path in (source / "vitlab").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert not {path.relative_to(source) for path in data} - taken
    box = {path.name for path in taken if path.parent == Path("vitlab/weights/box/tiny")}
    assert {"README.md", "LICENSE"} <= box
    assert "model.safetensors" in box or not (source / "vitlab/weights/box/tiny/config.json").exists()


def test_types_are_shipped() -> None:
    assert importlib.resources.files("vitlab").joinpath("py.typed").is_file()
