"""Axial-ViT against full attention with a mask, in NumPy float64."""

from typing import Any

import numpy as np
import pytest
import torch

from vitlab.core.errors import ConfigError
from vitlab.models.axial import AxialAttention, AxialBlock, AxialConfig, AxialViT, LineBlock
from vitlab.models.contract import Layout
from vitlab.models.counts import count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.positions import resize_positions
from vitlab.models.zoo.rows import ZOO

SMALL: dict[str, Any] = {"image_size": (24, 32), "patch_size": 8, "width": 16, "depth": 2, "mlp_dim": 24, "heads": 4}
GRID = (3, 4)


def small(**changes: Any) -> AxialViT:
    model = AxialViT(AxialConfig(**{**SMALL, "num_classes": 5, **changes}))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def same_line(axis: str) -> np.ndarray:
    """Which of the 3 x 4 places see each other, written out."""
    rows = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    columns = [0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3]
    line = np.array(rows if axis == "rows" else columns)
    return line[:, None] == line[None, :]


def masked_attention(module: AxialAttention, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A [B, heads, N, N] over all tokens with a mask, and what it makes of z."""
    weight, bias, heads = array(module.line.qkv.weight), array(module.line.qkv.bias), module.line.heads
    made = (z @ weight.T + bias).reshape(*z.shape[:2], 3, heads, -1)
    q, k, v = (made[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    logits = q @ k.transpose(0, 1, 3, 2) / np.sqrt(q.shape[-1])
    logits = np.where(same_line(module.axis), logits, -np.inf)
    A = np.exp(logits - logits.max(-1, keepdims=True))
    A /= A.sum(-1, keepdims=True)
    y = (A @ v).transpose(0, 2, 1, 3).reshape(z.shape)
    return A, y @ array(module.line.out.weight).T + array(module.line.out.bias)


def half_block(block: LineBlock, z: np.ndarray) -> np.ndarray:
    def norm(layer: torch.nn.LayerNorm, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + layer.eps)
        return scaled * array(layer.weight) + array(layer.bias)

    z = z + masked_attention(block.attention, norm(block.norm1, z))[1]
    hidden = norm(block.norm2, z) @ array(block.mlp.up.weight).T + array(block.mlp.up.bias)
    hidden = hidden * (1 + np.tanh(np.sqrt(2 / np.pi) * (hidden + 0.044715 * hidden**3))) / 2
    return z + hidden @ array(block.mlp.down.weight).T + array(block.mlp.down.bias)


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_attention_is_full_attention_with_a_mask(axis: str) -> None:
    block = small().blocks[0]
    assert isinstance(block, AxialBlock)
    module = getattr(block, axis).attention
    z, layout = torch.randn(2, 12, 16), Layout(grid=GRID)
    A, y = masked_attention(module, array(z))
    np.testing.assert_allclose(array(module(z, layout)), y, atol=1e-5)
    found = module.probabilities(z, layout)
    np.testing.assert_allclose(array(found), A, atol=1e-6)
    assert (array(found)[:, :, ~same_line(axis)] == 0).all()
    torch.testing.assert_close(module.attend(found, z, layout), module(z, layout), rtol=1e-4, atol=1e-5)
    leaf = found.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(module.attend(leaf, z, layout).square().sum(), leaf)
    assert (array(gradient)[:, :, ~same_line(axis)] == 0).all()
    assert (array(gradient)[:, :, same_line(axis)] != 0).all()


def test_a_block_is_rows_and_mlp_then_columns_and_mlp() -> None:
    block = small().blocks[0]
    assert isinstance(block, AxialBlock)
    z = torch.randn(2, 12, 16)
    expected = half_block(block.columns, half_block(block.rows, array(z)))
    np.testing.assert_allclose(array(block(z, Layout(grid=GRID))), expected, rtol=1e-4, atol=1e-4)


def test_one_block_sees_the_whole_image_and_half_of_it_a_row() -> None:
    block = small().blocks[0]
    assert isinstance(block, AxialBlock)
    z, layout = torch.randn(1, 12, 16), Layout(grid=GRID)
    other = z.clone()
    other[0, 5] += torch.randn(16)  # row 1, column 1
    changed = (block.rows(z, layout) - block.rows(other, layout)).abs().amax(-1)[0] > 0
    assert changed.tolist() == [False] * 4 + [True] * 4 + [False] * 4
    assert ((block(z, layout) - block(other, layout)).abs().amax(-1) > 0).all()


def parameters_by_hand(c: dict[str, Any]) -> int:
    """Patches, positions, two halves a layer of two norms, attention and MLP each, a norm, a classifier."""
    d, m, classes = c["width"], c["mlp_dim"], c.get("num_classes", 1000)
    places = (c["image_size"][0] // c["patch_size"]) * (c["image_size"][1] // c["patch_size"])
    half = 4 * d + 4 * d * d + 4 * d + 2 * d * m + m + d
    return 3 * c["patch_size"] ** 2 * d + d + places * d + 2 * c["depth"] * half + 2 * d + d * classes + classes


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.family == "axial"])
def test_parameters_are_the_formula(name: str) -> None:
    config = ZOO[name].config
    assert count_parameters(empty_model(AxialConfig(**config))) == parameters_by_hand(config)


def test_taps_are_rows_and_columns_of_each_layer() -> None:
    model = small()
    taps = model.taps
    assert [getattr(tap.module, "axis", None) for tap in taps.attention] == ["rows", "columns"] * 2
    assert taps.filters is not None
    assert taps.positions is not None
    assert taps.filters().shape == (16, 3, 8, 8)
    assert taps.positions().shape == (12, 16)


def test_positions_are_resized_for_another_image() -> None:
    model, images = small(), torch.randn(2, 3, 40, 16)
    assert model.embed(images).grid == (5, 2)
    table = model.get_parameter("positions.0.table")
    patches = model.projection(model.patches(images)[0])
    expected = resize_positions(table, (5, 2), old_grid=GRID, num_prefix=0)
    torch.testing.assert_close(model.embed(images).values, patches + expected)
    assert model(images).shape == (2, 5)


@pytest.mark.parametrize("pool", ["mean", "attention"])
def test_gradients_reach_every_parameter(pool: str) -> None:
    model = small(pool=pool, layer_scale=0.1, checkpoint_blocks=True).train()
    model(torch.randn(2, 3, 24, 32)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_fresh_weights_are_finite_and_layers_are_counted() -> None:
    model = empty_model(AxialConfig(**SMALL)).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    model.initialize()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert {model.layer_of(name) for name, _ in model.named_parameters()} == {0, 1, 2, 3}


def test_mistakes_get_a_sentence() -> None:
    for fields, words in [
        ({"class_token": True}, "no place for class"),
        ({"num_registers": 2}, "no place for class"),
        ({"positions": "relative"}, "no positions='relative'"),
        ({"pool": "token"}, "needs class_token"),
    ]:
        with pytest.raises(ConfigError, match=words):
            create("axial-vit-digits", **fields)
