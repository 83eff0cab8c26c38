"""RandAugment as its authors have it in TensorFlow, against its operations written out in NumPy and Pillow.

The figures are worked out by hand from that code's formulas; what its pictures are, from what TensorFlow computes.
"""

from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, augment, make_tables
from vitlab.data.augmentation.policies import Op
from vitlab.data.augmentation.stages import Stage, stages

KEY = key(7, "augment")
HEIGHT, WIDTH = 120, 104
PLACES = torch.arange(500)
LEVELS = (5, 10, 15, 20)
# At levels 5, 10, 15 and 20. A threshold is int(level / 10 * 256) as a byte: 256 and 512 are 0.
FIGURES: dict[Op, tuple[float, float, float, float]] = {
    Op.ROTATE: (15, 30, 45, 60),
    Op.POSTERIZE: (2, 4, 6, 8),
    Op.SOLARIZE: (128, 0, 128, 0),
    Op.COLOR: (1.0, 1.9, 2.8, 3.7),
    Op.SIZE_CONTRAST: (1.0, 1.9, 2.8, 3.7),
    Op.BRIGHTNESS: (1.0, 1.9, 2.8, 3.7),
    Op.SHARPNESS: (1.0, 1.9, 2.8, 3.7),
    Op.SHEAR_X: (0.15, 0.3, 0.45, 0.6),
    Op.SHEAR_Y: (0.15, 0.3, 0.45, 0.6),
    Op.TRANSLATE_X: (50, 100, 150, 200),
    Op.TRANSLATE_Y: (50, 100, 150, 200),
    Op.CUTOUT: (20, 40, 60, 80),
    Op.SOLARIZE_ADD: (55, 110, 165, 220),
}
SIGNED = (Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y)
ALL = {Op.AUTOCONTRAST, Op.EQUALIZE, Op.INVERT, *FIGURES}


def one_op(level: float) -> Augmentation:
    return Augmentation(policy="randaugment-official", num_ops=1, magnitude=level, flip=0.0)


def drawn_by(aug: Augmentation, places: torch.Tensor, height: int = HEIGHT, width: int = WIDTH) -> Stage:
    return stages(aug, make_tables(aug, places.device), places, KEY, height, width)[0]


def blend(degenerate: np.ndarray | float, picture: np.ndarray, factor: float) -> np.ndarray:
    return np.clip(degenerate + factor * (picture.astype(float) - degenerate), 0, 255).astype(int)


def nearest(picture: np.ndarray, matrix: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Pixel (x, y), counted from 0, is that nearest to matrix (x, y) + offset; grey beyond the edge."""
    height, width = picture.shape[:2]
    y, x = np.mgrid[:height, :width].astype(float)
    column, row = (m[0] * x + m[1] * y + o for m, o in zip(matrix, offset, strict=True))
    column, row = (np.sign(at) * np.floor(np.abs(at) + 0.5) for at in (column, row))  # halves away from zero
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    found = picture[row.clip(0, height - 1).astype(int), column.clip(0, width - 1).astype(int)]
    return np.where(inside[..., None], found, 128).astype(int)


def turned(picture: np.ndarray, degrees: float) -> np.ndarray:
    middle = (np.array(picture.shape[1::-1]) - 1) / 2
    cosine, sine = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    matrix = np.array([[cosine, -sine], [sine, cosine]])
    return nearest(picture, matrix, middle - matrix @ middle)


def smoothed(picture: np.ndarray) -> np.ndarray:
    """Pillow's SMOOTH, cut to whole levels; the outermost pixels stay."""
    wide, found = picture.astype(float), picture.astype(float)
    height, width = picture.shape[:2]
    total = 4 * wide[1:-1, 1:-1]
    for y in range(3):
        for x in range(3):
            total = total + wide[y : height - 2 + y, x : width - 2 + x]
    found[1:-1, 1:-1] = np.floor(total / 13 + 1e-9)
    return found


def greyed(picture: np.ndarray) -> np.ndarray:
    """tf.image.rgb_to_grayscale of bytes: weighted as fractions, times 255.5, cut."""
    return np.floor(picture / 255 @ np.array([0.2989, 0.587, 0.114]) * 255.5)[..., None]


def expected(op: Op, figure: float, picture: np.ndarray) -> np.ndarray:
    image, eye, none = Image.fromarray(picture), np.eye(2), np.zeros(2)
    match op:
        case Op.AUTOCONTRAST:
            found = ImageOps.autocontrast(image)
        case Op.EQUALIZE:
            found = ImageOps.equalize(image)
        case Op.INVERT:
            found = 255 - picture
        case Op.ROTATE:
            found = turned(picture, figure)
        case Op.POSTERIZE:
            found = ImageOps.posterize(image, int(figure))
        case Op.SOLARIZE:
            found = ImageOps.solarize(image, int(figure))
        case Op.SOLARIZE_ADD:
            found = np.where(picture < 128, np.minimum(picture.astype(int) + int(figure), 255), picture)
        case Op.COLOR:
            found = blend(greyed(picture), picture, figure)
        case Op.SIZE_CONTRAST:
            found = blend(48, picture, figure)  # 120 * 104 / 256, cut
        case Op.BRIGHTNESS:
            found = blend(0, picture, figure)
        case Op.SHARPNESS:
            found = blend(smoothed(picture), picture, figure)
        case Op.SHEAR_X:
            found = nearest(picture, np.array([[1, figure], [0, 1]]), none)
        case Op.SHEAR_Y:
            found = nearest(picture, np.array([[1, 0], [figure, 1]]), none)
        case Op.TRANSLATE_X:
            found = nearest(picture, eye, np.array([figure, 0]))
        case Op.TRANSLATE_Y:
            found = nearest(picture, eye, np.array([0, figure]))
        case _:
            raise AssertionError(op)
    return np.asarray(found).astype(int)


def pictures() -> dict[str, np.ndarray]:
    y, x = np.mgrid[:HEIGHT, :WIDTH]
    waves = [128 + 110 * np.sin(x / (9 + k) + y / 17 + k) for k in range(3)]
    noise = np.random.default_rng(0).integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
    return {"waves": np.stack(waves, axis=-1).astype(np.uint8), "noise": noise}


@pytest.mark.parametrize("level", LEVELS)
def test_every_operation_gives_the_official_picture(level: int):
    aug = one_op(level)
    drawn = drawn_by(aug, PLACES)
    for name, picture in pictures().items():
        image = torch.from_numpy(picture).permute(2, 0, 1)
        for op in ALL - {Op.CUTOUT}:
            figure = FIGURES[op][LEVELS.index(level)] if op in FIGURES else 0.0
            signs = (1, -1) if op in SIGNED else (1,)
            references = [expected(op, sign * figure, picture) for sign in signs]
            places = PLACES[drawn.op == op][:12]
            assert len(places) == 12, op
            seen: set[int] = set()
            for found in augment(aug, image.expand(12, -1, -1, -1), places, KEY):
                ours = found.permute(1, 2, 0).numpy()
                shares = [(ours == one).mean() for one in references]
                which = int(np.argmax(shares))
                seen.add(which)
                furthest = np.abs(ours - references[which]).max()
                if op in (Op.COLOR, Op.SHARPNESS):  # what is blended with is rounded here and cut there
                    assert shares[which] > 0.5, (op, name)
                    assert furthest <= abs(figure - 1) + 1, (op, name)
                elif op in (Op.AUTOCONTRAST, Op.SIZE_CONTRAST, Op.BRIGHTNESS):  # float64 cuts to another level
                    assert shares[which] > 0.95, (op, name)
                    assert furthest <= 1, (op, name)
                else:  # halves fall either way, at 30 and 60 degrees and in shears
                    assert shares[which] >= (0.98 if op in (Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y) else 1), (op, name)
            assert seen == set(range(len(signs))) or np.array_equal(references[0], references[-1]), (op, name)


@pytest.mark.parametrize("level", LEVELS)
def test_cutouts_are_grey_squares_about_a_pixel(level: int):
    reach = int(FIGURES[Op.CUTOUT][LEVELS.index(level)])
    aug, picture = one_op(level), np.zeros((HEIGHT, WIDTH, 3), dtype=np.uint8)
    drawn = drawn_by(aug, PLACES)
    places = PLACES[drawn.op == Op.CUTOUT]
    possible = {
        (max(0, y - reach), min(HEIGHT, y + reach), max(0, x - reach), min(WIDTH, x + reach))
        for y in range(HEIGHT)
        for x in range(WIDTH)
    }
    images = torch.from_numpy(picture).permute(2, 0, 1).expand(len(places), -1, -1, -1)
    for found in augment(aug, images, places, KEY).numpy():
        rows, columns = (np.flatnonzero(found[0].any(axis=axis)) for axis in (1, 0))
        box = (rows[0], rows[-1] + 1, columns[0], columns[-1] + 1)
        assert box in possible
        assert (found[:, box[0] : box[1], box[2] : box[3]] == 128).all()
        assert (found > 0).sum() == 3 * (box[1] - box[0]) * (box[3] - box[2])


def test_a_cutouts_pixel_is_anywhere_with_equal_chances():
    aug, places = one_op(0.25), torch.arange(60_000)  # one pixel on each side
    height, width = 5, 7
    places = places[drawn_by(aug, places, height, width).op == Op.CUTOUT]
    images = torch.zeros(len(places), 3, height, width, dtype=torch.uint8)
    found = augment(aug, images, places, KEY)[:, 0] > 0
    # It is the last of the square's two rows and columns, and of the one that remains at the edge.
    last_row = height - 1 - found.any(dim=2).flip(1).int().argmax(dim=1)
    last_column = width - 1 - found.any(dim=1).flip(1).int().argmax(dim=1)
    counts = Counter(zip(last_row.tolist(), last_column.tolist(), strict=True))
    assert set(counts) == {(y, x) for y in range(height) for x in range(width)}
    share = len(places) / (height * width)  # about 107
    assert sum((count - share) ** 2 / share for count in counts.values()) < 66  # chi squared, 34: one in a thousand


@pytest.mark.parametrize(
    ("magnitude", "bits"),
    [(0, 1), (2, 1), (3, 1), (7, 2), (9, 3), (22, 8), (25, 1), (30, 1)],  # a shift is a byte of at most seven
)
def test_posterising_keeps_the_bits_that_tensorflows_shifts_leave(magnitude: float, bits: int):
    drawn = drawn_by(one_op(magnitude), PLACES)
    assert set(drawn.value[drawn.op == Op.POSTERIZE].tolist()) == {float(bits)}


def test_contrast_is_about_white_in_large_pictures():
    aug = one_op(10)
    places = PLACES[drawn_by(aug, PLACES, 256, 260).op == Op.SIZE_CONTRAST][:1]
    found = augment(aug, torch.full((1, 3, 256, 260), 200, dtype=torch.uint8), places, KEY)
    assert found.unique().tolist() == [150]  # 255 - 1.9 * 55, cut


def test_it_applies_what_it_draws_alike_often_at_the_magnitude():
    plain = Augmentation(policy="randaugment-official", num_ops=2, magnitude=10)
    timms = Augmentation(policy="randaugment-official", num_ops=2, magnitude=10, magnitude_std=3.0, op_prob=0.1)
    places = torch.arange(16_000)
    found, other = (stages(aug, make_tables(aug, places.device), places, KEY, HEIGHT, WIDTH) for aug in (plain, timms))
    for stage, same in zip(found, other, strict=True):
        assert torch.equal(stage.op, same.op)
        assert torch.equal(stage.value, same.value)
        counts = Counter(stage.op.tolist())
        assert {Op(op) for op in counts} == ALL
        assert all(abs(count - 1000) < 130 for count in counts.values())
        for op in SIGNED:
            values = stage.value[stage.op == op]
            assert len(values.abs().unique()) == 1
            assert abs(float((values > 0).float().mean()) - 0.5) < 0.06
    pairs = Counter(zip(found[0].op.tolist(), found[1].op.tolist(), strict=True))
    assert len(pairs) == 256  # one operation may come twice
