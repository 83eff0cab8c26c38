"""Muon: the momentum of every matrix made orthogonal before it is a step."""

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the quintic that takes singular values towards 1, steepest at 0
ITERATIONS = 5
SMALLEST = 1e-7


def orthogonal(matrices: Float[Tensor, "n rows columns"]) -> Float[Tensor, "n rows columns"]:
    """U V^T of each matrix U S V^T, roughly: singular values end between .7 and 1.2 (https://kellerjordan.github.io/posts/muon)."""
    a, b, c = COEFFICIENTS
    x = matrices.bfloat16() if matrices.is_cuda else matrices
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=SMALLEST)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype)


@final
class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal, at the size of an AdamW step: .2 sqrt(max(rows, columns)) (arXiv 2502.16982).

    Matrices of one shape are one batched product, so that a small model's step is some dozens of kernels. As with
    torch's fused optimisers the rate may lie on the device, and nothing moves where `found_inf` is set and not 0.
    """

    found_inf: Tensor | None = None

    def __init__(self, params: Any, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault((p.shape, p.dtype), []).append(p)
            for together in by_shape.values():
                self._move(together, group)

    def _move(self, matrices: list[Tensor], group: dict[str, Any]) -> None:
        for p in matrices:
            if not self.state[p]:
                self.state[p]["momentum_buffer"] = torch.zeros_like(p)
        kept = [self.state[p]["momentum_buffer"] for p in matrices]
        old = torch.stack([_whole(buffer) for buffer in kept])
        gradients = torch.stack([_whole(p.grad) for p in matrices if p.grad is not None])
        made = 1.0
        if self.found_inf is not None:
            bad = self.found_inf > 0
            made = (~bad).float()
            gradients = torch.where(bad, old, gradients)  # which leaves the momentum as it is
        new = old.lerp(gradients, 1 - group["momentum"])
        scale = 0.2 * max(new.shape[1:]) ** 0.5
        steps = orthogonal(gradients.lerp(new, group["momentum"])) * (group["lr"] * made * -scale)
        for buffer, part in zip(kept, _parts(new, kept), strict=True):
            buffer.copy_(part)
        torch._foreach_mul_(matrices, 1 - group["lr"] * made * group["weight_decay"])
        torch._foreach_add_(matrices, _parts(steps, matrices))


def _whole(tensor: Tensor) -> Tensor:
    """All of a matrix, also of one that is spread over processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _parts(stacked: Tensor, like: list[Tensor]) -> list[Tensor]:
    """The matrices of a stack, spread as those of a list are."""
    return [
        distribute_tensor(part, twin.device_mesh, twin.placements) if isinstance(twin, DTensor) else part
        for part, twin in zip(stacked.unbind(), like, strict=True)
    ]
