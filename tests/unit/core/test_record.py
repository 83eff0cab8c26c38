"""A run's log: whole lines, under the names of today."""

import json
from pathlib import Path

from vitlab.core.record import read_metrics


def test_lines_cut_short_are_left_out_and_old_names_are_read(tmp_path: Path) -> None:
    log = tmp_path / "metrics.jsonl"
    before = {"step": 1, "rate": 0.5, "seconds a step": 2.0, "images a second": 4.0, "loss": 1.0}
    now = {"step": 2, "lr": 0.25, "seconds per step": 1.0, "images per second": 8.0, "loss": 0.5}
    lines = [json.dumps(before), "7", '{"loss": 3}', json.dumps(now), '{"step": 3, "lo']
    log.write_bytes("\n".join(lines).encode() + b"\xff")
    first = {"step": 1, "lr": 0.5, "seconds per step": 2.0, "images per second": 4.0, "loss": 1.0}
    assert read_metrics(log) == (first, now)
    assert read_metrics(tmp_path / "none.jsonl") == ()
