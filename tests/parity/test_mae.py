"""The masked autoencoder's loss and gradients are those of transformers' ViTMAEForPreTraining."""

import importlib
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import nn

from vitlab.data.batch import Batch, Stream
from vitlab.models.vit import Block
from vitlab.objectives.mae import MAEOptions, MaskedAutoencoder
from vitlab.weights.load import load

hf: Any = importlib.import_module("transformers")
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()


def randomised(model: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def by_channel(values: torch.Tensor) -> torch.Tensor:
    """Pixels that they list by (row, column, channel) as we do, by (channel, row, column)."""
    side = round((len(values) / 3) ** 0.5)
    return values.reshape(side, side, 3, -1).permute(2, 0, 1, 3).reshape(values.shape)


def copy_decoder(theirs: Any, ours: MaskedAutoencoder) -> list[tuple[nn.Parameter, Any]]:
    """Their decoder's weights into ours; pairs of parameters that stand for the same, in the same order."""
    decoder, own = theirs.decoder, ours.decoder
    pairs: list[tuple[Any, Any]] = []
    for mine, other in ((own.enter, decoder.decoder_embed), (own.norm, decoder.decoder_norm)):
        pairs += [(mine.weight, other.weight), (mine.bias, other.bias)]
    for block, layer in zip(own.blocks, decoder.decoder_layers, strict=True):
        assert isinstance(block, Block)
        names = {
            block.norm1: "layernorm_before",
            block.norm2: "layernorm_after",
            block.attention.out: "attention.o_proj",
            block.mlp.up: "mlp.fc1",
            block.mlp.down: "mlp.fc2",
        }
        for mine, name in names.items():
            other = layer.get_submodule(name)
            pairs += [(mine.weight, other.weight), (mine.bias, other.bias)]
        attention = layer.get_submodule("attention")
        with torch.no_grad():
            for kind in ("weight", "bias"):
                parts = [getattr(getattr(attention, f"{which}_proj"), kind) for which in "qkv"]
                getattr(block.attention.qkv, kind).copy_(torch.cat(parts))
    with torch.no_grad():
        for mine, other in pairs:
            mine.copy_(other)
        own.mask.copy_(decoder.mask_token[0, 0])
        own.leave.weight.copy_(by_channel(decoder.decoder_pred.weight))
        own.leave.bias.copy_(by_channel(decoder.decoder_pred.bias))
        own.positions.copy_(decoder.decoder_pos_embed[0, 1:])
        decoder.decoder_pos_embed[:, :1] = 0  # the class token has no place
    return pairs


@pytest.mark.parametrize("target", ["normalized", "pixels"])
@pytest.mark.parametrize("ratio", [0.75, 0.5])
def test_loss_and_gradients(tmp_path: Path, target: Literal["normalized", "pixels"], ratio: float) -> None:
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    decoder = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 2, "decoder_num_attention_heads": 2}
    config = hf.ViTMAEConfig(
        **sizes,
        **decoder,
        decoder_intermediate_size=64,
        image_size=32,
        patch_size=8,
        layer_norm_eps=1e-6,
        mask_ratio=ratio,
        norm_pix_loss=target == "normalized",
    )
    theirs: Any = randomised(hf.ViTMAEForPreTraining(config))
    theirs.save_pretrained(tmp_path)
    model = load(tmp_path, num_classes=0)
    shape = {"decoder_width": 16, "decoder_depth": 2, "decoder_heads": 2}
    ours = MaskedAutoencoder(MAEOptions(**shape, mask_ratio=ratio, target=target), model)
    pairs = copy_decoder(theirs, ours)
    images, places = torch.randn(5, 3, 32, 32, generator=torch.Generator().manual_seed(3)), torch.arange(100, 105)
    noise = ours.order(places).argsort(dim=1).float()  # sorted by it, patches come in our order
    expected = theirs(images, noise=noise).loss
    loss, _ = ours.loss(model, Batch({"train": Stream((images,), {}, places)}), torch.zeros(()))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    expected.backward()
    loss.backward()
    for mine, other in (*pairs, (ours.decoder.mask, theirs.decoder.mask_token)):
        torch.testing.assert_close(mine.grad, other.grad.reshape(mine.shape), rtol=1e-4, atol=1e-6)
    leave = ours.decoder.leave.weight.grad
    assert leave is not None
    torch.testing.assert_close(leave, by_channel(theirs.decoder.decoder_pred.weight.grad), rtol=1e-4, atol=1e-6)
    projection: Any = model.get_parameter("projection.weight")
    other = theirs.vit.embeddings.patch_embeddings.projection.weight.grad.flatten(1)
    torch.testing.assert_close(projection.grad, other, rtol=1e-4, atol=1e-6)
