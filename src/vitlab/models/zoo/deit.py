"""Rows of the zoo for DeiT (arXiv 2012.12877): the ViT with a distillation token, which learns from a teacher."""

from typing import Any

from vitlab.models.zoo.row import SIZES, TIMM, ZooRow

# size, resolution, published parameters
SIZED: list[tuple[str, int, str]] = [
    ("ti", 224, "5.91M"),
    ("s", 224, "22.44M"),
    ("b", 224, "87.34M"),
    ("b", 384, "87.63M"),
]


def _deit(size: str, resolution: int, published: str) -> ZooRow:
    depth, width, mlp_dim, heads = SIZES[size]
    config: dict[str, Any] = {
        "image_size": (resolution, resolution),
        "patch_size": 16,
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "heads": heads,
        "distill_token": True,
        "positions_for_prefix": 2,
        "gelu": "exact",
        "resize_rule": "hf",  # bicubic without antialiasing, as the authors' code resizes positions
    }
    return ZooRow(f"deit-{size}16-{resolution}", "vit", config, published, "all", f"DeiT, arXiv 2012.12877; {TIMM}")


DEIT_ROWS = [_deit(*row) for row in SIZED]
