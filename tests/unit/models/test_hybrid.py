"""Hybrids: the ViT over a ResNet's feature map, with counts by hand and the contract's taps."""

from typing import Any

import pytest
import torch

from stems import SIZES, check_after_the_map, encoder_parameters, with_noise
from vitlab.core.errors import ConfigError, ImageError
from vitlab.models.counts import count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.hybrid import Hybrid, HybridConfig
from vitlab.models.zoo.rows import ZOO

SMALL: dict[str, Any] = {**SIZES, "patch_size": 8, "resnet_layers": (2, 1), "resnet_width": 32}


def small(**changes: Any) -> Hybrid:
    return with_noise(Hybrid(HybridConfig(**{**SMALL, **changes})))


def test_after_the_map_it_is_the_plain_vit() -> None:
    check_after_the_map(small(), ("root.", "units."), (256, 4, 6))


def parameters_by_hand(c: dict[str, Any]) -> int:
    """Post-activation bottlenecks and the encoder, from their sizes alone."""
    width, inputs, stride = 64, 64, 4
    total = 7 * 7 * 3 * width + 2 * width
    for stage, count in enumerate(c["resnet_layers"]):
        inner = width * 2**stage
        stride *= 2 if stage else 1
        for unit in range(count):
            total += inputs * inner + 9 * inner * inner + 4 * inner * inner + 2 * (inner + inner + 4 * inner)
            total += inputs * 4 * inner + 2 * 4 * inner if unit == 0 else 0
            inputs = 4 * inner
    return total + encoder_parameters({"num_classes": 1000, **c}, inputs * (c["patch_size"] // stride) ** 2)


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.family == "hybrid"])
def test_parameters_are_the_formula(name: str) -> None:
    config = ZOO[name].config
    assert count_parameters(empty_model(HybridConfig(**config))) == parameters_by_hand(config)


@pytest.mark.parametrize(
    ("name", "grid"),
    [
        ("r50-vit-b16-224", (14, 14)),
        ("r50-vit-l32-224", (7, 7)),
        ("r-vit-ti16-224", (7, 7)),
        ("r26-vit-s32-384", (12, 12)),
    ],
)
def test_grids_are_the_papers(name: str, grid: tuple[int, int]) -> None:
    model = empty_model(HybridConfig(**ZOO[name].config))
    assert model.config.grid == grid
    images = torch.zeros(1, 3, *model.config.image_size, device="meta")
    tokens = model.embed(images)
    assert (tokens.grid, tokens.values.shape[1]) == (grid, 1 + grid[0] * grid[1])


def test_taps_show_the_stems_filters_and_the_encoders_attention() -> None:
    model = small()
    taps = model.taps
    assert taps.filters is not None
    assert taps.filters().shape == (32, 3, 7, 7)
    assert len(taps.attention) == 2
    assert taps.positions is not None
    assert taps.positions().shape == (24, 32)


def test_fresh_weights_are_finite() -> None:
    model = empty_model(HybridConfig(**SMALL)).to_empty(device="cpu")
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    model.initialize()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    assert torch.equal(model(torch.randn(1, 3, 32, 48)), torch.zeros(1, 5))


def test_gradients_reach_every_parameter() -> None:
    model = small().train()
    model(torch.randn(2, 3, 32, 48)).square().sum().backward()
    assert [name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()] == []


def test_mistakes_get_a_sentence() -> None:
    with pytest.raises(ConfigError, match="a feature map of stride 8"):
        HybridConfig(**{**SMALL, "patch_size": 4})
    with pytest.raises(ConfigError, match="not divisible by the 32 groups"):
        HybridConfig(**{**SMALL, "resnet_width": 20})
    with pytest.raises(ImageError, match="do not divide an image of 30 x 48"):
        small()(torch.randn(1, 3, 30, 48))
    assert small(indivisible="pad")(torch.randn(1, 3, 30, 41)).shape == (1, 5)
    with pytest.raises(ConfigError, match="Did you mean resnet_layers"):
        create("r50-vit-b16-224", resnet_layer=(1,))


def test_a_small_root_keeps_the_images_size() -> None:
    """For images of CIFAR's size; a token is cut from the map at full size, or at half of it after a second stage."""
    for layers, side in [((), 4), ((1,), 4), ((1, 1), 2), ((1, 1, 1), 1)]:
        model = small(image_size=(16, 16), patch_size=4, small_root=True, resnet_layers=layers)
        assert model.stem(torch.randn(2, 3, 16, 16)).shape[-1] == 4 * side
        assert model(torch.randn(2, 3, 16, 16)).shape == (2, 5)
