"""Sharpness-aware minimisation: the gradient of a step is that at weights which are worse nearby (SAM, ASAM, GSAM)."""

from collections.abc import Iterable
from typing import final

import torch
from torch import Tensor, nn

from vitlab.training.mixed import norm_of, product_of
from vitlab.training.optimizers import Optimizer

TINY = 1e-12  # added to norms that divide


@final
class Perturbation:
    """The step uphill to w + e, and back; the stepper asks for the gradients again in between.

    With g the gradient at w and g' the one at w + e, which the optimizer is given:
    sam (arXiv 2010.01412): e = rho g / |g|.
    asam (arXiv 2102.11600): e = rho T^2 g / |T g| with T = |w| + eta, element by element.
    gsam (arXiv 2203.08065): e as sam's, rho between `sam_rho_min` and `sam` as the lr is between its lowest and its
    highest; the optimizer is given g' - alpha (g - (g . g') g' / |g'|^2), which lessens the gap of the two losses
    without raising the perturbed one to first order.

    Norms and products are over all parameters. g is of the whole batch, whatever parts and processes it was computed
    in, so that e is the same everywhere; the authors' code has an e for each device's part (m-sharpness).
    """

    def __init__(self, parameters: Iterable[nn.Parameter], spec: Optimizer, lowest: float = 0.0) -> None:
        """`lowest` is the schedule's lowest factor of the lr."""
        assert spec.sam is not None
        self.parameters = [p for p in parameters if p.requires_grad]
        self.spec, self.lowest = spec, lowest
        self.smallest, self.largest = spec.sam if spec.sam_rho_min is None else spec.sam_rho_min, spec.sam
        # at a fixed place, so that a captured step sees it move
        self.rho = torch.tensor(self.largest, device=self.parameters[0].device)
        self._moved: list[nn.Parameter] = []
        self._origins: list[Tensor] = []
        self._gradients: list[Tensor] = []

    def set_radius(self, factor: float) -> None:
        """The radius for a step whose lr is the base lr times a factor."""
        share = (factor - self.lowest) / (1 - self.lowest) if self.lowest < 1 else 1.0
        self.rho.fill_(self.smallest + (self.largest - self.smallest) * min(max(share, 0.0), 1.0))

    @torch.no_grad()
    def uphill(self) -> None:
        self._moved = [p for p in self.parameters if p.grad is not None]
        self._origins = [p.detach().clone() for p in self._moved]
        self._gradients = [p.grad for p in self._moved if p.grad is not None]
        if self.spec.sam_kind == "asam":
            scales = [p.abs().add_(self.spec.sam_eta) for p in self._moved]
            scaled = [g * scale for g, scale in zip(self._gradients, scales, strict=True)]
            norm = norm_of(scaled)
            directions = [g.mul_(scale) for g, scale in zip(scaled, scales, strict=True)]
        else:
            norm, directions = norm_of(self._gradients), self._gradients
        length = (norm + TINY).reciprocal() * self.rho
        for p, direction in zip(self._moved, directions, strict=True):
            p.add_(direction * length)

    @torch.no_grad()
    def back(self) -> None:
        """The weights as they were, and gsam's gradients."""
        for p, origin in zip(self._moved, self._origins, strict=True):
            p.copy_(origin)
        if self.spec.sam_kind == "gsam":
            perturbed = [p.grad for p in self._moved if p.grad is not None]
            per_norm = (norm_of(perturbed) + TINY).reciprocal()
            along = product_of(self._gradients, perturbed) * per_norm * per_norm
            for clean, gradient in zip(self._gradients, perturbed, strict=True):
                gradient.sub_(clean - gradient * along, alpha=self.spec.sam_alpha)
        self._moved, self._origins, self._gradients = [], [], []
