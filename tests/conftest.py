"""What every test runs under: one thread per worker, no network, shapes checked at run time, repeatable examples."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # also for the processes that tests start
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("MPLBACKEND", "agg")

import pytest
import torch
from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

from vitlab.core.peers import import_torchvision

# Processes that tests start import the sources beside these tests too, whatever is installed.
SOURCES = str(Path(__file__).parents[1] / "src")
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [SOURCES, os.environ.get("PYTHONPATH")]))

# Inside pytest every call into vitlab.models has its shapes checked. torch.compile cannot trace the checks: tests that
# compile are marked `compiled`, and what else has to run without them sets VITLAB_NO_SHAPE_CHECKS=1.
SHAPE_CHECKS = os.environ.get("VITLAB_NO_SHAPE_CHECKS") != "1"
if SHAPE_CHECKS:
    assert "vitlab.models" not in sys.modules, "vitlab.models was imported before its shape checks were installed"
    install_import_hook("vitlab.models", "beartype.beartype")

import_torchvision()  # beside a CPU torch, transformers and torchmetrics cannot import it by themselves

settings.register_profile(
    "few", max_examples=20, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("thorough", settings.get_profile("few"), max_examples=500)
settings.load_profile("few")  # pytest --hypothesis-profile=thorough for the other

NEEDS = {
    "gpu": (torch.cuda.is_available(), "no CUDA device on this machine"),
    "inductor": (any(map(shutil.which, ("c++", "g++", "clang++"))), "no C++ compiler on this machine"),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        for marker, (met, reason) in NEEDS.items():
            if not met and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test marked `compiled` in a process of its own, where the shape checks are off."""
    if not SHAPE_CHECKS or not pyfuncitem.get_closest_marker("compiled"):
        return None
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["VITLAB_NO_SHAPE_CHECKS"] = "1"
    arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "", pyfuncitem.nodeid]
    with tempfile.TemporaryDirectory() as folder:
        prefix = Path(sys.prefix)
        if " " in sys.prefix:  # inductor cannot link with a torch under such a path: give it another
            prefix = Path(folder, "python")
            prefix.symlink_to(sys.prefix)
        command = [prefix / "bin" / "python", *arguments]
        root = pyfuncitem.config.rootpath
        run = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed" in run.stdout, run.stdout + run.stderr
    return True
