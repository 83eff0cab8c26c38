"""A stranger's bytes to the pixels that a model sees, exactly as `vitlab predict` makes them from a file."""

import io

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from vitlab.core.errors import ImageError
from vitlab.core.pictures import Picture, quiet_pillow, reason, to_rgb
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Array
from vitlab.data.jpeg import decode_jpeg, read_header
from vitlab.serving.limits import Limits
from vitlab.serving.refusals import Refusal

SCAN = b"\xff\xda"  # within a JPEG's coded data 0xFF is always followed by 0x00 or a restart marker

FULL_SIZE_SCANS = 16  # at the most pixels that are taken; encoders make about ten


def to_pixels(raw: bytes, preprocess: Preprocess, limits: Limits, place: int = 0) -> UInt8[Array, "h w 3"]:
    """What the model sees of the image, or a refusal that names it by its place in the request."""
    try:
        image = _open(raw, limits, place)
        return np.asarray(preprocess.picture(_upright(raw, image)))
    except Refusal:
        raise
    except ImageError as error:
        raise Refusal("damaged_image", f"Image {place}: {error}", image=place) from error


def _open(raw: bytes, limits: Limits, place: int) -> Image.Image:
    """The image with its header read, of a format that is taken and of a bearable size."""
    try:
        with quiet_pillow():
            image = Image.open(io.BytesIO(raw), formats=limits.formats)
    except UnidentifiedImageError:
        taken = ", ".join(limits.formats)
        said = "empty" if not raw else f"not an image of a format that is taken ({taken})"
        raise Refusal("unsupported_image", f"Image {place} is {said}.", image=place) from None
    except Image.DecompressionBombError:
        raise _too_large(limits, place) from None
    except Exception as error:  # what plug-ins raise over damaged bytes is anything
        raise Refusal("damaged_image", f"Image {place} is damaged: {reason(error)}.", image=place) from error
    if image.width * image.height > limits.pixels:
        raise _too_large(limits, place)
    most_scans = min(limits.scans, FULL_SIZE_SCANS * limits.pixels // max(1, image.width * image.height))
    if image.format in ("JPEG", "MPO") and raw.count(SCAN) > most_scans:
        message = f"Image {place} is a JPEG of more than {most_scans} scans: save it without progressive coding."
        raise Refusal("too_many_pixels", message, image=place)
    return image


def _upright(raw: bytes, image: Image.Image) -> Picture:
    """The whole picture as upright RGB: a plain JPEG by the fast decoder, whose pixels are Pillow's too."""
    header = read_header(raw) if image.format in ("JPEG", "MPO") else None
    if header is not None and (header.width, header.height) == image.size:
        pixels = decode_jpeg(raw, header)
        if pixels is not None:
            return pixels
    return to_rgb(image)


def _too_large(limits: Limits, place: int) -> Refusal:
    return Refusal("too_many_pixels", f"Image {place} has more than {limits.pixels:,} pixels.", image=place)
