import base64
import io
import os
import pickle
import struct
import subprocess
import sys
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, features

from vitlab.core.errors import DataError, ImageError
from vitlab.core.pictures import to_rgb
from vitlab.data import decoding
from vitlab.data.decoding import (
    MAX_PIXELS,
    decode,
    find_images,
    image_extensions,
    open_picture,
    read_image,
    reads_heic,
    safe_formats,
)
from vitlab.data.open import open_data
from vitlab.data.sources.files import Files

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def png(width: int, height: int, bits: int, color: int, rows: bytes, *chunks: tuple[bytes, bytes]) -> bytes:
    """A PNG written by its specification; `rows` with a filter byte before each."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, bits, color, 0, 0, 0)
    body = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*item) for item in body)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def plain(color: Any, mode: str = "RGB", size: tuple[int, int] = (16, 16)) -> Image.Image:
    return Image.new(mode, size, color)


def half_clear() -> Image.Image:
    """Red on the left, nothing on the right."""
    image = plain((*RED, 255), "RGBA")
    image.paste((0, 0, 0, 0), (8, 0, 16, 16))
    return image


def oriented(kind: str, orientation: int, **options: Any) -> bytes:
    """A picture 16 wide and 8 high, red on top when upright, stored as 6 ('right, top') or 3 ('bottom, right')."""
    upright = plain(BLUE, size=(16, 8))
    upright.paste(RED, (0, 0, 16, 4))
    turned = upright.transpose({3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90}[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(turned, kind, exif=exif.tobytes(), **options)


FRAMES: dict[str, Any] = {"save_all": True, "append_images": [plain(GREEN), plain(BLUE)]}
# name: the file, then what the pixels at (2, 2) and at (-3, -3) are, to within a tolerance
GOOD: dict[str, tuple[bytes, tuple[int, ...], tuple[int, ...], int]] = {
    "plain.jpg": (saved(plain(RED), "JPEG"), RED, RED, 2),
    "progressive.jpg": (saved(plain(RED), "JPEG", progressive=True), RED, RED, 2),
    "grey.jpg": (saved(plain(100, "L"), "JPEG"), (100,) * 3, (100,) * 3, 2),
    "cmyk.jpg": (saved(plain((0, 255, 255, 0), "CMYK"), "JPEG"), RED, RED, 3),
    "cmyk.tif": (saved(plain((255, 0, 255, 0), "CMYK"), "TIFF"), GREEN, GREEN, 0),
    "grey 16 bits.png": (png(4, 4, 16, 0, (b"\0" + b"\x64\x64" * 4) * 4), (100,) * 3, (100,) * 3, 0),
    "grey 16 bits with clear.png": (
        png(4, 4, 16, 0, (b"\0" + b"\x64\x64" * 4) * 4, (b"tRNS", b"\x64\x64")),
        WHITE,
        WHITE,
        0,
    ),
    "grey 16 bits.tif": (saved(Image.fromarray(np.full((4, 4), 25700, np.uint16)), "TIFF"), (100,) * 3, (100,) * 3, 0),
    "grey 16 bits.pgm": (b"P5 4 4 65535\n" + b"\x64\x64" * 16, (100,) * 3, (100,) * 3, 0),
    "rgb 16 bits.png": (png(4, 4, 16, 2, (b"\0" + b"\xff\xff\0\0\0\0" * 4) * 4), RED, RED, 0),
    "rgba 16 bits.png": (png(4, 4, 16, 6, (b"\0" + b"\xff\xff\0\0\0\0\0\0" * 4) * 4), WHITE, WHITE, 0),
    "one bit.png": (saved(plain(1, "1"), "PNG"), WHITE, WHITE, 0),
    "two bits.png": (png(4, 4, 2, 0, b"\0\xaa" * 4), (170,) * 3, (170,) * 3, 0),
    "grey and alpha.png": (saved(half_clear().convert("LA"), "PNG"), (76,) * 3, WHITE, 1),
    "alpha.png": (saved(half_clear(), "PNG"), RED, WHITE, 0),
    "clear colour.png": (png(4, 4, 8, 2, (b"\0" + bytes(RED) * 4) * 4, (b"tRNS", b"\0\xff\0\0\0\0")), WHITE, WHITE, 0),
    "palette.png": (saved(plain(RED).quantize(2), "PNG"), RED, RED, 0),
    "palette and alphas.png": (
        png(4, 4, 8, 3, (b"\0" + b"\0\0\1\1") * 4, (b"PLTE", bytes(RED + GREEN)), (b"tRNS", b"\xff\0")),
        RED,
        WHITE,
        0,
    ),
    "alpha.gif": (saved(half_clear(), "GIF"), RED, WHITE, 0),
    "animated.gif": (saved(plain(RED), "GIF", **FRAMES), RED, RED, 0),
    "animated.png": (saved(plain(RED), "PNG", **FRAMES), RED, RED, 0),
    "pages.tif": (saved(plain(RED), "TIFF", **FRAMES), RED, RED, 0),
    "packed.tif": (saved(plain(RED), "TIFF", compression="tiff_lzw"), RED, RED, 0),
    "float.tif": (saved(plain(1.0, "F"), "TIFF"), WHITE, WHITE, 0),
    "lab.tif": (saved(plain((255, 128, 128), "LAB"), "TIFF"), WHITE, WHITE, 2),
    "plain.bmp": (saved(plain(RED), "BMP"), RED, RED, 0),
    "plain.ppm": (b"P6 4 4 255\n" + bytes(RED) * 16, RED, RED, 0),
    "text.ppm": (b"P3 2 4 1 " + b"1 0 0 " * 8, RED, RED, 0),
    "plain.tga": (saved(plain(RED), "TGA"), RED, RED, 0),
    "alpha.ico": (saved(half_clear(), "ICO", sizes=[(16, 16)]), RED, WHITE, 0),
    "plain.pcx": (saved(plain(RED), "PCX"), RED, RED, 0),
    "plain.sgi": (saved(plain(RED), "SGI"), RED, RED, 0),
    "stereo.mpo": (saved(plain(RED), "MPO", **FRAMES), RED, RED, 2),
    "turned.jpg": (oriented("JPEG", 6, quality=95), RED, BLUE, 8),
    "turned.png": (oriented("PNG", 6), RED, BLUE, 0),
    "turned.tif": (oriented("TIFF", 6), RED, BLUE, 0),
    "upside down.jpg": (oriented("JPEG", 3, quality=95), RED, BLUE, 8),
    "wrong.name.txt": (saved(plain(RED), "PNG"), RED, RED, 0),
}
if features.check("webp"):
    GOOD |= {
        "plain.webp": (saved(plain(RED), "WEBP", lossless=True), RED, RED, 0),
        "alpha.webp": (saved(half_clear(), "WEBP", lossless=True), RED, WHITE, 0),
        "animated.webp": (saved(plain(RED), "WEBP", lossless=True, **FRAMES), RED, RED, 0),
        "turned.webp": (oriented("WEBP", 6, lossless=True), RED, BLUE, 0),
    }
if features.check("avif"):
    GOOD |= {"plain.avif": (saved(plain(RED), "AVIF"), RED, RED, 8)}
if features.check("jpg_2000"):
    GOOD |= {"plain.jp2": (saved(plain(RED), "JPEG2000"), RED, RED, 0)}


@pytest.mark.parametrize("name", GOOD)
def test_any_image_becomes_upright_rgb(name: str, tmp_path: Path) -> None:
    data, first, last, tolerance = GOOD[name]
    path = tmp_path / name
    path.write_bytes(data)
    image = read_image(path)
    assert image.mode == "RGB"
    pixels = np.asarray(image).astype(int)
    np.testing.assert_allclose(pixels[2, 2] if image.width > 4 else pixels[0, 0], first, atol=tolerance)
    np.testing.assert_allclose(pixels[-1, -1], last, atol=tolerance)
    for later in (to_rgb(image), pickle.loads(pickle.dumps(image)), image.copy()):  # the file is closed by now
        np.testing.assert_array_equal(np.asarray(later), np.asarray(image))
    if name.startswith(("turned", "upside")):
        assert image.size == (16, 8)
    np.testing.assert_allclose(decode(data, name), pixels, atol=1)  # what training reads
    assert open_picture(data, name).size == (image.height, image.width)


def chunky(kind: bytes, data: bytes) -> bytes:
    return png(4, 4, 8, 2, (b"\0" + bytes(RED) * 4) * 4, (kind, data))


@pytest.mark.parametrize(
    "data",
    [
        saved(plain(RED), "JPEG", exif=b"Exif\0\0II*\0\x08\0\0\0\xff\xff" + b"\x12\x01\x03\0" * 9),
        saved(plain(RED), "JPEG", exif=b"Exif\0\0nonsense"),
        chunky(b"eXIf", b"MM\0*\0\0\0\x08\0\1\x01\x12\0\x07\xff\xff\xff\xff\0\0\0\0"),
        chunky(b"iCCP", b"x\0\0" + zlib.compress(b"not a profile")),
        chunky(b"acTL", bytes(8)),
    ],
    ids=["EXIF with too many tags", "EXIF of no kind", "EXIF of a wrong type", "profile", "animation of no frames"],
)
def test_damaged_metadata_do_not_spoil_a_good_picture(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.jpg"
    path.write_bytes(data)
    np.testing.assert_allclose(np.asarray(read_image(path))[0, 0].astype(int), RED, atol=2)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
BOMB = png(100_000, 100_000, 8, 2, b"")
BAD: dict[str, tuple[bytes, str]] = {
    "empty.jpg": (b"", r"empty\.jpg is empty\.$"),
    "text.jpg": (b"this is not an image\n" * 20, r"text\.jpg is not an image that can be read\.$"),
    "zeros.png": (bytes(1000), r"zeros\.png is not an image that can be read\.$"),
    "short.jpg": (b"\xff\xd8", r"short\.jpg is not an image that can be read\.$"),
    "page.jpg": (b"<!DOCTYPE html><html></html>", r"not an image that can be read\.$"),
    "drawing.svg": (b'<svg xmlns="http://www.w3.org/2000/svg"/>', r"looks like SVG, so draw it as PNG first\.$"),
    "declared.svg": (b'<?xml version="1.0"?><svg/>', r"looks like SVG"),
    "phone.heic": (b"\0\0\0\x18ftypheic" + bytes(100), r"phone\.heic is not an image that can be read\.$"),
    "paper.pdf": (b"%PDF-1.7\n" + bytes(100), r"it is PDF"),
    "photos.zip": (b"PK\x03\x04" + bytes(100), r"it is a zip archive, so unpack it first"),
    "script.eps": (
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        r"it is PostScript, so draw it as PNG first\.$",
    ),
    "bomb.png": (BOMB, r"bomb\.png has more than 178,956,970 pixels: too many to decode safely\.$"),
    "bomb.gif": (
        b"GIF89a\xff\xff\xff\xff\0\0\0" + b",\0\0\0\0\xff\xff\xff\xff\0\2\0;",
        r"more than 178,956,970 pixels",
    ),
    "bomb.bmp": (
        b"BM" + struct.pack("<IIIIiiHHIIIIII", 54, 0, 54, 40, 50_000, 50_000, 1, 24, 0, 0, 0, 0, 0, 0),
        r"more than 178,956,970 pixels",
    ),
    "huge.ppm": (b"P6 99999999 99999999 255\n", r"more than 178,956,970 pixels"),
    "no pixels.png": (png(4, 4, 8, 2, b""), r"no pixels\.png: .* cannot be decoded: .*truncated"),
    "cut.jpg": (saved(NOISE, "JPEG")[:-800], r"cut\.jpg: .* cannot be decoded: image file is truncated .*\.$"),
    "cut early.jpg": (saved(NOISE, "JPEG")[:100], r"cut early\.jpg is damaged or not an image: .*Truncated"),
    "cut.tif": (saved(plain(RED), "TIFF")[:-200], r"cut\.tif"),
    "cut.webp": (saved(plain(RED), "WEBP")[:-8], r"cut\.webp") if features.check("webp") else (b"", "empty"),
    "wide range.tif": (saved(plain(70_000, "I"), "TIFF"), r"wide range\.tif: .* do not fit 16 bits"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_image_gets_one_sentence_with_its_name(name: str, tmp_path: Path) -> None:
    data, sentence = BAD[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ImageError, match=sentence) as caught:
        read_image(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(ImageError):
        decode(data, name)


def test_missing_files_folders_and_devices(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"^There is no file .*gone\.jpg\.$"):
        read_image(tmp_path / "gone.jpg")
    with pytest.raises(ImageError, match=r"is a folder, not an image\.$"):
        read_image(tmp_path)
    with pytest.raises(ImageError, match=r"^Cannot read /dev/zero: a device, not a file\.$"):
        read_image("/dev/zero")
    with pytest.raises(ImageError, match=r"^Cannot read 'a\\x00b': embedded null byte\.$"):
        read_image("a\0b")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(ImageError, match=r"^Cannot read .*loop: "):
        read_image(tmp_path / "loop")


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match=r"^Cannot read .*pipe\.png: a pipe, not a file\.$"):
        read_image(tmp_path / "pipe.png")
    with pytest.raises(ImageError, match=r"^Cannot read .*pipe\.png: a pipe, not a file\.$"):
        Files(tmp_path, ["pipe.png"], [0]).read(0)


def test_pillows_warning_about_size_is_neither_shown_nor_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(saved(plain(RED, size=(12, 12)), "PNG"))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        assert read_image(path).size == (12, 12)
    assert shown == []


def test_our_bound_holds_where_pillows_was_taken_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(BOMB)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    with pytest.raises(ImageError, match="more than"):
        read_image(path)
    assert MAX_PIXELS * 3 < 2**29


def test_no_program_is_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError(arguments, options)

    monkeypatch.setattr(subprocess, "Popen", refuse)
    path = tmp_path / "a.png"
    path.write_bytes(BAD["script.eps"][0])
    with pytest.raises(ImageError):
        read_image(path)
    assert not {"EPS", "WMF", "IPTC"} & set(safe_formats())
    assert {"JPEG", "PNG", "GIF", "TIFF", "BMP", "PPM"} <= set(safe_formats())


SEEDS = [data for data, *_ in GOOD.values()]


@settings(max_examples=300)
@given(st.sampled_from(SEEDS), st.data())
def test_no_bytes_make_anything_but_a_picture_or_our_error(
    tmp_path_factory: pytest.TempPathFactory, seed: bytes, data: st.DataObject
) -> None:
    damaged = bytearray(seed[: data.draw(st.integers(0, len(seed)) | st.just(len(seed)))])
    for place, value in data.draw(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 255)), max_size=6)):
        if place < len(damaged):
            damaged[place] = value
    path = tmp_path_factory.getbasetemp() / "fuzz"
    path.write_bytes(damaged)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoding, "MAX_PIXELS", 100_000)  # damaged sizes are to be found, not waited for
        patch.setattr(Image, "MAX_IMAGE_PIXELS", 50_000)
        try:
            assert read_image(path).mode == "RGB"
        except ImageError as error:
            assert str(path) in str(error)  # noqa: PT017


def tree(folder: Path, *names: str) -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")


def test_folders_are_searched_in_sorted_order(tmp_path: Path) -> None:
    tree(tmp_path, "b/2.jpg", "b/10.JPG", "a/z.png", "a/deep er/y.webp", "top.gif", "b/notes.txt", "b/v.mp4")
    tree(tmp_path, ".hidden.jpg", ".cache/x.jpg", "b/._2.jpg", "a/script.eps", "a/data.h5")
    names = [str(path.relative_to(tmp_path)) for path in find_images([tmp_path])]
    assert names == ["a/deep er/y.webp", "a/z.png", "b/10.JPG", "b/2.jpg", "top.gif"]


def test_files_stay_as_given_and_in_place(tmp_path: Path) -> None:
    tree(tmp_path, "f/a.png", "f/b.png", "notes.txt")
    given_paths = [tmp_path / "notes.txt", tmp_path / "f", tmp_path / "missing.jpg", tmp_path / "f" / "a.png"]
    assert find_images(given_paths) == [
        tmp_path / "notes.txt",
        tmp_path / "f" / "a.png",
        tmp_path / "f" / "b.png",
        tmp_path / "missing.jpg",
        tmp_path / "f" / "a.png",
    ]
    assert find_images(str(tmp_path / "notes.txt")) == [tmp_path / "notes.txt"]


def test_links_are_followed_and_circles_end(tmp_path: Path) -> None:
    tree(tmp_path, "photos/a.png", "elsewhere/b.png")
    (tmp_path / "photos" / "more").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "back").symlink_to(tmp_path / "photos")
    (tmp_path / "photos" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    found = [str(path.relative_to(tmp_path / "photos")) for path in find_images(tmp_path / "photos")]
    assert found == ["a.png", "more/b.png"]


def test_a_folder_without_images_is_an_error(tmp_path: Path) -> None:
    tree(tmp_path, "notes.txt", ".hidden.jpg")
    with pytest.raises(ImageError, match=r"^The folder .* holds no images\.$"):
        find_images([tmp_path])


def test_extensions_are_those_of_the_formats_that_are_read() -> None:
    assert {".jpg", ".jpeg", ".png", ".gif", ".tif", ".tiff", ".bmp", ".webp", ".ppm", ".mpo"} <= image_extensions()
    assert not {".eps", ".ps", ".pdf", ".h5", ".hdf", ".mpg", ".wmf", ".txt", ""} & image_extensions()


# 16 x 32 px, red above blue, by pillow-heif, which encodes too
HEIC_PHOTO = """
AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAXxtZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAAACJpbG9jAAAAAERA
AAEAAQAAAAABoAABAAAAAAAAAKQAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAAA5waXRtAAAAAAABAAAA/GlwcnAAAADcaXBjbwAA
AHVodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMAAAMAHroCQGEAAQApQgEBA3AAAAMAkAAAAwAAAwAeoCCBBZbq
rprm4CGgwIAAAAyAAAADAIRiAAEABkQBwXPBiQAAABNjb2xybmNseAABAA0ABoAAAAAUaXNwZQAAAAAAAABAAAAAQAAAAChjbGFwAAAAEAAAAAEAAAAg
AAAAAf///9AAAAAC////4AAAAAIAAAAQcGl4aQAAAAADCAgIAAAAGGlwbWEAAAAAAAAAAQABBYECAwWEAAAArG1kYXQAAACgKAGvBjIcpyDwiSDwv6+E
///wVf2X7U7azWyeuEfoYu22/yRR338yt3//AZq7mTL3Ee/5WfcT6OvXxC58ufipqDYwce6ibGqh5Ng003RCd0QAir3cf+MyQ1qEzzeRRgqci70DP/jM
kNfU5FbHDVa8CyxAvbYamq6kNZdNtKSpcbykKzFsCSZIbjC1kI69DxPd/V9btWfrevnQINtd8T0c2A==
"""


@pytest.fixture
def without_heic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As where pi-heif is not installed."""
    cached = (reads_heic, safe_formats, image_extensions)
    monkeypatch.setitem(sys.modules, "pi_heif", None)
    monkeypatch.delitem(Image.OPEN, "HEIF", raising=False)
    for function in cached:
        function.cache_clear()
    yield
    for function in cached:
        function.cache_clear()


def test_phones_photos_are_read(tmp_path: Path) -> None:
    path = tmp_path / "photo.HEIC"
    path.write_bytes(base64.b64decode(HEIC_PHOTO))
    pixels = np.asarray(read_image(path)).astype(int)
    assert pixels.shape == (32, 16, 3)
    np.testing.assert_allclose(pixels[4:12, 4:12], np.broadcast_to([200, 30, 30], (8, 8, 3)), atol=12)
    np.testing.assert_allclose(pixels[20:28, 4:12], np.broadcast_to([30, 30, 200], (8, 8, 3)), atol=12)
    Image.new("RGB", (8, 8), (30, 200, 30)).save(tmp_path / "photo.avif")
    np.testing.assert_allclose(np.asarray(read_image(tmp_path / "photo.avif"))[4, 4], [30, 200, 30], atol=8)


@pytest.mark.usefixtures("without_heic")
def test_without_its_decoder_heic_is_named(tmp_path: Path) -> None:
    (tmp_path / "photo.heic").write_bytes(base64.b64decode(HEIC_PHOTO))
    [found] = find_images(tmp_path)
    with pytest.raises(
        ImageError, match=r"it is HEIC; to read that, pip install 'vitlab\[heic\]', or save it as JPEG\.$"
    ):
        read_image(found)


@pytest.mark.usefixtures("without_heic")
def test_a_decoder_that_another_thread_failed_to_import_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one thread imports a broken package, another one is given as much of it as there is."""
    monkeypatch.setitem(sys.modules, "pi_heif", ModuleType("pi_heif"))
    assert not reads_heic()


@pytest.mark.usefixtures("without_heic")
def test_heic_in_a_folder_of_classes_is_named(tmp_path: Path) -> None:
    for name in ("cats/1.heic", "cats/2.HEIC", "dogs/1.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        plain(RED).save(tmp_path / name, format="JPEG")
    with pytest.raises(DataError, match=r"images of 1 of its 2 classes: 2 pictures are HEIC and were left out \(cats"):
        open_data(tmp_path)
    plain(RED).save(tmp_path / "cats" / "3.jpg")
    dataset = open_data(tmp_path, val_fraction=0)
    assert len(dataset.splits["train"]) == 2
    assert any("2 pictures are HEIC and were left out" in note for note in dataset.notes)
