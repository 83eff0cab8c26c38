"""Images that people and attackers send: names to bytes."""

import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image, ImageCms


def picture(width: int = 40, height: int = 30) -> Image.Image:
    """Something with no symmetry, so that every turn and every channel shows."""
    y, x = np.mgrid[:height, :width]
    values = np.stack([x * 255 // width, y * 255 // height, (x * y) % 256], axis=-1)
    return Image.fromarray(values.astype(np.uint8))


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def turned(orientation: int, kind: str = "JPEG") -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return saved(picture(), kind, exif=exif.tobytes())


def chunk(kind: bytes, data: bytes, *, checksum: int | None = None) -> bytes:
    """A chunk of a PNG file."""
    crc = zlib.crc32(kind + data) if checksum is None else checksum
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", crc)


def png(width: int, height: int, data: bytes, *before: bytes, depth: int = 8, color: int = 2) -> bytes:
    """A PNG file whose header may say anything."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(before) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def with_jpeg_size(raw: bytes, height: int, width: int) -> bytes:
    """A JPEG whose frame header says another size."""
    at = raw.index(b"\xff\xc0") + 5
    return raw[:at] + struct.pack(">HH", height, width) + raw[at + 4 :]


def many_scans(num: int) -> bytes:
    """A progressive JPEG that repeats its last scan: few bytes, but a pass over all pixels each."""
    raw = saved(picture(), "JPEG", progressive=True)
    scan = raw[raw.rindex(b"\xff\xda") : -2]
    return raw[:-2] + scan * num + raw[-2:]


def animated(kind: str) -> bytes:
    frames = [picture(), Image.new("RGB", (40, 30), "red"), Image.new("RGB", (40, 30), "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    return saved(frames[0], kind, save_all=True, append_images=frames[1:], duration=50, **options)


def gif_of(width: int, height: int, frame_width: int, frame_height: int) -> bytes:
    """A GIF whose first frame is larger than its screen."""
    raw = bytearray(saved(picture(8, 8).convert("P"), "GIF"))
    raw[6:10] = struct.pack("<HH", width, height)
    at = raw.index(b"\x2c\x00\x00\x00\x00") + 5
    raw[at : at + 4] = struct.pack("<HH", frame_width, frame_height)
    return bytes(raw)


def _files() -> dict[str, bytes]:
    plain, jpeg, whole_png = picture(), saved(picture(), "JPEG", quality=95), saved(picture(), "PNG")
    grey16 = Image.fromarray(np.asarray(plain.convert("L")).astype(np.uint16) * 257)
    clear = plain.copy()
    clear.putalpha(Image.linear_gradient("L").resize(plain.size))
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    zeros = zlib.compress(bytes(10_000_000), 9)
    svg = b'<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"><image href="http://127.0.0.1:1/x"/></svg>'
    bmp, tiff = saved(plain, "BMP"), saved(plain, "TIFF")
    return {
        # what is right, in every kind
        "jpeg": jpeg,
        "progressive": saved(plain, "JPEG", progressive=True),
        "jpeg 4:4:4": saved(plain, "JPEG", subsampling=0),
        "png": whole_png,
        "webp": saved(plain, "WEBP", lossless=True),
        "gif": saved(plain.convert("P"), "GIF"),
        "bmp": bmp,
        "CMYK": saved(plain.convert("CMYK"), "JPEG"),
        "grey": saved(plain.convert("L"), "JPEG"),
        "one bit": saved(plain.convert("1"), "PNG"),
        "16-bit grey": saved(grey16, "PNG"),
        "16-bit RGB": png(2, 1, zlib.compress(b"\0" + struct.pack(">6H", 0, 30000, 65535, 9, 99, 999)), depth=16),
        "palette": saved(plain.convert("P"), "PNG"),
        "palette with transparency": saved(plain.convert("P"), "PNG", transparency=3),
        "grey with alpha": saved(clear.convert("LA"), "PNG"),
        "alpha": saved(clear, "PNG"),
        "interlaced": saved(plain, "GIF", interlace=1),
        "animated GIF": animated("GIF"),
        "animated PNG": animated("PNG"),
        "animated WebP": animated("WEBP"),
        "several pictures in a JPEG": saved(plain, "MPO", save_all=True, append_images=[plain]),
        **{f"EXIF orientation {number}": turned(number) for number in range(1, 9)},
        "EXIF orientation in PNG": turned(6, "PNG"),
        "EXIF orientation 99": turned(99),
        "EXIF that is noise": saved(plain, "JPEG", exif=b"Exif\0\0II*\0" + b"\xff" * 400),
        "ICC profile": saved(plain, "JPEG", icc_profile=profile),
        "ICC profile that is noise": saved(plain, "JPEG", icc_profile=b"\xff" * 3000),
        "one pixel": saved(picture(1, 1), "PNG"),
        "a sliver": saved(picture(3000, 1), "PNG"),
        "bytes after the end": jpeg + b"PK\x03\x04 and a whole archive" * 20,
        "JPEG and HTML": jpeg[:2] + b"\xff\xfe\x00\x20" + b"<script>alert(1)</script>".ljust(30) + jpeg[2:],
        # what is wrong
        "nothing but a mark": b"\xff\xd8\xff",
        "truncated JPEG": jpeg[: len(jpeg) // 2],
        "truncated in its head": jpeg[:100],
        "truncated PNG": whole_png[: len(whole_png) // 2],
        "truncated WebP": saved(plain, "WEBP", lossless=True)[:60],
        "truncated GIF": saved(plain.convert("P"), "GIF")[:40],
        "truncated BMP": bmp[:200],
        "PNG with a wrong checksum": whole_png[:40] + bytes([whole_png[40] ^ 1]) + whole_png[41:],
        "PNG of no height": png(40, 0, zlib.compress(b"\0")),
        "PNG of negative size": png(0xFFFFFFFF, 0xFFFFFFFF, zlib.compress(b"\0")),
        "PNG of bad bit depth": png(4, 4, zlib.compress(bytes(60)), depth=13),
        "PNG whose pixels are missing": png(900, 900, zlib.compress(b"\0")),
        "JPEG that says it is higher": with_jpeg_size(jpeg, 900, 40),
        "bomb by the header": png(50_000, 50_000, zlib.compress(bytes(1000))),
        "bomb of zeros": png(20_000, 20_000, zeros),
        "bomb just over the limit": png(1001, 1000, zlib.compress(bytes(1001 * 3004), 9)),
        "bomb in a text chunk": png(4, 4, zlib.compress(bytes(52)), chunk(b"zTXt", b"a\0\0" + zeros)),
        "bomb in a profile": png(4, 4, zlib.compress(bytes(52)), chunk(b"iCCP", b"a\0\0" + zeros)),
        "JPEG that says it is huge": with_jpeg_size(jpeg, 65_000, 65_000),
        "GIF with a frame beyond its screen": gif_of(1, 1, 60_000, 60_000),
        "BMP that says it is huge": bmp[:18] + struct.pack("<ii", 60_000, -60_000) + bmp[26:],
        "JPEG of many scans": many_scans(150),
        "SVG": svg,
        "SVG that claims to be XML": b"<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a SYSTEM 'file:///x'>]>" + svg,
        "PDF": b"%PDF-1.7\n" + jpeg,
        "PostScript": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n(x) run",
        "TIFF": tiff,
        "PSD": b"8BPS\0\1" + bytes(6) + struct.pack(">HIIHH", 3, 4, 4, 8, 3) + bytes(100),
        "ICO": saved(plain, "ICO"),
        "HTML": b"<!doctype html><img src=http://127.0.0.1:1/>",
        "a URL": b"http://127.0.0.1:1/cat.jpg",
        "a path": b"/etc/passwd",
        "zip": b"PK\x03\x04" + bytes(200),
        "a pickle": b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x8c\x06system\x93.",
        "noise": np.random.default_rng(0).bytes(5000),
        "zeros": bytes(5000),
        "a GIF that is JavaScript": b"GIF89a/*" + bytes(20) + b"*/=alert(1)//",
        "JPEG in noise": b"\0" * 20 + jpeg,
    }  # fmt: skip


FILES = _files()
# how the service must answer; what is not here must be answered as `vitlab.predict` answers it
REFUSED: dict[str, str] = {
    "bomb by the header": "too_many_pixels",
    "bomb of zeros": "too_many_pixels",
    "bomb just over the limit": "too_many_pixels",
    "JPEG that says it is huge": "too_many_pixels",
    "GIF with a frame beyond its screen": "too_many_pixels",
    "BMP that says it is huge": "too_many_pixels",
    "PNG of negative size": "too_many_pixels",
    "JPEG of many scans": "too_many_pixels",
    **dict.fromkeys(
        (
            "SVG",
            "SVG that claims to be XML",
            "PDF",
            "PostScript",
            "TIFF",
            "PSD",
            "ICO",
            "HTML",
            "a URL",
            "a path",
            "zip",
        ),
        "unsupported_image",
    ),
    **dict.fromkeys(("a pickle", "noise", "zeros", "JPEG in noise"), "unsupported_image"),
}
