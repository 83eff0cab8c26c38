"""Position embeddings: every resize rule against its origin, fixed embeddings and relative attention by hand."""

import math
from collections import OrderedDict

import numpy as np
import pytest
import scipy.ndimage
import torch
from hypothesis import given
from hypothesis import strategies as st

from peers import timm
from vitlab.core.errors import ConfigError
from vitlab.models.contract import Layout
from vitlab.models.positions import (
    RULES,
    AddedPositions,
    RelativePositions,
    RotaryUnit,
    Rule,
    apply_rotary,
    resize_positions,
    sincos1d,
    sincos2d,
)

sides = st.integers(1, 9)


@given(sides, sides, sides, sides, st.integers(0, 2))
def test_official_rule_is_scipy_zoom(h: int, w: int, new_h: int, new_w: int, num_prefix: int) -> None:
    if (h == 1 and new_h > 1) or (w == 1 and new_w > 1):
        return  # zoom repeats nothing to interpolate between; covered below
    table = torch.from_numpy(np.random.default_rng(0).normal(size=(num_prefix + h * w, 5))).float()
    grid = table[num_prefix:].numpy().reshape(h, w, 5)
    zoomed = np.asarray(scipy.ndimage.zoom(grid, (new_h / h, new_w / w, 1), order=1))
    resized = resize_positions(table, (new_h, new_w), old_grid=(h, w), num_prefix=num_prefix)
    assert torch.equal(resized[:num_prefix], table[:num_prefix])
    np.testing.assert_allclose(resized[num_prefix:].numpy(), zoomed.reshape(-1, 5), atol=2e-6)


@pytest.mark.parametrize("rule", RULES)
def test_several_tables_in_double_precision(rule: Rule) -> None:
    tables = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 3, 1 + 4 * 4, 5)))
    resized = resize_positions(tables, (5, 7), rule=rule)
    assert resized.dtype == torch.float64
    for i, j in np.ndindex(2, 3):
        alone = resize_positions(tables[i, j], (5, 7), rule=rule)
        torch.testing.assert_close(resized[i, j], alone, rtol=0, atol=1e-15)
    if rule == "official":
        zoomed = np.asarray(scipy.ndimage.zoom(tables[1, 2, 1:].numpy().reshape(4, 4, 5), (5 / 4, 7 / 4, 1), order=1))
        np.testing.assert_allclose(resized[1, 2, 1:].numpy(), zoomed.reshape(-1, 5), atol=1e-13)


def test_a_single_place_is_repeated() -> None:
    table = torch.randn(1, 4)
    assert torch.allclose(resize_positions(table, (2, 3), old_grid=(1, 1), num_prefix=0), table.expand(6, 4))


@pytest.mark.parametrize("new", [(7, 7), (3, 5), (12, 10)])
def test_timm_rule_is_timms(new: tuple[int, int]) -> None:
    resample = timm.layers.resample_abs_pos_embed
    table = torch.randn(1, 2 + 5 * 6, 8)
    theirs = resample(table, list(new), old_size=[5, 6], num_prefix_tokens=2)
    ours = resize_positions(table, new, old_grid=(5, 6), rule="timm", num_prefix=2)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_torchvision_rule_is_torchvisions() -> None:
    from torchvision.models.vision_transformer import interpolate_embeddings

    table = torch.randn(1, 1 + 4 * 4, 8)
    state = OrderedDict({"encoder.pos_embedding": table.clone()})
    theirs = interpolate_embeddings(96, 16, state)["encoder.pos_embedding"]
    torch.testing.assert_close(resize_positions(table, (6, 6), rule="torchvision"), theirs, rtol=1e-6, atol=1e-6)


def test_hf_rule_is_transformers() -> None:
    from transformers import ViTConfig as HfConfig
    from transformers import ViTModel

    config = HfConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, image_size=64, patch_size=16
    )
    embeddings = ViTModel(config, add_pooling_layer=False).embeddings
    torch.nn.init.normal_(embeddings.position_embeddings)
    tokens = torch.zeros(1, 1 + 6 * 5, 8)
    theirs = embeddings.interpolate_pos_encoding(tokens, 96, 80)
    ours = resize_positions(embeddings.position_embeddings, (6, 5), rule="hf")
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)


def test_the_same_grid_changes_nothing_and_any_rank_is_taken() -> None:
    table = torch.randn(17, 8)
    assert resize_positions(table, (4, 4)) is table
    assert resize_positions(table[None], (2, 8)).shape == (1, 17, 8)
    assert torch.equal(resize_positions(table[None], (2, 8))[0], resize_positions(table, (2, 8)))


def test_impossible_grids_are_refused() -> None:
    table = torch.randn(17, 8)
    with pytest.raises(ConfigError, match="old_grid"):
        resize_positions(table, (2, 2), num_prefix=0)
    with pytest.raises(ConfigError, match="positive"):
        resize_positions(table, (0, 2))


def test_sincos1d_is_the_transformers() -> None:
    for p in range(5):
        for i in range(4):
            angle = p / 10000 ** (2 * i / 8)
            assert sincos1d(5, 8)[p, 2 * i] == pytest.approx(math.sin(angle), abs=1e-6)
            assert sincos1d(5, 8)[p, 2 * i + 1] == pytest.approx(math.cos(angle), abs=1e-6)


def test_sincos2d_is_big_visions() -> None:
    y, x = np.mgrid[:3, :4]
    omega = 1 / 10000 ** (np.arange(3) / 2)
    y, x = y.reshape(-1, 1) * omega, x.reshape(-1, 1) * omega
    expected = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    np.testing.assert_allclose(sincos2d((3, 4), 12).numpy(), expected, atol=1e-6)


def test_learned2d_is_a_row_beside_a_column() -> None:
    positions = AddedPositions("learned2d", (2, 3), 4, num_prefix=1, rule="official")
    positions.initialize()
    table = positions.all_places((2, 3), torch.device("cpu"))
    for row in range(2):
        for column in range(3):
            expected = torch.cat([positions.rows[row], positions.columns[column]])
            assert torch.equal(table[1 + row * 3 + column], expected)


@pytest.mark.parametrize("kind", ["learned", "learned2d", "sincos1d", "sincos2d"])
def test_positions_go_to_the_tokens_that_are_present(kind: str) -> None:
    positions = AddedPositions(kind, (3, 4), 8, num_prefix=1, rule="official")  # pyright: ignore[reportArgumentType]
    positions.initialize()
    table = positions.all_places((3, 4), torch.device("cpu"))
    present = torch.tensor([[5, 0, 11], [2, 3, 4]])
    z = torch.randn(2, 2 + 3, 8)  # two prefix tokens, of which one has a position
    out = positions(z, Layout(grid=(3, 4), present=present, num_prefix=2))
    for b in range(2):
        torch.testing.assert_close(out[b, 0], z[b, 0] + table[0])
        assert torch.equal(out[b, 1], z[b, 1])
        for j, place in enumerate(present[b]):
            torch.testing.assert_close(out[b, 2 + j], z[b, 2 + j] + table[1 + place])


@pytest.mark.parametrize("kind", ["relative", "relative2d"])
@pytest.mark.parametrize("subset", [False, True])
def test_relative_logits_by_hand(kind: str, subset: bool) -> None:
    height, width, head_width = 2, 3, 4
    relative = RelativePositions(kind, (height, width), head_width, rule="official")  # pyright: ignore[reportArgumentType]
    relative.initialize()
    present = torch.tensor([[4, 1], [0, 5]]) if subset else None
    places = present if present is not None else torch.arange(6).expand(2, -1)
    q = torch.randn(2, 3, 1 + places.shape[1], head_width)
    bias = relative(q, Layout(grid=(height, width), present=present, num_prefix=1))
    assert bias[:, :, 0].abs().sum() == 0
    assert bias[:, :, :, 0].abs().sum() == 0
    for b in range(2):
        for i, p in enumerate(places[b].tolist()):
            for j, r in enumerate(places[b].tolist()):
                if kind == "relative":
                    offset = (p - r) + height * width - 1
                else:
                    down, right = p // width - r // width, p % width - r % width
                    offset = (down + height - 1) * (2 * width - 1) + right + width - 1
                expected = q[b, :, 1 + i] @ relative.table[offset] / math.sqrt(head_width)
                torch.testing.assert_close(bias[b, :, 1 + i, 1 + j], expected)


@pytest.mark.parametrize("unit", ["patch", "image"])
@pytest.mark.parametrize("subset", [False, True])
def test_rotary_positions_are_products_of_complex_numbers(subset: bool, unit: RotaryUnit) -> None:
    present = torch.tensor([[5, 0, 3], [1, 2, 4]]) if subset else None
    x = torch.randn(2, 2 + (3 if subset else 6), 3, 8)
    found = apply_rotary(x, Layout(grid=(2, 3), present=present, num_prefix=2), unit)
    assert torch.equal(found[:, :2], x[:, :2])
    for image in range(2):
        for token in range(x.shape[1] - 2):
            place = token if present is None else int(present[image, token])
            row, column = divmod(place, 3)
            if unit == "image":  # the middles of two rows are at -1/2 and 1/2, of three columns at -2/3, 0 and 2/3
                row, column = 2 * math.pi * (row - 1 / 2), 2 * math.pi * (column - 1) * 2 / 3
            angles = [row * 1.0, row * 0.1, column * 1.0, column * 0.1]  # 100^0 and 100^(-1/2)
            for head in range(3):
                values = x[image, 2 + token, head].tolist()
                for i, angle in enumerate(angles):
                    expected = complex(values[i], values[i + 4]) * complex(math.cos(angle), math.sin(angle))
                    got = found[image, 2 + token, head]
                    assert complex(got[i], got[i + 4]) == pytest.approx(expected, abs=1e-5)


def test_products_of_turned_queries_and_keys_depend_on_the_offset_alone() -> None:
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)
    layout = Layout(grid=(4, 5))
    logits = torch.einsum(
        "bnhd,bmhd->nm", apply_rotary(q.expand(1, 20, 1, 16), layout), apply_rotary(k.expand(1, 20, 1, 16), layout)
    )
    assert logits[0, 7] == pytest.approx(logits[5, 12].item(), abs=1e-4)  # one row down and two columns to the right
    assert logits[0, 7] == pytest.approx(logits[12, 19].item(), abs=1e-4)
    assert logits[0, 7] != pytest.approx(logits[0, 11].item(), abs=1e-4)
