"""Rows of the zoo for plain Vision Transformers."""

from typing import Any

from vitlab.models.zoo.deit import DEIT_ROWS
from vitlab.models.zoo.row import FORMULA, PAPER, SCALING, SIZES, TIMM, Counts, ZooRow

# size, patch, resolution, published parameters, what they count, where
SIZED: list[tuple[str, int, int, str, Counts, str]] = [
    ("ti", 16, 224, "5.72M", "all", TIMM),
    ("ti", 16, 384, "5.79M", "all", TIMM),
    ("s", 8, 224, "21.67M", "backbone", "DINO, arXiv 2104.14294, and timm's vit_small_patch8_224.dino"),
    ("s", 14, 224, "21.62M", "backbone", FORMULA),
    ("s", 14, 518, "22.05M", "backbone", FORMULA),
    ("s", 16, 224, "22.05M", "all", TIMM),
    ("s", 16, 384, "22.20M", "all", TIMM),
    ("s", 32, 224, "22.88M", "all", TIMM),
    ("s", 32, 384, "22.92M", "all", TIMM),
    ("bhalf", 16, 224, "22.05M", "all", "the paper's ViT-b has the sizes of S/16, for which timm's table has 22.05M"),
    ("bhalf", 32, 224, "22.88M", "all", "the paper's ViT-b has the sizes of S/32, for which timm's table has 22.88M"),
    ("b", 8, 224, "86.58M", "all", TIMM),
    ("b", 14, 224, "85.71M", "backbone", FORMULA),
    ("b", 14, 518, "86.56M", "backbone", FORMULA),
    ("b", 16, 224, "86.57M", "all", TIMM),
    ("b", 16, 384, "86.86M", "all", TIMM),
    ("b", 28, 224, "87M", "backbone", SCALING),
    ("b", 32, 224, "88.22M", "all", TIMM),
    ("b", 32, 384, "88.30M", "all", TIMM),
    ("l", 14, 224, "304.20M", "all", TIMM),
    ("l", 14, 518, "304.32M", "backbone", FORMULA),
    ("l", 16, 224, "304.33M", "all", TIMM),
    ("l", 16, 384, "304.72M", "all", TIMM),
    ("l", 16, 512, "305.17M", "all", FORMULA),
    ("l", 32, 224, "307M", "all", PAPER),
    ("l", 32, 384, "306.63M", "all", TIMM),
    ("h", 14, 224, "632M", "all", PAPER),
    ("h", 14, 336, "632.46M", "all", TIMM),
    ("h", 14, 518, "633.47M", "all", FORMULA),
    ("giant", 14, 224, "1011M", "backbone", SCALING),
    ("giant", 14, 518, "1012.77M", "backbone", FORMULA),
    ("gigantic", 14, 224, "1843M", "backbone", SCALING),
    ("gigantic", 14, 518, "1844.62M", "backbone", FORMULA),
]


def _vit(size: str, patch: int, resolution: int, published: str, counts: Counts, source: str) -> ZooRow:
    depth, width, mlp_dim, heads = SIZES[size]
    config: dict[str, Any] = {
        "image_size": (resolution, resolution),
        "patch_size": patch,
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "heads": heads,
    }
    if size in ("giant", "gigantic"):
        config |= {"class_token": False, "pool": "attention"}
    return ZooRow(f"vit-{size}{patch}-{resolution}", "vit", config, published, counts, source)


def _small(
    name: str,
    image: int,
    patch: int,
    sizes: tuple[int, int, int, int],
    classes: int,
    published: str,
    source: str,
    **more: bool,
) -> ZooRow:
    depth, width, mlp_dim, heads = sizes
    config: dict[str, Any] = {
        "image_size": (image, image),
        "patch_size": patch,
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "heads": heads,
        "num_classes": classes,
        **more,
    }
    return ZooRow(name, "vit", config, published, "all", source)


# name, image, patch, (layers, D, MLP, heads), classes
SMALL = [
    _small("vit-cifar-d128", 32, 4, (6, 128, 512, 4), 10, "1.206M", FORMULA),
    _small("vit-ti4-32", 32, 4, SIZES["ti"], 10, "5.363M", FORMULA),
    _small("vit-s4-32", 32, 4, SIZES["s"], 10, "21.34M", FORMULA),
    _small(
        "vit-lite7-4-32",
        32,
        4,
        (7, 256, 512, 4),
        10,
        "3.717M",
        "Escaping the Big Data Paradigm with Compact Transformers, arXiv 2104.05704",
        patch_bias=False,
        qkv_bias=False,
    ),
    _small("vit-cifar7-4-32", 32, 4, (7, 384, 384, 12), 10, "6.3M", "the public project ViT-CIFAR"),
    _small("vit-ti8-64", 64, 8, SIZES["ti"], 200, "5.43M", FORMULA),
    _small("vit-s8-64", 64, 8, SIZES["s"], 200, "21.47M", FORMULA),
    _small("vit-digits", 8, 2, (4, 64, 128, 4), 10, "136.7k", FORMULA),
]

VIT_ROWS = [*(_vit(*row) for row in SIZED), *SMALL, *DEIT_ROWS]
