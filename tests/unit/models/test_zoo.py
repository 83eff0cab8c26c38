"""Every row of the zoo against its published count, a formula worked out by hand, and published FLOPs."""

import re
from typing import Any

import pytest

from vitlab.core.config import from_dict
from vitlab.core.errors import ConfigError, UnknownNameError
from vitlab.models.contract import Model
from vitlab.models.counts import count_flops, count_parameters
from vitlab.models.create import create, empty_model, family_of
from vitlab.models.zoo.rows import ZOO, ZooRow, list_models


def build(row: ZooRow, **changes: Any) -> Model:
    return empty_model(from_dict(family_of(row.family).config, {**row.config, **changes}, where=row.name))


def counted(row: ZooRow) -> int:
    if row.counts == "all":
        return count_parameters(build(row))
    return count_parameters(build(row, num_classes=0, pool="token" if row.config.get("class_token", True) else "mean"))


@pytest.mark.parametrize("name", ZOO)
def test_parameters_are_as_published(name: str) -> None:
    row = ZOO[name]
    match = re.fullmatch(r"(\d+)(?:\.(\d+))?([kM])", row.published)
    assert match is not None
    unit = {"k": 1e3, "M": 1e6}[match[3]]
    decimals = len(match[2] or "")
    assert round(counted(row) / unit, decimals) == float(row.published[:-1])


def parameters_by_hand(c: dict[str, Any]) -> int:
    """The count of a plain class-token ViT from its sizes alone; DeiT's second token has a position and a head."""
    d, m, classes = c["width"], c["mlp_dim"], c.get("num_classes", 1000)
    places = (c["image_size"][0] // c["patch_size"]) * (c["image_size"][1] // c["patch_size"])
    patches = 3 * c["patch_size"] ** 2 * d + d * c.get("patch_bias", True)
    layer = 3 * d * d + 3 * d * c.get("qkv_bias", True) + d * d + d + 2 * d * m + m + d + 4 * d
    tokens = 1 + c.get("distill_token", False)
    return patches + (2 * tokens + places) * d + c["depth"] * layer + 2 * d + tokens * (d * classes + classes)


@pytest.mark.parametrize("name", [n for n, row in ZOO.items() if row.family == "vit" and "pool" not in row.config])
def test_parameters_are_the_formula(name: str) -> None:
    assert count_parameters(build(ZOO[name])) == parameters_by_hand(ZOO[name].config)


def test_giant_models_with_pooling_head_and_classifier() -> None:
    assert round(count_parameters(build(ZOO["vit-giant14-224"])) / 1e6, 1) == 1037.9
    assert round(count_parameters(build(ZOO["vit-gigantic14-224"])) / 1e6, 1) == 1882.8


@pytest.mark.parametrize(
    ("name", "published"),  # arXiv 2106.04560, table 2, at 224 px
    [
        ("vit-ti16-224", 2.5),
        ("vit-s32-224", 2.3),
        ("vit-b32-224", 8.7),
        ("vit-s16-224", 9.2),
        ("vit-b28-224", 11.3),
        ("vit-b16-224", 35.1),
        ("vit-l16-224", 122.9),
        ("vit-giant14-224", 533.1),
        ("vit-gigantic14-224", 965.3),
    ],
)
def test_flops_are_as_published(name: str, published: float) -> None:
    assert count_flops(build(ZOO[name])) / 1e9 == pytest.approx(published, rel=0.02)


def test_flops_of_one_layer_by_hand() -> None:
    one = count_flops(build(ZOO["vit-b16-224"], depth=1))
    two = count_flops(build(ZOO["vit-b16-224"], depth=2))
    n, d, m = 197, 768, 3072
    assert two - one == 2 * n * (4 * d * d + 2 * d * m) + 4 * n * n * d


def test_names_are_found_by_glob_or_part() -> None:
    assert {row.name for row in list_models("vit-b16-*")} == {"vit-b16-224", "vit-b16-384"}
    assert {row.name for row in list_models("cifar")} == {"vit-cifar-d128", "vit-cifar7-4-32"}
    assert len(list_models()) == len(ZOO)
    assert list_models("resnet-18") == []


def test_unknown_names_get_near_matches() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean.*vit-b16-224"):
        create("vit-b16-225")
    with pytest.raises(ConfigError, match="Did you mean depth"):
        create("vit-digits", dept=3)
    with pytest.raises(ConfigError, match="whole number"):
        create("vit-digits", depth="many")
    with pytest.raises(ConfigError, match=r"official \| timm"):
        create("vit-digits", resize_rule="nearest")


@pytest.mark.parametrize(
    ("fields", "at", "tables"),
    [
        ({"positions": "relative"}, "every", 4),  # of vit-digits, one per layer
        ({"positions": "relative", "positions_at": "shared"}, "shared", 1),
        ({"positions": "learned2d"}, "stem", 1),
    ],
)
def test_create_puts_other_positions_at_their_own_place(fields: dict[str, Any], at: str, tables: int) -> None:
    model = create("vit-digits", **fields)
    assert model.config.positions_at == at
    assert sum(name.endswith((".table", ".rows")) for name in model.state_dict()) == tables


def test_create_changes_classes_and_size() -> None:
    model = create("vit-digits", num_classes=3, image_size=(16, 8), dropout=0.1)
    assert model.config.num_classes == 3
    assert model.config.image_size == model.preprocess.size == (16, 8)
    assert model.config.dropout == 0.1
    assert create("vit-digits", image_size=16).config.image_size == (16, 16)
