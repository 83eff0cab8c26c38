import json
import subprocess
import sys

import pytest

from vitlab.cli import main
from vitlab.models.zoo.rows import ZOO

# Sizes of table 1 of the paper; parameters and multiply-adds of ViT-B/16 are worked out below, by hand.
TOKENS, WIDTH, MLP, LAYERS, PATCH = 197, 768, 3072, 12, 16 * 16 * 3


def parameters_of_b16() -> int:
    attention = WIDTH * 3 * WIDTH + 3 * WIDTH + WIDTH * WIDTH + WIDTH
    mlp = WIDTH * MLP + MLP + MLP * WIDTH + WIDTH
    layer = attention + mlp + 2 * 2 * WIDTH
    stem = PATCH * WIDTH + WIDTH + WIDTH + TOKENS * WIDTH
    return stem + LAYERS * layer + 2 * WIDTH + WIDTH * 1000 + 1000


def flops_of_b16() -> int:
    layer = TOKENS * WIDTH * 4 * WIDTH + 2 * TOKENS * TOKENS * WIDTH + 2 * TOKENS * WIDTH * MLP
    return 2 * ((TOKENS - 1) * PATCH * WIDTH + LAYERS * layer + WIDTH * 1000)


def test_json_has_the_figures_of_a_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "vit-b16-224", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    row = next(row for row in rows if row["name"] == "vit-b16-224")
    assert (row["layers"], row["width"], row["mlp_dim"], row["heads"]) == (12, 768, 3072, 12)
    assert (row["patch_size"], row["image_size"], row["tokens"]) == (16, [224, 224], 197)
    assert row["parameters"] == parameters_of_b16() == 86_567_656
    assert row["flops"] == pytest.approx(flops_of_b16(), rel=0.01)


def test_the_table_is_aligned_and_says_what_it_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "vit-cifar-d128"]) == 0
    header, row, empty, caption = capsys.readouterr().out.splitlines()
    assert header.split() == ["name", "size", "patch", "pixels", "tokens", "parameters", "published", "GFLOPs"]
    assert " ".join(row.split()) == "vit-cifar-d128 6 / 128 / 512 / 4 4 32 65 1.21 M 1.206M 0.17"
    assert len(header) == len(row)
    assert empty == ""
    assert "2 FLOPs a multiply-add" in caption


def test_a_pattern_is_a_glob_and_a_word_matches_anywhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "vit-ti16-*", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["vit-ti16-224", "vit-ti16-384"]
    assert main(["models", "LITE7", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)] == ["vit-lite7-4-32"]


def test_a_pattern_that_matches_nothing_gets_near_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "vit-b17-224"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("vitlab: There is no model named 'vit-b17-224'. Did you mean vit-b1")
    assert main(["models", "zzzz"]) == 2
    assert capsys.readouterr().err == "vitlab: There is no model named 'zzzz'. `vitlab models` lists them.\n"


def test_the_whole_zoo_is_listed_without_torch() -> None:
    """Importing torch alone takes longer than the list may."""
    code = "import sys; from vitlab.cli import main; main(['models', '--json']); sys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert len(json.loads(done.stdout)) == len(ZOO)


def test_shapes_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    """CIFAR-10 with P = 4 and D = 128: 64 patches of 48 numbers, 65 tokens of 128."""
    assert main(["models", "vit-cifar-d128", "--shapes"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:7] == [
        ["image", "3", "x", "32", "x", "32"],
        ["patches", "64", "x", "48"],
        ["projected", "patches", "64", "x", "128"],
        ["class", "token", "1", "x", "128"],
        ["positions", "65", "x", "128"],
        ["tokens", "65", "x", "128"],
    ]
    assert lines[7] == ["1", "to", "6", "queries", "4", "x", "65", "x", "32"]
    assert ["1", "to", "6", "attention", "weights", "4", "x", "65", "x", "65"] in lines
    assert ["logits", "10"] in lines


def test_shapes_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "vit-digits", "--shapes", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["name"] == "vit-digits"
    assert {step["layer"] for step in shown["steps"]} == {None, 1, 2, 3, 4}
    assert shown["steps"][-1] == {"name": "logits", "shape": [10], "layer": None}


def test_shapes_are_of_one_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models", "vit-b*", "--shapes"]) == 2
    assert "--shapes is of one model, and 'vit-b*' matches" in capsys.readouterr().err
    assert main(["models", "vit-b17-224", "--shapes"]) == 2
    assert "There is no model named 'vit-b17-224'. Did you mean" in capsys.readouterr().err
