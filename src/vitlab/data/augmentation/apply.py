"""Augmentation after cropping: shift, flip, the policy's operations and the colour jitter."""

from jaxtyping import Int, UInt8
from torch import Tensor

from vitlab.data.augmentation.color import BY_LEVEL, blur, by_level, saturate, sharpen, turn_hue
from vitlab.data.augmentation.config import Augmentation
from vitlab.data.augmentation.draws import FLIP, PAD, Key, integer, numbers, one_image
from vitlab.data.augmentation.geometry import WARPS, cutout, flip, shift, warp, warp_masks, warp_to_nearest
from vitlab.data.augmentation.policies import OPS, Op
from vitlab.data.augmentation.stages import Stage, stages
from vitlab.data.augmentation.tables import Tables, tables_for


def augment(
    aug: Augmentation,
    images: UInt8[Tensor, "b 3 h w"],
    places: Int[Tensor, "b"],
    key: Key,
    tables: Tables | None = None,
) -> UInt8[Tensor, "b 3 h w"]:
    """Cropped images at their final size, varied as their places say; `crop="pad"` moves them here.

    One image on the CPU is computed with only the operations that it drew; a batch, with all that can occur and without
    a branch. Both give the same bytes.
    """
    alone = one_image(images)
    if aug.crop == "pad" and aug.pad > 0:
        images = shift(images, *_moves(aug, places, key), aug.pad_mode)
    if aug.flip > 0:
        chosen = numbers(key, places, FLIP, 1)[:, 0] < aug.flip
        if not alone:
            images = flip(images, chosen)
        elif bool(chosen):
            images = images.flip(3)
    if not aug.operates:
        return images
    tables = tables_for(aug, images.device, tables)
    for stage in stages(aug, tables, places, key, images.shape[2], images.shape[3]):
        images = operate(tables, images, stage._replace(ops=frozenset({Op(int(stage.op))})) if alone else stage)
    return images


def move_masks(
    aug: Augmentation,
    masks: UInt8[Tensor, "b h w"],
    places: Int[Tensor, "b"],
    key: Key,
    outside: int,
    tables: Tables | None = None,
) -> UInt8[Tensor, "b h w"]:
    """Cropped masks at their final size, moved as `augment` moves the pictures at these places.

    What comes from outside of a picture is `outside`; what only changes colours leaves a mask as it is, and so do
    cutouts, since what they hide is still there.
    """
    values = masks[:, None]
    if aug.crop == "pad" and aug.pad > 0:
        values = shift(values, *_moves(aug, places, key), aug.pad_mode, outside)
    if aug.flip > 0:
        values = flip(values, numbers(key, places, FLIP, 1)[:, 0] < aug.flip)
    if set(OPS[aug.policy]) & WARPS:
        tables = tables_for(aug, masks.device, tables)
        for stage in stages(aug, tables, places, key, masks.shape[1], masks.shape[2]):
            if stage.ops & WARPS:
                values = warp_masks(values, stage.op, stage.value, tables, nearest=stage.nearest, outside=outside)
    return values[:, 0]


def _moves(aug: Augmentation, places: Tensor, key: Key) -> tuple[Tensor, Tensor]:
    """How far each sample is moved down and to the right."""
    moves = integer(numbers(key, places, PAD, 2), 2 * aug.pad + 1) - aug.pad
    return moves[:, 0], moves[:, 1]


def operate(tables: Tables, images: UInt8[Tensor, "b 3 h w"], stage: Stage) -> UInt8[Tensor, "b 3 h w"]:
    """One operation per sample, out of the stage's."""
    op, value, ops, center, nearest = stage
    if ops & WARPS:
        images = (warp_to_nearest if nearest else warp)(images, op, value, tables)
    if ops & BY_LEVEL:
        images = by_level(images, op, value, ops)
    if Op.COLOR in ops:
        images = saturate(images, op, value)
    if Op.HUE in ops:
        images = turn_hue(images, op, value, tables)
    if Op.SHARPNESS in ops:
        images = sharpen(images, op, value)
    if Op.BLUR in ops:
        images = blur(images, op, value, tables)
    if Op.CUTOUT in ops:
        assert center is not None, "a cutout has a place"
        images = cutout(images, op, value, center, tables)
    return images
