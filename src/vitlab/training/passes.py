"""Passes over all of a model's weights on a GPU, one kernel each.

torch's kernels for lists of tensors take some dozens of tensors a launch, and over a small model's reach half of the
memory's speed. These take all of them, by a table of addresses, and are for captured steps, where it is made but once.
"""

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from vitlab.core.compiling import TRITON


def can_pass(tensors: Sequence[Tensor]) -> bool:
    """Whether the kernels can go over these."""
    return TRITON and all(
        t.is_cuda and t.dtype == torch.float32 and t.is_contiguous() and t.data_ptr() % 16 == 0 for t in tensors
    )


@final
class Addresses:
    """Where lists of tensors lie, on the device: a row for each place in the lists."""

    def __init__(self, sizes: Sequence[int], columns: int, device: torch.device) -> None:
        from vitlab.core.list_kernels import BLOCK

        chunks = [(i, start, size) for i, size in enumerate(sizes) for start in range(0, size, BLOCK)]
        self.sizes, self.chunks = list(sizes), torch.tensor(chunks, dtype=torch.int64).reshape(-1, 3).to(device)
        self.values = torch.empty(len(sizes), columns, dtype=torch.int64, device=device)
        self._found = torch.empty(self.values.shape, dtype=torch.int64)

    def fill(self, rows: Sequence[Sequence[Tensor]]) -> None:
        self._found = torch.tensor([[t.data_ptr() for t in row] for row in rows], dtype=torch.int64)
        if not torch.cuda.is_current_stream_capturing():
            self.send()

    def send(self) -> None:
        """Put the addresses on the device."""
        self.values.copy_(self._found)


@final
class TotalNorm:
    """The norm of all gradients."""

    places: Addresses | None = None

    def __call__(self, gradients: list[Tensor]) -> Tensor:
        if not can_pass(gradients):
            return torch.nn.utils.get_total_norm(gradients, foreach=True)
        from vitlab.core import list_kernels as kernels

        sizes = [g.numel() for g in gradients]
        if self.places is None or self.places.sizes != sizes:
            self.places = Addresses(sizes, 1, gradients[0].device)
        self.places.fill([[g] for g in gradients])
        return kernels.squares(self.places.values, self.places.chunks).sum().sqrt()


@final
class AdamW(torch.optim.AdamW):
    """torch's AdamW with its rates and counts on the device; in a captured step, with `one_kernel`, one kernel."""

    one_kernel = False  # the addresses are sent at every step that is not a replay, and waited for
    found_inf: Tensor | None = None
    grad_scale: Tensor | None = None

    def __init__(self, params: Any, lr: float, betas: tuple[float, float], eps: float) -> None:
        super().__init__(params, lr=lr, betas=betas, eps=eps, fused=True, capturable=True)
        self.places: Addresses | None = None
        self._numbers: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        assert closure is None
        if not self.one_kernel:
            super().step()
            return
        rows: list[tuple[Tensor, ...]] = []
        numbers: list[tuple[float, ...]] = []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    state = self._state(p)
                    rows.append((p, p.grad, state["exp_avg"], state["exp_avg_sq"], group["lr"], state["step"]))
                    numbers.append((group["weight_decay"], *group["betas"], group["eps"]))
        if not rows or not can_pass([t for row in rows for t in row[:4]]):
            super().step()
            return
        from vitlab.core import list_kernels as kernels

        sizes = [row[0].numel() for row in rows]
        if self.places is None or self._numbers is None or self.places.sizes != sizes:
            self.places = Addresses(sizes, len(rows[0]), rows[0][0].device)
            self._numbers = torch.tensor(numbers, dtype=torch.float64).to(rows[0][0].device)
        self.places.fill(rows)
        kernels.adamw(self.places.values, self.places.chunks, self._numbers, self.found_inf, self.grad_scale)

    def _state(self, p: Tensor) -> dict[str, Tensor]:
        state = self.state[p]
        if not state:  # as torch's own begins
            state["step"] = torch.zeros((), dtype=torch.float32, device=p.device)
            state["exp_avg"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            state["exp_avg_sq"] = torch.zeros_like(p, memory_format=torch.preserve_format)
        return state


def captured(*parts: object) -> None:
    """To be called after a capture and before its replays: send the addresses that it found."""
    for part in parts:
        if isinstance(part, TotalNorm | AdamW) and part.places is not None:
            part.places.send()
