"""CvT's parts: counts by hand, published FLOPs, its taps, batch norms, and what the contract asks of it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from vitlab.core.errors import ConfigError, ImageError
from vitlab.models.contract import Tokens
from vitlab.models.counts import count_flops, count_parameters
from vitlab.models.create import empty_model
from vitlab.models.cvt import Attention, CvT, CvTConfig
from vitlab.models.stages import dropped
from vitlab.models.zoo.rows import ZOO
from vitlab.training.optimizers import Optimizer, kinds

SMALL: dict[str, Any] = {"image_size": (32, 48), "widths": (8, 16, 32), "depths": (1, 1, 2), "heads": (1, 2, 4)}


def small(**changes: Any) -> CvT:
    torch.manual_seed(0)
    model = CvT(CvTConfig(**{**SMALL, "num_classes": 5, **changes}))
    for name, value in model.named_parameters():
        nn.init.normal_(value, mean=float("norm" in name and name.endswith("weight")), std=0.2)
    for value in model.buffers():
        if value.is_floating_point():
            nn.init.uniform_(value, 0.5, 1.5)
    return model.eval()


def images(seed: int = 1) -> Tensor:
    return torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(seed))


def parameters_by_hand(c: CvTConfig) -> int:
    total, inputs = 0, 3
    for width, depth, size in zip(c.widths, c.depths, c.patch_sizes, strict=True):
        total += inputs * width * size**2 + width + 2 * width
        projections = 3 * (9 * width + 2 * width + width * width + width)
        mlp = 4 * width * width + 4 * width + 4 * width * width + width
        total += depth * (2 * width + projections + width * width + width + 2 * width + mlp)
        inputs = width
    return total + inputs + 2 * inputs + inputs * 1000 + 1000  # class token, norm, head


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.family == "cvt"])
def test_parameters_are_the_formula(name: str) -> None:
    config = CvTConfig(**ZOO[name].config)
    assert count_parameters(empty_model(config)) == parameters_by_hand(config)


@pytest.mark.parametrize(("name", "published"), [("cvt-13", 4.5), ("cvt-w24", 193.2)])
def test_flops_are_as_published(name: str, published: float) -> None:
    """The authors' table counts multiply-adds."""
    assert count_flops(empty_model(CvTConfig(**ZOO[name].config))) / 2e9 == pytest.approx(published, rel=0.02)


@torch.no_grad()
def test_attention_is_softmax_over_the_coarser_grid() -> None:
    """One head by hand in float64: each query over the keys of every second place and the class token."""
    model = small(depths=(1, 1, 1), heads=(1, 1, 1)).double()
    tokens = model.features(images().double())[-2]
    z = model._enter(2, tokens.values.transpose(1, 2).unflatten(2, tokens.grid)).values
    attention, layout = model.blocks[2].attention, Tokens(values=z, grid=(2, 3), num_prefix=1).layout
    assert isinstance(attention, Attention)

    def projected(which: str, stride: int) -> Tensor:
        conv: Any = attention.get_submodule(f"conv_{which}.conv")
        norm: Any = attention.get_submodule(f"conv_{which}.norm")
        grid = z[:, 1:].transpose(1, 2).unflatten(2, (2, 3))
        padded = nn.functional.pad(grid, (1, 1, 1, 1))
        rows: list[Tensor] = []
        for y in range(0, 2, stride):
            for x in range(0, 3, stride):
                window = padded[:, :, y : y + 3, x : x + 3]
                value = (window * conv.weight[:, 0]).sum((2, 3))
                value = (value - norm.running_mean) / (norm.running_var + norm.eps).sqrt() * norm.weight + norm.bias
                rows.append(value)
        linear: Any = attention.get_submodule(which)
        return torch.cat([z[:, :1], torch.stack(rows, 1)], 1) @ linear.weight.T + linear.bias

    q, k, v = projected("q", 1), projected("k", 2), projected("v", 2)
    assert k.shape[1] == 1 + 1 * 2
    weights = torch.softmax(q @ k.transpose(1, 2) / 32**0.5, -1)
    expected = weights @ v @ attention.out.weight.T + attention.out.bias
    torch.testing.assert_close(attention(z, layout), expected)
    torch.testing.assert_close(attention.probabilities(z, layout)[:, 0], weights)


@torch.no_grad()
def test_taps_give_every_layer_from_its_grid_to_a_coarser_one() -> None:
    model, seen = small(), list[tuple[int, ...]]()
    for tap in model.taps.attention:

        def look(_: nn.Module, args: Any, output: Tensor, tap: Any = tap) -> None:
            A = tap.recompute(*args)
            seen.append(tuple(A.shape))
            torch.testing.assert_close(A.sum(-1), torch.ones(A.shape[:-1]))
            torch.testing.assert_close(tap.attend(A, *args), output)

        tap.module.register_forward_hook(look)
    model.encode(model.embed(images()))
    assert seen == [(2, 1, 96, 24), (2, 2, 24, 6), (2, 4, 7, 3), (2, 4, 7, 3)]
    assert model.taps.filters is not None
    assert model.taps.filters().shape == (8, 3, 7, 7)


@torch.no_grad()
def test_leaving_out_what_is_not_read_changes_nothing() -> None:
    for model in (small(), small(class_token=False)):
        whole = model.head(model.pool(model.encode(model.embed(images()))))
        torch.testing.assert_close(model(images()), whole, rtol=1e-4, atol=1e-5)


def test_fresh_weights_reach_every_parameter_and_buffer() -> None:
    model = empty_model(CvTConfig(**SMALL)).to_empty(device="cpu")
    for value in [*model.parameters(), *model.buffers()]:
        value.data.fill_(torch.nan if value.is_floating_point() else -1)
    model.initialize()
    for name, value in model.state_dict().items():
        assert value.isfinite().all(), name
    statistics = model.get_submodule("blocks.0.attention.conv_q.norm").state_dict()
    assert statistics["running_mean"].unique().tolist() == [0]
    assert statistics["running_var"].unique().tolist() == [1]
    assert statistics["num_batches_tracked"] == 0
    assert model(images()).abs().max() == 0  # the head is zero


def test_gradients_reach_every_parameter() -> None:
    """But what makes the last layer's queries of places, which nothing reads: the class token is no place."""
    model = small().train()
    model(images()).square().sum().backward()
    unread = {f"blocks.3.attention.conv_q.{part}" for part in ("conv.weight", "norm.weight", "norm.bias")}
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert (parameter.grad.abs().max() > 0) == (name not in unread), name


def test_recomputed_blocks_count_a_batch_once() -> None:
    plain, frugal = small().train(), small(checkpoint_blocks=True).train()
    for model in (plain, frugal):
        model(images()).square().sum().backward()
    for (name, one), other in zip(plain.named_parameters(), frugal.parameters(), strict=True):
        assert one.grad is not None, name
        torch.testing.assert_close(one.grad, other.grad, msg=name)
    for (name, one), other in zip(plain.named_buffers(), frugal.buffers(), strict=True):
        torch.testing.assert_close(one, other, msg=name)
    norm = frugal.get_submodule("blocks.0.attention.conv_q.norm")
    assert norm.num_batches_tracked == 1
    assert norm.momentum == 0.1


def test_layers_and_decay() -> None:
    model = small()
    layers = {name: model.layer_of(name) for name, _ in model.named_parameters()}
    assert {layers["embeddings.0.conv.weight"], layers["embeddings.0.norm.bias"]} == {0}
    assert (layers["embeddings.1.conv.weight"], layers["blocks.1.norm1.weight"]) == (2, 2)
    assert (layers["class_token"], layers["embeddings.2.norm.weight"], layers["blocks.3.up.weight"]) == (3, 3, 4)
    assert (layers["norm.weight"], layers["head.weight"], model.num_layers) == (5, 5, 4)
    decayed = {name for name, kind in kinds(model, Optimizer(weight_decay=0.1)).items() if kind.decays}
    assert "blocks.0.attention.conv_q.conv.weight" in decayed
    assert not {name for name in decayed if "norm" in name or name.endswith("bias") or name == "class_token"}


def test_stochastic_depth_is_in_the_last_stage() -> None:
    model = small(drop_path=0.5, depths=(1, 2, 3))
    assert [block.drop_path for block in model.blocks] == [0, 0, 0, 0, 0.25, 0.5]
    torch.manual_seed(0)
    part = dropped(torch.ones(4000, 2, 3), 0.25, True)
    assert part.unique().tolist() == pytest.approx([0.0, 1 / 0.75])
    assert part.mean().item() == pytest.approx(1, abs=0.03)
    assert (part == part[:, :1, :1]).all(), "an image's whole part goes"


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"depths": (1, 1)}, "depths must have one number for each of the 3 widths"),
        ({"heads": (3, 2, 4)}, "8 is not divisible by its 3 heads"),
        ({"kernel": 2}, "kernel must be odd"),
        ({"widths": (8, 0, 32)}, "widths must be at least 1"),
        ({"drop_path": 1.0}, "drop_path must be at least 0"),
        ({"num_classes": -1}, "must be at least 0"),
    ],
)
def test_impossible_configurations_are_refused(changes: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        CvTConfig(**{**SMALL, **changes})


def test_impossible_images_are_refused() -> None:
    with pytest.raises(ImageError, match="3 channels, not 1"):
        small()(torch.zeros(1, 1, 32, 32))
    with pytest.raises(ImageError, match="give larger images"):
        small()(torch.zeros(1, 3, 2, 32))
