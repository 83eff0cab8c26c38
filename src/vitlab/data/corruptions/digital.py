"""What cameras and files do to pictures: less contrast, colours, elastic warps, coarse pixels, JPEG."""

import io

import numpy as np
from PIL import Image

from vitlab.data.contract import Array
from vitlab.data.corruptions.draws import Draws

CONTRAST = (0.75, 0.5, 0.4, 0.3, 0.15)  # of the distance from the mean colour
SATURATION = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))  # times, and plus
QUALITY = (80, 65, 58, 50, 40)  # of JPEG
PIXELATE = (0.95, 0.9, 0.85, 0.75, 0.65)  # of the side
# parts of the shorter side: how far places move, how smoothly, and how far three corners do
ELASTIC = ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03))


def contrast(x: Array, severity: int, draws: Draws) -> Array:
    del draws
    mean = x.mean(axis=(0, 1))
    return mean + CONTRAST[severity] * (x - mean)


def saturate(x: Array, severity: int, draws: Draws) -> Array:
    """The saturation of HSV changed, hue and value kept; what is grey has the hue of red."""
    del draws
    times, plus = SATURATION[severity]
    value = x.max(axis=2, keepdims=True)
    depth = value - x.min(axis=2, keepdims=True)
    saturation = depth / np.where(value > 0, value, 1)
    wanted = (times * saturation + plus).clip(0, 1)
    away = np.where(depth > 0, (value - x) / np.where(depth > 0, depth, 1), np.array([0, 1, 1]))  # 0 to 1 per channel
    return value * (1 - wanted * away)


def jpeg_compression(x: Array, severity: int, draws: Draws) -> Array:
    del draws
    file = io.BytesIO()
    _picture(x).save(file, "JPEG", quality=QUALITY[severity])
    return np.asarray(Image.open(file)) / 255


def pixelate(x: Array, severity: int, draws: Draws) -> Array:
    del draws
    image = _picture(x)
    small = [max(int(side * PIXELATE[severity]), 1) for side in image.size]
    return np.asarray(image.resize(small, Image.Resampling.BOX).resize(image.size, Image.Resampling.BOX)) / 255


def _picture(x: Array) -> Image.Image:
    return Image.fromarray(np.rint(x * 255).astype(np.uint8))


def elastic_transform(x: Array, severity: int, draws: Draws) -> Array:
    """First three corners move, and with them all; then every place by smoothed random steps."""
    from scipy import ndimage

    side = min(x.shape[:2])
    far, smooth, corners = (side * part for part in ELASTIC[severity])
    rows, columns = np.mgrid[: x.shape[0], : x.shape[1]].astype(np.float64)
    x = _sampled(x, *_affine(rows, columns, draws.uniform((3, 2), -corners, corners)), mode="mirror")
    right, down = (
        ndimage.gaussian_filter(draws.uniform(rows.shape, -1, 1), smooth, mode="reflect", truncate=3) * far
        for _ in range(2)
    )
    return _sampled(x, rows + down, columns + right, mode="reflect")


def _affine(rows: Array, columns: Array, moves: Array) -> tuple[Array, Array]:
    """Where each place comes from under the affine map that moves three corners of a square; x before y."""
    middle = np.array([rows.shape[1] // 2, rows.shape[0] // 2])
    reach = min(rows.shape) // 3
    before = middle + reach * np.array([[1, 1], [1, -1], [-1, -1]])
    after = np.column_stack([before + moves, np.ones(3)])
    back = np.linalg.solve(after, before)  # [3, 2]: from (x, y, 1) after to (x, y) before
    return tuple(back[0, i] * columns + back[1, i] * rows + back[2, i] for i in (1, 0))


def _sampled(x: Array, rows: Array, columns: Array, *, mode: str) -> Array:
    from scipy import ndimage

    channels = [ndimage.map_coordinates(x[..., k], (rows, columns), order=1, mode=mode) for k in range(3)]
    return np.stack(channels, axis=2)
