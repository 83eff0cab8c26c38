"""Rows of the zoo with a convolutional stem, in the sizes of plain ViTs with a block less.

The paper's own sizes (ViT_C-1GF to -36GF) have other MLPs; the widths at 224 px are its for 1 and 4 GF.
"""

from vitlab.models.zoo.row import FORMULA, SIZES, ZooRow


def _row(name: str, image: int, patch: int, size: str, widths: tuple[int, ...], classes: int, count: str) -> ZooRow:
    depth, width, mlp_dim, heads = SIZES[size]
    config = {
        "image_size": (image, image),
        "patch_size": patch,
        "width": width,
        "depth": depth - 1,
        "mlp_dim": mlp_dim,
        "heads": heads,
        "num_classes": classes,
        "stem_widths": widths,
    }
    return ZooRow(name, "vitc", config, count, "all", FORMULA)


CONV_STEM_ROWS = [
    _row("vitc-s4-32", 32, 4, "s", (128, 128, 128, 256, 256, 256), 10, "21.42M"),
    _row("vitc-s8-64", 64, 8, "s", (64, 128, 128, 128, 256, 256, 256), 200, "21.57M"),
    _row("vitc-ti16-224", 224, 16, "ti", (24, 48, 96, 192), 1000, "5.381M"),
    _row("vitc-s16-224", 224, 16, "s", (48, 96, 192, 384), 1000, "21.0M"),
]
