"""CoAtNet's parts: counts by hand, relative biases and their resizing, batch norms, and what the contract asks."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitlab.core.errors import ConfigError, ImageError
from vitlab.models.coatnet import CoAtNet, CoAtNetConfig, MBConv
from vitlab.models.counts import count_parameters
from vitlab.models.create import empty_model
from vitlab.models.relative import RelativeBias, RelativeMlp, resize_bias
from vitlab.models.stages import normed
from vitlab.models.zoo.rows import ZOO
from vitlab.training.optimizers import Optimizer, kinds

SMALL: dict[str, Any] = {
    "image_size": (32, 48),
    "stem": (8, 16),
    "kinds": ("conv", "conv", "attention"),
    "depths": (1, 2, 2),
    "widths": (16, 24, 32),
    "strides": (2, 2, 2),
    "head_width": 8,
}
RW: dict[str, Any] = {
    "widens": "last",
    "norm_pooled": False,
    "conv_activation": "silu",
    "pre_activation": True,
    "downsample": "pool",
    "pooling": "max",
    "squeeze_early": True,
    "squeeze_activation": "relu",
    "relative": "mlp",
    "relative_hidden": 16,
    "layer_scale": 0.1,
}
each_kind = pytest.mark.parametrize("changes", [{}, RW, {"strides": (2, 2, 1), "representation": 12}])


def small(**changes: Any) -> CoAtNet:
    torch.manual_seed(0)
    model = CoAtNet(CoAtNetConfig(**{**SMALL, "num_classes": 5, **changes}))
    for name, value in model.named_parameters():
        nn.init.normal_(value, mean=float("norm" in name and name.endswith("weight")), std=0.2)
    for value in model.buffers():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 1.5)
    return model.eval()


def images(size: tuple[int, int] = (32, 48)) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def parameters_by_hand(c: CoAtNetConfig) -> int:
    """From the sizes alone, for the paper's kind: widened by the first projection, biases everywhere."""
    total, inputs, grid = 27 * c.stem[0] + 2 * c.stem[0] + 9 * c.stem[0] * c.stem[1], c.stem[1], 112
    for kind, depth, width, stride in zip(c.kinds, c.depths, c.widths, c.strides, strict=True):
        grid //= stride
        for _ in range(depth):
            total += inputs * width + width if inputs != width else 0  # the shortcut's
            if kind == "conv":
                hidden, squeezed = 4 * width, width // 4
                total += 2 * inputs + inputs * hidden + 2 * hidden + 9 * hidden + 2 * hidden
                total += 2 * hidden * squeezed + squeezed + hidden + hidden * width + width
            else:
                total += 2 * inputs + 3 * (inputs * width + width) + width * width + width
                total += (2 * grid - 1) ** 2 * (width // c.head_width)
                total += 2 * width + 8 * width * width + 5 * width
            inputs = width
    assert c.representation == inputs
    return total + 2 * inputs + inputs * inputs + inputs + inputs * 1000 + 1000


@pytest.mark.parametrize("number", range(8))
def test_parameters_are_the_formula(number: int) -> None:
    config = CoAtNetConfig(**ZOO[f"coatnet-{number}"].config)
    assert count_parameters(empty_model(config)) == parameters_by_hand(config)


def test_the_largest_attend_at_stride_16_after_eight_bottlenecks() -> None:
    """Stage 3 of CoAtNet-6 and 7, and the figure that a last width of 2048, as printed, would give."""
    config = CoAtNetConfig(**ZOO["coatnet-6"].config)
    grids = [(block.kind, block.grid, block.width) for block in config.blocks]
    assert grids[6:14] == [("conv", (14, 14), 768)] * 8
    assert grids[14:56] == [("attention", (14, 14), 1536)] * 42
    assert grids[56:] == [("attention", (7, 7), 3072)] * 2
    row = {**ZOO["coatnet-6"].config, "widths": (192, 384, 768, 1536, 2048), "representation": 2048}
    assert round(count_parameters(empty_model(CoAtNetConfig(**row))) / 1e6) == 1348


@pytest.mark.parametrize("kind", ["table", "mlp"])
@torch.no_grad()
def test_a_bias_belongs_to_an_offset(kind: str) -> None:
    torch.manual_seed(0)  # by chance none of the hidden units may be active for two offsets
    relative = RelativeBias((3, 4), 2, "bilinear") if kind == "table" else RelativeMlp(2, 8).eval()
    for value in relative.parameters():
        nn.init.normal_(value)
    bias = relative((3, 4))
    assert bias.shape == (2, 12, 12)
    by_offset: dict[tuple[int, int], Tensor] = {}
    for query in range(12):
        for key in range(12):
            offset = query // 4 - key // 4, query % 4 - key % 4
            first = by_offset.setdefault(offset, bias[:, query, key])
            torch.testing.assert_close(bias[:, query, key], first)
    assert len(by_offset) == 5 * 7
    assert len({tuple(value.tolist()) for value in by_offset.values()}) == 5 * 7, "no two offsets share one"


@torch.no_grad()
def test_the_mlps_bias_by_hand() -> None:
    relative = RelativeMlp(3, 8).double().eval()
    down, right = 2, -1  # from the place in row 2, column 0 to that in row 0, column 1
    x = torch.tensor([np.log(1 + down), -np.log(1 + abs(right))], dtype=torch.float64)
    hidden = (relative.up.weight @ x + relative.up.bias).clamp(min=0)
    expected = relative.down.weight @ hidden + relative.down.bias
    torch.testing.assert_close(relative((3, 2))[:, 2 * 2 + 0, 1], expected)


@pytest.mark.parametrize(("old", "new"), [((4, 4), (7, 7)), ((7, 5), (3, 9)), ((4, 4), (4, 6)), ((5, 5), (1, 2))])
def test_biases_are_resized_bilinearly(old: tuple[int, int], new: tuple[int, int]) -> None:
    """NumPy's interpolation along one axis and then the other, the ends of both at the ends."""
    table = torch.randn((2 * old[0] - 1) * (2 * old[1] - 1), 3)
    grid = table.double().numpy().reshape(2 * old[0] - 1, 2 * old[1] - 1, 3)
    for axis in (0, 1):
        places = np.linspace(0, grid.shape[axis] - 1, 2 * new[axis] - 1)
        if new[axis] == 1:  # one offset, 0: the middle
            places = np.array([(grid.shape[axis] - 1) / 2])
        grid = np.apply_along_axis(lambda row, x=places: np.interp(x, np.arange(len(row)), row), axis, grid)
    resized = resize_bias(table, new, old_grid=old, rule="bilinear")
    torch.testing.assert_close(resized.double(), torch.from_numpy(grid.reshape(-1, 3)), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_middle_of_a_resized_table_stays() -> None:
    """A place's bias to itself, whatever the rule."""
    table = torch.randn(49, 2)
    for rule in ("bilinear", "timm"):
        resized = resize_bias(table, (6, 9), old_grid=(4, 4), rule=rule)
        torch.testing.assert_close(resized.reshape(11, 17, 2)[5, 8], table.reshape(7, 7, 2)[3, 3])


@each_kind
@torch.no_grad()
def test_any_size_is_taken(changes: dict[str, Any]) -> None:
    """Also odd ones, at every stage."""
    model = small(**changes)
    for size in ((32, 48), (64, 64), (45, 37), (9, 50)):
        tokens = model.encode(model.embed(images(size)))
        halvings = 1 + sum(stride == 2 for stride in model.config.strides)
        assert tokens.grid == tuple(-(-side // 2**halvings) for side in size)
        assert model(images(size)).isfinite().all()


@each_kind
@torch.no_grad()
def test_taps_are_what_the_blocks_compute(changes: dict[str, Any]) -> None:
    model, seen = small(**changes), list[int]()
    for tap in model.taps.attention:

        def look(_: nn.Module, args: Any, output: Tensor, tap: Any = tap) -> None:
            A = tap.recompute(*args)
            seen.append(A.shape[-1])
            torch.testing.assert_close(A.sum(-1), torch.ones(A.shape[:-1]))
            torch.testing.assert_close(tap.attend(A, *args), output)

        tap.module.register_forward_hook(look)
    model(images())
    assert seen == ([4 * 6] * 2 if model.config.strides[-1] == 1 else [2 * 3] * 2)
    assert model.taps.filters is not None
    assert model.taps.filters().shape == (8, 3, 3, 3)


@torch.no_grad()
def test_a_norm_in_the_filters_is_the_norm() -> None:
    model = small().double()
    block = model.blocks[0]
    assert isinstance(block, MBConv)
    x = torch.randn(2, 16, 7, 9, dtype=torch.float64)
    torch.testing.assert_close(normed(block.expand, block.norm1, x), block.norm1(block.expand(x)))
    y = torch.randn(2, 64, 7, 9, dtype=torch.float64)
    torch.testing.assert_close(normed(block.depthwise, block.norm2, y), block.norm2(block.depthwise(y)))
    early = small(squeeze_early=True).double().blocks[0]
    assert isinstance(early, MBConv)
    torch.testing.assert_close(early._scaled(y, early.squeeze(y)), early.norm2(y * early.squeeze(y)))


@each_kind
def test_fresh_weights_reach_every_parameter_and_buffer(changes: dict[str, Any]) -> None:
    model = empty_model(CoAtNetConfig(**{**SMALL, **changes})).to_empty(device="cpu")
    for value in [*model.parameters(), *model.buffers()]:
        value.data.fill_(torch.nan if value.is_floating_point() else -1)
    model.initialize()
    for name, value in model.state_dict().items():
        assert value.isfinite().all(), name
    statistics = model.get_submodule("blocks.0.norm1").state_dict()
    assert statistics["running_mean"].unique().tolist() == [0]
    assert statistics["running_var"].unique().tolist() == [1]
    assert statistics["num_batches_tracked"] == 0
    assert model(images()).abs().max() == 0  # the head is zero


@each_kind
def test_gradients_reach_every_parameter(changes: dict[str, Any]) -> None:
    model = small(**changes).train()
    model(images()).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().max() > 0, name


@each_kind
def test_recomputed_blocks_count_a_batch_once(changes: dict[str, Any]) -> None:
    plain, frugal = small(**changes).train(), small(**changes, checkpoint_blocks=True).train()
    for model in (plain, frugal):
        torch.manual_seed(2)  # the MLP of relative positions has a dropout
        model(images()).square().sum().backward()
    for (name, one), other in zip(plain.named_parameters(), frugal.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    for (name, one), other in zip(plain.named_buffers(), frugal.buffers(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    assert frugal.get_submodule("blocks.0.norm1").num_batches_tracked == 1


def test_layers_and_decay() -> None:
    model = small(layer_scale=0.1)
    layers = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert (layers["stem.conv1.weight"], layers["blocks.0.norm.weight"], layers["blocks.4.scale1"]) == (0, 1, 5)
    assert (layers["norm.weight"], layers["head.weight"], model.num_layers) == (6, 6, 5)
    decayed = {name for name, kind in kinds(model, Optimizer(weight_decay=0.1)).items() if kind.decays}
    assert {"blocks.0.depthwise.weight", "blocks.3.attention.qkv.weight", "stem.conv1.weight"} <= decayed
    assert not {name for name in decayed if "norm" in name or name.endswith(("bias", "table", "scale1"))}


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"depths": (1, 1)}, "depths must have one entry for each of the 3 widths"),
        ({"head_width": 5}, "32 is not divisible by heads of width 5"),
        ({"widens": "last", "head_width": 16}, "24 is not divisible by heads of width 16"),
        ({"strides": (2, 2, 3)}, "strides must be 1 or 2"),
        ({"squeeze": 0.0}, "squeeze must be above 0 and at most 1"),
        ({"representation": 0}, "representation must be at least 1"),
        ({"dropout": 1.0}, "dropout must be at least 0"),
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        CoAtNetConfig(**{**SMALL, **changes})


def test_impossible_images_are_refused() -> None:
    with pytest.raises(ImageError, match="3 channels, not 4"):
        small()(torch.zeros(1, 4, 32, 32))
