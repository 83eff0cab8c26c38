"""Scale and shift of a norm in the next layer's weights: the same model, by other sums."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from tiny_vits import SIZES, random_vit
from vitlab.models import folding
from vitlab.models.vit import ViTConfig


def gradients(model: nn.Module, call: Any, images: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    F.cross_entropy(call(images), torch.arange(len(images)) % 3).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def without_scale(node: fx.Node) -> bool:
    return len(node.args) < 3 and "weight" not in node.kwargs


CASES: list[tuple[dict[str, Any], int]] = [  # what is changed, and how many of the norms are taken in
    ({}, 4),
    ({"pool": "mean", "qk_norm": True, "layer_scale": 0.5}, 4),
    ({"gated_mlp": True, "positions": "relative"}, 4),
    ({"checkpoint_blocks": True}, 4),
    ({"qkv_bias": False}, 2),  # nowhere to put the shift
    ({"norm": "post"}, 0),
]


@pytest.mark.compiled
def test_gradients_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def biased(norm: nn.LayerNorm, layer: nn.Linear, z: Tensor) -> bool:
        del norm, z
        return torch.compiler.is_compiling() and layer.bias is not None

    norms: list[fx.Node] = []

    def noting(graph: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
        del inputs
        for part in graph.modules():
            if isinstance(part, fx.GraphModule):
                norms.extend(node for node in part.graph.nodes if node.target is F.layer_norm)
        return graph

    model = random_vit(ViTConfig(**SIZES, num_classes=3)).train()
    gradients(model, torch.compile(model, backend=noting, fullgraph=True), torch.randn(5, 3, *SIZES["image_size"]))
    assert norms
    assert not any(without_scale(node) for node in norms)  # no GPU, nothing to gain
    monkeypatch.setattr(folding, "worth_it", biased)
    random = torch.Generator().manual_seed(0)
    for changes, folded in CASES:
        torch._dynamo.reset()
        norms.clear()
        model = random_vit(ViTConfig(**SIZES, num_classes=3, **changes)).double().train()
        images = torch.randn(5, 3, *SIZES["image_size"], dtype=torch.float64, generator=random)
        expected = gradients(model, model, images)
        found = gradients(model, torch.compile(model, backend=noting, fullgraph=True), images)
        assert sum(map(without_scale, norms)) == folded
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12, msg=f"{changes}: {name}")


@pytest.mark.compiled
def test_it_is_a_well_behaved_operator() -> None:
    weights = [torch.randn(n, 4, requires_grad=True) for n in (5, 3)]
    biases = [torch.randn(n, requires_grad=True) for n in (5, 3)]
    scales, shifts = ([torch.randn(4, requires_grad=True) for _ in range(2)] for _ in range(2))
    torch.library.opcheck(folding.fold, (weights, biases, scales, shifts, torch.bfloat16))


def test_its_gradients_are_those_by_differences() -> None:
    """With the shape checks on, which look at some of a tuple only: the operator is called many times."""
    sizes = [(2, 3), (1, 3), (2,), (1,), *[(3,)] * 4]
    random = torch.Generator().manual_seed(0)
    given = [torch.randn(size, dtype=torch.float64, generator=random, requires_grad=True) for size in sizes]

    def folded(*values: Tensor) -> tuple[Tensor, ...]:
        lists = [list(values[i : i + 2]) for i in range(0, len(values), 2)]
        return tuple(folding.fold(*lists, torch.float64))

    (w, _, b, _, s, _, t, _), found = given, folded(*given)
    torch.testing.assert_close(found[0], w * s)
    torch.testing.assert_close(found[2], w @ t + b)
    assert torch.autograd.gradcheck(folded, given)
