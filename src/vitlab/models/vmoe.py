"""Sparse mixtures of experts, V-MoE (arXiv 2106.05974): a ViT whose MLP is, in some layers, one of many.

A router sends each token to k of e MLPs, the experts, and adds up what they make of it, weighted by its softmax. Each
expert takes a limited number of tokens of a group; a token that finds all its experts full passes by the residual.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Layout, Tokens
from vitlab.models.family import Family
from vitlab.models.positions import RelativePositions
from vitlab.models.routing import Exchange, ExpertLinear, Router, buffer_size, importance_loss, load_loss, route
from vitlab.models.vit import EXAMPLE, Block, Mlp, ViT, ViTConfig
from vitlab.models.zoo.experts import EXPERT_ROWS


@dataclass(frozen=True, kw_only=True)
class VMoEConfig(ViTConfig):
    """A ViT's fields, and what the layers of experts have.

    Every-2 is `every=2`; Last-n is `every=2, last=n`: the last n of every second layer, as the authors' code counts.
    """

    RENAMED: ClassVar[Mapping[str, str]] = {"normalised": "normalized"}

    num_experts: PositiveInt = 32  # E
    num_selected: int = 2  # K: experts per token
    every: PositiveInt = 2  # experts in every so many-th layer, the last of each so many
    last: int | None = None  # only in the last so many of those
    capacity: PositiveFloat = 1.05  # an expert's buffer, as a multiple of an equal share of all choices
    eval_capacity: PositiveFloat | None = None  # the same outside training; None: as in training
    batch_priority: bool = False  # the most confident tokens of a group get room first; False: the earlier ones
    normalized: bool = False  # weights of a token's experts add up to 1; V-MoE's are the softmax's as they are

    group: PositiveInt | None = None  # images routed together in training; None: all of a process's batch
    router_noise: NonNegativeFloat = 1.0  # times 1/E: the standard deviation of what is added to the logits in training
    importance_weight: NonNegativeFloat = 0.005  # of the loss that evens out the experts' summed weights
    load_weight: NonNegativeFloat = 0.005  # of the loss that evens out the experts' expected loads

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.num_selected <= self.num_experts:
            raise ConfigError(
                f"num_selected={self.num_selected}: a token goes to 1 to {self.num_experts} of the experts."
            )
        if self.last is not None and not 1 <= self.last <= self.depth // self.every:
            raise ConfigError(f"last={self.last}: with every={self.every} there are {self.depth // self.every} layers.")

    @property
    def expert_layers(self) -> tuple[int, ...]:
        """The layers whose MLP is a choice of experts, from 0."""
        layers = tuple(range(self.every - 1, self.depth, self.every))
        return layers if self.last is None else layers[-self.last :]


@final
class ExpertMlp(nn.Module):
    """A router and its experts in place of one MLP."""

    exchange: Exchange | None  # set from outside where the experts are spread over processes

    def __init__(self, config: VMoEConfig) -> None:
        super().__init__()
        self.config, self.exchange = config, None
        self.router = Router(config.width, config.num_experts, noise=config.router_noise)
        self.experts = Mlp(config)  # over [e, n, d] instead of [b, n, d]
        up = config.mlp_dim * (2 if config.gated_mlp else 1)
        self.experts.up = ExpertLinear(config.num_experts, config.width, up)  # pyright: ignore[reportAttributeAccessIssue]
        self.experts.down = ExpertLinear(config.num_experts, config.mlp_dim, config.width)  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def down(self) -> nn.Module:
        """What a block multiplies by `residual_scale` when its weights are fresh."""
        return self.experts.down

    def forward(self, z: Float[Tensor, "b n d"]) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "2"]]:
        """The tokens, and the losses of importance and load, not weighted and zero outside training."""
        config, images = self.config, z.shape[0]
        together = config.group if self.training and config.group is not None else images
        if images % together:
            raise ConfigError(
                f"A batch of {images} images cannot be routed in groups of {together}: choose another batch_size,"
                " number of processes or of parts (accumulate), or group."
            )
        grouped = rearrange(z, "(g b) n d -> g (b n) d", b=together)
        logits, noisy = self.router(grouped)
        ratio = config.capacity if self.training or config.eval_capacity is None else config.eval_capacity
        gates = noisy.softmax(dim=-1)
        routes = route(
            gates,
            num_selected=config.num_selected,
            capacity=buffer_size(grouped.shape[1], config.num_experts, config.num_selected, ratio),
            batch_priority=config.batch_priority,
            normalized=config.normalized,
        )
        buffers = routes.dispatch(grouped)
        if self.exchange is None:
            made = self.experts(buffers)
        else:
            made = self.exchange.from_experts(self.experts(self.exchange.to_experts(buffers)))
        combined = rearrange(routes.combine(made), "g (b n) d -> (g b) n d", b=together)
        return combined, self._losses(logits, noisy)

    def _losses(self, logits: Float[Tensor, "g s e"], noisy: Float[Tensor, "g s e"]) -> Float[Tensor, "2"]:
        if not self.training:
            return logits.new_zeros(2)
        noise, chosen = self.router.noise, self.config.num_selected
        load = load_loss(logits, noisy, num_selected=chosen, noise=noise) if noise else logits.new_zeros(())
        return torch.stack([importance_loss(logits.softmax(dim=-1)), load])


@final
class ExpertBlock(Block):
    """An encoder layer with experts: its second output are their losses."""

    def __init__(self, config: VMoEConfig, drop_path: float) -> None:
        super().__init__(config, drop_path)
        self.mlp = ExpertMlp(config)

    @property
    def normed(self) -> dict[str, str]:
        return {"norm1": "attention.qkv"} if self.pre else {}  # norm2 is the router's too

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, z: Float[Tensor, "b n d"], layout: Layout, relative: RelativePositions | None = None
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "2"]]:
        assert layout.outputs is None, "which tokens find room depends on all of them"
        if self.pre:
            z = self.residual(self.attention(self.norm1(z), layout, relative), self.scale1) + z  # (2)
            part, losses = self.mlp(self.norm2(z))
            return self.residual(part, self.scale2) + z, losses
        z = self.norm1(self.residual(self.attention(z, layout, relative), self.scale1) + z)
        part, losses = self.mlp(z)
        return self.norm2(self.residual(part, self.scale2) + z), losses


@final
class VMoE(ViT):
    """A ViT with experts in some layers; their losses are gathered for the objective on the way."""

    config: VMoEConfig  # pyright: ignore[reportIncompatibleVariableOverride]

    def __init__(self, config: VMoEConfig, preprocess: Preprocess | None = None) -> None:
        super().__init__(config, preprocess)
        for i in config.expert_layers:
            dense = self.blocks[i]
            assert isinstance(dense, Block)
            self.blocks[i] = ExpertBlock(config, dense.drop_path)
        self._losses: list[Tensor] = []

    def _run(self, block: nn.Module, *arguments: Any) -> Any:
        made = super()._run(block, *arguments)
        if not isinstance(block, ExpertBlock):
            return made
        z, losses = made
        if self.training:
            self._losses.append(losses)
        return z

    def encode(self, tokens: Tokens, *, only_pooled: bool = False) -> Tokens:
        self._losses = []
        last_has_experts = self.config.depth - 1 in self.config.expert_layers
        return super().encode(tokens, only_pooled=only_pooled and not last_has_experts)

    def auxiliary(self) -> dict[str, Tensor]:
        """The sums over layers of the importance and load losses, each times its weight."""
        if not self._losses:
            return {}
        importance, load = torch.stack(self._losses).sum(dim=0)
        self._losses = []
        return {
            "importance loss": self.config.importance_weight * importance,
            "load loss": self.config.load_weight * load,
        }

    def initialize(self) -> None:
        """The ViT's; in a layer all experts start alike, as in the authors' code, and the router as a patch kernel."""
        super().initialize()
        for module in self.modules():
            if isinstance(module, Router):
                std = module.dense.in_features**-0.5 / 0.87962566
                nn.init.trunc_normal_(module.dense.weight, std=std, a=-2 * std, b=2 * std)
            elif isinstance(module, ExpertMlp):
                for layer, scale in ((module.experts.up, 1.0), (module.experts.down, self.config.residual_scale)):
                    assert isinstance(layer, ExpertLinear)
                    with torch.no_grad():
                        first = torch.empty_like(layer.weight[0])
                        layer.weight.copy_(nn.init.xavier_uniform_(first) * scale)
                        layer.bias.copy_(torch.empty_like(layer.bias[0]).normal_(std=1e-6))


FAMILY = Family(
    name="vmoe",
    config=VMoEConfig,
    model=VMoE,
    summary="Vision Transformer with a mixture of experts (V-MoE)",
    rows=tuple(EXPERT_ROWS),
    title="V-MoE: mixtures of experts",
    pattern="vmoe-",
    note="The authors' checkpoints (`NAME.index` and its shards `NAME.data-*` beside it, from"
    ' `gs://vmoe_checkpoints`) are read directly: `vitlab.load("NAME.index")`. With a fine-tuning recipe,'
    " `vitlab train RECIPE --model.source SOURCE --model.upcycle num_experts=8 every=2` turns a trained dense ViT into"
    " a mixture of experts, each a copy of the MLP that it replaces (arXiv 2212.05055).",
    example={
        **EXAMPLE,
        "num_experts": 4,
        "capacity": 2.0,  # room for every token: what a full expert drops depends on the other images
        "router_noise": 0.0,
    },
)
