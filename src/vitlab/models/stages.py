"""What networks of convolutional stages share: batch norms, pooling, stochastic depth, recomputation."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Literal, TypeAlias

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitlab.core.errors import ImageError

Pooling: TypeAlias = Literal["mean", "max"]
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def channels_last(images: Float[Tensor, "b c h w"], channels: int) -> Float[Tensor, "b c h w"]:
    """Images laid out so that tokens are views of maps, and convolutions of 1 x 1 are plain products."""
    if images.shape[1] != channels:
        raise ImageError(f"The model takes images of {channels} channels, not {images.shape[1]}.")
    return images.contiguous(memory_format=torch.channels_last)


def normed(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Float[Tensor, "b i h w"]) -> Float[Tensor, "b o y x"]:
    """A convolution and its batch norm; in evaluation one pass, the norm's scale and shift taken into the filters."""
    if norm.training:
        return norm(conv(x))
    assert conv.bias is None, "a convolution before a norm needs no bias"
    scale, shift = scale_and_shift(norm)
    weight = conv.weight * scale[:, None, None, None]
    return F.conv2d(x, weight, shift, conv.stride, conv.padding, conv.dilation, conv.groups)


def scale_and_shift(norm: nn.BatchNorm2d) -> tuple[Float[Tensor, " d"], Float[Tensor, " d"]]:
    """What a batch norm multiplies and adds in evaluation, each channel's."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    return scale, norm.bias - norm.running_mean * scale


def pooled(x: Float[Tensor, "b d h w"], pooling: Pooling) -> Float[Tensor, "b d y x"]:
    """Every second row and column; where a side is odd the last window is a part of one."""
    if pooling == "max":
        return F.max_pool2d(x, 3, 2, 1)
    return F.avg_pool2d(x, 2, ceil_mode=any(side % 2 for side in x.shape[-2:]))


def dropped(part: Float[Tensor, "b ..."], rate: float, training: bool) -> Float[Tensor, "b ..."]:
    """Stochastic depth: in training, an image's whole part left out with this probability."""
    if not rate or not training:
        return part
    keep = part.new_empty(part.shape[0], *[1] * (part.ndim - 1)).bernoulli_(1 - rate)
    return part * keep / (1 - rate)


def growing(last: float, count: int) -> list[float]:
    """Rates that grow linearly from 0 to `last`."""
    return [last * i / max(count - 1, 1) for i in range(count)]


def recomputed(module: nn.Module, *args: object) -> Tensor:
    """The module's output, with its inside computed again in the backward pass.

    The batch norms see the same batch twice then: the second time they leave their running statistics as they are.
    """
    if torch.compiler.is_compiling():
        return checkpoint(module, *args, use_reentrant=False)  # a compiler's second computation has no side effects
    norms = [item for item in module.modules() if isinstance(item, nn.BatchNorm2d)]
    return checkpoint(
        module, *args, use_reentrant=False, context_fn=lambda: (contextlib.nullcontext(), _keeping_statistics(norms))
    )


def count_once(module: nn.Module) -> None:
    """The same where a module computes its inside again by itself: the second time is inside of a backward pass."""
    for norm in module.modules():
        if isinstance(norm, BATCH_NORMS):
            norm.register_forward_pre_hook(_hold)
            norm.register_forward_hook(_let_go, always_call=True)


def _hold(norm: nn.Module, inputs: object) -> None:
    del inputs
    if not torch.compiler.is_compiling() and _in_backward():
        keeping = _keeping_statistics([norm])  # pyright: ignore[reportArgumentType]
        keeping.__enter__()
        norm._keeping = keeping  # pyright: ignore[reportArgumentType]


def _in_backward() -> bool:
    """Whether autograd is computing gradients here; torch says so by a private name only."""
    task = getattr(torch._C, "_current_graph_task_id", None)
    return task is not None and task() != -1


def _let_go(norm: nn.Module, inputs: object, output: object) -> None:
    del inputs, output
    keeping = norm.__dict__.pop("_keeping", None)
    if keeping is not None:
        keeping.__exit__(None, None, None)


@contextlib.contextmanager
def _keeping_statistics(norms: Sequence[nn.BatchNorm2d]) -> Iterator[None]:
    held = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, momentum, batches in held:
            norm.momentum, norm.num_batches_tracked = momentum, batches
