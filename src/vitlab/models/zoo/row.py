"""What a row of the zoo is, and what rows of several families share: sizes and sources."""

import fnmatch
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

Counts: TypeAlias = Literal["all", "backbone"]


@dataclass(frozen=True)
class ZooRow:
    """A named model, with the parameter count that was published for it.

    `counts` says what that figure covers: everything with a head of `num_classes`, or the backbone without pooling
    head and classifier.
    """

    name: str
    family: str
    config: dict[str, Any]
    published: str  # as printed in the source: '86.57M'
    counts: Counts
    source: str


def matches(name: str, pattern: str) -> bool:
    """Whether a glob is a row's name; a plain word matches anywhere in it."""
    glob = pattern.lower()
    return fnmatch.fnmatchcase(name, glob if any(c in glob for c in "*?[") else f"*{glob}*")


# layers, D, MLP, heads: table 1 of the paper; g and G of arXiv 2106.04560; Ti and S of DeiT and arXiv 2106.10270
SIZES: dict[str, tuple[int, int, int, int]] = {
    "ti": (12, 192, 768, 3),
    "s": (12, 384, 1536, 6),
    "bhalf": (12, 384, 1536, 6),  # the paper's ViT-b: B with every hidden dimension halved; heads unstated there
    "b": (12, 768, 3072, 12),
    "l": (24, 1024, 4096, 16),
    "h": (32, 1280, 5120, 16),
    "giant": (40, 1408, 6144, 16),
    "gigantic": (48, 1664, 8192, 16),
}

PAPER = "An Image is Worth 16x16 Words, arXiv 2010.11929"
SCALING = "Scaling Vision Transformers, arXiv 2106.04560, table 2"
TIMM = "timm's results table (results-imagenet.csv)"
FORMULA = "no published figure; worked out by hand from the sizes"
