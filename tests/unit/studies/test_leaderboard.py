"""The leaderboards as a study: its tables, its page, and a score of one's own in its place."""

import json
import re
from pathlib import Path

import pytest

from vitlab.cli import main
from vitlab.evaluation.contract import Metric, Result
from vitlab.evaluation.results import write_result
from vitlab.studies import boards


@pytest.fixture(autouse=True)
def counted_quickly(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The models are counted in test_boards.py; here every one has the size of ViT-G/14."""
    count = boards.Count(1_882_797_416, 5_640_000_000_000, 518, 1000, {"the classifier": 1_665_000})
    monkeypatch.setattr(boards, "count_of", lambda model, side: count)  # noqa: ARG005
    monkeypatch.chdir(tmp_path)


def test_both_leaderboards_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["study", "leaderboard"]) == 0
    text = capsys.readouterr().out
    lines = {line.split("|")[2].strip(): line for line in text.splitlines() if line.startswith("|")}
    assert {"EffNet-L2 (SAM)", "ViT-L/16", "CoAtNet-7", "Meta Pseudo Labels"} <= set(lines)
    cells = [cell.strip() for cell in lines["ViT-G/14"].split("|")[1:-1]]
    assert cells == [
        "2", "ViT-G/14", "90.45", "1,843M", "vit-gigantic14-224", "1,882.8M", "5.64 teraFLOPs at 518 px",
        "vit-gigantic14-jft, then vit-gigantic14-518-imagenet", "not run here",
    ]  # fmt: skip
    assert "ViT-G/14: 1,882.8M parameters counted here, 1,843M published" in text
    assert Path("runs/study-leaderboard/study.md").read_text().strip() in text


def test_one_for_programs_and_as_a_page(capsys: pytest.CaptureFixture[str]) -> None:
    scores = {"top-1": Metric(value=0.9, count=3, spread=0.01, spread_of="3 runs")}
    write_result(Result(protocol="finetune", model="coatnet-7", data="imagenet", metrics=scores), Path("mine.json"))
    arguments = ["--only", "imagenet", "--json", "--html", "board.html", "--results", "mine.json"]
    assert main(["study", "leaderboard", *arguments]) == 0
    (board,) = json.loads(capsys.readouterr().out)["numbers"].values()
    assert [row["measured"] for row in board] == [0.9, None, None, None, None]
    assert board[0]["published"]["top-1"]["value"] == 90.88
    assert "arXiv 2106.04803" in board[0]["published"]["top-1"]["source"]
    page = Path("board.html").read_text()
    assert page.count("<tr>") == 6
    assert "90.00 ± 1.00%" in page
    assert not re.search(r"(src|href)=", page)


def test_a_model_whose_package_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    from vitlab.core.errors import Error

    def missing(model: str, side: int | None) -> boards.Count:
        raise Error(f"{model} at {side} needs timm.")

    monkeypatch.setattr(boards, "count_of", missing)
    row = boards.board_rows("cifar100")[0]
    assert (row.count, row.why) == (None, "")
    assert row.missing.endswith("at 475 needs timm.")
