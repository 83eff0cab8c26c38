"""Optimizers, and which parameters get which rate and weight decay."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor, nn

from vitlab.core.bounds import BelowOne, Decay, Fraction, NonNegativeFloat, PositiveFloat
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.models.contract import Model
from vitlab.models.routing import ExpertLinear
from vitlab.training.adafactor import Adafactor
from vitlab.training.muon import Muon

ON_DEVICE = ("adamw", "sgd", "muon", "adafactor")  # what can take its rate from the device, and leave out a step there


@dataclass(frozen=True, kw_only=True)
class Optimizer:
    """The update rule. Weight decay is decoupled, multiplied by the lr, and acts on kernels only.

    `layer_decay` multiplies the lr once per layer, counted from the head; `head_lr_scale` multiplies the head's lr.
    """

    name: Literal["adamw", "sgd", "lamb", "lion", "muon", "adafactor"] = "adamw"
    """The update rule; muon trains the layers' matrices and kernels, and AdamW the rest."""
    lr: PositiveFloat = 1e-3  # the base learning rate, which the schedule multiplies
    weight_decay: NonNegativeFloat = 0.0  # decoupled: times lr, the share subtracted from kernels per step; sgd: see l2
    head_weight_decay: NonNegativeFloat | None = None  # the head's own weight decay; None: the same
    betas: tuple[BelowOne, BelowOne] | None = None  # decay of both moments; None: 0.9 0.99 for lion, else 0.9 0.999
    eps: PositiveFloat = 1e-8  # adamw and lamb: added to the root of the mean square
    momentum: BelowOne = 0.9  # sgd, muon and adafactor
    muon_kernels: bool = True  # muon: also trains convolution kernels, except grouped ones and those that see the image
    nesterov: bool = False  # sgd: Nesterov's momentum
    l2: NonNegativeFloat = 0.0  # sgd: a decay added to the gradient, as ResNets are trained; on kernels only
    update_clip: PositiveFloat | None = 1.0  # adafactor: the largest root mean square of a tensor's update
    layer_decay: Fraction = 1.0  # a factor of the lr for each layer below the head
    head_lr_scale: PositiveFloat = 1.0  # a factor of the head's lr
    clip: PositiveFloat | None = None  # clip gradients at this global norm
    sam: PositiveFloat | None = None  # sharpness-aware minimisation: the radius rho; for gsam its maximum
    sam_kind: Literal["sam", "asam", "gsam"] = "sam"
    """sam: the same radius for all weights; asam: in proportion to each weight; gsam: with the surrogate gap."""
    sam_eta: NonNegativeFloat = 0.01  # asam: added to the size of each weight
    sam_rho_min: PositiveFloat | None = None  # gsam: the radius at the schedule's lowest lr; None: always the same
    sam_alpha: NonNegativeFloat = 0.6  # gsam: how much of the gradient orthogonal to the perturbed one is subtracted
    ema: Decay | None = None  # the decay of the exponential moving average of weights; None: no average

    def __post_init__(self) -> None:
        check_fields(self, "optimizer.")
        if self.name != "sgd" and (self.l2 or self.nesterov):
            raise ConfigError(f"optimizer.l2 and optimizer.nesterov are SGD's; {self.name} has weight_decay and betas.")
        if self.name == "sgd" and (self.weight_decay or self.head_weight_decay):
            raise ConfigError("SGD is the paper's, without weight decay: set it to 0. optimizer.l2 is a coupled one.")
        if self.nesterov and not self.momentum:
            raise ConfigError("optimizer.nesterov needs a momentum above 0: set optimizer.momentum, or leave it out.")
        self._check_sam()

    def _check_sam(self) -> None:
        if self.sam is None and self.sam_kind != "sam":
            raise ConfigError(f"optimizer.sam_kind {self.sam_kind} needs a radius: set optimizer.sam, as to 0.05.")
        if self.sam_rho_min is not None:
            if self.sam_kind != "gsam":
                raise ConfigError("optimizer.sam_rho_min is GSAM's: set optimizer.sam_kind to gsam, or leave it out.")
            if self.sam is not None and self.sam_rho_min > self.sam:
                raise ConfigError(
                    f"optimizer.sam_rho_min ({self.sam_rho_min:g}) is above the largest radius, optimizer.sam"
                    f" ({self.sam:g}): exchange them."
                )

    @property
    def moments(self) -> tuple[float, float]:
        """The betas that are given, or those of the optimizer's paper."""
        if self.betas is None:
            return (0.9, 0.99) if self.name == "lion" else (0.9, 0.999)
        return self.betas


@dataclass(frozen=True)
class Kind:
    """What decides a parameter's lr and weight decay."""

    lr_scale: float
    decays: bool
    matrix: bool  # or a convolution's kernel, where Muon takes these
    expert: bool  # grouped apart, on one process too: over several it may be spread, and fused kernels take one kind


def kinds(model: Model, spec: Optimizer) -> dict[str, Kind]:
    """The kind of every parameter that is trained: kernels decay; biases, norms, positions and tokens do not."""
    kernels = {f"{prefix}.{name}" for prefix, module in model.named_modules() for name in _kernels(module)}
    experts = {prefix for prefix, module in model.named_modules() if isinstance(module, ExpertLinear)}
    inner = {f"{prefix}.weight" for prefix, module in model.named_modules() if _is_inner(module, model.config.channels)}
    found: dict[str, Kind] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            lr = spec.layer_decay ** (model.num_layers + 1 - model.layer_of(name))
            in_head = name.startswith("head.")
            expert = name.rpartition(".")[0] in experts
            lr *= spec.head_lr_scale if in_head else 1.0
            matrix = parameter.ndim == 2 or (spec.muon_kernels and name in inner)
            found[name] = Kind(lr, name in kernels, matrix, expert)
    return found


def _is_inner(module: nn.Module, channels: int) -> bool:
    """Whether it is a convolution of all of its input's channels, and that is not an image of so many."""
    if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        return False
    return module.groups == 1 and module.in_channels != channels


def _kernels(module: nn.Module) -> list[str]:
    """The names of a module's own kernels."""
    if isinstance(module, nn.RNNBase):
        return [name for name, _ in module.named_parameters(recurse=False) if name.startswith("weight")]
    several = hasattr(module, "num_experts") and getattr(module, "weight", None) is not None  # timm's CondConv2d
    kinds = nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d | ExpertLinear
    return ["weight"] if several or isinstance(module, kinds) else []


def build(
    model: Model, extra: Iterable[Mapping[str, Any]], spec: Optimizer, *, on_device: bool = False
) -> list[torch.optim.Optimizer]:
    """The optimizers of a model and an objective's `param_groups`: one, or with Muon one more for the matrices.

    `on_device` keeps their rates and step counts on the GPU, so that a step can be captured in a graph.
    """
    settings = _of_model(model, spec)
    for group in extra:
        player, lr_scale = group.get("model"), group.get("lr_scale", 1.0)
        settings += [_extra(group, spec)] if player is None else _of_model(player, spec, lr_scale)
    if not settings:
        raise ConfigError("No parameter is left to train: freeze less.")
    if spec.name != "muon":
        return [_one(spec.name, settings, spec, on_device)]
    inner = [group for group in settings if group["inner"]]
    outer = [group for group in settings if not group["inner"]]
    return [_one(name, part, spec, on_device) for name, part in (("muon", inner), ("adamw", outer)) if part]


def _of_model(model: Model, spec: Optimizer, lr_scale: float = 1.0) -> list[dict[str, Any]]:
    """A model's parameters in groups of one kind each; `lr_scale` is a factor of all rates."""
    groups: dict[tuple[float, bool, bool, float, bool], list[nn.Parameter]] = {}
    kind_of = kinds(model, spec)
    head_decay = spec.weight_decay if spec.head_weight_decay is None else spec.head_weight_decay
    for name, parameter in model.named_parameters():
        if name in kind_of:
            kind = kind_of[name]
            inner = kind.matrix and kind.decays and not name.startswith(("head.", "projection."))
            decay = head_decay if name.startswith("head.") else spec.weight_decay
            groups.setdefault((kind.lr_scale, kind.decays, inner, decay, kind.expert), []).append(parameter)
    return [
        {
            "params": parameters,
            "rate": lr * lr_scale,
            "weight_decay": decay + spec.l2 if decays else 0.0,
            "inner": inner,
        }
        for (lr, decays, inner, decay, _), parameters in groups.items()
    ]


def _extra(group: Mapping[str, Any], spec: Optimizer) -> dict[str, Any]:
    """A group of an objective's own parameters."""
    own = {name: value for name, value in group.items() if name != "lr_scale"}
    return {"weight_decay": spec.weight_decay + spec.l2, "inner": False, **own, "rate": group.get("lr_scale", 1.0)}


def _one(name: str, groups: list[dict[str, Any]], spec: Optimizer, on_device: bool) -> torch.optim.Optimizer:
    if on_device and name in ON_DEVICE:
        for group in groups:
            group["lr"] = torch.tensor(spec.lr, device=group["params"][0].device)
    if name == "adamw":
        return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.moments, eps=spec.eps, fused=True, capturable=on_device)
    if name == "sgd":
        # torch has no fused SGD for sharded parameters
        sharded = any(hasattr(group["params"][0], "full_tensor") for group in groups)
        return torch.optim.SGD(groups, lr=spec.lr, momentum=spec.momentum, nesterov=spec.nesterov, fused=not sharded)
    if name == "lamb":
        return Lamb(groups, lr=spec.lr, betas=spec.moments, eps=spec.eps)
    if name == "lion":
        return Lion(groups, lr=spec.lr, betas=spec.moments)
    if name == "adafactor":
        return Adafactor(groups, lr=spec.lr, momentum=spec.momentum, update_clip=spec.update_clip)
    return Muon(groups, lr=spec.lr, momentum=spec.momentum)


def set_lr(optimizers: Iterable[torch.optim.Optimizer], lr: float) -> None:
    """The schedule's rate, times each group's own factor."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(lr * group["rate"])
            else:
                group["lr"] = lr * group["rate"]


@final
class Lamb(torch.optim.Optimizer):
    """Adam's step, each tensor's scaled to the norm of its weights (arXiv 1904.00962).

    As DeiT III uses it: bias-corrected, the decay inside the step, and no scaling where there is no decay.
    """

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.999), eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            (first, second), decay = group["betas"], group["weight_decay"]
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state["step"] = torch.zeros(())
                    state["mean"], state["square"] = torch.zeros_like(p), torch.zeros_like(p)
                state["step"] += 1
                count = state["step"].item()
                state["mean"].lerp_(p.grad, 1 - first)
                state["square"].mul_(second).addcmul_(p.grad, p.grad, value=1 - second)
                root = (state["square"] / (1 - second**count)).sqrt_().add_(group["eps"])
                update = (state["mean"] / (1 - first**count)).div_(root)
                if decay:
                    update.add_(p, alpha=decay)
                    sizes = p.norm(), update.norm()
                    update.mul_(torch.where((sizes[0] > 0) & (sizes[1] > 0), sizes[0] / sizes[1], 1.0))
                p.add_(update, alpha=-float(group["lr"]))


@final
class Lion(torch.optim.Optimizer):
    """The sign of an interpolated momentum (arXiv 2302.06675); weight decay decoupled."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99)) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if not parameters:
                continue
            gradients = [p.grad for p in parameters]
            for p in parameters:
                if not self.state[p]:
                    self.state[p]["momentum"] = torch.zeros_like(p)
            momenta = [self.state[p]["momentum"] for p in parameters]
            first, second = group["betas"]
            updates = torch._foreach_lerp(momenta, gradients, 1 - first)
            torch._foreach_sign_(updates)
            torch._foreach_mul_(parameters, 1 - float(group["lr"]) * group["weight_decay"])
            torch._foreach_add_(parameters, updates, alpha=-float(group["lr"]))
            torch._foreach_lerp_(momenta, gradients, 1 - second)
