"""Pictures of any kind as upright 8-bit RGB."""

import contextlib
import threading
import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
from PIL import ExifTags, Image

from vitlab.core.errors import ImageError

Picture: TypeAlias = Image.Image | np.ndarray[Any, Any]

# EXIF 2.3, tag 0x0112: how a stored picture is turned to be upright
UPRIGHT: dict[int, Image.Transpose] = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def to_rgb(image: Picture) -> Image.Image:
    """A PIL image of any mode, or an array, as an upright 8-bit RGB image; again on its own output changes nothing.

    PIL images: EXIF orientation is applied; transparency is laid on white; 16-bit grey is scaled, not clipped; floats
    ('F') are in [0, 1] or else in [0, 255]; an animated one gives its current frame. ICC profiles are ignored, as the
    decoders ignored them that the public checkpoints were trained with.

    Arrays: [H, W], [H, W, 1], [H, W, 3] or [H, W, 4] (alpha) of bool, uint8, uint16, or floats in [0, 1].
    """
    if isinstance(image, np.ndarray):
        return _flat(_from_array(image))
    if not isinstance(image, Image.Image):
        raise ImageError(f"A picture must be a PIL image or a NumPy array, not {type(image).__name__}.")
    if 0 in image.size:
        raise ImageError(f"The picture has no pixels: it is {image.width} x {image.height}.")
    try:
        with quiet_pillow():
            image.load()
            return _upright(_flat(image), orientation_of(image))
    except ImageError:
        raise
    except Exception as error:
        raise ImageError(f"The picture cannot be decoded: {reason(error)}.") from error


def orientation_of(image: Image.Image) -> int:
    """The EXIF orientation; 1 where the tag is absent, damaged or unknown, for the pixels may still be good."""
    try:
        orientation = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # noqa: BLE001  Pillow's EXIF reader raises anything
        return 1
    return orientation if isinstance(orientation, int) and orientation in UPRIGHT else 1


def reason(error: Exception) -> str:
    """What an exception of Pillow's says, on one line and without a full stop."""
    lines = str(error).splitlines()
    return (lines[0].strip().rstrip(".") if lines else "") or type(error).__name__


_silence = threading.Lock()
_decoding = 0
_outer: "warnings.catch_warnings[None] | None" = None


@contextlib.contextmanager
def quiet_pillow() -> Iterator[None]:
    """No warnings while any thread is inside; `catch_warnings` by itself loses filters when threads overlap."""
    global _decoding, _outer
    with _silence:
        if _decoding == 0:
            _outer = warnings.catch_warnings(action="ignore")
            _outer.__enter__()
        _decoding += 1
    try:
        yield
    finally:
        with _silence:
            _decoding -= 1
            if _decoding == 0 and _outer is not None:
                _outer.__exit__(None, None, None)
                _outer = None


def _upright(rgb: Image.Image, orientation: int) -> Image.Image:
    if orientation not in UPRIGHT:
        return rgb
    turned = rgb.transpose(UPRIGHT[orientation])
    turned.info.clear()  # else the tag would turn it once more
    return turned


def _flat(image: Image.Image) -> Image.Image:
    """Any mode as RGB, transparency on white."""
    if image.mode == "I" or image.mode.startswith("I;16"):
        gray, clear = np.asarray(image), image.info.get("transparency")
        if gray.min() < 0 or gray.max() > 65535:
            raise ImageError(f"Grey values from {gray.min()} to {gray.max()} do not fit 16 bits: scale them first.")
        image = Image.fromarray(_from_16_bits(gray if clear is None else np.where(gray == clear, 65535, gray)))
    elif image.mode == "F":
        image = Image.fromarray(_from_floats(np.asarray(image)))
    elif image.mode == "La":
        image = image.convert("LA")
    if image.has_transparency_data:
        image = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", image.size, "white")
        white.paste(image, mask=image)
        return white
    return image if image.mode == "RGB" else image.convert("RGB")


def _from_array(array: np.ndarray[Any, Any]) -> Image.Image:
    kind, shape = array.dtype.newbyteorder("="), array.shape
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] not in (1, 3, 4)):
        looks = ": move its channels last" if len(shape) == 3 and shape[0] in (1, 3, 4) else ""
        raise ImageError(f"An array must be [H, W], [H, W, 1], [H, W, 3] or [H, W, 4], not {list(shape)}{looks}.")
    if 0 in shape:
        raise ImageError(f"The picture has no pixels: its shape is {list(shape)}.")
    if kind == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    elif kind == np.uint16:
        array = _from_16_bits(array)
    elif np.issubdtype(kind, np.floating):
        if not (array.min() >= -1e-6 and array.max() <= 1 + 1e-6):  # NaN compares false
            raise ImageError(f"Float pictures must be in [0, 1]; this one reaches from {array.min()} to {array.max()}.")
        array = _from_floats(array.clip(0, 1))
    elif kind != np.uint8:
        raise ImageError(f"An array must be of bool, uint8, uint16, or floats in [0, 1], not of {kind}.")
    return Image.fromarray(np.ascontiguousarray(array[..., 0] if shape[2:] == (1,) else array))


def _from_16_bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """0..65535 to 0..255, rounded: 65535 = 255 * 257."""
    return ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)


def _from_floats(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    low, high = float(values.min()), float(values.max())
    if not (low >= 0 and high <= 255):  # NaN compares false
        raise ImageError(f"Float values from {low:g} to {high:g} are in neither [0, 1] nor [0, 255]: scale them first.")
    return np.rint(values.astype(np.float64) * (255 if high <= 1 else 1)).astype(np.uint8)


def palette_image(mask: Any) -> Image.Image:
    """Class numbers uint8 [H, W] as a picture with a colour per class, which stores the numbers themselves."""
    picture = Image.fromarray(mask, mode="P")
    picture.putpalette(bytes(value for number in range(256) for value in class_color(number)))
    return picture


def class_color(number: int) -> tuple[int, int, int]:
    """A class's colour as Pascal VOC has it: the bits of its number, three by three, from the highest down."""
    color = [0, 0, 0]
    for shift in range(8):
        for channel in range(3):
            color[channel] |= (number >> (3 * shift + channel) & 1) << (7 - shift)
    return color[0], color[1], color[2]
