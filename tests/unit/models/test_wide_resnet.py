"""Wide ResNets: the paper's sizes, and a forward pass written out from its formulas."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from vitlab.core.errors import ConfigError, ImageError
from vitlab.models.counts import count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.wide_resnet import WideResNet, WideResNetConfig
from vitlab.models.zoo.rows import ZOO

SMALL: dict[str, Any] = {"image_size": (16, 24), "layers": (1, 2), "width": 8, "stem_width": 4, "num_classes": 5}


def with_noise(config: WideResNetConfig) -> WideResNet:
    """A model none of whose numbers is that of a fresh one."""
    model, generator = WideResNet(config), torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator) * 0.3
            value.copy_(noise.abs() + 0.5 if name.endswith("running_var") else noise)
    return model


def written_out(state: dict[str, Tensor], images: Tensor, layers: tuple[int, ...], *, training: bool) -> Tensor:
    """x + conv(relu(bn(conv(relu(bn(x)))))), the shortcut a projection of relu(bn(x)) where shapes change."""

    def active(x: Tensor, name: str) -> Tensor:
        mean, var = state[f"{name}.running_mean"], state[f"{name}.running_var"]
        if training:
            mean, var = x.mean(dim=(0, 2, 3)), x.var(dim=(0, 2, 3), correction=0)
        mean, var, scale, shift = (
            v[:, None, None] for v in (mean, var, state[f"{name}.weight"], state[f"{name}.bias"])
        )
        return ((x - mean) / (var + 1e-5).sqrt() * scale + shift).clamp(min=0)

    x, number = F.conv2d(images, state["conv.weight"], padding=1), 0
    for stage, count in enumerate(layers):
        for unit in range(count):
            stride, at = 2 if stage > 0 and unit == 0 else 1, f"units.{number}"
            y = active(x, f"{at}.norm1")
            kept = F.conv2d(y, state[f"{at}.conv_proj.weight"], stride=stride) if unit == 0 else x
            y = F.conv2d(y, state[f"{at}.conv1.weight"], stride=stride, padding=1)
            x = kept + F.conv2d(active(y, f"{at}.norm2"), state[f"{at}.conv2.weight"], padding=1)
            number += 1
    return active(x, "norm").mean(dim=(2, 3)) @ state["head.weight"].T + state["head.bias"]


@pytest.mark.parametrize("training", [False, True])
def test_it_is_the_formula(training: bool) -> None:
    model = with_noise(WideResNetConfig(**SMALL)).double().train(training)
    images = torch.randn(3, 3, 16, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    expected = written_out(dict(model.state_dict()), images, SMALL["layers"], training=training)
    assert expected.std() > 0.05
    torch.testing.assert_close(model(images), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.family == "wide-resnet"])
def test_parameters_are_the_formula(name: str) -> None:
    """Filters of 3 x 3, projections, a scale and a shift for each norm's channels, the head."""
    config = WideResNetConfig(**ZOO[name].config)
    inputs, total = config.stem_width, 27 * config.stem_width
    for stage, count in enumerate(config.layers):
        outputs = config.width * 2**stage
        for _ in range(count):
            projected = inputs != outputs
            total += 2 * inputs + 9 * inputs * outputs + 2 * outputs + 9 * outputs**2 + projected * inputs * outputs
            inputs = outputs
    total += 2 * inputs + (inputs + 1) * config.num_classes
    assert count_parameters(empty_model(config)) == total


def test_a_name_says_how_many_convolutions() -> None:
    """28 in WRN-28-10: one, then two in each of twelve units, and three projections."""
    model = empty_model(WideResNetConfig(**ZOO["wrn-28-10"].config))
    kernels = [value for value in model.parameters() if value.ndim == 4]
    assert len(kernels) == 28
    assert max(kernel.shape[0] for kernel in kernels) == 640


def test_fresh_units_and_refusals() -> None:
    torch.manual_seed(0)
    model = create("resnet18-32").train()
    assert isinstance(model, WideResNet)
    maps = [tokens.values.detach() for tokens in model.features(torch.randn(8, 3, 32, 32))]
    assert [tuple(each.shape[1:]) for each in (maps[0], maps[-1])] == [(1024, 64), (16, 512)]
    assert all(0.3 < float(each.std()) < 4 for each in maps)  # He's filters keep what they are given
    assert not model(torch.randn(2, 3, 32, 32)).any()  # a fresh head is zero
    with pytest.raises(ImageError, match="3 channels, not 1"):
        model(torch.zeros(2, 1, 32, 32))
    with pytest.raises(ConfigError, match="layers must name a stage or more"):
        WideResNetConfig(layers=())
