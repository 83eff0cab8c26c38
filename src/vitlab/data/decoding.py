"""Image files and their bytes to RGB pictures, and which files are images."""

import contextlib
import functools
import io
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

from vitlab.core.errors import ImageError, did_you_mean
from vitlab.core.files import near_paths
from vitlab.core.pictures import UPRIGHT, Picture, orientation_of, quiet_pillow, reason, to_rgb
from vitlab.core.reading import check_regular
from vitlab.data.contract import IGNORED, Array, Masks
from vitlab.data.jpeg import Header, decode_jpeg, margin, read_header

StrPath: TypeAlias = str | os.PathLike[str]
Input: TypeAlias = StrPath | Picture
Box: TypeAlias = tuple[int, int, int, int]  # top, left, height, width

MAX_PIXELS = 178_956_970  # where Pillow too speaks of a decompression bomb; 512 MiB of RGB
JPEGS = ("JPEG", "MPO")  # as Pillow names them; an MPO begins with one
# EPS and IPTC can start Ghostscript; the others are names without a decoder.
UNSAFE = frozenset({"EPS", "IPTC", "BUFR", "GRIB", "HDF5", "MPEG", "WMF"})
HEIC = frozenset({".heic", ".heif", ".hif"})  # phones' photos, which Pillow reads with pi-heif
HEIC_NEEDS = "pip install 'vitlab[heic]'"

logging.getLogger("PIL").addHandler(logging.NullHandler())  # else Python prints its log where nobody set one up


def read_image(path: StrPath) -> Image.Image:
    """An image file of any format that Pillow decodes, as upright RGB; of several frames the first."""
    try:
        check_regular(path)
        with Path(path).open("rb") as file:
            if not os.fstat(file.fileno()).st_size:
                raise ImageError(f"{path} is empty.")
            image = _open(file, path)
            raw = None
            if image.format in JPEGS:
                file.seek(0)
                raw = file.read()
            with _explained(file, path):
                return upright(image, raw)
    except ImageError:
        raise
    except FileNotFoundError:
        raise no_file(path) from None
    except IsADirectoryError:
        raise ImageError(f"{path} is a folder, not an image.") from None
    except OSError as error:
        raise ImageError(f"Cannot read {path}: {error.strerror or reason(error)}.") from error
    except ValueError as error:
        raise ImageError(f"Cannot read {str(path)!r}: {reason(error)}.") from error


def no_file(path: StrPath) -> ImageError:
    """What to say of a picture that is not there."""
    return ImageError(f"There is no file {os.fspath(path)}.{did_you_mean(near_paths(Path(path)))}")


def read_picture(raw: bytes | Array, where: str) -> Image.Image:
    """What a data set's `read` gave, as upright RGB, exactly as `read_image` decodes it; `where` is for the message."""
    if isinstance(raw, np.ndarray):
        return to_rgb(raw)
    file = io.BytesIO(raw)
    image = _open(file, where)
    with _explained(file, where):
        return upright(image, raw)


def upright(image: Image.Image, raw: bytes | None) -> Image.Image:
    """The whole of an opened picture as upright RGB: a plain JPEG, of which `raw` is the file, by the fast decoder.

    What evaluates, predicts and serves gets its pictures here; at full size the fast decoder's pixels are Pillow's.
    """
    header = read_header(raw) if raw is not None and image.format in JPEGS else None
    if raw is not None and header is not None and (header.width, header.height) == image.size:
        pixels = decode_jpeg(raw, header)
        if pixels is not None:
            return Image.fromarray(np.ascontiguousarray(pixels))
    return to_rgb(image)


def decode(raw: bytes | Array, where: str, *, min_size: tuple[int, int] | None = None) -> Array:
    """Upright uint8 RGB [H, W, 3]; with `min_size` a JPEG may come at 1/2, 1/4 or 1/8, but not below that size."""
    picture = open_picture(raw, where)
    return picture.crop((0, 0, *picture.size), min_size)


@dataclass(frozen=True)
class Undecoded:
    """A picture whose size is known; the pixels of a JPEG are decoded when they are asked for."""

    raw: bytes | Array  # a JPEG, or pixels
    where: str
    size: tuple[int, int]  # height and width when upright
    header: Header | None  # where it is a JPEG for the fast path

    def crop(self, box: Box, min_size: tuple[int, int] | None = None) -> Array:
        """A part of the upright picture as uint8 RGB [H, W, 3], perhaps a view.

        With `min_size` a JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the part has that size even so; the
        part's edges are then whole pixels of that scale.
        """
        return self.crops([box], [min_size])[0]

    def crops(self, boxes: Sequence[Box], min_sizes: Sequence[tuple[int, int] | None]) -> list[Array]:
        """Several parts of a picture that is decoded once, at the scale that all of them allow."""
        if isinstance(self.raw, np.ndarray):
            return [_cut(self.raw, box, 1, (0, 0)) for box in boxes]
        factor = min(_reduction(box[2:], size) for box, size in zip(boxes, min_sizes, strict=True))
        pixels, before = self._decode(factor, max(box[0] + box[2] for box in boxes))
        return [_cut(pixels, box, factor, before) for box in boxes]

    def _decode(self, factor: int, rows: int) -> tuple[Array, tuple[int, int]]:
        """So many rows at 1/factor, and how far they begin before the whole picture."""
        assert not isinstance(self.raw, np.ndarray)
        if (header := self.header) is not None:
            pixels = decode_jpeg(self.raw, header, factor=factor, rows=rows)
            if pixels is not None:
                return pixels, margin(header.height, header.width, header.orientation, factor)
        file = io.BytesIO(self.raw)
        image = _open(file, self.where)
        with _explained(file, self.where):
            before = margin(image.height, image.width, orientation_of(image), factor)
            if factor > 1:
                image.draft(None, (image.width // factor, image.height // factor))
            return np.asarray(to_rgb(image)), before


def open_picture(raw: bytes | Array, where: str) -> Undecoded:
    """What a data set's `read` gave, with its size; `where` is for messages."""
    if isinstance(raw, np.ndarray):
        pixels = raw if raw.dtype == np.uint8 and raw.shape[2:] == (3,) else np.asarray(to_rgb(raw))
        return Undecoded(pixels, where, (pixels.shape[0], pixels.shape[1]), None)
    header = read_header(raw)
    if header is not None and header.height * header.width <= MAX_PIXELS:
        return Undecoded(raw, where, header.upright_size, header)
    file = io.BytesIO(raw)
    image = _open(file, where)
    with _explained(file, where):
        if image.format != "JPEG":  # of others, Pillow decodes all for the orientation, and forgets what was damaged
            return open_picture(np.asarray(to_rgb(image)), where)
        turned = orientation_of(image) >= 5
    return Undecoded(raw, where, (image.width, image.height) if turned else (image.height, image.width), None)


def read_mask(masks: Masks, index: int, size: tuple[int, ...]) -> Array:
    """The class numbers of a picture's pixels, uint8 [H, W], of the height and width that the picture has."""
    where = masks.images.where(index)
    values = mask_values(masks.images.read(index), where)
    if values.shape != tuple(size):
        raise ImageError(
            f"{where} is a mask of {values.shape[1]} x {values.shape[0]} pixels, but its picture has"
            f" {size[1]} x {size[0]}."
        )
    if masks.table is not None:
        return masks.table[values]
    most = int(values.max(initial=0, where=values != IGNORED))
    if most >= len(masks.classes):
        raise ImageError(f"{where} is a mask with the class number {most}, and there are {len(masks.classes)} classes.")
    return values


def mask_values(raw: bytes | Array, where: str) -> Array:
    """What a mask's pixels are as they are stored, uint8 [H, W]: of a palette the places in it."""
    if isinstance(raw, np.ndarray):
        values, has_alpha = raw, False
    else:
        file = io.BytesIO(raw)
        image = _open(file, where)
        with _explained(file, where):
            turn = UPRIGHT.get(orientation_of(image))
            image.load()
            values = np.asarray(image if turn is None else image.transpose(turn))
            has_alpha = image.mode in ("LA", "PA", "RGBA")
    if values.ndim == 3:
        colors = values[..., :-1] if has_alpha else values
        values = colors[..., 0]
        if (colors != values[..., None]).any():
            raise ImageError(f"{where} is a mask of colours: save it as grey levels or a palette, a class number each.")
    if values.dtype == np.bool_ or (
        np.issubdtype(values.dtype, np.integer) and 0 <= values.min() <= values.max() < 256
    ):
        return np.ascontiguousarray(values, np.uint8)
    raise ImageError(f"{where} is a mask of {values.dtype}: class numbers are whole and below 256.")


def find_images(paths: StrPath | Iterable[StrPath]) -> list[Path]:
    """Files as they were given, and the image files under folders, by extension, in sorted order.

    Hidden files and folders are left out, links are followed. That a given file exists is found out by reading it.
    """
    found: list[Path] = []
    for path in [paths] if isinstance(paths, str | os.PathLike) else paths:
        path = Path(path)
        if not path.is_dir():
            found.append(path)
            continue
        inside = sorted(_walk(path))
        if not inside:
            raise ImageError(f"The folder {path} holds no images.")
        found += inside
    return found


def find_inputs(images: Input | Iterable[Input]) -> list[Input]:
    """Every picture of what a caller gave: paths (folders are searched), PIL images or arrays, one or several."""
    if isinstance(images, np.ndarray):
        return list(images) if images.ndim == 4 else [images]
    if isinstance(images, str | os.PathLike | Image.Image):
        images = [images]
    items: list[Input] = []
    for image in images:
        items += find_images(image) if isinstance(image, str | os.PathLike) else [image]
    return items


@functools.cache
def safe_formats() -> tuple[str, ...]:
    """The names of the formats that are tried, those without magic bytes last: they may claim anything."""
    Image.init()
    reads_heic()
    return tuple(sorted(Image.OPEN.keys() - UNSAFE, key=lambda name: (Image.OPEN[name][1] is None, name)))


@functools.cache
def reads_heic() -> bool:
    """Whether HEIC can be decoded: where pi-heif is installed, it becomes one of Pillow's formats."""
    try:
        from pi_heif import register_heif_opener  # another thread may see a broken one half imported
    except ImportError:
        return False
    register_heif_opener()
    return True


@functools.cache
def image_extensions() -> frozenset[str]:
    """The file name extensions of those formats, in lower case with the dot; HEIC's too, for reading to say why not."""
    formats = {*safe_formats(), "MPO"}  # opened as JPEG
    return HEIC | {extension for extension, name in Image.registered_extensions().items() if name in formats}


def _open(file: IO[bytes], path: StrPath) -> Image.Image:
    """An image whose header was read and whose size is bearable."""
    with _explained(file, path):
        image = Image.open(file, formats=safe_formats())
        if image.width * image.height > MAX_PIXELS:
            raise Image.DecompressionBombError
        return image


@contextlib.contextmanager
def _explained(file: IO[bytes], path: StrPath) -> Iterator[None]:
    """Turns what Pillow raises into one sentence on the file."""
    try:
        with quiet_pillow():
            yield
    except UnidentifiedImageError:
        raise ImageError(f"{path} is not an image that can be read{_looks_like(file)}.") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{path} has more than {MAX_PIXELS:,} pixels: too many to decode safely.") from None
    except ImageError as error:
        raise ImageError(f"{path}: {error}") from error
    except Exception as error:  # what plug-ins raise over damaged bytes is anything: struct.error, KeyError, ...
        raise ImageError(f"{path} is damaged or not an image: {reason(error)}.") from error


def _reduction(size: tuple[int, int], min_size: tuple[int, int] | None) -> int:
    """The largest of 8, 4, 2 by which `size` can be divided without falling below `min_size`, or else 1.

    The steps between (7/8, 6/8, ...) have no vector code in libjpeg-turbo: they are slower than the whole.
    """
    if min_size is None:
        return 1
    ratio = min(size[0] / min_size[0], size[1] / min_size[1])
    return next((factor for factor in (8, 4, 2) if ratio >= factor), 1)


def _cut(pixels: Array, box: Box, factor: int, before: tuple[int, int]) -> Array:
    """The box, which counts pixels at full size, of a picture at 1/factor of it that begins `before` the whole one."""
    full = (box[0] + before[0], box[1] + before[1], *box[2:])
    top, left, height, width = full if factor == 1 else (round(edge / factor) for edge in full)
    top, left = max(min(top, pixels.shape[0] - height), 0), max(min(left, pixels.shape[1] - width), 0)
    return pixels[top : top + height, left : left + width]


def _looks_like(file: IO[bytes]) -> str:
    """A word on files that people take for images, and that Pillow does not decode."""
    if not file.seekable():
        return ""
    file.seek(0)
    head = file.read(256)
    if head[4:8] == b"ftyp" and head[8:12] in (b"heic", b"heix", b"hevc", b"mif1", b"msf1") and not reads_heic():
        return f": it is HEIC; to read that, {HEIC_NEEDS}, or save it as JPEG"
    if b"<svg" in head.lower() or head.lstrip().startswith(b"<?xml"):
        return ": it looks like SVG, so draw it as PNG first"
    if head.startswith(b"%!PS"):
        return ": it is PostScript, so draw it as PNG first"
    if head.startswith(b"%PDF"):
        return ": it is PDF, so draw its page as PNG first"
    if head.startswith(b"PK\x03\x04"):
        return ": it is a zip archive, so unpack it first"
    return ""


def _walk(folder: Path) -> Iterator[Path]:
    seen: set[str] = set()
    for here, folders, files in os.walk(folder, followlinks=True, onerror=_cannot_list):
        real = Path(here).resolve()
        if str(real) in seen:
            folders.clear()
            continue
        seen.add(str(real))
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in files:
            path = Path(here, name)
            if not name.startswith(".") and path.suffix.lower() in image_extensions() and path.is_file():
                yield path


def _cannot_list(error: OSError) -> None:
    raise ImageError(f"Cannot read the folder {error.filename}: {error.strerror}.") from error
