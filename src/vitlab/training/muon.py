"""Muon: the momentum of every matrix made orthogonal before it is a step.

A convolution's kernel is the matrix of its outputs by all that each of them sees, as its author has it.
"""

from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from vitlab.core.compiling import compile_options

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
    identity = torch.eye(x.shape[1], dtype=x.dtype, device=x.device)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = (a * identity + b * gram + c * (gram @ gram)) @ x
    return (x.mT if tall else x).to(matrices.dtype)


@final
class Muon(torch.optim.Optimizer):
    """Nesterov momentum, made orthogonal, at the size of an AdamW step: .2 sqrt(max(rows, columns)) (arXiv 2502.16982).

    Matrices of one shape are one batched product, so that a small model's step is some dozens of kernels. As with
    torch's fused optimizers the rate may lie on the device, gradients are divided by `grad_scale` where it is set, and
    nothing moves where `found_inf` is set and not 0.
    """

    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, params: Any, lr: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": 0.0})
        self._move = move  # or the compiled one

    def compile(self) -> None:
        """Make what surrounds the products a few passes over the weights."""
        device = self.param_groups[0]["params"][0].device
        self._move = torch.compile(move, dynamic=False, options=compile_options(device))

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            by_shape: dict[tuple[torch.Size, torch.dtype], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    by_shape.setdefault((p.shape, p.dtype), []).append(p)
                    if not self.state[p]:
                        self.state[p]["momentum_buffer"] = torch.zeros_like(p)
            for together in by_shape.values():
                kept = [self.state[p]["momentum_buffer"] for p in together]
                gradients = [p.grad for p in together if p.grad is not None]
                self._move(
                    together,
                    kept,
                    gradients,
                    lr=group["lr"],
                    momentum=group["momentum"],
                    decay=group["weight_decay"],
                    found_inf=self.found_inf,
                    scale=self.grad_scale,
                )


def move(
    matrices: list[Tensor],
    kept: list[Tensor],
    gradients: list[Tensor],
    *,
    lr: float | Tensor,
    momentum: float,
    decay: float,
    found_inf: Tensor | None,
    scale: Tensor | None,
) -> None:
    """One step of matrices of one shape and of their momenta."""
    if scale is not None:
        gradients = [gradient / scale for gradient in gradients]
    if found_inf is not None:
        bad = found_inf > 0
        lr = lr * (~bad).float()
        gradients = [torch.where(bad, old, new) for old, new in zip(kept, gradients, strict=True)]  # momenta stay
    for buffer, gradient in zip(kept, gradients, strict=True):
        buffer.lerp_(gradient, 1 - momentum)
    ahead = torch.stack([_full(g.lerp(old, momentum)).flatten(1) for g, old in zip(gradients, kept, strict=True)])
    steps = orthogonal(ahead) * (-0.2 * max(ahead.shape[1:]) ** 0.5)
    for matrix, step in zip(matrices, steps.unbind(), strict=True):
        matrix.mul_(1 - lr * decay).add_(_sharded_like(step.reshape(matrix.shape), matrix) * lr)


def _full(tensor: Tensor) -> Tensor:
    """All of a matrix, also of one that is spread over processes."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _sharded_like(full: Tensor, like: Tensor) -> Tensor:
    """A matrix, spread as another one is."""
    return distribute_tensor(full, like.device_mesh, like.placements) if isinstance(like, DTensor) else full
