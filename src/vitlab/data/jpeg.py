"""The fast path for JPEG: simplejpeg, at a reduced scale, and without the rows below the wanted ones.

Entropy decoding is most of the time; it has to begin at the top of the picture but may stop early. At full scale the
pixels are bit for bit Pillow's. What is out of the ordinary is left to Pillow, which also judges what is damaged.
"""

import io
import re
from dataclasses import dataclass

import numpy as np
from PIL import Image
from PIL import __version__ as pillow_version

from vitlab.core.pictures import orientation_of, quiet_pillow
from vitlab.data.contract import Array

try:
    import simplejpeg
except ImportError:  # it has no wheel for some platforms
    simplejpeg = None

# ITU-T T.81, table B.1: baseline, extended sequential and progressive frames with Huffman coding; EXIF and XMP; scan
SEQUENTIAL, PROGRESSIVE, APP1, SCAN = (0xC0, 0xC1), 0xC2, 0xE1, 0xDA
OTHER_FRAMES = frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
# what may stand between scans: tables, restart interval, comment, the next scan; and what ends the last
RESTARTS, END = 0xDD, 0xD9
BETWEEN_SCANS = frozenset({0xC4, 0xDB, RESTARTS, 0xFE, SCAN})
# but for stuffed and fill bytes, and for restarts where there is an interval, which are among coded pixels
MARKER, NO_RESTART = re.compile(rb"\xff[^\x00\xff]"), re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")


@dataclass(frozen=True)
class Header:
    """What a JPEG file says of itself before its pixels."""

    height: int  # as stored, which for half of the orientations is the width of the upright picture
    width: int
    orientation: int  # EXIF's, 1 to 8; 1 is upright
    height_at: int | None  # where the file keeps its height, if its rows come in order
    band: int  # rows that are coded together

    @property
    def upright_size(self) -> tuple[int, int]:
        """Height and width of the upright picture."""
        return (self.width, self.height) if self.orientation >= 5 else (self.height, self.width)


def margin(height: int, width: int, orientation: int, factor: int) -> tuple[int, int]:
    """How far the upright picture at 1/`factor` begins before the whole one, in rows and columns at full size.

    A size that `factor` does not divide is rounded up at the end of what is stored, where turned pictures begin.
    """
    rows = -height % factor if orientation in (3, 4, 6, 7) else 0
    columns = -width % factor if orientation in (2, 3, 7, 8) else 0
    return (columns, rows) if orientation >= 5 else (rows, columns)


def decoder_name() -> str:
    """What decodes here, for the record of a run."""
    pillow = f"Pillow {pillow_version}"
    return pillow if simplejpeg is None else f"simplejpeg {simplejpeg.__version__}, {pillow}"


def read_header(data: bytes) -> Header | None:
    """The header of a JPEG that simplejpeg decodes as Pillow does; None for any other file, and for damaged ones."""
    if simplejpeg is None or not data.startswith(b"\xff\xd8\xff"):
        return None
    frame: tuple[int, int] | None = None  # where it is, its marker
    tagged = False
    at = 2
    while at + 4 <= len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
            continue
        if marker in OTHER_FRAMES:
            return None
        if marker in SEQUENTIAL or marker == PROGRESSIVE:
            frame = (at, marker)
        elif marker == APP1:
            tagged = True
        elif marker == SCAN:
            return None if frame is None else _header(data, *frame, scan=at, tagged=tagged)
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
    return None


def decode_jpeg(data: bytes, header: Header, *, factor: int = 1, rows: int | None = None) -> Array | None:
    """Upright RGB [H, W, 3] of 1/`factor` of the size (1, 2, 4, 8); None where Pillow has to try.

    Of a picture that is stored upright, only the first `rows` (counted at full size) are sure to be there.
    """
    height = header.height
    if rows is not None and header.height_at is not None and header.orientation == 1:
        # one band more than is wanted: the colours of neighbouring bands are interpolated
        cut = (-(-rows // header.band) + 1) * header.band
        if cut < height:
            height, at = cut, header.height_at
            data = data[:at] + cut.to_bytes(2) + data[at + 2 :]
    assert simplejpeg is not None
    try:
        # Not strict, as Pillow is not: a file whose end is cut off has no header here.
        pixels = simplejpeg.decode_jpeg(
            data, min_height=-(-height // factor), min_width=-(-header.width // factor), strict=False
        )
    except ValueError:
        return None
    return _upright(pixels, header.orientation)


def _header(data: bytes, frame: int, marker: int, *, scan: int, tagged: bool) -> Header | None:
    precision, num_components = data[frame + 4], data[frame + 9]
    height, width = int.from_bytes(data[frame + 5 : frame + 7]), int.from_bytes(data[frame + 7 : frame + 9])
    if precision != 8 or num_components not in (1, 3) or not height or not width or not _is_whole(data, scan):
        return None
    in_order = marker != PROGRESSIVE and data[scan + 4] == num_components
    sampling = [data[frame + 11 + 3 * i] & 15 for i in range(num_components)]
    return Header(
        height, width, _orientation(data) if tagged else 1, frame + 5 if in_order else None, 8 * max(sampling)
    )


def _is_whole(data: bytes, scan: int) -> bool:
    """Whether the coded pixels end as they should, with no marker among them that overwritten bytes would make."""
    at, marker = scan, NO_RESTART if data.find(bytes((0xFF, RESTARTS, 0, 4)), 0, scan) >= 0 else MARKER
    while data[at + 1] in BETWEEN_SCANS:
        found = marker.search(data, at + 2 + int.from_bytes(data[at + 2 : at + 4]))
        if found is None:
            return False
        at = found.start()
    return data[at + 1] == END


def _orientation(data: bytes) -> int:
    """As Pillow reads it, from EXIF or XMP; it decodes nothing for that."""
    try:
        with quiet_pillow():
            return orientation_of(Image.open(io.BytesIO(data), formats=("JPEG",)))
    except Exception:  # noqa: BLE001  what plug-ins raise over damaged bytes is anything
        return 1


def _upright(pixels: Array, orientation: int) -> Array:
    """The array form of core.pictures.UPRIGHT."""
    match orientation:
        case 2:
            return pixels[:, ::-1]
        case 3:
            return pixels[::-1, ::-1]
        case 4:
            return pixels[::-1]
        case 5:
            return pixels.swapaxes(0, 1)
        case 6:
            return np.rot90(pixels, -1)
        case 7:
            return pixels[::-1, ::-1].swapaxes(0, 1)
        case 8:
            return np.rot90(pixels)
        case _:
            return pixels
