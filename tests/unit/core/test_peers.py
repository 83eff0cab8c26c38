import importlib
import subprocess
import sys
from types import ModuleType

import pytest

from vitlab.core import peers
from vitlab.core.errors import MissingDependencyError


def test_timm_can_be_imported_in_a_fresh_process_whatever_build_torchvision_is() -> None:
    code = (
        "from vitlab.core.peers import import_timm, import_torchvision;"
        "assert import_timm() is import_timm(); assert import_torchvision().transforms;"
        "import timm; print(timm.create_model('vit_tiny_patch16_224').num_classes)"
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert run.stdout.strip() == "1000", run.stderr


@pytest.mark.parametrize("name", ["torchvision", "timm"])
def test_what_is_not_installed_is_said_with_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.import_module

    def without(wanted: str) -> ModuleType:
        if wanted == name:
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)
        return real(wanted)

    monkeypatch.setattr(importlib, "import_module", without)
    with pytest.raises(MissingDependencyError, match=rf"^{name} is not installed: pip install 'vitlab\[timm\]'\.$"):
        peers.import_timm()


def test_other_failures_of_torchvision_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(wanted: str) -> ModuleType:
        raise RuntimeError(f"{wanted} is broken otherwise")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(RuntimeError, match="broken otherwise"):
        peers.import_torchvision()
