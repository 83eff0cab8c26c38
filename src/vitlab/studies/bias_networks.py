"""The smallest networks that differ in what they assume of pictures: nothing, neighbours, an order, or pairs of places.

Each gives features of the picture [B, D], or a map of them [B, D, h, w] of which the mean is classified.
"""

import itertools
from collections.abc import Callable

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from vitlab.models.create import create

WIDTH = 32
DEPTH = 4


class Mlp(nn.Module):
    """Fully connected: every unit sees every pixel, and no two pixels are neighbours."""

    def __init__(self, size: int) -> None:
        super().__init__()
        sides = [3 * size * size, 2 * WIDTH, 2 * WIDTH, 2 * WIDTH]
        layers = [[nn.Linear(a, b), nn.LayerNorm(b), nn.GELU()] for a, b in itertools.pairwise(sides)]
        self.layers = nn.Sequential(*(part for layer in layers for part in layer))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d"]:
        return self.layers(images.flatten(1))


class Cnn(nn.Module):
    """Convolutional: neighbours, the same everywhere. Four layers of 3 x 3 see 9 pixels on each side together."""

    def __init__(self, norm: Callable[[], nn.Module]) -> None:
        super().__init__()
        sides = [3, *[WIDTH // 2] * (DEPTH - 1), WIDTH]
        self.layers = nn.Sequential()
        for a, b in itertools.pairwise(sides):
            self.layers.extend([nn.Conv2d(a, b, 3, padding=1), norm() if b < WIDTH else nn.Identity(), nn.ReLU()])

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        return self.layers(images)


class Patches(nn.Module):
    """What the next ones have in common: patches, projected."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.project = nn.Conv2d(3, WIDTH, patch, patch)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        return self.project(images)


class Rnn(nn.Module):
    """Recurrent: patches one after the other, row by row; each state knows what came before it."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patches = Patches(patch)
        self.gru = nn.GRU(WIDTH, WIDTH, num_layers=2, batch_first=True)

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        x = self.patches(images)
        states, _ = self.gru(rearrange(x, "b d h w -> b (h w) d"))
        return rearrange(states, "b (h w) d -> b d h w", h=x.shape[2])


class Attention(nn.Module):
    """A ViT: pairs of patches, alike wherever they are but for what positions add."""

    def __init__(self, patch: int, size: int, *, positions: str) -> None:
        super().__init__()
        self.vit = create(
            "vit-digits",
            image_size=size,
            num_classes=0,
            patch_size=patch,
            width=WIDTH,
            depth=DEPTH,
            mlp_dim=2 * WIDTH,
            heads=4,
            class_token=False,
            pool="mean",
            positions=positions,
        )

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        tokens = self.vit.dense(images)
        return rearrange(tokens.values, "b (h w) d -> b d h w", h=tokens.grid[0])


class Graph(nn.Module):
    """A graph network: each patch hears the mean of the four beside it, without knowing which is which."""

    def __init__(self, patch: int) -> None:
        super().__init__()
        self.patches = Patches(patch)
        self.norms = nn.ModuleList(nn.GroupNorm(1, WIDTH) for _ in range(DEPTH))
        self.messages = nn.ModuleList(nn.Conv2d(2 * WIDTH, WIDTH, 1) for _ in range(DEPTH))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d h w"]:
        x = self.patches(images)
        for norm, message in zip(self.norms, self.messages, strict=True):
            y = norm(x)
            x = x + torch.relu(message(torch.cat([y, beside(y)], dim=1)))
        return x


class Permuted(nn.Module):
    """The same network on pictures whose pixels are put in another order, always the same."""

    order: Int[Tensor, " n"]

    def __init__(self, network: nn.Module, size: int) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("order", torch.randperm(size * size, generator=torch.Generator().manual_seed(0)))

    def forward(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b d *hw"]:
        return self.network(images.flatten(2)[:, :, self.order].view_as(images))


def beside(x: Float[Tensor, "b d h w"]) -> Float[Tensor, "b d h w"]:
    """The mean of the up to four places beside each."""
    kernel = x.new_zeros(1, 1, 3, 3)  # filled where it is: a captured step takes nothing from the host
    kernel[..., ::2, 1] = kernel[..., 1, ::2] = 1.0
    flat = x.flatten(0, 1)[:, None]
    sums = nn.functional.conv2d(flat, kernel, padding=1)
    counts = nn.functional.conv2d(torch.ones_like(flat[:1]), kernel, padding=1)
    return (sums / counts).view_as(x)


def build(kind: str, size: str, permuted: str = "") -> nn.Module:
    """A network by its name, for pictures of that side; 'permuted' for one that sees them permuted."""
    side = int(size)
    patch = patch_of(side)
    made: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: Mlp(side),
        "cnn-batch": lambda: Cnn(lambda: nn.BatchNorm2d(WIDTH // 2)),
        "cnn-layer": lambda: Cnn(lambda: nn.GroupNorm(1, WIDTH // 2)),
        "rnn": lambda: Rnn(patch),
        "vit": lambda: Attention(patch, side, positions="learned"),
        "vit-none": lambda: Attention(patch, side, positions="none"),
        "graph": lambda: Graph(patch),
    }
    network = made[kind]()
    return Permuted(network, side) if permuted else network


def patch_of(side: int) -> int:
    """The side of a patch: 2 px of digits' 8, 4 of CIFAR's 32."""
    return max(side // 8, 2)
