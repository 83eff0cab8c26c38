"""Stand-alone self-attention against a loop over windows in NumPy float64, and against full attention."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitlab.core.errors import ConfigError
from vitlab.models.counts import count_flops, count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.local_attention import SASA, LocalAttention, SASAConfig
from vitlab.models.zoo.rows import ZOO

SMALL: dict[str, Any] = {"image_size": (32, 48), "layers": (1, 2), "width": 8, "heads": 2, "window": 3}


def attention(*, window: int, relative: bool = True) -> LocalAttention:
    module = LocalAttention(8, heads=2, window=window, relative=relative)
    generator = torch.Generator().manual_seed(window)
    for parameter in module.parameters():
        parameter.data = 0.5 * torch.randn(parameter.shape, generator=generator)
    return module


def array(tensor: torch.Tensor) -> np.ndarray:
    return tensor.detach().double().numpy()


def loop(module: LocalAttention, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Equation 3, place by place: A between all places, and y."""
    batch, width, height, columns = x.shape
    heads, head, margin = module.heads, width // module.heads, module.window // 2
    kernels = array(module.qkv.weight).reshape(3, heads, head, width)
    A = np.zeros((batch, heads, height * columns, height * columns))
    y = np.zeros_like(x)
    for b, h, i, j in np.ndindex(batch, heads, height, columns):
        q = kernels[0, h] @ x[b, :, i, j]
        window = [
            (a, c)
            for a in range(i - margin, i + margin + 1)
            for c in range(j - margin, j + margin + 1)
            if 0 <= a < height and 0 <= c < columns
        ]
        logits = []
        for a, c in window:
            logit = q @ (kernels[1, h] @ x[b, :, a, c])
            if module.row is not None and module.column is not None:
                row, column = array(module.row)[h, a - i + margin], array(module.column)[h, c - j + margin]
                logit += q @ np.concatenate([row, column])
            logits.append(logit)
        weights = np.exp(logits) / np.exp(logits).sum()
        for (a, c), weight in zip(window, weights, strict=True):
            A[b, h, i * columns + j, a * columns + c] = weight
            y[b, h * head : (h + 1) * head, i, j] += weight * (kernels[2, h] @ x[b, :, a, c])
    return A, y


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize(("window", "size"), [(3, (4, 5)), (5, (3, 6)), (1, (2, 3)), (7, (2, 2))])
def test_attention_is_a_loop_over_windows(window: int, size: tuple[int, int], relative: bool) -> None:
    module, x = attention(window=window, relative=relative), torch.randn(2, 8, *size)
    A, y = loop(module, array(x))
    np.testing.assert_allclose(array(module(x)), y, rtol=1e-4, atol=1e-5)
    found = module.probabilities(x)
    np.testing.assert_allclose(array(found), A, atol=1e-6)
    torch.testing.assert_close(module.attend(found, x), module(x), rtol=1e-4, atol=1e-5)
    leaf = found.detach().requires_grad_()
    (gradient,) = torch.autograd.grad(module.attend(leaf, x).square().sum(), leaf)
    assert ((array(gradient) != 0) == (A != 0)).all()


def test_a_window_over_the_whole_map_is_full_attention() -> None:
    module, x = attention(window=9, relative=False), torch.randn(2, 8, 4, 5)
    flat = x.flatten(2).mT
    q, k, v = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in F.linear(flat, module.qkv.weight).chunk(3, -1))
    expected = F.scaled_dot_product_attention(q, k, v, scale=1.0)
    torch.testing.assert_close(module(x), expected.transpose(1, 2).flatten(2).mT.unflatten(-1, (4, 5)))


def test_a_place_sees_its_window_only() -> None:
    module, x = attention(window=3), torch.randn(1, 8, 6, 7)
    other = x.clone()
    other[0, :, 2, 4] += 1
    changed = (module(x) - module(other)).abs().amax(1)[0] > 0
    expected = torch.zeros(6, 7, dtype=torch.bool)
    expected[1:4, 3:6] = True
    assert torch.equal(changed, expected)


def parameters_by_hand(layers: tuple[int, ...], width: int, window: int, classes: int) -> int:
    """A ResNet of bottlenecks in which three kernels of d x d and 2 k offsets of d/2 stand for one of 9 d x d."""
    total, inputs = 7 * 7 * 3 * width + 2 * width, width
    for stage, count in enumerate(layers):
        inner = width * 2**stage
        for unit in range(count):
            total += inputs * inner + 3 * inner**2 + window * inner + 4 * inner**2 + 2 * (2 * inner + 4 * inner)
            total += (inputs * 4 * inner + 8 * inner) if unit == 0 else 0
            inputs = 4 * inner
    return total + inputs * classes + classes


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.family == "sasa"])
def test_parameters_are_the_formula(name: str) -> None:
    config = SASAConfig(**ZOO[name].config)
    expected = parameters_by_hand(config.layers, config.width, config.window, config.num_classes)
    assert count_parameters(empty_model(config)) == expected


def test_it_has_29_percent_fewer_parameters_than_resnet50() -> None:
    """As the paper's abstract has it."""
    attention, resnet = count_parameters(empty_model(SASAConfig(layers=(3, 4, 6, 3)))), 25_557_032
    assert 1 - attention / resnet == pytest.approx(0.29, abs=0.005)


def test_flops_of_a_unit_by_hand() -> None:
    """Of the second unit at 56 x 56: three kernels of d x d and two of d x 4 d, and three products in windows."""
    one, two = (count_flops(empty_model(SASAConfig(layers=(units,)))) for units in (1, 2))
    n, d = 56**2, 64
    assert two - one == 2 * n * (3 * d * d + 2 * 4 * d * d + 3 * 49 * d)


def small(**changes: Any) -> SASA:
    model = SASA(SASAConfig(**{**SMALL, "num_classes": 5, **changes}))
    model.initialize()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.eval()


def test_any_size_is_taken_and_an_odd_map_is_halved_upwards() -> None:
    model = small()
    layers = model.features(torch.randn(1, 3, 36, 50))
    assert [layer.grid for layer in layers] == [(9, 13), (9, 13), (5, 7), (5, 7)]
    shapes = [tap.recompute(torch.randn(1, 8 * 2**i, 5, 6)).shape for i, tap in enumerate(model.taps.attention[:2])]
    assert shapes == [(1, 2, 30, 30)] * 2
    assert len(model.taps.attention) == 3


def test_gradients_reach_every_parameter() -> None:
    model = small(checkpoint_blocks=True).train()
    model(torch.randn(3, 3, 36, 50)).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_fresh_weights_are_finite() -> None:
    model = empty_model(SASAConfig(**SMALL)).to_empty(device="cpu")
    for value in model.state_dict().values():
        value.fill_(torch.nan if value.is_floating_point() else 7)
    model.initialize()
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_mistakes_get_a_sentence() -> None:
    for fields, words in [
        ({"window": 4}, "window must be odd"),
        ({"heads": 5}, "not divisible by twice the 5 heads"),
        ({"layers": (1, 0)}, "layers must be at least 1"),
    ]:
        with pytest.raises(ConfigError, match=words):
            create("sasa-26", **fields)
