"""Rows of the zoo for networks of convolutional stages with attention: CvT and CoAtNet."""

from typing import Any

from vitlab.models.zoo.row import FORMULA, TIMM, ZooRow

CVT = "CvT: Introducing Convolutions to Vision Transformers, arXiv 2103.15808, and its authors' README"
COATNET = "CoAtNet: Marrying Convolution and Attention for All Data Sizes, arXiv 2106.04803"

# name, widths, depths, heads, resolution, published parameters
CVTS: list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, ...], int, str]] = [
    ("13", (64, 192, 384), (1, 2, 10), (1, 3, 6), 224, "20M"),
    ("21", (64, 192, 384), (1, 4, 16), (1, 3, 6), 224, "32M"),
    ("w24", (192, 768, 1024), (2, 2, 20), (3, 12, 16), 384, "277M"),
]

CCTT = ("conv", "conv", "attention", "attention")
CCCTT = ("conv", "conv", "conv", "attention", "attention")  # the third stage in two: MBConv, then attention
# number, kinds of stages, depths, widths, stem, width of a head, published parameters, where
COATNETS: list[tuple[int, tuple[str, ...], tuple[int, ...], tuple[int, ...], int, int, str, str]] = [
    (0, CCTT, (2, 3, 5, 2), (96, 192, 384, 768), 64, 32, "25M", COATNET),
    (1, CCTT, (2, 6, 14, 2), (96, 192, 384, 768), 64, 32, "42M", COATNET),
    (2, CCTT, (2, 6, 14, 2), (128, 256, 512, 1024), 128, 32, "75M", COATNET),
    (3, CCTT, (2, 6, 14, 2), (192, 384, 768, 1536), 192, 32, "167M", f"{FORMULA}; the paper prints 168M"),
    (4, CCTT, (2, 12, 28, 2), (192, 384, 768, 1536), 192, 32, "275M", COATNET),
    (5, CCTT, (2, 12, 28, 2), (256, 512, 1280, 2048), 192, 64, "687M", f"{FORMULA}; the paper prints 688M"),
    # The paper prints a last width of 2048 for CoAtNet-6, which would make 1348M; 3072 makes its 1471M.
    (6, CCCTT, (2, 4, 8, 42, 2), (192, 384, 768, 1536, 3072), 192, 128, "1471M", COATNET),
    (7, CCCTT, (2, 4, 8, 42, 2), (256, 512, 1024, 2048, 3072), 192, 128, "2442M", COATNET),
]

# What timm's own variants do otherwise: the first of them, and those after it had read MaxViT's code
FIRST: dict[str, Any] = {
    "widens": "last",
    "norm_pooled": False,
    "conv_activation": "silu",
    "pre_activation": True,
    "conv_bias": False,
    "squeeze": 0.25,
    "squeeze_activation": "relu",
}
LATER = FIRST | {"pre_activation": False, "conv_bias": True, "squeeze_activation": "silu"}
EARLY: dict[str, Any] = {"squeeze_early": True, "shortcut_bias": False}
# name, depths, widths, stem, what else it does otherwise, published parameters, where
RW_ROWS: list[tuple[str, tuple[int, ...], tuple[int, ...], tuple[int, int], dict[str, Any], str, str]] = [
    ("nano", (3, 4, 6, 3), (64, 128, 256, 512), (32, 64), LATER | {"downsample": "pool"}, "15.14M", TIMM),
    ("0", (2, 3, 7, 2), (96, 192, 384, 768), (32, 64), FIRST | EARLY | {"downsample": "pool"}, "27.44M", TIMM),
    ("1", (2, 6, 14, 2), (96, 192, 384, 768), (32, 64), FIRST | EARLY, "41.72M", TIMM),
    ("2", (2, 6, 14, 2), (128, 256, 512, 1024), (64, 128), FIRST | {"squeeze_activation": "silu"}, "73.87M", TIMM),
    (
        *("3", (2, 6, 14, 2), (192, 384, 768, 1536), (96, 192)),
        *(FIRST | {"squeeze_activation": "silu", "layer_scale": 1e-6}, "165.17M", FORMULA),
    ),
]


def _cvt(
    name: str, widths: tuple[int, ...], depths: tuple[int, ...], heads: tuple[int, ...], resolution: int, published: str
) -> ZooRow:
    config = {"image_size": (resolution, resolution), "widths": widths, "depths": depths, "heads": heads}
    return ZooRow(f"cvt-{name}", "cvt", config, published, "all", CVT)


def _coatnet(
    number: int,
    kinds: tuple[str, ...],
    depths: tuple[int, ...],
    widths: tuple[int, ...],
    stem: int,
    head_width: int,
    published: str,
    source: str,
) -> ZooRow:
    config: dict[str, Any] = {
        "stem": (stem, stem),
        "kinds": kinds,
        "depths": depths,
        "widths": widths,
        "strides": (2, 2, 2, 2) if kinds == CCTT else (2, 2, 2, 1, 2),
        "head_width": head_width,
        "representation": widths[-1],
    }
    return ZooRow(f"coatnet-{number}", "coatnet", config, published, "all", source)


def _rw(
    name: str,
    depths: tuple[int, ...],
    widths: tuple[int, ...],
    stem: tuple[int, int],
    more: dict[str, Any],
    published: str,
    source: str,
) -> ZooRow:
    config = {"stem": stem, "depths": depths, "widths": widths, "resize_rule": "timm", **more}
    return ZooRow(f"coatnet-{name}-rw", "coatnet", config, published, "all", source)


CVT_ROWS = [_cvt(*row) for row in CVTS]
COATNET_ROWS = [*(_coatnet(*row) for row in COATNETS), *(_rw(*row) for row in RW_ROWS)]
