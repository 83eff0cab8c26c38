"""The fast decoder beside Pillow, which is the reference throughout."""

import io
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from vitlab.core.errors import ImageError
from vitlab.data import jpeg
from vitlab.data.decoding import MAX_PIXELS, decode, open_picture, read_picture
from vitlab.data.jpeg import decode_jpeg, decoder_name, read_header

Array = np.ndarray[Any, Any]


def photo(height: int, width: int, *, noise: float = 6.0) -> Image.Image:
    """Waves in three colours with noise: something in every frequency."""
    y, x = np.mgrid[:height, :width]
    waves = np.stack([np.sin(x / 9 + y / 23), np.cos(x / 31 - y / 11), np.sin((x + 2 * y) / 47)], axis=-1)
    values = 128 + 90 * waves + np.random.default_rng(0).normal(0, noise, (height, width, 1))
    return Image.fromarray(values.clip(0, 255).astype(np.uint8))


def saved(image: Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def exif(orientation: int) -> bytes:
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags.tobytes()


def pillow(raw: bytes) -> Array:
    """What Pillow alone makes of a file."""
    return np.asarray(ImageOps.exif_transpose(Image.open(io.BytesIO(raw))).convert("RGB"))


def largest_difference(ours: Array, theirs: Array) -> int:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype == np.uint8
    return int(np.abs(ours.astype(int) - theirs).max())


XMP = b'<x:xmpmeta><rdf:RDF><rdf:Description tiff:Orientation="8"/></rdf:RDF></x:xmpmeta>'
FILES: dict[str, tuple[bytes, bool]] = {  # and whether the fast path takes it
    "420": (saved(photo(61, 83), quality=92), True),
    "422": (saved(photo(61, 83), subsampling=1), True),
    "444": (saved(photo(61, 83), subsampling=0), True),
    "grey": (saved(photo(61, 83).convert("L")), True),
    "rgb inside": (saved(photo(61, 83), keep_rgb=True), True),
    "progressive": (saved(photo(61, 83), progressive=True), True),
    "restarts": (saved(photo(61, 83), restart_marker_blocks=2), True),
    "comment": (saved(photo(61, 83), comment=b"\xff\xd8\xff\xc0" * 9), True),
    "thumbnail inside": (saved(photo(61, 83), exif=b"Exif\0\0" + saved(photo(8, 8))), True),
    "more behind": (saved(photo(61, 83)) + b"a maker's own data" * 9, True),
    "two pictures": (saved(photo(61, 83), "MPO", save_all=True, append_images=[photo(61, 83)]), True),
    "one pixel": (saved(photo(1, 1)), True),
    "sliver": (saved(photo(1, 300)), True),
    "cmyk": (saved(photo(61, 83).convert("CMYK")), False),
    "png": (saved(photo(61, 83), "PNG"), False),
    "turned png": (saved(photo(61, 83), "PNG", exif=exif(6)), False),
    "webp": (saved(photo(61, 83), "WEBP", lossless=True), False),
    "xmp": (saved(photo(61, 83), xmp=XMP), True),
    **{f"orientation {i}": (saved(photo(61, 83), exif=exif(i)), True) for i in range(10)},
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("with_simplejpeg", [True, False])
def test_files_decode_as_pillow_decodes_them(name: str, with_simplejpeg: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, fast = FILES[name]
    if not with_simplejpeg:
        monkeypatch.setattr(jpeg, "simplejpeg", None)
    assert (read_header(raw) is not None) == (fast and with_simplejpeg)
    reference = pillow(raw)
    picture = open_picture(raw, name)
    assert picture.size == reference.shape[:2]
    assert largest_difference(decode(raw, name), reference) <= 2
    assert largest_difference(np.asarray(read_picture(raw, name)), reference) == 0


@given(
    st.integers(1, 150),
    st.integers(1, 150),
    st.integers(0, 2),
    st.booleans(),
    st.integers(1, 8),
    st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1), st.floats(0, 1)),
)
def test_a_part_is_the_same_part_of_the_whole(
    height: int, width: int, subsampling: int, progressive: bool, orientation: int, where: tuple[float, ...]
) -> None:
    raw = saved(photo(height, width), subsampling=subsampling, progressive=progressive, exif=exif(orientation))
    reference = pillow(raw)
    full_height, full_width = reference.shape[:2]
    box_height, box_width = 1 + int(where[0] * (full_height - 1)), 1 + int(where[1] * (full_width - 1))
    top, left = int(where[2] * (full_height - box_height)), int(where[3] * (full_width - box_width))
    part = open_picture(raw, "it").crop((top, left, box_height, box_width))
    assert largest_difference(part, reference[top : top + box_height, left : left + box_width]) <= 2


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("rows", [1, 88, 95, 96, 97, 390])
def test_rows_below_the_part_are_not_decoded(rows: int, subsampling: int) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 64, 3), dtype=np.uint8)  # in colour, to the very edge
    raw = saved(Image.fromarray(noise), quality=90, subsampling=subsampling)
    header = read_header(raw)
    assert header is not None
    whole, part = decode_jpeg(raw, header), decode_jpeg(raw, header, rows=rows)
    assert whole is not None
    assert part is not None
    assert whole.shape == (400, 64, 3)
    assert rows <= len(part) < rows + 2 * 16
    np.testing.assert_array_equal(part[:rows], whole[:rows])


@pytest.mark.parametrize("with_simplejpeg", [True, False])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize(
    ("size", "factor"), [((20, 20), 8), ((30, 40), 4), ((64, 64), 2), ((65, 65), 2), ((101, 8), 1)]
)
def test_reduced_decoding_is_near_decoding_and_resizing(
    size: tuple[int, int], factor: int, orientation: int, with_simplejpeg: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_simplejpeg:
        monkeypatch.setattr(jpeg, "simplejpeg", None)
    raw = saved(photo(301, 251, noise=0) if orientation == 1 else photo(256, 304, noise=0), exif=exif(orientation))
    top, left, height, width = 40, 16, 200, 176
    part = open_picture(raw, "it").crop((top, left, height, width), size)
    assert part.shape[:2] == (height // factor, width // factor)
    assert part.shape[0] >= size[0]
    assert part.shape[1] >= size[1]
    box = (left, top, left + width, top + height)
    final = (size[1], size[0])
    reference = Image.fromarray(pillow(raw)).crop(box).resize(final, Image.Resampling.BILINEAR)
    ours = Image.fromarray(part).resize(final, Image.Resampling.BILINEAR)
    assert np.abs(np.asarray(ours).astype(int) - np.asarray(reference)).mean() < 2.5


@pytest.mark.parametrize("with_simplejpeg", [True, False])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_picture_is_cut_at_the_same_place_at_a_reduced_scale(
    orientation: int, with_simplejpeg: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a ramp of colours a place can be read off: red says the stored column, green the row."""
    if not with_simplejpeg:
        monkeypatch.setattr(jpeg, "simplejpeg", None)
    y, x = np.mgrid[:969, :1315]
    ramp = np.stack([x * 255 / 1315, y * 255 / 969, np.full_like(x, 128)], axis=-1)
    raw = saved(Image.fromarray(ramp.round().astype(np.uint8)), quality=98, subsampling=0, exif=exif(orientation))
    upright = pillow(raw).astype(float)
    box = (61, 203, 512, 640)
    found = open_picture(raw, "ramp").crop(box, (64, 64))
    assert found.shape[:2] == (64, 80)
    wanted = upright[61 : 61 + 512, 203 : 203 + 640]
    levels = np.abs(found.mean(axis=(0, 1)) - wanted.mean(axis=(0, 1)))[:2]
    pixels = levels * np.array([1315, 969]) / 255
    assert (pixels <= 4.5).all(), pixels  # half a pixel of the reduced picture, and rounding


def test_a_whole_picture_may_come_smaller_but_not_too_small() -> None:
    raw = saved(photo(301, 451))
    assert decode(raw, "it").shape == (301, 451, 3)
    assert decode(raw, "it", min_size=(100, 100)).shape == (150, 226, 3)
    assert decode(raw, "it", min_size=(302, 100)).shape == (301, 451, 3)


def test_arrays_are_cut_and_grey_ones_coloured() -> None:
    values = np.arange(48, dtype=np.uint8).reshape(6, 8)
    picture = open_picture(values, "it")
    assert picture.size == (6, 8)
    np.testing.assert_array_equal(picture.crop((1, 2, 3, 4)), np.repeat(values[1:4, 2:6, None], 3, axis=2))
    coloured = np.random.default_rng(0).integers(0, 256, (6, 8, 3), dtype=np.uint8)
    np.testing.assert_array_equal(decode(coloured, "it", min_size=(2, 2)), coloured)


WHOLE = saved(photo(61, 83), quality=92)
DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "cut in the header": WHOLE[:100],
    "cut in the middle": WHOLE[: len(WHOLE) // 2],
    "only a start": b"\xff\xd8\xff",
    "no pixels": WHOLE[:2] + b"\xff\xd9",
    "tables overwritten": WHOLE[:30] + bytes(400) + WHOLE[430:],
    "text": b"not an image at all",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_named(name: str) -> None:
    raw = DAMAGED[name]
    with pytest.raises(OSError):  # noqa: PT011  Pillow's UnidentifiedImageError is one as well
        pillow(raw)
    with pytest.raises(ImageError, match=r"photos/17\.jpg"):
        decode(raw, "photos/17.jpg")
    with pytest.raises(ImageError, match=r"photos/17\.jpg"):
        read_picture(raw, "photos/17.jpg")


FORMS: dict[str, bytes] = {
    "sequential": WHOLE,
    "progressive": saved(photo(64, 48), "JPEG", quality=95, progressive=True),
    "with restarts": saved(photo(64, 48), "JPEG", quality=95, restart_marker_blocks=2),
    "PNG": saved(photo(64, 48), "PNG"),
    "TIFF": saved(photo(64, 48), "TIFF", compression="tiff_lzw"),
}


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=100)
@given(st.data())
def test_whatever_is_overwritten_decodes_as_with_pillow_or_is_an_error(form: str, data: st.DataObject) -> None:
    whole = FORMS[form]
    start = data.draw(st.integers(2, len(whole) - 1))
    junk = data.draw(st.integers(0, 2**32)), data.draw(st.integers(1, 200))
    raw = whole[:start] + np.random.default_rng(junk[0]).bytes(junk[1]) + whole[start + junk[1] :]
    try:
        reference = np.asarray(read_picture(raw, "it"))  # Pillow, as for `predict`
    except ImageError:
        with pytest.raises(ImageError):
            decode(raw, "it")
    else:
        np.testing.assert_array_equal(decode(raw, "it"), reference)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_bomb_is_refused_before_it_is_decoded(kind: str) -> None:
    raw = bytearray(saved(photo(16, 16), kind))
    if kind == "JPEG":
        at = raw.index(b"\xff\xc0") + 5
        raw[at : at + 4] = (65000).to_bytes(2) * 2
    else:
        raw[16:24] = (65000).to_bytes(4) * 2
        raw[29:33] = zlib.crc32(raw[12:29]).to_bytes(4)
    with pytest.raises(ImageError, match=f"bomb has more than {MAX_PIXELS:,} pixels"):
        decode(bytes(raw), "bomb")


def test_the_decoder_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    assert decoder_name().startswith("simplejpeg ")
    monkeypatch.setattr(jpeg, "simplejpeg", None)
    assert decoder_name().startswith("Pillow ")
