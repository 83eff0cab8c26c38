"""TransGAN's generator: the sizes of its stages, pixel shuffle, and what it counts."""

import pytest
import torch
from einops import rearrange
from torch import nn

from vitlab.core.errors import ConfigError
from vitlab.models.counts import count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.transgan import TransGAN, TransGANConfig, pixel_shuffle
from vitlab.models.vit import Block
from vitlab.models.zoo.generators import TRANSGAN_ROWS
from vitlab.models.zoo.row import ZooRow

TINY = TransGANConfig(image_size=(8, 12), depths=(2, 1), width=16, heads=2, latent_dim=3)


def test_the_stages_of_the_authors_model() -> None:
    """8 x 8 to 16 x 16 to 32 x 32, of width 1024, 256 and 64, five, four and two layers: their script's."""
    assert TransGANConfig().stages == ((5, (8, 8), 1024), (4, (16, 16), 256), (2, (32, 32), 64))
    sizes: list[tuple[int, ...]] = []
    model = create("transgan-digits").eval()
    for block in model.modules():
        if isinstance(block, Block):
            block.register_forward_hook(lambda _, given, __: sizes.append(tuple(given[0].shape[1:])))
    with torch.no_grad():
        assert model(torch.zeros(2, 16)).shape == (2, 3, 8, 8)
    assert sizes == [(16, 64), (16, 64), (64, 16)]


def test_pixel_shuffle_is_torchs() -> None:
    z = torch.randn(2, 3 * 5, 24)
    picture = rearrange(z, "b (h w) d -> b d h w", h=3)
    expected = rearrange(nn.PixelShuffle(2)(picture), "b d h w -> b (h w) d")
    assert torch.equal(pixel_shuffle(z, (3, 5)), expected)


def test_pixel_shuffle_by_hand() -> None:
    """One token of eight values on a grid of one becomes four of two: values 0 to 3 are the first channel's."""
    found = pixel_shuffle(torch.arange(8.0).view(1, 1, 8), (1, 1))
    assert found.tolist() == [[[0, 4], [1, 5], [2, 6], [3, 7]]]
    two = pixel_shuffle(torch.arange(8.0).view(1, 2, 4), (1, 2))  # two tokens side by side: two rows of four
    assert two[0, :, 0].tolist() == [0, 1, 4, 5, 2, 3, 6, 7]


@pytest.mark.parametrize("row", TRANSGAN_ROWS, ids=lambda row: row.name)
def test_parameters_by_hand(row: ZooRow) -> None:
    config = TransGANConfig(**row.config)
    total, side, last = 0, config.image_size[0] >> len(config.depths) - 1, 0
    total += config.latent_dim * side**2 * config.width + side**2 * config.width  # latents to tokens
    width = config.width
    for depth in config.depths:
        norms, attention, mlp = 4 * width, 4 * width**2 + width, 8 * width**2 + 5 * width
        total += side**2 * width + depth * (norms + attention + mlp)
        last, side, width = width, 2 * side, width // 4
    total += 3 * last + 3
    assert count_parameters(empty_model(config)) == total


def test_positions_of_each_stage_tell_places_apart() -> None:
    """Where tokens and positions are all alike, so are the pixels; with other positions they are not."""
    torch.manual_seed(0)
    model = TransGAN(TINY)
    model.initialize()
    with torch.no_grad():
        model.projection.weight.copy_(torch.randn(16, 3).repeat(24, 1))
        for positions in model.positions:
            positions.zero_()
        corners = model(torch.ones(1, 3))[0, :, ::2, ::2].flatten(1)  # the same quarter of each token
        torch.testing.assert_close(corners, corners[:, :1].expand_as(corners), rtol=1e-4, atol=1e-5)
        nn.init.normal_(model.positions[0])
        corners = model(torch.ones(1, 3))[0, :, ::2, ::2].flatten(1)
        assert corners.std(dim=1).min() > 1e-3


def test_layers_are_counted_from_the_latents() -> None:
    model = empty_model(TINY)
    assert model.num_layers == 3
    found = {name: model.layer_of(name) for name, _ in model.named_parameters() if name.count(".") == 1}
    assert found == {
        "projection.weight": 0,
        "projection.bias": 0,
        "positions.0": 0,
        "positions.1": 2,
        "to_rgb.weight": 4,
        "to_rgb.bias": 4,
    }
    assert model.layer_of("blocks.2.mlp.up.weight") == 3


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"image_size": (30, 32)}, "sides are multiples of 4, not 30 x 32"),
        ({"width": 1000}, "choose a multiple of 64"),
        ({"depths": ()}, "one stage at least"),
        ({"num_classes": 10}, "tells no classes apart"),
    ],
)
def test_sizes_that_cannot_be_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        TransGANConfig(**fields)  # pyright: ignore[reportArgumentType]
    assert "\n" not in str(caught.value)
