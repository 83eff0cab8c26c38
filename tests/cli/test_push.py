"""`vitlab push`: what is printed, and what is refused before anything is sent."""

import json
from pathlib import Path

import pytest

from tiny_vits import random_vit
from vitlab import api
from vitlab.cli import main
from vitlab.models.vit import ViTConfig
from vitlab.weights.load import save
from vitlab.weights.push import Pushed


@pytest.fixture
def run(tmp_path: Path) -> Path:
    config = ViTConfig(image_size=(16, 16), patch_size=8, width=16, depth=1, mlp_dim=24, heads=2, num_classes=3)
    save(random_vit(config), tmp_path / "run" / "model")
    return tmp_path / "run"


def test_what_was_uploaded_is_told(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The upload itself is in tests/unit/weights/test_push.py."""

    def push(source: Path, repository: str, *, private: bool, message: str | None, license: str | None) -> Pushed:
        assert (source, repository, private, message, license) == (run, "hf-hub:owner/name", True, "hello", "mit")
        return Pushed("owner/name", "https://hub/owner/name", "abc", ("README.md", "config.json"))

    monkeypatch.setattr(api, "push", push)
    arguments = ["push", str(run), "hf-hub:owner/name", "--private", "--message", "hello", "--license", "mit"]
    assert main(arguments) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Uploaded README.md, config.json to https://hub/owner/name.",
        "vitlab.load('hf-hub:owner/name') loads it.",
    ]
    assert main([*arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["commit"] == "abc"


@pytest.mark.parametrize(
    ("source", "repository", "says"),
    [
        ("run", "owner/name", "write hf-hub:owner/name"),
        ("gone", "hf-hub:owner/name", "is no folder"),
        ("run", "hf-hub:owner/name", "HF_HUB_OFFLINE is set"),
    ],
)
def test_mistakes(source: str, repository: str, says: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(run.parent / source), repository]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert len(said.splitlines()) == 1
