"""A run's objective from its checkpoint says of pictures what it said at the end of the run."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from changing import changed
from short_runs import short_recipe, write_small_set
from vitlab.core.config import Choice
from vitlab.core.errors import CheckpointError
from vitlab.objectives.shown import read_shown
from vitlab.training import session
from vitlab.training.plan import divide, open_parts
from vitlab.training.trained import predicting
from vitlab.weights.load import load

MAE = Choice("mae", {"decoder_width": 16, "decoder_depth": 1, "decoder_heads": 2})


def test_the_same_predictions_as_the_runs(tmp_path: Path) -> None:
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "optimizer.ema": None, "keep": "last"}
    short = changed(short_recipe(write_small_set(tmp_path / "small.npz")), **plain, **{"schedule.total": "8 steps"})
    recipe, run = dataclasses.replace(short, objective=MAE), tmp_path / "run"
    session.train(recipe, run, device="cpu", show=False)
    model = load(run)
    predict, kept = predicting(run, model), read_shown(run)
    assert predict is not None
    assert kept is not None
    val = divide(open_parts(recipe)).val
    assert val is not None
    places = np.linspace(0, len(val) - 1, 6).round().astype(int)
    said = predict([Image.fromarray(np.asarray(val.images.read(place))) for place in places])
    for found, expected in zip(said, kept[0].rows, strict=True):
        assert found.words == kept[0].words
        for (words, picture), (other, before) in zip(found.pictures, expected, strict=True):
            assert words == other
            assert np.abs(picture.astype(int) - before).max() <= 1  # the last bit of a float
    [part] = (run / "checkpoints").glob("step-*/__0_0.distcp")
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="the checkpoint cannot be read"):
        predicting(run, model)


def test_a_run_that_shows_nothing(tmp_path: Path) -> None:
    recipe = changed(short_recipe(write_small_set(tmp_path / "small.npz")), **{"schedule.total": "4 steps"})
    session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert predicting(tmp_path / "run", load(tmp_path / "run")) is None
