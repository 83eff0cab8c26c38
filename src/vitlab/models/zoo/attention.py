"""Rows of the zoo for the attention models that the paper builds on: axial, stand-alone and non-local."""

from typing import Any

from vitlab.models.zoo.row import FORMULA, SIZES, ZooRow

SASA = "Stand-Alone Self-Attention in Vision Models, arXiv 1906.05909, table 1"

# patch, parameters
AXIALS: list[tuple[int, str]] = [(16, "171.62M"), (32, "173.28M")]

# layers in the name, units per stage, parameters, where
SASAS: list[tuple[int, tuple[int, ...], str, str]] = [
    (26, (1, 2, 4, 1), "10.3M", SASA),
    (38, (2, 3, 5, 2), "14.19M", f"worked out by hand from the sizes; 14.1M in {SASA}"),
    (50, (3, 4, 6, 3), "18.0M", SASA),
]


def _axial(patch: int, parameters: str) -> ZooRow:
    depth, width, mlp_dim, heads = SIZES["b"]
    config: dict[str, Any] = {
        "image_size": (224, 224),
        "patch_size": patch,
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "heads": heads,
    }
    return ZooRow(f"axial-vit-b{patch}-224", "axial", config, parameters, "all", FORMULA)


def _digits(name: str, family: str, config: dict[str, Any], parameters: str) -> ZooRow:
    return ZooRow(f"{name}-digits", family, {**config, "num_classes": 10}, parameters, "all", FORMULA)


AXIAL_ROWS = [
    *(_axial(*row) for row in AXIALS),
    _digits(
        "axial-vit",
        "axial",
        {"image_size": (8, 8), "patch_size": 2, "width": 64, "depth": 2, "mlp_dim": 128, "heads": 4},
        "136.5k",
    ),
]

SASA_ROWS = [
    *(
        ZooRow(f"sasa-{layers}", "sasa", {"layers": units}, parameters, "all", source)
        for layers, units, parameters, source in SASAS
    ),
    _digits("sasa", "sasa", {"image_size": (32, 32), "layers": (1, 1), "width": 32, "window": 3, "heads": 4}, "91.5k"),
]

NON_LOCAL_ROWS = [
    ZooRow("nonlocal-r50", "non-local", {}, "32.91M", "all", FORMULA),
    _digits(
        "nonlocal",
        "non-local",
        {"image_size": (32, 32), "layers": (1, 1), "width": 32, "stages": (2,), "every": 1},
        "253.5k",
    ),
]
