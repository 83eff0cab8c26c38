"""ViT_C: a ViT over the map of a few convolutions, with counts by hand and the contract's taps."""

from typing import Any

import pytest
import torch

from stems import SIZES, check_after_the_map, encoder_parameters, with_noise
from vitlab.core.errors import ConfigError, ImageError
from vitlab.models.conv_stem import ConvStemConfig, ConvStemViT
from vitlab.models.counts import count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.zoo.rows import ZOO

SMALL: dict[str, Any] = {**SIZES, "patch_size": 8, "stem_widths": (8, 16, 16, 24)}


def test_after_the_map_it_is_the_plain_vit() -> None:
    check_after_the_map(with_noise(ConvStemViT(ConvStemConfig(**SMALL))), ("convolutions.",), (24, 4, 6))


def parameters_by_hand(c: dict[str, Any]) -> int:
    """Convolutions with their norms, and the encoder, from their sizes alone."""
    total, inputs = 0, 3
    for width in c["stem_widths"]:
        total += 9 * inputs * width + 2 * width
        inputs = width
    return total + encoder_parameters(c, inputs)


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.family == "vitc"])
def test_parameters_are_the_formula(name: str) -> None:
    config = ZOO[name].config
    assert count_parameters(empty_model(ConvStemConfig(**config))) == parameters_by_hand(config)
    plain = name.replace("vitc-", "vit-")
    assert config["depth"] == ZOO[plain].config["depth"] - 1


def test_a_change_of_the_width_halves_the_sides() -> None:
    """The paper's stem for 18 GF: four of its six convolutions do."""
    config = ConvStemConfig(image_size=(224, 224), stem_widths=(64, 128, 128, 256, 256, 512))
    assert (config.strides, config.grid) == ((2, 2, 1, 2, 1, 2), (14, 14))
    assert ConvStemConfig(**{**SMALL, "stem_widths": (3, 6, 12)}).strides == (2, 2, 2)  # also as many as channels
    with pytest.raises(ConfigError, match=r"\(8, 16\) shrink an image 4 times, and patch_size is 8"):
        ConvStemConfig(**{**SMALL, "stem_widths": (8, 16)})


def test_fresh_maps_keep_their_size() -> None:
    """He's kernels and unit norms: the last map of a fresh stem has values of about one."""
    torch.manual_seed(0)
    model = create("vitc-s4-32").train()
    assert isinstance(model, ConvStemViT)
    features = model.stem(torch.randn(16, 3, 32, 32))
    assert features.shape == (16, 256, 8, 8)
    assert 0.3 < features.square().mean().sqrt() < 1.2  # half of a unit normal is .71
    assert model.taps.filters is not None
    assert model.taps.filters().shape == (128, 3, 3, 3)
    with pytest.raises(ImageError, match="3 channels, not 1"):
        model(torch.zeros(2, 1, 32, 32))
