"""The rates that a study of optimizers chooses from."""

from pathlib import Path

import pytest

import studied
from studied import Inventing
from vitlab.core.errors import ConfigError
from vitlab.studies import STUDIES, executors
from vitlab.studies.running import run_study

STUDY = STUDIES.find("optimizers")


def test_a_rate_at_the_end_of_those_tried_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"BiT, SGD": "lr × 9", "BiT, Adam": "lr × 3", "ViT, SGD": "lr / 2", "ViT, Adam": "lr × 3"}
    monkeypatch.setattr(studied, "invented", lambda text: 0.6 + 0.1 * any(f"{a}, {b}" in text for a, b in best.items()))
    executor = Inventing()
    monkeypatch.setitem(executors.EXECUTORS, "inventing", lambda: executor)
    options = {"factors": (3.0, 0.5, 9.0)}
    result = run_study(STUDY, options, scale="digits", folder=tmp_path, seeds=2, device="cpu", executor="inventing")
    assert {row: each["lr"] for row, each in result.numbers["selected"].items()} == pytest.approx(
        {"BiT, SGD": 0.9, "BiT, Adam": 0.018, "ViT, SGD": 0.05, "ViT, Adam": 0.018}
    )
    said = [text for text in result.findings if "may lie beyond" in text]
    assert [text.partition(":")[0] for text in said] == [
        "The lowest rate tried was chosen for ViT, SGD",
        "The highest rate tried was chosen for BiT, SGD",
    ]


def test_rates_are_positive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="factors are positive"):
        run_study(STUDY, {"factors": (0.0, 1.0)}, scale="digits", folder=tmp_path, seeds=1, device="cpu")
