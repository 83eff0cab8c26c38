"""Non-local networks (arXiv 1711.07971): blocks of attention between all places, added to a ResNet.

The block is the paper's embedded Gaussian: z_i = W_z y_i + x_i with y = softmax(theta(x)^T phi(x)) g(x), a batch norm
after W_z whose scale starts at zero, so that a fresh block is the identity. theta, phi and g halve the channels. They
have no biases here: phi's would cancel in the softmax, g's and W_z's in the norm. Keys are not subsampled by pooling, a
trick that the paper names to save time, so that attention is between all places.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import PositiveInt
from vitlab.core.errors import ConfigError
from vitlab.models.bottleneck import Bottleneck, BottleneckConfig, BottleneckNet
from vitlab.models.contract import AttentionTap, Taps
from vitlab.models.family import Family
from vitlab.models.resnet import UnitSpec, to_map, to_tokens
from vitlab.models.stages import normed
from vitlab.models.zoo.attention import NON_LOCAL_ROWS


@dataclass(frozen=True, kw_only=True)
class NonLocalConfig(BottleneckConfig):
    """The ResNet's fields, and where its blocks are; the defaults are the paper's five in ResNet-50."""

    stages: tuple[int, ...] = (2, 3)  # from 1: res3 and res4 in the paper's words
    every: PositiveInt = 2  # a block after every so many-th unit of those
    scaled: bool = False  # logits over the root of the width, as the authors' code has it; the paper's formula has not

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(not 1 <= stage <= len(self.layers) for stage in self.stages):
            raise ConfigError(f"stages={self.stages}: the network has the stages 1 to {len(self.layers)}.")


@final
class NonLocal(nn.Module):
    """A residual block in which each place sees all others."""

    def __init__(self, width: int, *, scaled: bool) -> None:
        super().__init__()
        inner = width // 2
        self.scale = inner**-0.5 if scaled else 1.0
        self.theta = nn.Linear(width, inner, bias=False)
        self.phi = nn.Linear(width, inner, bias=False)
        self.g = nn.Linear(width, inner, bias=False)
        self.out = nn.Conv2d(inner, width, 1, bias=False)  # W_z
        self.norm = nn.BatchNorm2d(width)

    def probabilities(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b 1 n n"]:
        """f(x_i, x_j) / C(x), which the fused product below never forms."""
        z = to_tokens(x)
        return (self.theta(z) @ self.phi(z).mT * self.scale).softmax(dim=-1)[:, None]

    def attend(self, A: Float[Tensor, "b 1 n n"], x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        """What a given A makes of x."""
        return self._added(A[:, 0] @ self.g(to_tokens(x)), x)

    def _added(self, y: Float[Tensor, "b n i"], x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        return normed(self.out, self.norm, to_map(y, (x.shape[-2], x.shape[-1]))) + x

    def forward(self, x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
        z = to_tokens(x)
        q, k, v = (part(z)[:, None] for part in (self.theta, self.phi, self.g))  # one head
        return self._added(F.scaled_dot_product_attention(q, k, v, scale=self.scale)[:, 0], x)


@final
class NonLocalNet(BottleneckNet):
    """A ResNet with non-local blocks after some of its units."""

    config: NonLocalConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def build_unit(self, spec: UnitSpec) -> nn.Module:
        unit = Bottleneck(spec)
        if spec.stage not in self.config.stages or spec.unit % self.config.every:
            return unit
        block = NonLocal(spec.outputs, scaled=self.config.scaled)
        return nn.Sequential(OrderedDict(bottleneck=unit, non_local=block))

    @property
    def taps(self) -> Taps:
        blocks = [module for module in self.modules() if isinstance(module, NonLocal)]
        return Taps(
            attention=tuple(AttentionTap(each, each.probabilities, each.attend) for each in blocks),
            filters=super().taps.filters,
        )

    def initialize(self) -> None:
        """The ResNet's; blocks as in the authors' code: normal kernels of deviation 0.01, the norm's scale zero."""
        super().initialize()
        for module in self.modules():
            if isinstance(module, NonLocal):
                for part in (module.theta, module.phi, module.g, module.out):
                    nn.init.normal_(part.weight, std=0.01)
                nn.init.zeros_(module.norm.weight)


FAMILY = Family(
    name="non-local",
    config=NonLocalConfig,
    model=NonLocalNet,
    summary="ResNet with non-local blocks",
    rows=tuple(NON_LOCAL_ROWS),
    title="Non-local networks",
    pattern="nonlocal",
    example={"image_size": (32, 48), "layers": (1, 2), "width": 16, "stages": (2,), "num_classes": 5},
)
