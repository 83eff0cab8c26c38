"""A stranger's bytes to the pixels that a model sees, exactly as `vitlab predict` makes them from a file."""

import io
from collections.abc import Sequence

import numpy as np
from jaxtyping import UInt8
from PIL import Image, UnidentifiedImageError

from vitlab.core.errors import ImageError
from vitlab.core.pictures import quiet_pillow, reason
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Array
from vitlab.data.decoding import JPEGS, upright
from vitlab.serving.http.errors import APIError
from vitlab.serving.limits import Limits

SCAN = b"\xff\xda"  # within a JPEG's coded data 0xFF is always followed by 0x00 or a restart marker

FULL_SIZE_SCANS = 16  # at the most pixels that are taken; encoders make about ten


def to_pixels(raw: bytes, preprocess: Preprocess, limits: Limits, place: int | None = None) -> UInt8[Array, "h w 3"]:
    """What the model sees of the image, or an error that names it by its place in the request, if it has several."""
    try:
        image = _open(raw, limits, place)
        return np.asarray(preprocess.picture(upright(image, raw)))
    except APIError:
        raise
    except ImageError as error:
        raise APIError("damaged_image", f"{_name(place)}: {error}", image=place or 0) from error


def check_sizes(images: Sequence[bytes], limits: Limits) -> None:
    """Refuse a request by the headers of its images, before any of them is decoded."""
    pixels = 0
    for place, raw in enumerate(images):
        with _open(raw, limits, place) as image:
            pixels += image.width * image.height
        if pixels > limits.request_pixels:
            most = f"{limits.request_pixels / 1e6:,g} megapixels together"
            raise APIError("too_many_pixels", f"The images have more than {most}: send several requests.", image=place)


def _open(raw: bytes, limits: Limits, place: int | None) -> Image.Image:
    """The image with its header read, of a format that is taken and of a bearable size."""
    try:
        with quiet_pillow():
            image = Image.open(io.BytesIO(raw), formats=limits.formats)
    except UnidentifiedImageError:
        taken = ", ".join(limits.formats)
        said = "empty" if not raw else f"not an image of a format that is taken ({taken})"
        raise APIError("unsupported_image", f"{_name(place)} is {said}.", image=place or 0) from None
    except Image.DecompressionBombError:
        raise _too_large(limits, place) from None
    except Exception as error:  # what plug-ins raise over damaged bytes is anything
        raise APIError("damaged_image", f"{_name(place)} is damaged: {reason(error)}.", image=place or 0) from error
    if image.width * image.height > limits.pixels:
        raise _too_large(limits, place)
    most_scans = min(limits.scans, FULL_SIZE_SCANS * limits.pixels // max(1, image.width * image.height))
    if image.format in JPEGS and raw.count(SCAN) > most_scans:
        message = f"{_name(place)} is a JPEG of more than {most_scans} scans: save it without progressive coding."
        raise APIError("too_many_pixels", message, image=place or 0)
    return image


def _too_large(limits: Limits, place: int | None) -> APIError:
    return APIError("too_many_pixels", f"{_name(place)} has more than {limits.pixels:,} pixels.", image=place or 0)


def _name(place: int | None) -> str:
    return "The image" if place is None else f"Image {place}"
