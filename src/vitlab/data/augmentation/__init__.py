"""Augmentation, one implementation for two paths: image by image in workers, and whole batches on a device.

Operations take uint8 [B, 3, H, W] with one parameter a sample. What a sample gets is counted from its place in the
endless order of training (`data.order`) and a key of the run, `core.random.key(seed, "augment")`: the same key serves
every function here. A place holds its epoch, so in a captured graph only the places change. On a device the whole batch
is computed without branches and without waiting for the host. Tables are made on the device at the first call: call
once before capturing a graph, and hand compiled code its `tables=make_tables(aug, device)`.

The order of a batch: `crop` (or, in workers, `crop_box` before decoding), `augment`, normalisation, `erase`, `mix`.
"""

from vitlab.data.augmentation.apply import augment, move_masks
from vitlab.data.augmentation.config import Augmentation
from vitlab.data.augmentation.crop import crop, crop_and_resize, crop_box, crop_boxes
from vitlab.data.augmentation.erasing import erase
from vitlab.data.augmentation.mixing import check_pairs, mix
from vitlab.data.augmentation.tables import Tables, make_tables

__all__ = [
    "Augmentation",
    "Tables",
    "augment",
    "check_pairs",
    "crop",
    "crop_and_resize",
    "crop_box",
    "crop_boxes",
    "erase",
    "make_tables",
    "mix",
    "move_masks",
]
