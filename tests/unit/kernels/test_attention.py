"""Attention over q, k and v in one: the operator's plain twin, and what is chosen."""

import pytest
import torch
from torch import Tensor, nn

from vitlab.kernels.attention import attention, project, short_attention, takes
from vitlab.models.contract import Layout
from vitlab.models.positions import rotary_angles

HEADS, WIDTH = 2, 8


def packed(tokens: int = 5, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(3, tokens, 3 * HEADS * WIDTH, dtype=dtype, generator=torch.Generator().manual_seed(0))


def by_torchs_module(qkv: Tensor) -> Tensor:
    """torch.nn's attention of the same q, k and v: its input is all three side by side, its kernels pick them out."""
    width = HEADS * WIDTH
    module = nn.MultiheadAttention(width, HEADS, kdim=width, vdim=width, bias=False, batch_first=True).double()
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(width).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(width))
    q, k, v = qkv.chunk(3, dim=-1)
    return module(q, k, v, need_weights=False)[0]


def by_hand(qkv: Tensor, angles: Tensor) -> Tensor:
    """One head of one image at a time, pairs turned as complex numbers."""
    out = torch.empty(*qkv.shape[:2], HEADS * WIDTH, dtype=qkv.dtype)
    for image in range(len(qkv)):
        turn = torch.complex(*angles.double())[image % angles.shape[1]]
        for head in range(HEADS):
            place = slice(head * WIDTH, (head + 1) * WIDTH)
            q, k, v = (part[:, place] for part in qkv[image].chunk(3, dim=-1))
            q, k = (torch.complex(*part.chunk(2, dim=-1)) * turn for part in (q, k))
            out[image, :, place] = ((q @ k.mH).real / WIDTH**0.5).softmax(dim=-1) @ v
    return out


@pytest.mark.parametrize("function", [attention, short_attention])
def test_it_is_torchs_attention(function) -> None:  # pyright: ignore[reportMissingParameterType]
    qkv = packed()
    torch.testing.assert_close(function(qkv, HEADS), by_torchs_module(qkv))


@pytest.mark.parametrize("present", [None, torch.tensor([[0, 1, 3, 5], [2, 3, 4, 5], [5, 0, 2, 1]])])
@pytest.mark.parametrize("function", [attention, short_attention])
def test_rotary_positions_turn_queries_and_keys(function, present: Tensor | None) -> None:  # pyright: ignore[reportMissingParameterType]
    angles = rotary_angles(Layout(grid=(2, 3), present=present, num_prefix=1), WIDTH, torch.device("cpu"))
    qkv = packed(7 if present is None else 5)
    torch.testing.assert_close(function(qkv, HEADS, angles), by_hand(qkv, angles), rtol=1e-5, atol=1e-5)


def test_its_gradient_is_that_by_differences() -> None:
    assert torch.autograd.gradcheck(lambda qkv: short_attention(qkv, HEADS), packed(3).requires_grad_())


def test_its_gradient_turns_back() -> None:
    """Against autograd's through the plain formula, in float32, in which pairs are turned."""
    angles = rotary_angles(Layout(grid=(2, 2), num_prefix=1), WIDTH, torch.device("cpu"))
    of_operator, of_formula = (packed(dtype=torch.float32).requires_grad_() for _ in range(2))
    weights = torch.randn(3, 5, HEADS * WIDTH, generator=torch.Generator().manual_seed(1))
    (short_attention(of_operator, HEADS, angles) * weights).sum().backward()
    (attention(of_formula, HEADS, angles) * weights).sum().backward()
    torch.testing.assert_close(of_operator.grad, of_formula.grad)


@pytest.mark.compiled
def test_it_is_a_well_behaved_operator() -> None:
    qkv = packed(dtype=torch.float32).requires_grad_()
    torch.library.opcheck(short_attention, (qkv, HEADS))
    angles = rotary_angles(Layout(grid=(2, 2), num_prefix=1), WIDTH, qkv.device)
    torch.library.opcheck(short_attention, (qkv, HEADS, angles))


def test_queries_of_some_tokens_are_the_first_of_all() -> None:
    for bias in (True, False):
        layer, z = nn.Linear(16, 48, bias=bias).double(), torch.randn(2, 5, 16, dtype=torch.float64)
        whole, some = project(layer, z, HEADS), project(layer, z, HEADS, 2)
        torch.testing.assert_close(some[0], whole[0][:, :, :2])
        torch.testing.assert_close(some[1:], whole[1:])


def test_dropout_leaves_out_attention() -> None:
    torch.manual_seed(0)
    qkv = packed()
    assert not torch.allclose(attention(qkv, HEADS, dropout=0.5), attention(qkv, HEADS))


def test_a_cpu_has_no_kernels() -> None:
    assert not takes(torch.zeros(1, 4, 3 * 128, dtype=torch.bfloat16), 2)
