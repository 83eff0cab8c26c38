import threading
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from vitlab.core.errors import ImageError
from vitlab.core.pictures import quiet_pillow, to_rgb


def of(mode: str, *values: Any) -> Image.Image:
    """A picture of one row."""
    image = Image.new(mode, (len(values), 1))
    for x, value in enumerate(values):
        image.putpixel((x, 0), value)
    return image


def with_info(image: Image.Image, **info: Any) -> Image.Image:
    image.info.update(info)
    return image


def palette(*colors: tuple[int, int, int], mode: str = "P", alpha: int | None = None) -> Image.Image:
    """A picture of one row that shows a palette's colours in turn."""
    indices = range(len(colors))
    image = of(mode, *(indices if alpha is None else ((index, alpha) for index in indices)))
    image.putpalette([value for color in colors for value in color])
    return image


RED, WHITE, BLACK, GREY = (255, 0, 0), (255, 255, 255), (0, 0, 0), (100, 100, 100)
# v * a / 255 + 255 * (1 - a / 255), by hand for v = 100 and a = 51: 20 + 204
FIFTH = (224, 224, 224)
MODES = {
    "1": (of("1", 0, 1), [BLACK, WHITE], 0),
    "L": (of("L", 0, 100, 255), [BLACK, GREY, WHITE], 0),
    "RGB": (of("RGB", RED), [RED], 0),
    "RGBX": (of("RGBX", (*RED, 0)), [RED], 0),
    "RGBA": (of("RGBA", (*RED, 255), (*RED, 0), (100, 100, 100, 51)), [RED, WHITE, FIFTH], 1),
    "RGBa": (of("RGBa", (*RED, 255), (0, 0, 0, 0), (20, 20, 20, 51)), [RED, WHITE, FIFTH], 1),
    "LA": (of("LA", (100, 255), (100, 0), (100, 51)), [GREY, WHITE, FIFTH], 1),
    "La": (of("La", (100, 255), (0, 0), (20, 51)), [GREY, WHITE, FIFTH], 1),
    "RGB with a clear colour": (with_info(of("RGB", RED, GREY), transparency=RED), [WHITE, GREY], 0),
    "L with a clear grey": (with_info(of("L", 0, 100), transparency=0), [WHITE, GREY], 0),
    "P": (palette(RED, GREY), [RED, GREY], 0),
    "P with a clear index": (with_info(palette(RED, GREY), transparency=0), [WHITE, GREY], 0),
    "P with alphas": (with_info(palette(RED, GREY), transparency=b"\xff\x33"), [RED, FIFTH], 1),
    "PA": (palette(RED, GREY, mode="PA", alpha=255), [RED, GREY], 0),
    "PA, clear": (palette(RED, GREY, mode="PA", alpha=0), [WHITE, WHITE], 0),
    "CMYK": (of("CMYK", (0, 0, 0, 0), (0, 255, 255, 0), (0, 0, 0, 255)), [WHITE, RED, BLACK], 0),
    "HSV": (of("HSV", (0, 255, 255), (0, 0, 100)), [RED, GREY], 0),
    "YCbCr": (of("YCbCr", (76, 85, 255), (100, 128, 128)), [RED, GREY], 2),  # ITU-R BT.601 of pure red
    "LAB": (of("LAB", (138, 209, 198), (255, 128, 128)), [RED, WHITE], 6),  # sRGB red is 54.3, 80.8, 69.9 under D50
    "I;16": (of("I;16", 0, 128, 129, 25700, 65535), [BLACK, BLACK, (1, 1, 1), GREY, WHITE], 0),
    "I;16B": (of("I;16B", 0, 25700, 65535), [BLACK, GREY, WHITE], 0),
    "I;16 with a clear grey": (with_info(of("I;16", 7, 25700), transparency=7), [WHITE, GREY], 0),
    "I": (of("I", 0, 25700, 65535), [BLACK, GREY, WHITE], 0),
    "F of a unit": (of("F", 0.0, 0.3922, 1.0), [BLACK, GREY, WHITE], 0),
    "F of bytes": (of("F", 0.0, 99.6, 255.0), [BLACK, GREY, WHITE], 0),
}


@pytest.mark.parametrize("case", MODES)
def test_every_mode_becomes_rgb(case: str) -> None:
    image, expected, tolerance = MODES[case]
    before = image.mode, image.tobytes(), dict(image.info)
    rgb = to_rgb(image)
    assert rgb.mode == "RGB"
    np.testing.assert_allclose(np.asarray(rgb)[0].astype(int), expected, atol=tolerance)
    np.testing.assert_array_equal(np.asarray(to_rgb(rgb)), np.asarray(rgb))
    assert (image.mode, image.tobytes(), dict(image.info)) == before


def test_the_table_above_holds_every_mode_of_pillows() -> None:
    modes = {name.split()[0].rstrip(",") for name in MODES}
    assert set(Image.MODES) - modes <= {"I;16L", "I;16N"}  # other names for the byte order of I;16


UPRIGHT = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3) * 10
# Which visual sides the stored row 0 and column 0 are on, EXIF 2.3 page 36: 6 is 'right, top', and so on.
STORED = {
    1: UPRIGHT,
    2: UPRIGHT[:, ::-1],
    3: UPRIGHT[::-1, ::-1],
    4: UPRIGHT[::-1],
    5: UPRIGHT.transpose(1, 0, 2),
    6: UPRIGHT.transpose(1, 0, 2)[::-1],
    7: UPRIGHT.transpose(1, 0, 2)[::-1, ::-1],
    8: UPRIGHT.transpose(1, 0, 2)[:, ::-1],
}


@pytest.mark.parametrize("orientation", STORED)
def test_exif_orientation_is_applied_once(orientation: int) -> None:
    image = Image.fromarray(np.ascontiguousarray(STORED[orientation]))
    image.getexif()[0x0112] = orientation
    upright = to_rgb(image)
    np.testing.assert_array_equal(np.asarray(upright), UPRIGHT)
    np.testing.assert_array_equal(np.asarray(to_rgb(upright)), UPRIGHT)


@pytest.mark.parametrize("orientation", [0, 9, 65535, "6", b"\x06", (6, 6)])
def test_an_impossible_orientation_is_ignored(orientation: Any) -> None:
    image = Image.fromarray(UPRIGHT)
    image.getexif()[0x0112] = orientation
    np.testing.assert_array_equal(np.asarray(to_rgb(image)), UPRIGHT)


@pytest.mark.parametrize("exif", [b"", b"Exif\0\0", b"Exif\0\0II*\0\xff\xff\xff\xff", b"nonsense"])
def test_damaged_exif_is_ignored(exif: bytes) -> None:
    image = with_info(Image.fromarray(UPRIGHT), exif=exif)
    np.testing.assert_array_equal(np.asarray(to_rgb(image)), UPRIGHT)


@pytest.mark.parametrize(
    ("array", "expected"),
    [
        (np.array([[0, 100]], np.uint8), [BLACK, GREY]),
        (np.array([[[0], [100]]], np.uint8), [BLACK, GREY]),
        (np.array([[RED, GREY]], np.uint8), [RED, GREY]),
        (np.array([[(*RED, 255), (*RED, 0)]], np.uint8), [RED, WHITE]),
        (np.array([[False, True]]), [BLACK, WHITE]),
        (np.array([[0, 25700, 65535]], np.uint16), [BLACK, GREY, WHITE]),
        (np.array([[0, 25700, 65535]], ">u2"), [BLACK, GREY, WHITE]),
        (np.array([[0.0, 0.3922, 1.0]], np.float64), [BLACK, GREY, WHITE]),
        (np.array([[0.0, 0.392, 1.0]], np.float16), [BLACK, GREY, WHITE]),
        (np.array([[-1e-7, 1 + 1e-7]], np.float64), [BLACK, WHITE]),
        (np.array([[(1.0, 0.0, 0.0, 1.0), (1.0, 0.0, 0.0, 0.0)]], np.float32), [RED, WHITE]),
        (np.array([[RED, GREY]], np.uint8)[:, ::-1], [GREY, RED]),
        (np.array([[0.0, 1 / 255]], np.float32), [BLACK, (1, 1, 1)]),  # a dark picture stays dark
    ],
)
def test_arrays_become_rgb(array: np.ndarray[Any, Any], expected: list[tuple[int, ...]]) -> None:
    rgb = to_rgb(array)
    assert rgb.mode == "RGB"
    np.testing.assert_array_equal(np.asarray(rgb)[0], expected)


@given(st.lists(st.integers(0, 65535), min_size=1, max_size=20))
def test_sixteen_bits_are_scaled_to_the_nearest_byte(values: list[int]) -> None:
    expected = [round(value / 257) for value in values]
    assert np.asarray(to_rgb(np.array([values], np.uint16)))[0, :, 0].tolist() == expected
    assert np.asarray(to_rgb(of("I", *values)))[0, :, 0].tolist() == expected


@pytest.mark.parametrize(
    ("picture", "sentence"),
    [
        ("a.jpg", r"must be a PIL image or a NumPy array, not str\."),
        (None, r"not NoneType\."),
        (Image.new("RGB", (0, 5)), r"has no pixels: it is 0 x 5\."),
        (of("I", -1), r"from -1 to -1 do not fit 16 bits"),
        (of("I", 65536), r"from 65536 to 65536 do not fit 16 bits"),
        (of("F", -0.5), r"from -0\.5 to -0\.5 are in neither \[0, 1\] nor \[0, 255\]"),
        (of("F", 256.0), r"neither"),
        (of("F", float("nan")), r"neither"),
        (np.zeros((5,), np.uint8), r"\[H, W, 4\], not \[5\]\."),
        (np.zeros((2, 2, 2), np.uint8), r"not \[2, 2, 2\]\."),
        (np.zeros((3, 8, 9), np.uint8), r"not \[3, 8, 9\]: move its channels last\."),
        (np.zeros((1, 4, 4, 3), np.uint8), r"not \[1, 4, 4, 3\]\."),
        (np.zeros((0, 4, 3), np.uint8), r"has no pixels: its shape is \[0, 4, 3\]\."),
        (np.zeros((2, 2), np.int64), r"not of int64\."),
        (np.zeros((2, 2), np.complex64), r"not of complex64\."),
        (np.zeros((2, 2), object), r"not of object\."),
        (np.full((2, 2), 1.5), r"must be in \[0, 1\]; this one reaches from 1\.5 to 1\.5\."),
        (np.full((2, 2), -0.5), r"must be in \[0, 1\]"),
        (np.full((2, 2), np.nan), r"must be in \[0, 1\]"),
        (np.full((2, 2), np.inf), r"must be in \[0, 1\]"),
    ],
)
def test_anything_else_is_one_sentence(picture: Any, sentence: str) -> None:
    with pytest.raises(ImageError, match=sentence) as caught:
        to_rgb(picture)
    assert "\n" not in str(caught.value)


def test_warnings_are_silent_only_while_some_thread_decodes() -> None:
    before = list(warnings.filters)
    inside, leave = threading.Event(), threading.Event()

    def decode() -> None:
        with quiet_pillow():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=decode)
    with quiet_pillow():
        thread.start()
        assert inside.wait(10)
    warnings.warn("the other thread is still inside", stacklevel=1)
    leave.set()
    thread.join(10)
    assert warnings.filters == before
    with pytest.raises(UserWarning):
        warnings.warn("nobody is inside", stacklevel=1)
