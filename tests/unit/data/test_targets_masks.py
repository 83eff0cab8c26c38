"""Masks go where their pictures go: by hand-worked cases, and by a picture whose colours tell its mask."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitlab.core.errors import DataError, ImageError
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, augment, make_tables, move_masks
from vitlab.data.augmentation.apply import operate
from vitlab.data.augmentation.geometry import WARPS, shift, warp_masks
from vitlab.data.augmentation.policies import Op
from vitlab.data.augmentation.stages import Stage, stages
from vitlab.data.contract import IGNORED, Array, DataSet, Masks, Split, Values
from vitlab.data.decoding import mask_values, read_mask
from vitlab.data.description import describe
from vitlab.data.loading.loader import Loader, evaluation_batches
from vitlab.data.loading.order import Order
from vitlab.data.loading.reading import crop_mask, seen_mask
from vitlab.data.sources.files import Files
from vitlab.data.sources.pixels import Pixels
from vitlab.data.streams import StreamPlan, View

# Of four classes and of `fill`, far from each other, so that a mixture of two is near neither.
COLOURS = np.array([[0, 0, 0], [255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], np.uint8)
OUTSIDE = 4  # the colour of what lies beyond a picture
FILL: Any = tuple(COLOURS[OUTSIDE].tolist())


def blobs(height: int, width: int, seed: int = 0) -> Array:
    """A mask of a few large fields, none symmetrical."""
    coarse = np.random.default_rng(seed).integers(0, 4, (4, 5), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.NEAREST))


def painted(mask: Array) -> Array:
    return COLOURS[mask]


def assert_matches(images: Tensor, masks: Tensor) -> None:
    """Away from borders of fields, the colours of pictures [b, 3, h, w] tell their masks [b, h, w]."""
    told = (images.permute(0, 2, 3, 1)[..., None, :].int() - torch.from_numpy(COLOURS).int()).abs().sum(-1)
    found, far = told.argmin(dim=-1), told.amin(dim=-1)
    seen = torch.where(masks == IGNORED, OUTSIDE, masks.long())
    padded = torch.nn.functional.pad(seen[:, None].float(), (2, 2, 2, 2), mode="replicate")
    windows = padded.unfold(2, 5, 1).unfold(3, 5, 1).flatten(4)[:, 0]
    inner = (windows == seen[..., None]).all(dim=-1)
    assert inner.float().mean() > 0.3
    assert len(seen[inner].unique()) > 2
    assert (found == seen)[inner].float().mean() > 0.999
    assert (far[inner] < 60).float().mean() > 0.99


@pytest.mark.parametrize("nearest", [False, True])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(
    ("op", "size"),
    [(Op.ROTATE, 25.0), (Op.SHEAR_X, 0.3), (Op.SHEAR_Y, 0.3), (Op.TRANSLATE_X, 0.2), (Op.TRANSLATE_Y, 0.2)],
)
def test_every_geometric_operation_moves_the_mask_with_its_picture(
    op: Op, size: float, sign: int, nearest: bool
) -> None:
    mask = torch.from_numpy(blobs(60, 80).copy())[None]
    images = torch.from_numpy(painted(mask[0].numpy())).permute(2, 0, 1)[None]
    tables = make_tables(Augmentation(fill=FILL), torch.device("cpu"))
    which, value = torch.tensor([op.value]), torch.tensor([sign * size])
    moved = warp_masks(mask[:, None], which, value, tables, nearest=nearest, outside=IGNORED)[:, 0]
    assert (moved == IGNORED).any()
    assert (moved != mask).float().mean() > 0.1
    assert_matches(operate(tables, images, Stage(which, value, frozenset({op}), nearest=nearest)), moved)


def test_all_geometric_operations_are_tested() -> None:
    assert {Op.ROTATE, Op.SHEAR_X, Op.SHEAR_Y, Op.TRANSLATE_X, Op.TRANSLATE_Y} == WARPS


@pytest.mark.parametrize(
    "aug",
    [
        Augmentation(policy="randaugment", num_ops=2, op_prob=1.0, fill=FILL),
        Augmentation(policy="randaugment-official", num_ops=2, fill=FILL),
        Augmentation(policy="trivial", fill=FILL),
        Augmentation(policy="autoaugment", fill=FILL),
        Augmentation(policy="autoaugment-cifar10", fill=FILL),
        Augmentation(crop="pad", pad=9, pad_mode="reflect", fill=FILL),
        Augmentation(flip=1.0),
    ],
    ids=lambda aug: f"{aug.policy}-{aug.crop}",
)
@pytest.mark.parametrize("alone", [True, False])
def test_policies_draw_for_masks_what_they_draw_for_pictures(aug: Augmentation, alone: bool) -> None:
    """At places where a policy drew no operation on colours, which would make the picture useless as a witness."""
    own, places = key(0, "augment"), torch.arange(160)
    drawn = stages(aug, make_tables(aug, torch.device("cpu")), places, own, 60, 80)
    kinds = torch.tensor([op.value for op in (*WARPS, Op.IDENTITY)])
    good = torch.stack([torch.isin(stage.op, kinds) for stage in drawn]).all(dim=0) if drawn else places >= 0
    places = places[good][:12]
    assert len(places) > 2
    masks = torch.from_numpy(np.stack([blobs(60, 80, seed) for seed in range(len(places))]))
    images = torch.from_numpy(painted(masks.numpy())).permute(0, 3, 1, 2)
    if alone:
        seen = torch.cat([augment(aug, images[i : i + 1], places[i : i + 1], own) for i in range(len(places))])
        moved = [move_masks(aug, masks[i : i + 1], places[i : i + 1], own, IGNORED) for i in range(len(places))]
        assert_matches(seen, torch.cat(moved))
    else:
        assert_matches(augment(aug, images, places, own), move_masks(aug, masks, places, own, IGNORED))


def test_what_changes_colours_alone_leaves_a_mask() -> None:
    mask = torch.from_numpy(blobs(20, 30).copy())[None].expand(40, -1, -1)
    aug = Augmentation(crop="resize", flip=0.0, policy="three", jitter=0.4, erase=1.0)
    assert torch.equal(move_masks(aug, mask, torch.arange(40), 7, IGNORED), mask)


MASK = np.array([[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]], np.uint8)


def test_a_part_of_a_mask_by_hand() -> None:
    assert crop_mask(MASK, (0, 0, 3, 4), (3, 4)).tolist() == MASK.tolist()
    assert crop_mask(MASK, (1, 1, 2, 3), (2, 3)).tolist() == [[5, 6, 7], [9, 10, 11]]
    assert crop_mask(MASK, (0, 0, 2, 4), (4, 2)).tolist() == [[1, 3], [1, 3], [5, 7], [5, 7]]


def test_a_shifted_mask_by_hand() -> None:
    """A window one row lower and one column to the left; what it sees beyond the picture is of no class."""
    values = torch.from_numpy(MASK)[None, None]
    found = shift(values, torch.tensor([1]), torch.tensor([-1]), "zero", IGNORED)[0, 0]
    assert found.tolist() == [[255, 4, 5, 6], [255, 8, 9, 10], [255, 255, 255, 255]]


def test_a_translated_mask_by_hand() -> None:
    """A quarter of the width to the left is one of four pixels."""
    values = torch.from_numpy(MASK)[None, None]
    tables = make_tables(Augmentation(), torch.device("cpu"))
    op, value = torch.tensor([Op.TRANSLATE_X.value]), torch.tensor([0.25])
    for nearest in (False, True):
        found = warp_masks(values, op, value, tables, nearest=nearest, outside=IGNORED)[0, 0]
        assert found.tolist() == [[1, 2, 3, 255], [5, 6, 7, 255], [9, 10, 11, 255]]


def test_evaluation_resizes_masks_as_pictures() -> None:
    """The same pixels as Pillow's nearest; what is cut out beyond the picture is of no class."""
    mask = blobs(60, 80).copy()
    mask[5:20, 5:20] = IGNORED
    squashed = np.asarray(Image.fromarray(mask).resize((20, 30), Image.Resampling.NEAREST))
    np.testing.assert_array_equal(seen_mask(mask, Preprocess(size=(30, 20))), squashed)
    middle = np.asarray(Image.fromarray(mask).resize((40, 30), Image.Resampling.NEAREST))[:, 5:35]
    np.testing.assert_array_equal(seen_mask(mask, Preprocess(size=(30, 30), resize="shortest")), middle)
    wide = seen_mask(np.zeros((10, 10), np.uint8), Preprocess(size=(10, 20), resize="shortest"))
    assert wide.tolist() == [[255] * 5 + [0] * 10 + [255] * 5] * 10


def encoded(image: Image.Image, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, "PNG", **options)
    return file.getvalue()


def test_masks_are_stored_in_many_ways() -> None:
    values = (MASK % 3).astype(np.uint8)
    gray = Image.fromarray(values)
    palette = Image.fromarray(values)
    palette.putpalette([200, 10, 10, 0, 255, 0, 7, 7, 7])
    assert palette.mode == "P"
    sideways = Image.Exif()
    sideways[0x0112] = 6
    for raw in (
        values,
        values.astype(np.int64),
        encoded(gray),
        encoded(palette),
        encoded(Image.merge("RGB", [gray] * 3)),
        encoded(Image.merge("RGBA", [gray] * 3 + [Image.new("L", gray.size, 9)])),
        encoded(Image.fromarray(values.astype(np.uint16))),
        encoded(Image.fromarray(np.rot90(values).copy()), exif=sideways),
    ):
        np.testing.assert_array_equal(mask_values(raw, "x"), values)
    assert mask_values(encoded(Image.fromarray(values > 0).convert("1")), "x").tolist() == (values > 0).tolist()
    for raw, message in (
        (encoded(Image.merge("RGB", [gray, gray, Image.new("L", gray.size, 9)])), "x is a mask of colours"),
        (np.full((2, 2), 0.5), "x is a mask of float64: class numbers are whole"),
        (np.full((2, 2), 300), "x is a mask of int64: class numbers are whole and below 256"),
        (b"nothing", "x is not an image"),
    ):
        with pytest.raises(ImageError, match=message):
            mask_values(raw, "x")


def test_masks_have_to_fit() -> None:
    masks = Masks(Pixels(MASK[None], "them"), tuple("abcdefghijkl"))
    np.testing.assert_array_equal(read_mask(masks, 0, (3, 4)), MASK)
    with pytest.raises(ImageError, match="image 0 of them is a mask of 4 x 3 pixels, but its picture has 3 x 4"):
        read_mask(masks, 0, (4, 3))
    with pytest.raises(ImageError, match="with the class number 11, and there are 11 classes"):
        read_mask(Masks(masks.images, masks.classes[:11]), 0, (3, 4))
    table = np.arange(256, dtype=np.uint8)
    table[11] = IGNORED
    assert read_mask(Masks(masks.images, masks.classes[:11], table), 0, (3, 4))[2, 3] == IGNORED


def pictures(folder: Path, num: int) -> Split:
    """JPEGs and masks of several sizes, with labels."""
    for i in range(num):
        mask = blobs(90 + 2 * i, 140 - 3 * i, i)
        Image.fromarray(painted(mask)).save(folder / f"{i}.jpg", quality=98, subsampling=0)
        Image.fromarray(mask).save(folder / f"{i}.png")
    images, masks = (Files(folder, [f"{i}.{end}" for i in range(num)], [1] * num) for end in ("jpg", "png"))
    targets = {"label": Values(np.arange(num)), "mask": Masks(masks, tuple("abcd"))}
    return Split(images, targets)


def plan(split: Split, batch_size: int, *views: View, targets: tuple[str, ...] = ("mask", "label")) -> StreamPlan:
    return StreamPlan("train", split, Order(3, len(split)), batch_size, views, targets)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_training_gives_masks_that_match_their_pictures(tmp_path: Path, num_workers: int) -> None:
    split = pictures(tmp_path, 8)
    first = View(Augmentation(crop_area=(0.3, 1.0)), (48, 64))
    second = View(Augmentation(crop_area=(0.1, 0.4)), (20, 20))
    with Loader(plan(split, 8, first, second), num_workers=num_workers, seed=3) as loader:
        for _ in range(2):
            loaded = next(loader)
            assert [tuple(view.shape) for view in loaded.views] == [(8, 3, 48, 64), (8, 3, 20, 20)]
            assert loaded.targets["mask"].dtype == torch.uint8
            assert_matches(loaded.views[0], loaded.targets["mask"])
            assert torch.equal(loaded.targets["label"], loaded.indices)
    with (
        Loader(plan(split, 8, first), num_workers=0, seed=3) as alone,
        Loader(plan(split, 8, first, second), num_workers=0, seed=3) as both,
    ):
        one, two = next(alone), next(both)
        assert torch.equal(one.targets["mask"], two.targets["mask"])  # a second view changes nothing of the first's
        assert (one.views[0].int() - two.views[0].int()).abs().float().mean() < 2  # but the scale it is decoded at


def test_evaluation_gives_masks_that_match_their_pictures(tmp_path: Path) -> None:
    split = pictures(tmp_path, 6)
    (tmp_path / "2.png").write_bytes(b"nothing")
    preprocess = Preprocess(size=(48, 48), resize="shortest", shortest_edge=60)
    counted: list[int] = []
    for batch in evaluation_batches(split, preprocess, targets=("mask",), batch_size=4, num_workers=0):
        counts = batch.counts
        counted += batch.indices[counts].tolist()
        assert_matches(batch.images[counts], batch.targets["mask"][counts])
        assert (batch.targets["mask"][~counts] == IGNORED).all()
    assert counted == [0, 1, 3, 4, 5]
    (found,) = describe(DataSet("them", (), {"test": split}, ""), look=True).unreadable
    assert found.index == 2


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_unreadable_mask_is_an_unreadable_image(tmp_path: Path, num_workers: int) -> None:
    split = pictures(tmp_path, 8)
    (tmp_path / "5.png").write_bytes(b"nothing")
    Image.new("L", (3, 3)).save(tmp_path / "6.png")
    with Loader(plan(split, 8, View(Augmentation(), (24, 24))), num_workers=num_workers, seed=3) as loader:
        indices = torch.cat([next(loader).indices for _ in range(3)])
        assert sorted(loader.damaged) == [5, 6]
        assert "5.png is not an image" in loader.damaged[5]
        assert "6.png is a mask of 3 x 3 pixels" in loader.damaged[6]
        assert not torch.isin(indices, torch.tensor([5, 6])).any()


def test_a_target_that_is_not_there(tmp_path: Path) -> None:
    split = pictures(tmp_path, 2)
    view = View(Augmentation(), (24, 24))
    with pytest.raises(DataError, match="no target 'boxes', and this needs it; they have label, mask"):
        plan(split, 2, view, targets=("boxes",))
    with pytest.raises(DataError, match="These images have no labels"):
        plan(Split(split.images), 2, view, targets=("label",))
