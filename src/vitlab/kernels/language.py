"""Triton, or where there is none what lets kernels be defined: nothing can launch them then."""

# pyright: reportMissingImports=false

import importlib.util
from types import SimpleNamespace
from typing import TYPE_CHECKING, Final

import torch

TRITON: Final = importlib.util.find_spec("triton") is not None and torch.version.hip is None

if TYPE_CHECKING or TRITON:
    import triton
    import triton.language as tl
else:
    triton, tl = SimpleNamespace(jit=lambda kernel: kernel), SimpleNamespace(constexpr=float)

__all__ = ["TRITON", "tl", "triton"]
