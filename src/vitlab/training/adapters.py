"""Training a part of a model: the head alone, or low-rank adapters (LoRA, arXiv 2106.09685)."""

import math
from collections.abc import Mapping
from typing import Literal, final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitlab.core.errors import ConfigError
from vitlab.models.contract import Model
from vitlab.models.stages import BATCH_NORMS
from vitlab.models.timm.adapter import TimmModel


@final
class LowRank(nn.Module):
    """W + B A with A [rank, in] and B [out, rank], B starting at zero."""

    def __init__(self, weight: Tensor, rank: int) -> None:
        super().__init__()
        rows, columns = weight.shape
        self.a = nn.Parameter(torch.empty(rank, columns, device=weight.device))
        self.b = nn.Parameter(torch.zeros(rows, rank, device=weight.device))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.b @ self.a


def choose(model: Model, part: Literal["all", "head"], lora: int | None) -> None:
    """Leave trainable what was asked for: everything, the head, or adapters and the head."""
    if lora is None and part == "all":
        return
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.startswith("head."))
    if lora is None:
        return
    if lora < 1:
        raise ConfigError(f"The rank of low-rank adapters must be at least 1, not {lora}.")
    if part == "head":
        raise ConfigError("Train the head alone or low-rank adapters, not both: leave one of the two out.")
    products = [module for part in _layers(model) for module in part.modules() if isinstance(module, nn.Linear)]
    if not products:
        raise ConfigError("Low-rank adapters need layers of products, which this model lacks: train all of it.")
    for module in products:
        parametrize.register_parametrization(module, "weight", LowRank(module.weight, lora))
        module.parametrizations.weight.original.requires_grad_(False)  # pyright: ignore[reportAttributeAccessIssue]


def _layers(model: Model) -> list[nn.Module]:
    """What holds the layers: lists of blocks, or all of timm's module, from which the head is taken out."""
    if isinstance(model, TimmModel):
        return [model.net]
    return [module for module in model.children() if isinstance(module, nn.ModuleList)]


def hold_still(model: Model) -> None:
    """Leave the statistics of batch norms in a part that is not trained as they are."""
    if all(parameter.requires_grad for parameter in model.parameters()):
        return
    for module in model.modules():
        if isinstance(module, BATCH_NORMS) and not any(parameter.requires_grad for parameter in module.parameters()):
            module.eval()


def merged(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with adapters folded into the weights they adapt, under the model's own names."""
    mark, whole = ".parametrizations.weight.", dict[str, Tensor]()
    for name, value in state.items():
        stem, marked, rest = name.partition(mark)
        if not marked:
            whole[name] = value
        elif rest == "original":
            whole[f"{stem}.weight"] = value + state[f"{stem}{mark}0.b"] @ state[f"{stem}{mark}0.a"]
    return whole
