"""A split under every condition: which picture is which, and that workers make the same."""

import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.data.conditions import condition, conditions_of
from vitlab.data.contract import Split
from vitlab.data.corruptions import corrupt
from vitlab.data.corruptions.images import corrupted
from vitlab.data.sources.files import Files
from vitlab.data.sources.pixels import Pixels

PIXELS = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
SPLIT = Split.labelled(Pixels(PIXELS, "here"), np.array([2, 0, 1]))


def test_all_of_a_condition_then_of_the_next() -> None:
    spec = Preprocess(size=(32, 32))
    made, _ = corrupted(SPLIT, spec, ("fog", "gaussian_noise"), (1, 4), seed=5)
    assert len(made) == 12
    assert made.labels.tolist() == [2, 0, 1] * 4
    numbers = [condition(*each) for each in (("fog", 1), ("fog", 4), ("gaussian_noise", 1), ("gaussian_noise", 4))]
    assert conditions_of(made).tolist() == np.repeat(numbers, 3).tolist()
    np.testing.assert_array_equal(made.images.read(10), corrupt(PIXELS[1], "gaussian_noise", 4, seed=5, number=1))
    assert made.images.where(10) == "image 1 of here (gaussian_noise 4)"
    again = pickle.loads(pickle.dumps(made.images))
    np.testing.assert_array_equal(again.read(10), made.images.read(10))


@pytest.mark.parametrize(
    "spec", [Preprocess(size=(20, 24)), Preprocess(size=(24, 24), resize="shortest", shortest_edge=28)]
)
def test_what_the_model_sees_is_corrupted_and_not_resized_again(spec: Preprocess, tmp_path: Path) -> None:
    Image.fromarray(PIXELS[0]).resize((50, 40)).save(tmp_path / "0.png")
    split = Split.labelled(Files(tmp_path, ["0.png"], [1]), np.array([0]))
    made, plain = corrupted(split, spec, ("contrast",), (2,))
    seen = made.images.read(0)
    assert isinstance(seen, np.ndarray)
    np.testing.assert_array_equal(np.asarray(plain.picture(seen)), seen)
    first = np.asarray(spec.picture(Image.open(tmp_path / "0.png")))
    np.testing.assert_array_equal(seen, corrupt(first, "contrast", 2))
    assert (plain.mean, plain.std, plain.size) == (spec.mean, spec.std, spec.size)


def test_what_is_unknown_is_refused_at_once() -> None:
    with pytest.raises(ConfigError, match="no corruption named 'rain'"):
        corrupted(SPLIT, Preprocess(size=(8, 8)), ("fog", "rain"), (1,))
