"""Attention and its gradients against timm, which forms them when its fused product is off."""

import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from peers import timm
from tiny_vits import random_vit
from vitlab.inspection.capture import (
    InspectionError,
    attention_gradients,
    attention_of,
    misfit,
    read_by_pool,
    watching,
)
from vitlab.models.contract import Layout
from vitlab.models.vit import Attention, ViT, ViTConfig
from vitlab.weights.load import load

VisionTransformer = timm.models.vision_transformer.VisionTransformer
SIZES: dict[str, Any] = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 4, "num_classes": 7}
CASES: dict[str, dict[str, Any]] = {
    "class token": {},
    "registers": {"reg_tokens": 3},
    "query and key norm": {"qk_norm": True},
    "mean": {"global_pool": "avg", "class_token": False},
    "not square": {"img_size": (16, 40)},
}


def both(case: str, folder: Path) -> tuple[Any, ViT, Tensor]:
    """timm's model with its attention formed, ours with the same weights, and images."""
    theirs = VisionTransformer(**{**SIZES, **CASES[case]}).eval()
    generator = torch.Generator().manual_seed(0)
    for value in theirs.parameters():
        value.data = torch.randn(value.shape, generator=generator) / max(value[0].numel(), 4) ** 0.5
    for block in theirs.blocks:
        block.attn.fused_attn = False
    torch.save(theirs.state_dict(), folder / "vit.pth")
    size = CASES[case].get("img_size", 32)
    ours = load(folder / "vit.pth", heads=4, image_size=size)
    assert isinstance(ours, ViT)
    return theirs, ours, torch.randn(2, 3, *ours.config.image_size, generator=generator)


def tiny(**changes: Any) -> ViT:
    sizes: dict[str, Any] = {"image_size": (8, 12), "patch_size": 4, "width": 8, "depth": 3, "mlp_dim": 8, "heads": 2}
    return random_vit(ViTConfig(**{**sizes, "num_classes": 3, **changes}))


@pytest.mark.parametrize("case", CASES)
def test_attention_and_its_gradient_are_timms(case: str, tmp_path: Path) -> None:
    theirs, ours, images = both(case, tmp_path)
    formed: list[Tensor] = []

    def keep(_: Any, args: tuple[Tensor], __: Tensor) -> None:
        args[0].retain_grad()
        formed.append(args[0])

    for block in theirs.blocks:
        block.attn.attn_drop.register_forward_hook(keep)
    logits = theirs(images)
    classes = torch.tensor([2, 5])
    logits.gather(1, classes[:, None]).sum().backward()

    seen = attention_of(ours, images)
    assert list(seen) == [0, 1, 2]
    for layer, attention in seen.items():
        torch.testing.assert_close(attention, formed[layer].detach(), rtol=1e-4, atol=1e-6)

    layers = list(attention_gradients(ours, images, classes))
    assert [layer for layer, _, _ in layers] == [0, 1, 2]
    for layer, attention, gradient in layers:
        expected = formed[layer].grad
        assert expected is not None
        assert expected.abs().max() > 1e-4
        torch.testing.assert_close(attention, formed[layer].detach(), rtol=1e-4, atol=1e-6)
        torch.testing.assert_close(gradient, expected, rtol=1e-3, atol=1e-6)


def test_the_class_is_the_most_probable_if_none_is_given() -> None:
    model, images = tiny(), torch.randn(2, 3, 8, 12)
    answers = model(images).argmax(dim=-1)
    for ours, given in zip(
        attention_gradients(model, images), attention_gradients(model, images, answers), strict=True
    ):
        assert torch.equal(ours[2], given[2])
    (_, _, first), *_ = attention_gradients(model, images, (answers + 1) % 3)
    (_, _, other), *_ = attention_gradients(model, images, answers)
    assert not torch.allclose(first, other)


def test_only_the_asked_layer_is_recomputed_and_the_rest_stays_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    recomputed: list[Attention] = []
    fused: list[int] = []
    probabilities, product = Attention.probabilities, F.scaled_dot_product_attention

    def count(self: Attention, *args: Any, **kwargs: Any) -> Tensor:
        recomputed.append(self)
        return probabilities(self, *args, **kwargs)

    def count_fused(*args: Any, **kwargs: Any) -> Tensor:
        fused.append(1)
        return product(*args, **kwargs)

    monkeypatch.setattr(Attention, "probabilities", count)
    monkeypatch.setattr(F, "scaled_dot_product_attention", count_fused)
    model = tiny()
    seen = attention_of(model, torch.randn(1, 3, 8, 12), layers=[1])
    assert list(seen) == [1]
    assert recomputed == [model.taps.attention[1].module]
    assert len(fused) == 3


def test_one_layers_attention_is_alive_at_a_time() -> None:
    model, alive = tiny(depth=5), []

    def see(_: int, attention: Tensor) -> None:
        assert all(reference() is None for reference in alive)
        alive.append(weakref.ref(attention))

    with torch.no_grad(), watching(model, see):
        model(torch.randn(2, 3, 8, 12))
    assert len(alive) == 5


def test_all_tokens_are_seen_where_the_model_computes_the_pooled_one_only() -> None:
    model, images, shapes = tiny(), torch.randn(1, 3, 8, 12), []
    with watching(model, lambda _, attention: shapes.append(attention.shape)):
        model(images)
    assert shapes == [(1, 2, 7, 7)] * 3


def test_the_model_is_left_as_it_was() -> None:
    model, images = tiny(dropout=0.5, attention_dropout=0.5).train(), torch.randn(1, 3, 8, 12)
    model.blocks[1].eval()
    modes = [module.training for module in model.modules()]
    first, again = attention_of(model, images), attention_of(model, images)
    assert all(torch.equal(first[layer], again[layer]) for layer in first)
    list(attention_gradients(model, images))

    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), watching(model, fail):
        model(images)
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_gradients_of_frozen_weights_and_inside_inference_mode() -> None:
    model, images = tiny(), torch.randn(1, 3, 8, 12)
    expected = [gradient for _, _, gradient in attention_gradients(model, images)]
    model.requires_grad_(False)
    with torch.inference_mode():
        frozen = [gradient for _, _, gradient in attention_gradients(model, images)]
    for ours, theirs in zip(frozen, expected, strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ({}, [0]),
        ({"distill_token": True}, [0, 1]),
        ({"num_registers": 2}, [0]),
        ({"pool": "mean", "num_registers": 1}, [2, 3, 4, 5, 6, 7]),
        ({"pool": "mean", "norm_pooled": True, "class_token": False}, [0, 1, 2, 3, 4, 5]),
        ({"pool": "attention"}, [1, 2, 3, 4, 5, 6]),
    ],
)
def test_the_tokens_that_the_answer_is_read_from(changes: dict[str, Any], read: list[int]) -> None:
    model = tiny(**changes)
    encoded = model.encode(model.embed(torch.randn(1, 3, 8, 12)))
    assert read_by_pool(model, encoded).nonzero().flatten().tolist() == read


def test_layers_that_are_not_there() -> None:
    model, images = tiny(), torch.randn(1, 3, 8, 12)
    with pytest.raises(InspectionError, match="There is no layer 4: the model has 3 with attention."):
        attention_of(model, images, layers=[0, 3])
    with pytest.raises(InspectionError, match="There is no layer 0"):
        attention_of(model, images, layers=[-1])
    with pytest.raises(InspectionError, match="no attention"):
        attention_of(tiny(depth=0), images)


@pytest.mark.parametrize(
    ("shape", "word"), [((2, 3, 7, 4), "7 x 4"), ((8, 3, 7, 7), "inside windows"), ((2, 3, 4, 4), "4 x 4")]
)
def test_attention_that_is_not_between_the_patches(shape: tuple[int, ...], word: str) -> None:
    layout = Layout(grid=(2, 3), num_prefix=1)
    sentence = misfit(1, torch.zeros(shape), layout, batch=2)
    assert sentence is not None
    assert sentence.startswith("Layer 2 ")
    assert word in sentence
    assert misfit(1, torch.zeros(2, 3, 7, 7), layout, batch=2) is None
