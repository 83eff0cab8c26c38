"""Up-cycling: a trained dense ViT as the start of a mixture of experts (arXiv 2212.05055)."""

import dataclasses
from typing import Any

import torch
from torch import nn

from vitlab.core.config import replace
from vitlab.core.errors import ConfigError
from vitlab.models.contract import Model
from vitlab.models.create import empty_model
from vitlab.models.vit import ViTConfig
from vitlab.models.vmoe import VMoE, VMoEConfig

ROUTER_STD = 0.02


def upcycle(model: Model, *, seed: int = 0, **experts: Any) -> VMoE:
    """The dense model with every expert a copy of the MLP that it replaces, and a fresh router.

    `experts` are fields of a VMoEConfig. With the default `normalised=True` a token's experts weigh 1 in sum, so that
    the answer is the dense model's wherever there is room for all tokens. V-MoE's own weights (`normalised=False`) are
    the chosen ones of a softmax over all experts: they add up to less than 1, and the answer starts as another one.
    """
    sparse = empty_model(upcycled(model.config, **experts), model.preprocess)
    assert isinstance(sparse, VMoE)
    dense, generator = model.state_dict(), torch.Generator().manual_seed(seed)
    state: dict[str, torch.Tensor] = {}
    for name, wanted in sparse.state_dict().items():
        if ".mlp.router." in name:
            state[name] = nn.init.normal_(torch.empty(wanted.shape), std=ROUTER_STD, generator=generator)
        else:
            value = dense[name.replace(".mlp.experts.", ".mlp.")].detach().cpu()
            state[name] = (value.expand(wanted.shape) if ".mlp.experts." in name else value).clone()
    sparse.load_state_dict(state, assign=True)
    sparse.labels, sparse.multi_label, sparse.license = model.labels, model.multi_label, model.license
    return sparse.train(model.training)


def upcycled(config: Any, **experts: Any) -> VMoEConfig:
    """The configuration of what a dense model becomes."""
    if type(config) is not ViTConfig:
        raise ConfigError("Only a plain ViT can be up-cycled to a mixture of experts.")
    fields = {item.name: getattr(config, item.name) for item in dataclasses.fields(ViTConfig)}
    sparse = replace(VMoEConfig(**fields, normalized=True), experts, where="upcycle")
    changed = [name for name in fields if getattr(sparse, name) != fields[name]]
    if changed:
        raise ConfigError(f"Up-cycling keeps the dense model as it is: change {changed[0]} before or after it.")
    return sparse
