"""One kernel over all tensors, beside torch's own in float64."""

import pytest
import torch
from torch import Tensor

from vitlab.training.passes import AdamW, TotalNorm, captured

pytestmark = pytest.mark.gpu

SHAPES = [(5000,), (3, 7), (2048,), (), (96, 128), (1, 1), (12_289,)]  # chunks are of 2048 numbers


def made(dtype: torch.dtype) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).to("cuda", dtype).requires_grad_() for shape in SHAPES]


def groups(values: list[Tensor]) -> list[dict[str, object]]:
    lrs = [torch.tensor(lr, device="cuda") for lr in (1e-2, 3e-3)]
    return [
        {"params": values[:3], "lr": lrs[0], "weight_decay": 0.1},
        {"params": values[3:], "lr": lrs[1], "weight_decay": 0.0},
    ]


def gradients(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [3 * torch.randn(shape, generator=generator).cuda() for shape in SHAPES]


def set_gradients(values: list[Tensor], step: int, *, over: float = 1.0) -> None:
    for value, gradient in zip(values, gradients(step), strict=True):
        value.grad = gradient.to(value.dtype) / over


def worst(found: list[Tensor], right: list[Tensor]) -> float:
    return max((a.detach().double() - b.detach()).abs().max().item() for a, b in zip(found, right, strict=True))


def test_adamw_is_torchs() -> None:
    right, ours = made(torch.float64), made(torch.float32)
    reference = torch.optim.AdamW(groups(right), betas=(0.9, 0.95), eps=1e-8, capturable=True)
    optimizer = AdamW(groups(ours), lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
    optimizer.one_kernel = True
    optimizer.grad_scale, optimizer.found_inf = torch.tensor(2.0, device="cuda"), torch.zeros((), device="cuda")
    for step in range(6):
        set_gradients(right, step, over=2.0)
        reference.step()
        if step == 3:  # a step that is left out, and then begun anew from what was kept
            set_gradients(ours, 100)
            optimizer.found_inf.fill_(1)
            before = [value.clone() for value in ours]
            optimizer.step()
            assert all(torch.equal(a, b) for a, b in zip(before, ours, strict=True))
            optimizer.found_inf.fill_(0)
            kept, settings = optimizer.state_dict(), (optimizer.grad_scale, optimizer.found_inf)
            optimizer = AdamW(groups(ours), lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
            optimizer.load_state_dict(kept)
            optimizer.one_kernel, (optimizer.grad_scale, optimizer.found_inf) = True, settings
        set_gradients(ours, step)
        optimizer.step()
        assert worst(ours, right) < 3e-6
    assert {state["step"].item() for state in optimizer.state.values()} == {6}


def test_a_captured_step_reads_the_gradients_of_each_replay() -> None:
    right, ours = made(torch.float64), made(torch.float32)
    reference = torch.optim.AdamW(groups(right), betas=(0.9, 0.999), eps=1e-8, capturable=True)
    optimizer, total, graph = AdamW(groups(ours), lr=1e-2, betas=(0.9, 0.999), eps=1e-8), TotalNorm(), None
    optimizer.one_kernel = True
    fixed, given = [torch.empty_like(value) for value in ours], [torch.empty_like(value) for value in ours]
    norm = torch.zeros((), device="cuda")

    def body() -> None:
        for value, gradient, source in zip(ours, fixed, given, strict=True):
            value.grad = gradient.copy_(source)
        norm.copy_(total([value.grad for value in ours if value.grad is not None]))
        optimizer.step()

    for step in range(6):
        set_gradients(right, step)
        reference.step()
        for place, gradient in zip(given, gradients(step), strict=True):
            place.copy_(gradient)
        if step < 2:
            body()
        elif graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                body()
            captured(total, optimizer)
            graph.replay()
        else:
            graph.replay()
        assert worst(ours, right) < 3e-6
        expected = torch.cat([value.grad.flatten() for value in right if value.grad is not None]).norm()
        torch.testing.assert_close(norm.double(), expected, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", ["half", "strided", "off by one"])
def test_what_the_kernel_does_not_take_is_torchs(kind: str) -> None:
    base = torch.randn(64, 48, device="cuda")
    value = {"half": base.half(), "strided": base.T, "off by one": base.flatten()[1:]}[kind].detach().requires_grad_()
    other = value.detach().clone().requires_grad_()
    optimizer = AdamW([{"params": [value], "lr": torch.tensor(1e-2, device="cuda")}], 1e-2, (0.9, 0.999), 1e-8)
    optimizer.one_kernel = True
    reference = torch.optim.AdamW([other], 1e-2, fused=True)
    for _ in range(3):
        gradient = torch.randn_like(value)
        value.grad, other.grad = gradient, gradient.clone()
        optimizer.step()
        reference.step()
        torch.testing.assert_close(TotalNorm()([gradient]), gradient.norm())
    torch.testing.assert_close(value, other)
