"""Runs and models that an earlier commit made still resume and load, and give what that commit gave.

tests/fixtures/22b19da/README.md says how they were made.
"""

import json
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitlab
from vitlab.cli import main

MADE = Path(__file__).parents[1] / "fixtures" / "22b19da"
TOLERANCE = 1e-5  # on other processors, or with another torch


def processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


def tolerance() -> float:
    """None at all where the fixtures were made on such a processor, with this torch."""
    here = {
        "torch": torch.__version__,
        "processor": processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }
    return 0.0 if here == json.loads((MADE / "made_on.json").read_text()) else TOLERANCE


def unpacked(name: str, folder: Path) -> Path:
    with tarfile.open(MADE / f"{name}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder / name


def check_resumed(run: Path, expected: Path, *options: str) -> None:
    """A run that was killed half-way ends with the weights of the one that was not."""
    before = (run / "metrics.jsonl").read_text()
    assert main(["train", "--resume", str(run), "--device", "cpu", *options]) == 0
    now = (run / "metrics.jsonl").read_text()
    assert now.startswith(before)  # with its times: it was not begun anew
    assert json.loads(now.splitlines()[-1])["step"] == 48
    found, wanted = load_file(run / "model" / "model.safetensors"), load_file(expected)
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance(), msg=name)


def test_a_run_resumes(tmp_path: Path) -> None:
    """With Muon, averaged weights, mixup and dropout."""
    check_resumed(unpacked("plain", tmp_path), MADE / "native" / "model.safetensors")


def test_a_run_with_a_teacher_resumes(tmp_path: Path) -> None:
    run = unpacked("distilled", tmp_path)
    check_resumed(run, MADE / "distilled.safetensors", "--teacher.source", str(MADE / "native"))


@pytest.mark.parametrize("source", ["native", "run"])
def test_a_native_folder_loads(tmp_path: Path, source: str) -> None:
    """Also as the model of a run's folder."""
    place = MADE / "native"
    if source == "run":
        place = tmp_path / "run"
        place.mkdir()
        (place / "model").symlink_to(MADE / "native", target_is_directory=True)
    model = vitlab.load(place).eval()
    assert model.labels == tuple("0123456789")
    images = torch.linspace(-1, 1, 2 * 3 * 8 * 8).reshape(2, 3, 8, 8)
    with torch.no_grad():
        found = model(images)
    expected = torch.tensor(json.loads((MADE / "logits.json").read_text()))
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE)  # several threads add in another order
