"""Rows of the zoo for what has a ResNet in it: the paper's hybrids, and BiT."""

from typing import Any

from vitlab.models.zoo.row import FORMULA, SIZES, TIMM, ZooRow

UNITS: dict[str, tuple[int, ...]] = {  # units per stage
    "50": (3, 4, 6, 3),
    "101": (3, 4, 23, 3),
    "152": (3, 8, 36, 3),
    "200": (3, 24, 36, 3),
}

# ResNet, its units, size, patch in the name, pixels a token, resolution, published parameters, where.
# R50 before tokens of 16 px has the fourth stage's units in the third; R+Ti/16 cuts patches of 8 from stride 4.
HYBRIDS: list[tuple[str, tuple[int, ...], str, int, int, int, str, str]] = [
    ("r", (), "ti", 16, 32, 224, "6.34M", TIMM),
    ("r", (), "ti", 16, 32, 384, "6.36M", TIMM),
    ("r26", (2, 2, 2, 2), "s", 32, 32, 224, "36.43M", TIMM),
    ("r26", (2, 2, 2, 2), "s", 32, 32, 384, "36.47M", TIMM),
    ("r26", (2, 2, 2, 2), "b", 32, 32, 224, "101.38M", FORMULA),
    ("r50", (3, 4, 9), "b", 16, 16, 224, "98.66M", FORMULA),
    ("r50", (3, 4, 9), "b", 16, 16, 384, "98.95M", TIMM),
    ("r50", (3, 4, 6, 3), "b", 32, 32, 224, "110.95M", FORMULA),
    ("r50", (3, 4, 9), "l", 16, 16, 224, "316.48M", FORMULA),
    ("r50", (3, 4, 6, 3), "l", 32, 32, 224, "328.99M", TIMM),
    ("r50", (3, 4, 6, 3), "l", 32, 32, 384, "329.09M", TIMM),
]

# depth, width factor, published parameters, where
BITS: list[tuple[str, int, str, str]] = [
    ("50", 1, "25.55M", TIMM),
    ("50", 2, "98.0M", FORMULA),
    ("50", 3, "217.32M", TIMM),
    ("101", 1, "44.54M", TIMM),
    ("101", 3, "387.93M", TIMM),
    ("152", 1, "60.2M", FORMULA),
    ("152", 2, "236.34M", TIMM),
    ("152", 4, "936.53M", TIMM),
    ("200", 3, "569M", FORMULA),
]


def _hybrid(
    resnet: str,
    units: tuple[int, ...],
    size: str,
    patch: int,
    covers: int,
    resolution: int,
    published: str,
    source: str,
) -> ZooRow:
    depth, width, mlp_dim, heads = SIZES[size]
    config: dict[str, Any] = {
        "image_size": (resolution, resolution),
        "patch_size": covers,
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "heads": heads,
        "resnet_layers": units,
    }
    return ZooRow(f"{resnet}-vit-{size}{patch}-{resolution}", "hybrid", config, published, "all", source)


def _bit(depth: str, factor: int, published: str, source: str) -> ZooRow:
    config: dict[str, Any] = {"layers": UNITS[depth], "width": 64 * factor}
    return ZooRow(f"bit-r{depth}x{factor}", "bit", config, published, "all", source)


HYBRID_ROWS = [_hybrid(*row) for row in HYBRIDS]
BIT_ROWS = [_bit(*row) for row in BITS]
