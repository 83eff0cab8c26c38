"""Every operation of the policies against Pillow's (and SciPy's blur), on several kinds of pictures."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps
from scipy import ndimage

from vitlab.data.augmentation import Augmentation, make_tables
from vitlab.data.augmentation.apply import operate
from vitlab.data.augmentation.geometry import flip, shift
from vitlab.data.augmentation.policies import Op
from vitlab.data.augmentation.stages import Stage

AUG = Augmentation(fill=(10, 200, 90))
TABLES = make_tables(AUG, torch.device("cpu"))
rng = np.random.default_rng(0)


def smooth(height: int, width: int) -> np.ndarray:
    y, x = np.mgrid[:height, :width]
    waves = [np.sin(x / 5 + k) + np.cos(y / 7 - k) for k in range(3)]
    return np.stack([(60 * wave + 128).clip(0, 255) for wave in waves], axis=-1).astype(np.uint8)


PICTURES = {
    "noise": rng.integers(0, 256, (29, 37, 3), dtype=np.uint8),
    "smooth": smooth(32, 32),
    "dim": rng.integers(40, 90, (16, 20, 3), dtype=np.uint8),
    "flat": np.full((12, 12, 3), (7, 130, 255), dtype=np.uint8),
    "two levels": np.where(rng.random((20, 20, 1)) < 0.2, 30, 200).astype(np.uint8).repeat(3, axis=2),
    "digit": rng.integers(0, 17, (8, 8, 3), dtype=np.uint8) * 15,
}


def ours(op: Op, value: float, picture: np.ndarray, others: bool = False) -> np.ndarray:
    """The operation alone, or (`others`) the second of a batch whose first two draw something else."""
    images = torch.from_numpy(picture).permute(2, 0, 1)[None]
    if not others:
        stage = Stage(torch.tensor([int(op)]), torch.tensor([value]), frozenset({op}), torch.full((1, 2), 0.5))
        return operate(TABLES, images, stage)[0].permute(1, 2, 0).numpy()
    ops = torch.tensor([int(Op.EQUALIZE), int(op), int(Op.ROTATE)])
    stage = Stage(ops, torch.tensor([0.0, value, 20.0]), frozenset(Op), torch.full((3, 2), 0.5))
    return operate(TABLES, images.repeat(3, 1, 1, 1), stage)[1].permute(1, 2, 0).numpy()


def affine(a: float, b: float, c: float, d: float, e: float, f: float) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.transform(
        image.size, Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR, fillcolor=AUG.fill
    )


def solarize_add(add: int) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.point([min(255, i + add) if i < 128 else i for i in range(256)] * 3)


def enhance(
    kind: Callable[[Image.Image], ImageEnhance._Enhance], factor: float
) -> Callable[[Image.Image], Image.Image]:
    return lambda image: kind(image).enhance(factor)


EXACT: list[tuple[Op, float, Callable[[Image.Image], Image.Image]]] = [
    (Op.IDENTITY, 3.0, lambda image: image),
    (Op.INVERT, 0.0, ImageOps.invert),
    *((Op.POSTERIZE, float(bits), lambda image, bits=bits: ImageOps.posterize(image, bits)) for bits in range(1, 9)),
    (Op.POSTERIZE, 0.0, lambda image: Image.new("RGB", image.size)),  # which Pillow refuses: no bit is left
    *((Op.SOLARIZE, float(t), lambda image, t=t: ImageOps.solarize(image, t)) for t in (0, 26, 128, 255, 256)),
    *((Op.SOLARIZE_ADD, float(add), solarize_add(add)) for add in (0, 33, 110, 128)),
    *((Op.BRIGHTNESS, f, enhance(ImageEnhance.Brightness, f)) for f in (0.01, 0.1, 0.55, 1.0, 1.3, 1.9, 3.7)),
    *((Op.CONTRAST, f, enhance(ImageEnhance.Contrast, f)) for f in (0.01, 0.1, 0.55, 1.0, 1.3, 1.9, 3.7)),
    *((Op.COLOR, f, enhance(ImageEnhance.Color, f)) for f in (0.0, 0.1, 0.55, 1.0, 1.3, 1.9, 3.7)),
    *((Op.SHARPNESS, f, enhance(ImageEnhance.Sharpness, f)) for f in (0.01, 0.1, 0.55, 1.0, 1.3, 1.9, 3.7)),
    (Op.EQUALIZE, 0.0, ImageOps.equalize),
]


@pytest.mark.parametrize(("op", "value", "pillow"), EXACT, ids=[f"{op.name}-{value}" for op, value, _ in EXACT])
def test_colour_is_pillows_to_the_bit(op: Op, value: float, pillow: Callable[[Image.Image], Image.Image]):
    for name, picture in PICTURES.items():
        expected = np.asarray(pillow(Image.fromarray(picture)))
        assert np.array_equal(ours(op, value, picture), expected), name
        assert np.array_equal(ours(op, value, picture, others=True), expected), name


def test_autocontrast_is_pillows_within_its_rounding():
    # Pillow multiplies by 255 / (high - low) in floating point and may fall just short of a whole level; we divide.
    for name, picture in PICTURES.items():
        expected = np.asarray(ImageOps.autocontrast(Image.fromarray(picture))).astype(int)
        found = ours(Op.AUTOCONTRAST, 0.0, picture)
        assert set(np.unique(found - expected)) <= {0, 1}, name
        assert (found == expected).mean() > 0.7, name
        assert np.array_equal(ours(Op.AUTOCONTRAST, 0.0, picture, others=True), found), name


GEOMETRIC = [
    *(
        (Op.ROTATE, v, lambda image, v=v: image.rotate(v, Image.Resampling.BILINEAR, fillcolor=AUG.fill))
        for v in (0.0, 7.5, -27.0, 135.0)
    ),
    *((Op.SHEAR_X, v, affine(1, v, 0, 0, 1, 0)) for v in (0.0, 0.27, -0.3, 0.99)),
    *((Op.SHEAR_Y, v, affine(1, 0, 0, v, 1, 0)) for v in (0.27, -0.3)),
    *((Op.TRANSLATE_X, v, lambda image, v=v: affine(1, 0, v * image.width, 0, 1, 0)(image)) for v in (0.25, -0.405)),
    *(
        (Op.TRANSLATE_Y, v, lambda image, v=v: affine(1, 0, 0, 0, 1, v * image.height)(image))
        for v in (0.405, -0.25, 2.0)
    ),
]


@pytest.mark.parametrize(("op", "value", "pillow"), GEOMETRIC, ids=[f"{op.name}-{value}" for op, value, _ in GEOMETRIC])
def test_geometry_is_pillows_within_a_level(op: Op, value: float, pillow: Callable[[Image.Image], Image.Image]):
    for name, picture in PICTURES.items():
        expected = np.asarray(pillow(Image.fromarray(picture))).astype(int)
        found = ours(op, value, picture)
        assert np.abs(found - expected).max() <= 1, name  # we have float32, Pillow float64
        assert (found == expected).mean() > 0.9, name
        assert np.array_equal(ours(op, value, picture, others=True), found), name


@pytest.mark.parametrize("sigma", [0.1, 0.5, 1.0, 1.7, 2.0])
def test_blur_is_a_gaussian(sigma: float):
    picture = PICTURES["noise"]
    found = ours(Op.BLUR, sigma, picture)
    kernel = np.exp(-0.5 * (np.arange(-6, 7) / sigma) ** 2)
    kernel[np.abs(np.arange(-6, 7)) > np.ceil(3 * sigma)] = 0
    expected = picture.astype(float)
    for axis in (0, 1):
        expected = ndimage.correlate1d(expected, kernel / kernel.sum(), axis=axis, mode="nearest")
    assert np.abs(found - expected).max() <= 0.51
    # Pillow's three box blurs approximate it, best away from the edges.
    pillow = np.asarray(Image.fromarray(smooth(40, 40)).filter(ImageFilter.GaussianBlur(sigma))).astype(int)
    assert np.abs(ours(Op.BLUR, sigma, smooth(40, 40)) - pillow)[8:-8, 8:-8].max() <= 2
    assert np.array_equal(ours(Op.BLUR, sigma, picture, others=True), found)


@pytest.mark.parametrize("mode", ["zero", "reflect"])
def test_shifts_are_exact_copies_of_the_padded_image(mode: str):
    images = torch.from_numpy(rng.integers(0, 256, (25, 3, 7, 9), dtype=np.uint8))
    moves = torch.tensor([(y, x) for y in range(-4, 6, 2) for x in range(-4, 6, 2)])
    found = shift(images, moves[:, 0], moves[:, 1], mode)
    pad_mode = {"zero": "constant", "reflect": "reflect"}[mode]
    for image, (y, x), moved in zip(images.numpy(), moves.tolist(), found.numpy(), strict=True):
        padded = np.pad(image, ((0, 0), (4, 4), (4, 4)), mode=pad_mode)  # pyright: ignore[reportCallIssue, reportArgumentType]
        assert np.array_equal(moved, padded[:, 4 + y : 11 + y, 4 + x : 13 + x])


def test_flips_mirror_the_chosen():
    images = torch.from_numpy(rng.integers(0, 256, (2, 3, 4, 5), dtype=np.uint8))
    found = flip(images, torch.tensor([True, False]))
    assert np.array_equal(found[0].numpy(), images[0].numpy()[:, :, ::-1])
    assert torch.equal(found[1], images[1])


def test_the_smallest_pictures_pass():
    for size in ((1, 1), (1, 5), (2, 2)):
        picture = rng.integers(0, 256, (*size, 3), dtype=np.uint8)
        for op in Op:
            assert ours(op, 1.0, picture, others=True).shape == picture.shape
