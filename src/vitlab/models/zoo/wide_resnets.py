"""Rows of the zoo for images of CIFAR's size: Wide ResNets, and ResNet-18 with units of their kind."""

from vitlab.models.zoo.row import FORMULA, ZooRow

PAPER = "Wide Residual Networks, arXiv 1605.07146"

# convolutions, k, published parameters, where
WRNS: list[tuple[int, int, str, str]] = [
    (28, 2, "1.468M", FORMULA),
    (40, 4, "8.9M", PAPER),
    (16, 8, "11.0M", PAPER),
    (28, 10, "36.5M", PAPER),
]


def _wrn(convolutions: int, k: int, published: str, source: str) -> ZooRow:
    units = (convolutions - 4) // 6
    config = {"layers": (units, units, units), "width": 16 * k}
    return ZooRow(f"wrn-{convolutions}-{k}", "wide-resnet", config, published, "all", source)


WIDE_RESNET_ROWS = [
    ZooRow(
        "resnet18-32", "wide-resnet", {"layers": (2, 2, 2, 2), "width": 64, "stem_width": 64}, "11.17M", "all", FORMULA
    ),
    *(_wrn(*row) for row in WRNS),
]
