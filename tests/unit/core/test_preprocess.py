from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from PIL import Image

from peers import timm, torchvision
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Interpolation, Preprocess

transforms: Any = torchvision.transforms
FILTERS: tuple[Interpolation, ...] = ("nearest", "bilinear", "bicubic", "lanczos")
sides = st.integers(1, 120)


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(pixels)


def gradient(width: int, height: int) -> Image.Image:
    """Each pixel's own coordinates, so that a crop that is off by one shows."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return Image.fromarray(np.stack([x % 256, y % 256, (x + y) % 256], axis=-1).astype(np.uint8))


@given(sides, sides, st.tuples(sides, sides), st.sampled_from(FILTERS))
def test_squash_is_torchvisions_resize(width: int, height: int, size: tuple[int, int], name: Interpolation) -> None:
    image = noise(width, height)
    mode = transforms.InterpolationMode[name.upper()]
    expected = transforms.Resize(size, interpolation=mode)(image)
    ours = Preprocess(size=size, interpolation=name).picture(image)
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(expected))


@given(
    st.integers(20, 150), st.integers(20, 150), st.tuples(sides, sides), st.integers(0, 40), st.sampled_from(FILTERS)
)
@example(width=151, height=100, size=(32, 64), more=1, name="bicubic")
@example(width=40, height=40, size=(16, 33), more=0, name="bilinear")
@example(width=40, height=40, size=(33, 16), more=0, name="bilinear")
def test_shortest_is_torchvisions_resize_and_centre_crop(
    width: int, height: int, size: tuple[int, int], more: int, name: Interpolation
) -> None:
    image = gradient(width, height)
    edge = min(size) + more
    mode = transforms.InterpolationMode[name.upper()]
    expected = transforms.CenterCrop(size)(transforms.Resize(edge, interpolation=mode)(image))
    ours = Preprocess(size=size, resize="shortest", shortest_edge=edge, interpolation=name).picture(image)
    assert ours.size == (size[1], size[0])
    np.testing.assert_array_equal(np.asarray(ours), np.asarray(expected))


@pytest.mark.parametrize("shape", [(500, 333), (333, 500), (224, 224), (100, 80), (1000, 231)])
def test_shortest_is_timms_evaluation_transform(shape: tuple[int, int]) -> None:
    image = noise(*shape)
    theirs = timm.data.create_transform(
        input_size=(3, 224, 224), crop_pct=0.9, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )(image)
    spec = Preprocess(
        resize="shortest", shortest_edge=248, interpolation="bicubic", mean=IMAGENET_MEAN, std=IMAGENET_STD
    )
    torch.testing.assert_close(spec(image)[0], theirs, rtol=0, atol=1e-6)


def test_the_defaults_are_the_papers() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
    expected = (pixels.astype(np.float64) - 127.5) / 127.5
    np.testing.assert_allclose(Preprocess()(pixels)[0].permute(1, 2, 0).numpy(), expected, atol=1e-6)


def test_a_batch_is_its_pictures_in_order() -> None:
    spec = Preprocess(size=(8, 12))
    pictures = [noise(20, 30, seed=1), np.asarray(noise(9, 9, seed=2)), noise(30, 20, seed=3).convert("L")]
    batch = spec(iter(pictures))
    assert batch.shape == (3, 3, 8, 12)
    assert batch.dtype == torch.float32
    for row, picture in zip(batch, pictures, strict=True):
        torch.testing.assert_close(row, spec(picture)[0], rtol=0, atol=0)


def test_no_pictures_are_an_empty_batch() -> None:
    assert Preprocess(size=(8, 12))([]).shape == (0, 3, 8, 12)


@pytest.mark.parametrize("shape", [(1, 20_000), (20_000, 1), (3, 50_000)])
def test_a_sliver_does_not_grow_without_bound(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    resize = Image.Image.resize

    def watched(self: Image.Image, size: tuple[int, int], *rest: Any) -> Image.Image:
        nonlocal largest
        largest = max(largest, size[0] * size[1])
        return resize(self, size, *rest)

    monkeypatch.setattr(Image.Image, "resize", watched)
    assert Preprocess(resize="shortest").picture(noise(*shape)).size == (224, 224)
    assert largest <= 8 * 224 * 224


def test_a_wide_input_takes_a_long_picture_whole() -> None:
    """A picture of 20 to 1 fills an input of 16 to 1: nothing of it is lost to the guard against slivers."""
    spec = Preprocess(size=(4, 64), resize="shortest", interpolation="nearest")
    ours = np.asarray(spec.picture(Image.new("RGB", (80, 4), "white")))
    assert (ours == 255).all()


@pytest.mark.parametrize(
    ("edge", "size", "new", "expected"),
    [(256, (224, 224), (384, 384), 439), (None, (224, 224), (384, 384), None), (248, (224, 448), (112, 112), 124)],
)
def test_another_size_keeps_the_crop_in_proportion(
    edge: int | None, size: tuple[int, int], new: tuple[int, int], expected: int | None
) -> None:
    spec = Preprocess(size=size, resize="shortest", shortest_edge=edge, mean=IMAGENET_MEAN).with_size(new)
    assert spec == Preprocess(size=new, resize="shortest", shortest_edge=expected, mean=IMAGENET_MEAN)


@pytest.mark.parametrize(
    "fields",
    [
        {"size": (0, 224)},
        {"shortest_edge": 256},
        {"resize": "shortest", "shortest_edge": 100},
        {"std": (0.5, 0.0, 0.5)},
        {"mean": (0.5, float("nan"), 0.5)},
    ],
)
def test_contradictions_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Preprocess(**fields)
