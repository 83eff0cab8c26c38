"""Non-local blocks against NumPy float64, and the ResNet around them against timm's."""

from typing import Any

import numpy as np
import pytest
import timm
import torch

from vitlab.core.errors import ConfigError, ImageError
from vitlab.models.counts import count_flops, count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.non_local import NonLocal, NonLocalConfig, NonLocalNet
from vitlab.models.zoo.rows import ZOO

SMALL: dict[str, Any] = {"image_size": (32, 48), "layers": (1, 2), "width": 8, "stages": (2,), "num_classes": 5}


def randomised(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape, generator=generator)
            value.copy_(noise.abs() + 0.5 if name.endswith("running_var") else 0.3 * noise)


def small(**changes: Any) -> NonLocalNet:
    model = NonLocalNet(NonLocalConfig(**{**SMALL, **changes}))
    randomised(model)
    return model.eval()


def array(tensor: torch.Tensor | None) -> np.ndarray:
    assert tensor is not None
    return tensor.detach().double().numpy()


@pytest.mark.parametrize("scaled", [False, True])
def test_a_block_is_softmax_attention_over_all_places_and_a_residual(scaled: bool) -> None:
    block = NonLocal(6, scaled=scaled)
    randomised(block)
    x = torch.randn(2, 6, 3, 4)
    flat = array(x).reshape(2, 6, 12).transpose(0, 2, 1)
    theta, phi, g = (flat @ array(part.weight).T for part in (block.theta, block.phi, block.g))
    f = np.exp(theta @ phi.transpose(0, 2, 1) / (np.sqrt(3) if scaled else 1))
    A = f / f.sum(-1, keepdims=True)  # f(x_i, x_j) / C(x)
    y = A @ g @ array(block.out.weight)[:, :, 0, 0].T
    for training in (True, False):
        block.train(training)
        mean, var = (
            (y.mean((0, 1)), y.var((0, 1)))
            if training
            else (array(block.norm.running_mean), array(block.norm.running_var))
        )
        z = (y - mean) / np.sqrt(var + 1e-5) * array(block.norm.weight) + array(block.norm.bias) + flat
        block.norm.momentum = 0.0  # leaves the statistics as they are
        np.testing.assert_allclose(array(block(x)), z.transpose(0, 2, 1).reshape(2, 6, 3, 4), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(array(block.probabilities(x)), A[:, None], atol=1e-6)
    torch.testing.assert_close(block.attend(block.probabilities(x), x), block(x), rtol=1e-4, atol=1e-5)


def test_fresh_blocks_are_the_identity_and_weights_are_finite() -> None:
    model = empty_model(NonLocalConfig(**SMALL)).to_empty(device="cpu")
    for value in model.state_dict().values():
        value.fill_(torch.nan if value.is_floating_point() else 7)
    model.initialize()
    assert all(value.isfinite().all() for value in model.state_dict().values())
    x = torch.randn(2, 64, 4, 5)
    blocks = [module for module in model.modules() if isinstance(module, NonLocal)]
    assert len(blocks) == 1
    for training in (True, False):
        assert torch.equal(blocks[0].train(training)(x), x)
    assert torch.equal(model(torch.randn(1, 3, 32, 48)), torch.zeros(1, 5))


def test_without_blocks_it_is_timms_resnet() -> None:
    peer = timm.create_model("resnet50", layers=(1, 2, 1, 1), num_classes=7).eval()
    randomised(peer)
    ours = NonLocalNet(NonLocalConfig(layers=(1, 2, 1, 1), stages=(), num_classes=7)).eval()
    names, unit = {"conv1": "conv", "bn1": "norm", "fc": "head"}, 0
    for stage, count in enumerate((1, 2, 1, 1), 1):
        for i in range(count):
            inside = {"conv1": "conv1", "bn1": "norm1", "conv2": "spatial", "bn2": "norm2", "conv3": "conv3"}
            inside |= {"bn3": "norm3", "downsample.0": "conv_proj", "downsample.1": "norm_proj"}
            names |= {f"layer{stage}.{i}.{theirs}": f"units.{unit}.{name}" for theirs, name in inside.items()}
            unit += 1
    state = {f"{names[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": v for key, v in peer.state_dict().items()}
    ours.load_state_dict(state)
    images = torch.randn(2, 3, 65, 48)
    with torch.no_grad():
        expected = peer(images)
        torch.testing.assert_close(ours(images), expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_the_papers_five_blocks_are_after_every_second_unit_of_res3_and_res4() -> None:
    model = empty_model(NonLocalConfig())
    places = [i for i, unit in enumerate(model.get_submodule("units").children()) if hasattr(unit, "non_local")]
    assert places == [3 + 1, 3 + 3, 7 + 1, 7 + 3, 7 + 5]
    widths = [model.get_parameter(f"units.{i}.non_local.norm.weight").numel() for i in places]
    assert widths == [512] * 2 + [1024] * 3
    assert len(model.taps.attention) == 5


def resnet_by_hand(layers: tuple[int, ...], width: int, classes: int) -> int:
    total, inputs = 7 * 7 * 3 * width + 2 * width, width
    for stage, count in enumerate(layers):
        inner = width * 2**stage
        for unit in range(count):
            total += inputs * inner + 9 * inner**2 + 4 * inner**2 + 2 * (inner + inner + 4 * inner)
            total += (inputs * 4 * inner + 8 * inner) if unit == 0 else 0
            inputs = 4 * inner
    return total + inputs * classes + classes


def test_parameters_are_the_formula() -> None:
    """ResNet-50, and in each block four kernels of C x C/2 and a norm."""
    blocks = 2 * (2 * 512**2 + 2 * 512) + 3 * (2 * 1024**2 + 2 * 1024)
    assert resnet_by_hand((3, 4, 6, 3), 64, 1000) == 25_557_032  # as published with torchvision's and timm's
    assert count_parameters(empty_model(NonLocalConfig())) == 25_557_032 + blocks
    digits = NonLocalConfig(**ZOO["nonlocal-digits"].config)
    expected = resnet_by_hand((1, 1), 32, 10) + 2 * 256**2 + 2 * 256
    assert count_parameters(empty_model(digits)) == expected


def test_flops_of_the_blocks_by_hand() -> None:
    """Four products with kernels and two between places, at 28 x 28 and 14 x 14."""
    added = count_flops(empty_model(NonLocalConfig())) - count_flops(empty_model(NonLocalConfig(stages=())))
    by_hand = [2 * (n * 2 * c**2 + 2 * n**2 * c // 2) for n, c in ((28**2, 512), (14**2, 1024))]
    assert added == 2 * by_hand[0] + 3 * by_hand[1]


def test_gradients_reach_every_parameter_at_any_size() -> None:
    grads = []
    for recompute in (False, True):
        model = small(checkpoint_blocks=recompute).train()
        torch.manual_seed(0)
        model(torch.randn(3, 3, 45, 37)).square().sum().backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name
        grads.append([parameter.grad for parameter in model.parameters()] + list(model.buffers()))
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other)


def test_layers_are_counted_from_stem_to_head() -> None:
    model = small()
    assert {model.layer_of(name) for name, _ in model.named_parameters()} == set(range(model.num_layers + 2))
    layers = model.features(torch.randn(1, 3, 32, 48))
    assert [layer.grid for layer in layers] == [(8, 12), (8, 12), (4, 6), (4, 6)]
    assert model.taps.filters is not None
    assert model.taps.filters().shape == (8, 3, 7, 7)


def test_mistakes_get_a_sentence() -> None:
    for fields, words in [
        ({"stages": (5,)}, "stages 1 to 4"),
        ({"every": 0}, "every must be at least 1"),
        ({"layers": ()}, "a stage or more"),
        ({"image_size": (0, 5)}, "image_size must be at least 1"),
        ({"num_classes": -1}, "num_classes must be at least 0"),
        ({"width": 0}, "width must be at least 1"),
    ]:
        with pytest.raises(ConfigError, match=words):
            create("nonlocal-r50", **fields)
    with pytest.raises(ImageError, match="3 channels, not 1"):
        small()(torch.randn(1, 1, 32, 32))
