"""The same numbers as transformers' Cvt, in both directions; and the authors' names, with their quick GELU."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from vitlab.core.config import from_dict, replace
from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.models.counts import count_parameters
from vitlab.models.create import empty_model, family_of
from vitlab.models.cvt import CvT, CvTConfig
from vitlab.models.zoo.rows import ZOO
from vitlab.weights.load import load, save

hf: Any = importlib.import_module("transformers")  # whose configs take fields that its types do not know
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

SMALL: dict[str, Any] = {"embed_dim": [16, 24, 32], "num_heads": [1, 3, 4], "depth": [1, 2, 3], "num_labels": 5}


def of_transformers(**changes: Any) -> Any:
    return randomise(hf.CvtForImageClassification(hf.CvtConfig(**{**SMALL, **changes}))).eval()


def randomise(module: Any, seed: int = 0) -> Any:
    """Weights, and running statistics that are far from a new batch norm's."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim == 1:
            value.data = 0.3 * noise + ("norm" in name and name.endswith("weight"))
        else:
            value.data = noise / value[0].numel() ** 0.5
    for name, value in module.named_buffers():
        noise = torch.rand(value.shape, generator=generator)
        if name.endswith("running_mean"):
            value.copy_(noise - 0.5)
        elif name.endswith("running_var"):
            value.copy_(0.3 + noise)
        else:
            value.fill_(7)
    return module


def pictures(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.1
    assert (theirs[0] - theirs[1]).abs().max() > 1e-3 * theirs.abs().max(), "the images make no difference"
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


CASES: dict[str, dict[str, Any]] = {
    "CvT": {},
    "no class token": {"cls_token": [False, False, False]},
    "no biases": {"qkv_bias": [False] * 3},
    "two stages": {
        name: values[:2]
        for name, values in {
            **SMALL,
            "patch_sizes": [7, 3],
            "patch_stride": [4, 2],
            "patch_padding": [2, 1],
            "cls_token": [False, True],
        }.items()
        if name != "num_labels"
    },
    "other strides": {"patch_stride": [2, 2, 1], "stride_kv": [3, 3, 3], "kernel_qkv": [5] * 3}
    | {"padding_q": [2] * 3, "padding_kv": [2] * 3, "mlp_ratio": [2.0] * 3},
}


@pytest.mark.parametrize(("case", "size"), [*((case, (32, 32)) for case in CASES), ("CvT", (45, 62))])
@torch.no_grad()
def test_a_folder_of_transformers_gives_its_numbers(case: str, size: tuple[int, int], tmp_path: Path) -> None:
    theirs = of_transformers(**CASES[case])
    theirs.save_pretrained(tmp_path / "cvt")
    ours = load(tmp_path / "cvt", image_size=size)
    assert isinstance(ours, CvT)
    assert ours.load_report.unused == ours.load_report.fresh == []
    # transformers fails without a class token unless it is asked for hidden states
    assert_same(ours(pictures(size)), theirs(pictures(size), output_hidden_states=True).logits)

    randomise(ours, seed=5)
    ours.labels = tuple("abcde")
    save(ours, tmp_path / "out", format="hf")
    again = hf.CvtForImageClassification.from_pretrained(tmp_path / "out").eval()
    assert again.config.id2label[4] == "e"
    assert_same(ours(pictures(size)), again(pictures(size), output_hidden_states=True).logits)
    back = load(tmp_path / "out")
    assert (back.config, back.preprocess, back.labels) == (ours.config, ours.preprocess, ours.labels)
    assert back.load_report.lines() == []


@torch.no_grad()
def test_stages_are_theirs(tmp_path: Path) -> None:
    theirs = of_transformers()
    theirs.save_pretrained(tmp_path / "cvt")
    ours, images = load(tmp_path / "cvt", image_size=32), pictures((32, 32))
    layers = ours.features(images)
    assert [(layer.grid, layer.num_prefix) for layer in layers] == [((8, 8), 0)] * 2 + [((4, 4), 0)] * 2 + [
        ((2, 2), 1)
    ] * 3
    hidden = theirs.cvt(images, output_hidden_states=True)
    for layer, stage in zip((1, 3, 6), hidden.hidden_states, strict=True):
        assert_same(layers[layer].patches, stage.flatten(2).transpose(1, 2))
    assert_same(layers[6].prefix, hidden.cls_token_value)


def test_training_moves_the_same_statistics_and_gradients(tmp_path: Path) -> None:
    theirs = of_transformers(drop_path_rate=[0.0] * 3)
    theirs.save_pretrained(tmp_path / "cvt")
    ours, images = load(tmp_path / "cvt", image_size=32).train(), pictures((32, 32))
    theirs.train()
    answer, expected = ours(images), theirs(images).logits
    assert_same(answer.detach(), expected.detach())
    answer.square().sum().backward()
    expected.square().sum().backward()
    lrs = {"embeddings.1.conv.weight": "cvt.encoder.stages.1.embedding.convolution_embeddings.projection.weight"}
    stem = "cvt.encoder.stages.2.layers.1.attention.attention.convolution_projection_key.convolution_projection."
    lrs["blocks.4.attention.conv_k.conv.weight"] = f"{stem}convolution.weight"
    for mine, other in lrs.items():
        gradient = theirs.get_parameter(other).grad
        torch.testing.assert_close(
            ours.get_parameter(mine).grad, gradient, rtol=1e-3, atol=1e-4 * float(gradient.abs().max())
        )
    for buffer in ("running_mean", "running_var", "num_batches_tracked"):
        moved = theirs.get_buffer(f"{stem}normalization.{buffer}")
        torch.testing.assert_close(
            ours.get_buffer(f"blocks.4.attention.conv_k.norm.{buffer}"), moved, rtol=1e-5, atol=1e-5
        )


@torch.no_grad()
def test_tensors_alone_are_read_with_the_published_strides(tmp_path: Path) -> None:
    theirs = of_transformers(num_heads=[1, 1, 1])
    save_file(theirs.state_dict(), tmp_path / "cvt.safetensors")
    ours = load(tmp_path / "cvt.safetensors", image_size=32)
    assert "heads of width 64 were assumed" in " ".join(ours.load_report.lines())
    assert_same(ours(pictures((32, 32))), theirs(pictures((32, 32))).logits)
    given = load(tmp_path / "cvt.safetensors", image_size=32, heads=(1, 1, 1))
    assert_same(given(pictures((32, 32))), theirs(pictures((32, 32))).logits)


@torch.no_grad()
def test_a_tower_without_its_norm_gets_a_fresh_one(tmp_path: Path) -> None:
    theirs = of_transformers()
    theirs.cvt.save_pretrained(tmp_path / "tower")
    ours = load(tmp_path / "tower", image_size=32)
    assert ours.load_report.fresh == ["norm.weight", "norm.bias"]
    assert ours.config.num_classes == 0
    expected = theirs.cvt(pictures((32, 32))).cls_token_value[:, 0]
    assert_same(ours(pictures((32, 32))), nn.functional.layer_norm(expected, (32,)))


@torch.no_grad()
def test_a_model_without_a_head_is_written(tmp_path: Path) -> None:
    theirs = of_transformers()
    theirs.save_pretrained(tmp_path / "cvt")
    ours = load(tmp_path / "cvt", image_size=32, num_classes=0)
    save(ours, tmp_path / "out", format="hf")
    again = hf.CvtForImageClassification.from_pretrained(tmp_path / "out").eval()
    assert_same(ours(pictures((32, 32))), again(pictures((32, 32))).logits)


@pytest.mark.parametrize(
    "changes",
    [{"stride_q": [2, 1, 1]}, {"stride_kv": [2, 2, 1]}, {"padding_kv": [0, 0, 0]}, {"cls_token": [True, False, True]}],
)
def test_other_cvts_of_transformers_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    config = hf.CvtConfig(**{**SMALL, **changes})
    if "cls_token" in changes:  # whose tokens have the last stage's width in any: transformers cannot run it
        config.embed_dim = [32, 32, 32]
    hf.CvtForImageClassification(config).save_pretrained(tmp_path / "cvt")
    with pytest.raises(CheckpointError, match="not a CvT that vitlab has"):
        load(tmp_path / "cvt")


def test_what_transformers_cannot_be_is_refused(tmp_path: Path) -> None:
    model = empty_model(
        CvTConfig(widths=(8,), depths=(1,), heads=(1,), patch_sizes=(3,), patch_strides=(2,), patch_paddings=(1,))
    )
    model = model.to_empty(device="cpu")
    model.initialize()
    with pytest.raises(CannotHoldError, match="cannot hold gelu='quick'"):
        save(model, tmp_path / "out", format="hf")
    shallow = empty_model(CvTConfig(widths=(8, 8, 8), depths=(1, 1, 1), heads=(1, 1, 1), gelu="exact"))
    shallow = shallow.to_empty(device="cpu")
    shallow.initialize()
    with pytest.raises(CannotHoldError, match="stage 2 needs 2 blocks"):
        save(shallow, tmp_path / "out", format="hf")


def test_the_preprocessing_of_the_published_folders(tmp_path: Path) -> None:
    """ConvNeXT's processor, as theirs is: 256 px, of which the middle 224; from 384 px on squashed."""
    of_transformers().save_pretrained(tmp_path / "cvt")
    processor = hf.ConvNextImageProcessor(size={"shortest_edge": 224}, crop_pct=0.875, resample=3)
    processor.save_pretrained(tmp_path / "cvt")
    ours = load(tmp_path / "cvt")
    assert ours.config.image_size == ours.preprocess.size == (224, 224)
    assert (ours.preprocess.resize, ours.preprocess.shortest_edge, ours.preprocess.interpolation) == (
        "shortest",
        256,
        "bicubic",
    )
    hf.ConvNextImageProcessor(size={"shortest_edge": 384}).save_pretrained(tmp_path / "cvt")
    assert (load(tmp_path / "cvt").preprocess.size, load(tmp_path / "cvt").preprocess.resize) == ((384, 384), "squash")


def to_authors(name: str) -> str:
    """transformers' name in the authors' files, by transformers' own conversion script's correspondence."""
    for theirs, authors in (
        ("cvt.encoder.stages.", "stage"),
        ("embedding.convolution_embeddings.projection", "patch_embed.proj"),
        ("embedding.convolution_embeddings.normalization", "patch_embed.norm"),
        ("layers.", "blocks."),
        ("attention.attention.convolution_projection_query.convolution_projection.", "attn.conv_proj_q."),
        ("attention.attention.convolution_projection_key.convolution_projection.", "attn.conv_proj_k."),
        ("attention.attention.convolution_projection_value.convolution_projection.", "attn.conv_proj_v."),
        ("attn.conv_proj_q.convolution", "attn.conv_proj_q.conv"),
        ("attn.conv_proj_k.convolution", "attn.conv_proj_k.conv"),
        ("attn.conv_proj_v.convolution", "attn.conv_proj_v.conv"),
        (".normalization.", ".bn."),
        ("attention.attention.projection_query", "attn.proj_q"),
        ("attention.attention.projection_key", "attn.proj_k"),
        ("attention.attention.projection_value", "attn.proj_v"),
        ("attention.output.dense", "attn.proj"),
        ("intermediate.dense", "mlp.fc1"),
        ("output.dense", "mlp.fc2"),
        ("layernorm_before", "norm1"),
        ("layernorm_after", "norm2"),
        ("layernorm", "norm"),
        ("classifier", "head"),
    ):
        name = name.replace(theirs, authors)
    return name


class QuickGelu(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


@torch.no_grad()
def test_the_authors_files_have_their_activation(tmp_path: Path) -> None:
    theirs = of_transformers(num_heads=[1, 1, 1])
    for module in theirs.modules():
        if hasattr(module, "activation"):
            module.activation = QuickGelu()
    torch.save({to_authors(name): value for name, value in theirs.state_dict().items()}, tmp_path / "CvT.pth")
    ours = load(tmp_path / "CvT.pth", image_size=32)
    assert isinstance(ours, CvT)
    assert ours.config.gelu == "quick"
    assert ours.load_report.unused == ours.load_report.fresh == []
    assert_same(ours(pictures((32, 32))), theirs(pictures((32, 32))).logits)


PUBLISHED: dict[str, dict[str, Any]] = {
    "cvt-13": {},
    "cvt-21": {"depth": [1, 4, 16]},
    "cvt-w24": {"embed_dim": [192, 768, 1024], "num_heads": [3, 12, 16], "depth": [2, 2, 20]},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_rows_of_the_zoo_have_their_sizes(name: str) -> None:
    with torch.device("meta"):
        peer = hf.CvtForImageClassification(hf.CvtConfig(num_labels=1000, **PUBLISHED[name]))
    row = ZOO[name]
    config = replace(from_dict(family_of(row.family).config, row.config, where=name), {}, where=name)
    assert count_parameters(empty_model(config)) == sum(value.numel() for value in peer.parameters())


def test_a_file_holds_running_statistics(tmp_path: Path) -> None:
    of_transformers().save_pretrained(tmp_path / "cvt")
    save(load(tmp_path / "cvt", image_size=32), tmp_path / "native")
    stored = load_file(tmp_path / "native" / "model.safetensors")
    assert stored["blocks.0.attention.conv_q.norm.num_batches_tracked"].item() == 7
    assert stored["blocks.0.attention.conv_q.norm.running_var"].std() > 0.1
