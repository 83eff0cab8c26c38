"""Pictures inside a page: small, and written into it."""

import base64
import io
from dataclasses import dataclass

from PIL import Image

SIDE = 176  # px of the longer side: twice what is shown, for screens of fine dots
TINY = 64  # px up to which a picture is shown by its squares
QUALITY = 82


@dataclass(frozen=True)
class Thumbnail:
    """A picture as a data: address; `tiny` ones are to be enlarged square by square."""

    source: str
    width: int
    height: int
    tiny: bool


def shrunk(picture: Image.Image) -> Image.Image:
    """A picture of at most the size that a page holds."""
    small = picture.copy()
    small.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    return small


def thumbnail(picture: Image.Image) -> Thumbnail:
    """As PNG where it is tiny, else shrunk and as JPEG."""
    if max(picture.size) <= TINY:
        return Thumbnail(_address(picture, "png"), *picture.size, tiny=True)
    small = shrunk(picture)
    return Thumbnail(_address(small, "jpeg"), *small.size, tiny=False)


def _address(picture: Image.Image, kind: str) -> str:
    stream = io.BytesIO()
    options = {"quality": QUALITY} if kind == "jpeg" else {"optimize": True}
    picture.save(stream, format=kind, **options)
    return f"data:image/{kind};base64,{base64.b64encode(stream.getvalue()).decode()}"
