"""Norms with backward passes of their own: the plain formulas' values and gradients, in float64."""

import pytest
import torch
from torch import Tensor, nn

from vitlab.models.norms import by_deviation, group_norm


def filters(*shape: int, spread: float = 1.0) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (0.3 + spread * torch.randn(*shape, generator=generator, dtype=torch.float64)).requires_grad_()


@pytest.mark.parametrize("eps", [1e-5, 0.1, 10.0])
@pytest.mark.parametrize("spread", [1.0, 1e-4])
def test_filters_by_their_deviation_have_the_formulas_values_and_gradients(eps: float, spread: float) -> None:
    w, towards = filters(5, 36, spread=spread), filters(5, 36).detach()
    centred = w - w.mean(dim=1, keepdim=True)
    plain = centred / (centred.square().mean(dim=1, keepdim=True).sqrt() + eps)
    ours = by_deviation(w, eps)
    torch.testing.assert_close(ours, plain)
    of_plain = torch.autograd.grad(plain, w, towards)
    torch.testing.assert_close(torch.autograd.grad(ours, w, towards), of_plain)


def test_the_gradient_by_a_filter_is_that_of_finite_differences() -> None:
    assert torch.autograd.gradcheck(lambda w: by_deviation(w, 0.1), [filters(3, 7)])


def last(x: Tensor) -> Tensor:
    return x.detach().contiguous(memory_format=torch.channels_last).requires_grad_()


def plain_group_norm(norm: nn.GroupNorm, x: Tensor) -> Tensor:
    groups = x.unflatten(1, (norm.num_groups, -1))
    centred = groups - groups.mean(dim=(2, 3, 4), keepdim=True)
    y = centred / (centred.square().mean(dim=(2, 3, 4), keepdim=True) + norm.eps).sqrt()
    return y.flatten(1, 2) * norm.weight[:, None, None] + norm.bias[:, None, None]


@pytest.mark.parametrize("each", [1, 2, 4])
@pytest.mark.parametrize("channels_last_gradient", [True, False])
def test_a_group_norm_of_few_channels_has_the_formulas_gradients(each: int, channels_last_gradient: bool) -> None:
    norm = nn.GroupNorm(3, 3 * each, eps=0.01, dtype=torch.float64)
    for parameter in norm.parameters():
        nn.init.normal_(parameter, mean=0.5)
    x, towards = last(filters(2, 3 * each, 5, 7)), filters(2, 3 * each, 5, 7).detach()
    ours = group_norm(norm, x)
    assert "FewChannels" in type(ours.grad_fn).__name__
    plain = plain_group_norm(norm, x)
    torch.testing.assert_close(ours, plain)
    assert ours.is_contiguous(memory_format=torch.channels_last)
    wanted = torch.autograd.grad(plain, [x, norm.weight, norm.bias], towards)
    found = torch.autograd.grad(ours, [x, norm.weight, norm.bias], last(towards) if channels_last_gradient else towards)
    for mine, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("why", ["many channels", "channels first", "no gradient", "16 bits"])
def test_elsewhere_it_is_torchs_own(why: str) -> None:
    norm = nn.GroupNorm(2, 16 if why == "many channels" else 8)
    x = torch.randn(2, norm.num_channels, 3, 5, requires_grad=True)
    x = x if why == "channels first" else last(x)
    x = x.detach() if why == "no gradient" else x.bfloat16() if why == "16 bits" else x
    y = group_norm(norm, x)
    assert "FewChannels" not in type(y.grad_fn).__name__
    assert torch.equal(y, norm(x))


def test_a_second_derivative_is_refused_not_wrong() -> None:
    norm, x, w = nn.GroupNorm(2, 4), last(torch.randn(2, 4, 3, 5)), torch.randn(3, 7, requires_grad=True)
    for answer, by in [(group_norm(norm, x), x), (by_deviation(w, 0.1), w)]:
        (first,) = torch.autograd.grad(answer.square().sum(), by, create_graph=True)
        with pytest.raises(RuntimeError, match="once_differentiable"):
            first.sum().backward()
