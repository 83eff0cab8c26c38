"""What reads the encoded tokens: pooling by attention, and heads for an image, for its pixels, or for two losses."""

from typing import Literal, TypeAlias, final

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.models.contract import Tokens

HeadKind: TypeAlias = Literal["pooled", "patches"]  # `head` in a configuration
Pool: TypeAlias = Literal["token", "mean", "attention", "token+mean"]  # `pool` in a ViT's


def build_head(kind: HeadKind, num_classes: int, *, features: int, width: int, distilled: bool = False) -> nn.Module:
    """A linear layer on `features` numbers per image, or on tokens of that width; without classes nothing."""
    if not num_classes:
        return nn.Identity()
    if kind == "patches":
        return PatchHead(width, num_classes)
    return DistilledHead(width, num_classes) if distilled else nn.Linear(features, num_classes)


def gather(tokens: Tokens, pool: Pool, *, outputs: int = 1) -> Float[Tensor, "b *k d"]:
    """What stands for an image: the mean of its patches, its first tokens, or both, as DINOv2's classifiers read it."""
    if pool == "mean":
        return tokens.patches.mean(dim=1)
    if pool == "token+mean":
        return torch.stack([tokens.values[:, 0], tokens.patches.mean(dim=1)], dim=1)
    return tokens.values[:, :outputs]


@final
class PatchHead(nn.Module):
    """Segmenter's linear decoder (arXiv 2105.05633): logits of each patch, resized to the image's pixels."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, num_classes)

    def forward(
        self, tokens: Tokens, *, size: tuple[int, int], covered: tuple[int, int]
    ) -> Float[Tensor, "b k height width"]:
        """`covered` is what the grid stands for: what is beyond the image's `size` was padding, and is cut off."""
        assert tokens.present is None, "a dense head needs all places"
        logits = rearrange(self.linear(tokens.patches), "b (h w) k -> b k h w", h=tokens.grid[0], w=tokens.grid[1])
        return F.interpolate(logits, covered, mode="bilinear")[..., : size[0], : size[1]]


@final
class AttentionPool(nn.Module):
    """big_vision's "MAP" head: a learned query attends to all tokens, then an MLP with a residual."""

    def __init__(self, width: int, heads: int, mlp: nn.Module, norm_eps: float) -> None:
        super().__init__()
        self.heads = heads
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, norm_eps)
        self.mlp = mlp

    def forward(self, z: Float[Tensor, "b n d"]) -> Float[Tensor, "b d"]:
        """With one query for all images neither keys nor values are formed, a sixth of a layer's work.

        q (K z) = (q K) z; sum A (V z) = V (sum A z). The keys' bias adds the same to every logit: nothing.
        """
        keys, values = rearrange(self.kv.weight, "(two h d) e -> two h d e", two=2, h=self.heads)
        q = rearrange(self.q(self.probe), "1 1 (h d) -> h 1 d", h=self.heads) * keys.shape[1] ** -0.5
        A = (z @ rearrange(q @ keys, "h 1 e -> e h")).softmax(dim=1)
        heads = torch.einsum("b h e, h d e -> b h d", A.mT @ z, values)
        heads = rearrange(heads, "b h d -> b 1 (h d)") + self.kv.bias.chunk(2)[1]
        pooled = self.out(heads)
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]

    def initialize(self) -> None:
        nn.init.xavier_uniform_(self.probe)
        for part in self.kv.weight.chunk(2):
            nn.init.xavier_uniform_(part)


@final
class DistilledHead(nn.Module):
    """DeiT's two classifiers over [class features, distillation features]; the answer is their mean."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.label = nn.Linear(width, num_classes)
        self.teacher = nn.Linear(width, num_classes)

    def both(self, features: Float[Tensor, "b dd"]) -> tuple[Float[Tensor, "b k"], Float[Tensor, "b k"]]:
        """Each classifier's answer, for a loss of its own."""
        of_class, of_distill = features.chunk(2, dim=-1)
        return self.label(of_class), self.teacher(of_distill)

    def forward(self, features: Float[Tensor, "b dd"]) -> Float[Tensor, "b k"]:
        label, teacher = self.both(features)
        return (label + teacher) / 2
