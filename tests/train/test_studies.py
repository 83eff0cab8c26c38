"""The studies as they are, at the scale of digits, with one seed: a minute or so each."""

import dataclasses
from pathlib import Path

import pytest

import vitlab
from vitlab.studies import STUDIES


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES.names())
def test_it_runs(name: str, tmp_path: Path) -> None:
    result = vitlab.study(name, scale="digits", out=tmp_path, seeds=1, device="cpu")
    assert not result.failed
    assert result.tables
    assert result.findings
    assert (tmp_path / "figure.png").exists() == bool(STUDIES.find(name).scales)  # one that trains nothing draws none


def test_networks_of_no_family_are_looked_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two steps of some of the bias study's networks: the measures need what was trained."""
    from vitlab.recipes import scales

    short = dataclasses.replace(scales.SMALL["digits"], total="2 steps")
    monkeypatch.setitem(scales.SMALL, "digits", short)
    result = vitlab.study("bias", out=tmp_path, seeds=2, only="[ac]*[enl]", device="cpu")
    assert not result.failed
    rows = [row[0] for row in result.tables[0].rows]
    assert rows == ["convolutional", "attention"]
    assert any("attention distance" in sentence for sentence in result.findings)
    assert any(sentence.startswith("Learned positions became row-like") for sentence in result.findings)
