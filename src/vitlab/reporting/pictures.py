"""The pictures that a report shows."""

from PIL import Image

from vitlab.core.errors import ImageError
from vitlab.data.contract import Split
from vitlab.data.decoding import read_picture


def picture_at(split: Split, place: int) -> Image.Image | None:
    """A picture of a split; None where it cannot be read any more."""
    try:
        return read_picture(split.images.read(place), split.images.where(place))
    except (ImageError, OSError):
        return None
