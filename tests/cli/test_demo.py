import json

import numpy as np
import pytest
import torch

from vitlab.cli import demo, main
from vitlab.cli.drawing import cut, heat, picture
from vitlab.models.create import create


def test_it_learns_better_than_chance_on_pieces_it_never_saw(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "15", "--json"]) == 0
    printed = capsys.readouterr()
    figures = json.loads(printed.out)
    assert figures["test_pieces"] == 2 * 12 * 7  # photos of 213 x 320, pieces of 32 every 16 right of column 192
    assert figures["accuracy"] > 0.8
    assert 0.5 < figures["accuracy_of_mean_colour"] < 1


def test_it_prints_every_chapter_without_colours_where_nobody_sees_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--steps", "1"]) == 0
    out = capsys.readouterr().out
    assert [line[:2] for line in out.splitlines() if line[1:3] == ". "] == ["1.", "2.", "3.", "4.", "5."]
    for shape in ("64 x 48", "64 x 128", "65 x 128"):
        assert shape in out
    assert "\x1b" not in out


def test_training_and_test_pieces_share_no_column() -> None:
    photo = np.tile(np.arange(320) // 2, (213, 1))[..., None].astype(np.uint8)  # a pixel holds half its column
    pieces, _ = demo._pieces({"a": photo}, 200, np.random.default_rng(0))
    assert pieces.max() < demo.SPLIT // 2
    assert demo._tiles(photo).min() == demo.SPLIT // 2


def test_rollout_of_attention_that_looks_at_one_place_is_that_place() -> None:
    """With uniform attention in every layer, each patch gets the same share."""
    model = create("vit-cifar-d128", num_classes=2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "qkv" in name:
                parameter.zero_()
    flow = demo._rollout(model, np.zeros((32, 32, 3), np.uint8))
    torch.testing.assert_close(flow, torch.full((8, 8), 1 / 64))


@pytest.mark.parametrize("arguments", [["--steps", "0"], ["--seed", "-1"]])
def test_impossible_options(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", *arguments]) == 2
    assert capsys.readouterr().err.startswith("vitlab: --")


def test_drawings_have_the_shape_of_what_they_draw() -> None:
    pixels = np.zeros((8, 6, 3), np.uint8)
    pixels[:4] = 255
    assert [line.plain for line in picture(pixels)] == ["@" * 6] * 2 + [" " * 6] * 2
    assert [line.plain for line in heat(np.array([[0.0, 0.5], [0.95, 1.0]]), 0, 1)] == ["0 5 ", "9 9 "]
    np.testing.assert_array_equal(cut(np.full((4, 4, 3), 255, np.uint8), 2)[:, :, 0] // 255, [
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
        [0, 0, 0, 0, 0],
        [0, 0, 0, 0, 0],
        [1, 1, 0, 1, 1],
        [1, 1, 0, 1, 1],
    ])  # fmt: skip
