"""Rows of the zoo with a mixture of experts: V-MoE (arXiv 2106.05974)."""

from typing import Any

from vitlab.models.zoo.row import FORMULA, SIZES, ZooRow

PAPER = "Scaling Vision with Sparse Mixture of Experts, arXiv 2106.05974"
JFT_300M, JFT_3B = 18_291, 29_593  # classes

# layers, D, MLP, heads: V-MoE's S is not the S of other ViTs
EXPERT_SIZES: dict[str, tuple[int, int, int, int]] = {
    "s": (8, 512, 2048, 8),
    "b": SIZES["b"],
    "l": SIZES["l"],
    "h": SIZES["h"],
    "15b": (48, 1408, 6400, 16),
}

# size, patch, name of the placement, layers of experts counted from the last (None: every second), published
# parameters. They count the pre-training head: 18,291 classes of JFT-300M after a layer of D x D.
PUBLISHED_ROWS: list[tuple[str, int, str, int | None, str]] = [
    ("s", 32, "every2", None, "296.9M"),
    ("b", 16, "every2", None, "979.0M"),
    ("l", 16, "every2", None, "3446.0M"),
    ("h", 14, "last5", 5, "2688.6M"),
]


def _config(size: str, patch: int, last: int | None) -> dict[str, Any]:
    depth, width, mlp_dim, heads = EXPERT_SIZES[size]
    return {
        "image_size": (224, 224),
        "patch_size": patch,
        "width": width,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "heads": heads,
        "num_experts": 32,
        "last": last,
        "group": 8,  # images, as in the authors' code
    }


def _published(size: str, patch: int, placement: str, last: int | None, published: str) -> ZooRow:
    config = _config(size, patch, last)
    config |= {"num_classes": JFT_300M, "representation": config["width"]}
    return ZooRow(f"vmoe-{size}{patch}-{placement}", "vmoe", config, published, "all", PAPER)


# The models whose weights the authors published: eight experts, and a linear head without the layer of D x D.
RELEASED_ROWS: list[tuple[str, int, str, int | None, str]] = [
    ("s", 32, "last2", 2, "56.74M"),
    ("b", 16, "every2", None, "284.95M"),
]


def _released(size: str, patch: int, placement: str, last: int | None, counted: str) -> ZooRow:
    config = _config(size, patch, last) | {"num_experts": 8}
    return ZooRow(f"vmoe-{size}{patch}-{placement}-e8", "vmoe", config, counted, "all", FORMULA)


EXPERT_ROWS = [
    *(_published(*row) for row in PUBLISHED_ROWS),
    *(_released(*row) for row in RELEASED_ROWS),
    ZooRow("vmoe-15b", "vmoe", _config("15b", 14, None) | {"num_classes": JFT_3B}, "14705.1M", "all", PAPER),
    ZooRow(
        "vmoe-digits",
        "vmoe",
        {
            "image_size": (8, 8),
            "patch_size": 2,
            "width": 64,
            "depth": 4,
            "mlp_dim": 128,
            "heads": 4,
            "num_classes": 10,
            "num_experts": 4,
            "group": 8,
        },
        "236.6k",
        "all",
        FORMULA,
    ),
]
