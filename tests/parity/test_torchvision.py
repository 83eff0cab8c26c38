"""The same numbers as torchvision's VisionTransformer, in both directions."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from peers import torchvision
from vitlab.core.errors import CannotHoldError, CheckpointError, Error
from vitlab.models.vit import ViT, ViTConfig
from vitlab.weights.load import load, save

VisionTransformer = torchvision.models.VisionTransformer

SIZES: dict[str, Any] = {
    "image_size": 32,
    "patch_size": 8,
    "num_layers": 3,
    "num_heads": 4,
    "hidden_dim": 64,
    "mlp_dim": 48,
    "num_classes": 7,
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "representation": {"representation_size": 24},
    "other sizes": {"image_size": 24, "patch_size": 4, "num_heads": 2, "hidden_dim": 40, "mlp_dim": 30},
}
each_case = pytest.mark.parametrize("case", CASES)


def build(**changes: Any) -> Any:
    return randomise(VisionTransformer(**{**SIZES, **changes})).eval()


def randomise(module: Any, seed: int = 0) -> Any:
    """Every parameter, also the head and the class token, which start as zeros."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim == 1:
            value.data = 0.3 * noise + bool(re.search(r"(ln_?\d?|norm\d?)\.weight$", name))
        elif any(part in name for part in ("token", "prefix", "pos")):
            value.data = noise
        else:
            value.data = 1.5 * noise / value[0].numel() ** 0.5
    return module


def pictures(size: int) -> Tensor:
    return torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def small(**changes: Any) -> ViT:
    fields = {"image_size": (32, 32), "patch_size": 8, "width": 64, "depth": 2, "mlp_dim": 48, "heads": 1}
    return randomise(ViT(ViTConfig(**{**fields, "num_classes": 7, "gelu": "exact", **changes}))).eval()


@each_case
@torch.no_grad()
def test_a_file_of_torchvisions_gives_its_numbers(case: str, tmp_path: Path) -> None:
    theirs = build(**CASES[case])
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = load(tmp_path / "vit.pth", heads=theirs.encoder.layers[0].num_heads)
    assert ours.load_report.unused == []
    assert (ours.config.gelu, ours.config.norm_eps, ours.config.resize_rule) == ("exact", 1e-6, "torchvision")
    assert_same(ours(pictures(theirs.image_size)), theirs(pictures(theirs.image_size)))


@torch.no_grad()
def test_the_names_of_older_files(tmp_path: Path) -> None:
    theirs = build()
    old = {
        name.replace("mlp.0.", "mlp.linear_1.").replace("mlp.3.", "mlp.linear_2."): v
        for name, v in theirs.state_dict().items()
    }
    torch.save(old, tmp_path / "vit.pth")
    ours = load(tmp_path / "vit.pth", heads=4)
    assert ours.load_report.unused == []
    assert_same(ours(pictures(32)), theirs(pictures(32)))


@each_case
@torch.no_grad()
def test_our_file_fits_torchvisions_model(case: str, tmp_path: Path) -> None:
    theirs = build(**CASES[case])
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = randomise(load(tmp_path / "vit.pth", heads=theirs.encoder.layers[0].num_heads), seed=5)
    save(ours, tmp_path / "out.safetensors", format="torchvision")
    theirs.load_state_dict(load_file(tmp_path / "out.safetensors"), strict=True)
    assert_same(ours(pictures(theirs.image_size)), theirs(pictures(theirs.image_size)))


@torch.no_grad()
def test_our_pickle_fits_torchvisions_model(tmp_path: Path) -> None:
    ours = small()
    save(ours, tmp_path / "out.pth", format="torchvision")
    theirs = build(num_layers=2, num_heads=1)
    theirs.load_state_dict(torch.load(tmp_path / "out.pth", weights_only=True), strict=True)
    assert_same(ours(pictures(32)), theirs(pictures(32)))
    back = load(tmp_path / "out.pth")
    assert all(torch.equal(back.state_dict()[name], value) for name, value in ours.state_dict().items())


@pytest.mark.parametrize("size", [64, 24, 40])
@torch.no_grad()
def test_resized_on_load(size: int, tmp_path: Path) -> None:
    small_one = build()
    torch.save(small_one.state_dict(), tmp_path / "vit.pth")
    ours = load(tmp_path / "vit.pth", heads=4, image_size=size)
    theirs = build(image_size=size)
    resized = torchvision.models.vision_transformer.interpolate_embeddings(size, 8, small_one.state_dict())
    theirs.load_state_dict(resized, strict=True)
    assert_same(ours(pictures(size)), theirs(pictures(size)))


def test_gradients(tmp_path: Path) -> None:
    theirs = build()
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = load(tmp_path / "vit.pth", heads=4).double()
    theirs.double()
    ours(pictures(32).double()).square().sum().backward()
    theirs(pictures(32).double()).square().sum().backward()
    pairs = {
        "projection.weight": "conv_proj.weight",
        "prefix": "class_token",
        "positions.0.table": "encoder.pos_embedding",
        "blocks.0.attention.qkv.weight": "encoder.layers.encoder_layer_0.self_attention.in_proj_weight",
        "blocks.2.mlp.down.bias": "encoder.layers.encoder_layer_2.mlp.3.bias",
        "norm.weight": "encoder.ln.weight",
    }
    for name, other in pairs.items():
        mine, expected = ours.get_parameter(name).grad, theirs.get_parameter(other).grad
        assert mine is not None
        torch.testing.assert_close(mine.flatten(), expected.flatten(), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("weights", ["ViT_B_16_Weights.IMAGENET1K_V1", "ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1"])
def test_the_default_preprocessing_is_torchvisions(weights: str, tmp_path: Path) -> None:
    """For 224 px and for the larger SWAG weights, seen through a tiny model of that resolution."""
    transform = torchvision.models.get_weight(weights).transforms()
    size = transform.crop_size[0]
    torch.save(build(image_size=size, patch_size=size // 2).state_dict(), tmp_path / "vit.pth")
    model = load(tmp_path / "vit.pth", heads=4)
    assert any("torchvision's default was assumed" in line for line in model.load_report.lines())
    for array in load_sample_images().images:
        picture = Image.fromarray(array)
        torch.testing.assert_close(model.preprocess(picture)[0], transform(picture), rtol=0, atol=1e-6)


def test_safetensors_carry_what_shapes_cannot_tell(tmp_path: Path) -> None:
    model = small(width=40, heads=5, norm_eps=1e-5)
    model.labels = tuple("abcdefg")
    with pytest.raises(CannotHoldError, match="give heads=N"):
        save(model, tmp_path / "out.pth", format="torchvision")
    save(model, tmp_path / "out.safetensors", format="torchvision")
    back = load(tmp_path / "out.safetensors")
    assert (back.config, back.preprocess, back.labels) == (model.config, model.preprocess, model.labels)
    assert back.load_report.lines() == []
    assert torch.equal(back(pictures(32)), model(pictures(32)))


@pytest.mark.parametrize(
    "fields",
    [
        {"gelu": "tanh"},
        {"pool": "mean"},
        {"class_token": False, "pool": "attention"},
        {"num_registers": 2},
        {"distill_token": True},
        {"layer_scale": 0.1},
        {"qk_norm": True},
        {"qkv_bias": False},
        {"patch_bias": False},
        {"gated_mlp": True},
        {"norm": "post"},
        {"norm_stem": True},
        {"positions": "sincos2d"},
        {"positions_for_prefix": 0},
        {"image_size": (32, 64)},
        {"channels": 1},
    ],
)
@pytest.mark.parametrize("name", ["out.safetensors", "out.pth"])
def test_what_torchvision_has_no_place_for(fields: dict[str, Any], name: str, tmp_path: Path) -> None:
    with pytest.raises(CannotHoldError, match=next(iter(fields))):
        save(small(**fields), tmp_path / name, format="torchvision")
    assert list(tmp_path.iterdir()) == []


def test_other_endings_are_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"end in \.pth or \.pt"):
        save(small(), tmp_path / "out", format="torchvision")


def test_a_convolutional_stem_is_refused(tmp_path: Path) -> None:
    stem = [torchvision.models.vision_transformer.ConvStemConfig(out_channels=8, kernel_size=3, stride=8)]
    torch.save(VisionTransformer(**SIZES, conv_stem_configs=stem).state_dict(), tmp_path / "vit.pth")
    with pytest.raises(CheckpointError, match="convolutional stems are not plain ViTs"):
        load(tmp_path / "vit.pth", heads=4)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("encoder.pos_embedding", torch.ones(17, 64), "impossible shape"),
        ("encoder.pos_embedding", torch.ones(1, 20, 64), "19 positions, not a square grid"),
        ("conv_proj.weight", torch.ones(64, 4, 8, 8), "square patches of three colours"),
        ("encoder.ln.bias", None, "'encoder.ln.bias' is missing"),
        ("encoder.layers.encoder_layer_1.ln_1.weight", None, "layer 1 is missing"),
        ("heads.head.weight", torch.ones(7), "impossible shape"),
    ],
)
def test_damage_is_one_sentence(name: str, value: Tensor | None, message: str, tmp_path: Path) -> None:
    state = build().state_dict()
    if value is None:
        del state[name]
    else:
        state[name] = value
    torch.save(state, tmp_path / "vit.pth")
    with pytest.raises(CheckpointError, match=message) as caught:
        load(tmp_path / "vit.pth", heads=4)
    assert "\n" not in str(caught.value)


def test_a_file_without_a_head(tmp_path: Path) -> None:
    theirs = build()
    theirs.heads = nn.Identity()
    torch.save(theirs.state_dict(), tmp_path / "vit.pth")
    ours = load(tmp_path / "vit.pth", heads=4)
    assert ours.config.num_classes == 0
    assert_same(ours(pictures(32)), theirs(pictures(32)))
