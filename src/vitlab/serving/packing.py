"""The model as it is called for every request: on a CPU its linear layers have their weights laid out beforehand.

The products are the same, in float32; what is saved is the arranging of the weights in every call, and the pass over
the hidden values that a GELU of its own takes. It is what torch.compile makes of these layers, without its minutes.
"""

import copy
from typing import Literal, TypeAlias, TypeGuard, TypeVar, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.models.heads import AttentionPool
from vitlab.models.vit import Mlp

M = TypeVar("M", bound=nn.Module)
Gelu: TypeAlias = Literal["exact", "tanh"]


@final
class Packed(nn.Module):
    """A linear layer, and a GELU after it where one is named, by oneDNN."""

    def __init__(self, linear: nn.Linear, gelu: Gelu | None = None) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias  # a model may use a part of them by itself
        self.packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)
        self.after = "none" if gelu is None else "gelu"
        self.algorithm = "tanh" if gelu == "tanh" else "none"

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        return torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, self.after, [], self.algorithm)


def packed(model: M) -> M:
    """Modules of their own over the same weights, so that hooks on the one are not the other's."""
    tensors = [*model.parameters(), *model.buffers()]
    twin = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    where = {(tensor.device.type, tensor.dtype) for tensor in model.parameters()}
    if where == {("cpu", torch.float32)} and should_pack():
        _pack(twin)
    return twin


def should_pack() -> bool:
    """Whether this processor is of the kind for which it was measured that packing pays, and torch can do it."""
    has_operators = all(hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return (
        has_operators and torch.backends.mkldnn.is_available() and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def _pack(module: nn.Module) -> None:
    for name, child in module.named_children():
        if type(module) is AttentionPool and child is module.kv:
            continue  # its weights are read, not its answer
        if type(child) is nn.Linear:  # a kind of one may do something else
            setattr(module, name, Packed(child))
        elif _fuses(child):
            setattr(module, name, nn.Sequential(Packed(child.up, cast("Gelu", child.gelu)), Packed(child.down)))
        else:
            _pack(child)


def _fuses(module: nn.Module) -> TypeGuard[Mlp]:
    """Whether it is an MLP of two linear layers with a GELU of oneDNN's between them; one of experts is not."""
    if type(module) is not Mlp or module.gated or module.gelu == "quick":
        return False
    return type(module.up) is nn.Linear and type(module.down) is nn.Linear
