"""The same numbers as torchvision's ViT with a convolutional stem."""

from typing import Any

import pytest
import torch
from torch import Tensor

from peers import torchvision
from vitlab.models.conv_stem import ConvStemConfig, ConvStemViT

WIDTHS = (8, 16, 16, 24)


def theirs() -> Any:
    vit = torchvision.models.vision_transformer
    stem = [vit.ConvStemConfig(width, 3, stride) for width, stride in zip(WIDTHS, (2, 2, 1, 2), strict=True)]
    torch.manual_seed(0)
    model = vit.VisionTransformer(
        image_size=32,
        patch_size=8,
        num_layers=2,
        num_heads=4,
        hidden_dim=32,
        mlp_dim=64,
        num_classes=5,
        conv_stem_configs=stem,
    )
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            noise = torch.randn(value.shape) * 0.3
            value.copy_(noise.abs() + 0.5 if name.endswith(("running_var", "1.weight", "ln_1.weight")) else noise)
    return model


def ours(state: dict[str, Tensor]) -> ConvStemViT:
    """A model with torchvision's weights, by their names."""
    config = ConvStemConfig(
        image_size=(32, 32),
        patch_size=8,
        width=32,
        depth=2,
        mlp_dim=64,
        heads=4,
        num_classes=5,
        stem_widths=WIDTHS,
        gelu="exact",
    )
    model = ConvStemViT(config)
    names = {
        "prefix": "class_token",
        "positions.0.table": "encoder.pos_embedding",
        "projection": "conv_proj.conv_last",
        "norm": "encoder.ln",
        "head": "heads.head",
    }
    for i in range(len(WIDTHS)):
        names |= {
            f"convolutions.{i}.{own}": f"conv_proj.conv_bn_relu_{i}.{n}" for n, own in enumerate(("conv", "norm"))
        }
    for i in range(2):
        layer = f"encoder.layers.encoder_layer_{i}"
        parts = {"norm1": "ln_1", "norm2": "ln_2", "attention.out": "self_attention.out_proj"}
        parts |= {"mlp.up": "mlp.0", "mlp.down": "mlp.3"}
        names |= {f"blocks.{i}.{own}": f"{layer}.{other}" for own, other in parts.items()}
        for kind in ("weight", "bias"):
            names[f"blocks.{i}.attention.qkv.{kind}"] = f"{layer}.self_attention.in_proj_{kind}"
    found: dict[str, Tensor] = {}
    for name, value in model.state_dict().items():
        module, _, last = name.rpartition(".")
        other = names.get(name) or f"{names[module]}.{last}"
        found[name] = state.pop(other).reshape(value.shape)
    assert not state
    model.load_state_dict(found)
    return model


@pytest.mark.parametrize("training", [False, True])
def test_it_answers_as_torchvisions(training: bool) -> None:
    """In training also by its batch norms, whose statistics move alike."""
    peer = theirs().train(training)
    model = ours(dict(peer.state_dict())).train(training)
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(images), peer(images), rtol=1e-4, atol=1e-4)
    assert peer(images).std() > 0.1
    moved = model.get_buffer("convolutions.2.norm.running_mean")
    model(images)  # as often as the peer
    torch.testing.assert_close(moved, peer.conv_proj.conv_bn_relu_2[1].running_mean, rtol=1e-4, atol=1e-5)
