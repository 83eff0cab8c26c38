"""A picture is the same pixels for `predict`, the loader and the service, and Pillow's."""

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Split
from vitlab.data.decoding import decode
from vitlab.data.loading.loader import evaluation_batches
from vitlab.inference.predict import _decode
from vitlab.serving.decoding import to_pixels
from vitlab.serving.http.errors import APIError
from vitlab.serving.limits import Limits

PIXELS = np.random.default_rng(0).integers(0, 256, (37, 53, 3), dtype=np.uint8)
PICTURE = Image.fromarray(PIXELS).resize((106, 74), Image.Resampling.BICUBIC)  # JPEG's noise is not all there is
SEEN = Preprocess(size=(24, 24), resize="shortest", shortest_edge=28)


def turned(orientation: int) -> Callable[[io.BytesIO], None]:
    def save(file: io.BytesIO) -> None:
        tags = Image.Exif()
        tags[0x0112] = orientation
        PICTURE.save(file, "JPEG", exif=tags, quality=90)

    return save


def sixteen_bits(file: io.BytesIO) -> None:
    Image.fromarray(np.arange(74 * 106, dtype=np.uint16).reshape(74, 106) * 8).save(file, "PNG")


def palette(file: io.BytesIO) -> None:
    PICTURE.quantize(16).save(file, "PNG", transparency=3)


def alpha(file: io.BytesIO) -> None:
    picture = PICTURE.copy()
    picture.putalpha(Image.linear_gradient("L").resize(PICTURE.size))
    picture.save(file, "PNG")


KINDS: dict[str, Callable[[io.BytesIO], None]] = {
    **{f"turned {orientation}": turned(orientation) for orientation in range(1, 9)},
    "CMYK": lambda file: PICTURE.convert("CMYK").save(file, "JPEG"),
    "grey": lambda file: PICTURE.convert("L").save(file, "JPEG"),
    "progressive": lambda file: PICTURE.save(file, "JPEG", progressive=True),
    "palette": palette,
    "16 bits": sixteen_bits,
    "alpha": alpha,
    "WebP": lambda file: PICTURE.save(file, "WEBP", lossless=True),
}


def by_pillow(raw: bytes) -> Image.Image:
    """Upright RGB without a line of ours."""
    picture = Image.open(io.BytesIO(raw))
    if picture.mode.startswith("I"):
        return Image.fromarray(np.rint(np.asarray(picture) / 257).astype(np.uint8)).convert("RGB")
    picture = ImageOps.exif_transpose(picture)
    if picture.mode in ("P", "RGBA"):
        picture = picture.convert("RGBA")
        ground = Image.new("RGBA", picture.size, "white")
        return Image.alpha_composite(ground, picture).convert("RGB")
    return picture.convert("RGB")


class OneFile:
    def __init__(self, raw: bytes) -> None:
        self.raw = raw

    def __len__(self) -> int:
        return 1

    def read(self, index: int) -> bytes:  # noqa: ARG002
        return self.raw

    def where(self, index: int) -> str:
        return f"file {index}"


@pytest.mark.parametrize("kind", KINDS)
def test_predict_the_loader_and_the_service_see_the_same_pixels(kind: str, tmp_path: Path) -> None:
    file = io.BytesIO()
    KINDS[kind](file)
    raw, path = file.getvalue(), tmp_path / "picture"
    path.write_bytes(raw)
    reference = by_pillow(raw)
    expected = np.asarray(SEEN.picture(reference))
    predicted = _decode(path, SEEN)
    assert isinstance(predicted, tuple)
    np.testing.assert_array_equal(predicted[0], to_pixels(raw, SEEN, Limits()))
    (batch,) = evaluation_batches(Split(OneFile(raw), {}), SEEN, targets=(), batch_size=1, num_workers=0)
    np.testing.assert_array_equal(predicted[0], batch.images[0].permute(1, 2, 0).numpy())
    # blending by alpha is rounded one way or the other
    assert np.abs(predicted[0].astype(int) - expected).max() <= (1 if kind == "alpha" else 0)
    assert np.abs(decode(raw, "file").astype(int) - np.asarray(reference)).max() <= (1 if kind == "alpha" else 0)
    assert predicted[1] == (reference.height, reference.width)


def test_a_refusal_counts_images_only_where_there_are_several() -> None:
    for place, name in ((None, "The image"), (0, "Image 0"), (3, "Image 3")):
        with pytest.raises(APIError, match=f"^{name} is not an image"):
            to_pixels(b"words", SEEN, Limits(), place)
