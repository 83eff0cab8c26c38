"""The same numbers as timm, in both directions, for every kind of plain ViT that it has."""

import functools
import json
import re
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from peers import timm
from vitlab.core.errors import CheckpointError
from vitlab.models.contract import Model
from vitlab.models.positions import ROTARY_BASE, resize_positions
from vitlab.models.vit import ViT, ViTConfig
from vitlab.weights.files.container import TensorFile
from vitlab.weights.format import Location
from vitlab.weights.load import load, save
from vitlab.weights.mapping import to_theirs
from vitlab.weights.timm.vit import Timm, rules

Eva = timm.models.eva.Eva
VisionTransformer = timm.models.vision_transformer.VisionTransformer
VisionTransformerDistilled = timm.models.deit.VisionTransformerDistilled
LayerNorm, SwiGLU, SwiGLUPacked = timm.layers.LayerNorm, timm.layers.SwiGLU, timm.layers.SwiGLUPacked

SIZES: dict[str, Any] = {
    "img_size": 32,
    "patch_size": 8,
    "embed_dim": 48,
    "depth": 3,
    "num_heads": 4,
    "mlp_ratio": 2.0,
    "num_classes": 7,
}
SCALED = {"no_embed_class": True, "init_values": 0.1}

# name: arguments of timm's class; what a bare state dict cannot say, besides the heads
CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "class token": ({}, {}),
    "mean": ({"global_pool": "avg"}, {}),
    "mean, no class token": ({"global_pool": "avg", "class_token": False}, {}),
    "mean after the norm": ({"global_pool": "avg", "class_token": False, "fc_norm": False}, {}),
    "distilled": ({}, {}),
    "registers": ({"reg_tokens": 3}, {}),
    "registers without positions": ({"reg_tokens": 3, "no_embed_class": True}, {}),
    "registers, mean": ({"reg_tokens": 4, "class_token": False, "no_embed_class": True, "global_pool": "avg"}, {}),
    "class token without position": ({"no_embed_class": True}, {}),
    "DeiT-III": (SCALED, {}),
    "query and key norm": ({"qk_norm": True}, {}),
    "CLIP": ({"pre_norm": True, "norm_layer": functools.partial(LayerNorm, eps=1e-5)}, {}),
    "OpenAI's CLIP": (
        {"pre_norm": True, "norm_layer": functools.partial(LayerNorm, eps=1e-5), "act_layer": "quick_gelu"},
        {"gelu": "quick"},
    ),
    "attention": ({"global_pool": "map", "class_token": False}, {}),
    "attention, tanh": ({"global_pool": "map", "class_token": False, "act_layer": "gelu_tanh"}, {"gelu": "tanh"}),
    "attention, registers": ({"global_pool": "map", "class_token": False, "reg_tokens": 2}, {}),
    "attention, norm after it": ({"global_pool": "map", "class_token": False, "fc_norm": True}, {}),
    "no bias": ({"qkv_bias": False}, {}),
    "gated": ({"mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU}, {}),
    "gated, in two": ({"mlp_layer": SwiGLU, "act_layer": nn.SiLU}, {}),
    "not square": ({"img_size": (16, 40)}, {"image_size": (16, 40)}),
    "not square, registers": ({"img_size": (16, 40), "reg_tokens": 2}, {"image_size": (16, 40)}),
    "no head": ({"num_classes": 0}, {}),
    "no positions": ({"pos_embed": "none"}, {"positions": "none", "image_size": (32, 32)}),
    "one channel": ({"in_chans": 1}, {}),
}
each_case = pytest.mark.parametrize("case", CASES)
RESIZED = ("class token", "distilled", "registers", "registers without positions", "DeiT-III", "attention")


def build(case: str, **changes: Any) -> Any:
    kind = VisionTransformerDistilled if case == "distilled" else VisionTransformer
    return randomise(kind(**{**SIZES, **CASES[case][0], **changes})).eval()


def randomise(module: Any, seed: int = 0) -> Any:
    """Every parameter, also those that start as zeros or ones, so that none can be mistaken for another."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim == 1:
            value.data = 0.3 * noise + ("norm" in name and name.endswith("weight"))
        elif any(part in name for part in ("token", "pos_embed", "latent", "prefix", "positions", "probe")):
            value.data = noise
        else:
            value.data = 1.5 * noise / value[0].numel() ** 0.5
    return module


def pictures(*size: int, channels: int = 3) -> Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1))


def pictures_for(model: Model) -> Tensor:
    return pictures(*model.config.image_size, channels=model.config.channels)


def assert_same(ours: Tensor, theirs: Tensor, limit: float = 1e-5) -> None:
    assert ours.shape == theirs.shape
    assert theirs.abs().max() > 0.1
    assert (ours - theirs).abs().max() <= limit * theirs.abs().max()


def read(case: str, theirs: nn.Module, path: Path, **changes: Any) -> ViT:
    """timm's state dict from a bare file of its own."""
    torch.save(theirs.state_dict(), path)
    model = load(path, **{"heads": 4, **CASES[case][1], **changes})
    assert isinstance(model, ViT)
    assert model.load_report.unused == []
    assert model.load_report.fresh == []
    return model


@each_case
@torch.no_grad()
def test_a_file_of_timms_gives_its_numbers(case: str, tmp_path: Path) -> None:
    theirs = build(case)
    ours = read(case, theirs, tmp_path / "vit.pth")
    images = pictures_for(ours)
    answer = theirs(images)
    if case == "no head":
        answer = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
    assert_same(ours(images), answer)


@each_case
@torch.no_grad()
def test_timm_builds_our_folder(case: str, tmp_path: Path) -> None:
    ours = read(case, build(case), tmp_path / "vit.pth")
    randomise(ours, seed=5)
    save(ours, tmp_path / "out", format="timm")
    answer = ours(pictures_for(ours))

    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = timm.create_model(settings["architecture"], **settings["model_args"]).eval()
    theirs.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"), strict=True)
    assert_same(answer, theirs(pictures_for(ours)))

    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert_same(answer, theirs(pictures_for(ours)))


@each_case
@torch.no_grad()
def test_our_file_fits_timms_own_model(case: str, tmp_path: Path) -> None:
    ours = read(case, build(case), tmp_path / "vit.pth")
    randomise(ours, seed=5)
    save(ours, tmp_path / "out.safetensors", format="timm")
    theirs = build("gated", mlp_ratio=4.0) if case == "gated, in two" else build(case)  # timm's ratio counts both
    theirs.load_state_dict(load_file(tmp_path / "out.safetensors"), strict=True)
    assert_same(ours(pictures_for(ours)), theirs(pictures_for(ours)))


@pytest.mark.parametrize(
    "fields",
    [
        {},  # of an entry point's own size
        {"width": 48, "depth": 3, "heads": 4, "mlp_dim": 100, "patch_size": 8, "image_size": (32, 48)},
        {"width": 48, "depth": 1, "heads": 4, "mlp_dim": 96, "gelu": "quick", "num_classes": 7, "layer_scale": 0.1},
        {"width": 48, "depth": 1, "heads": 4, "distill_token": True, "positions_for_prefix": 2},
    ],
)
@torch.no_grad()
def test_what_a_file_cannot_tell_timm_is_said(
    fields: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The call in the warning builds our model; without its GELU it is another."""
    ours = randomise(ViT(ViTConfig(**{"width": 192, "mlp_dim": 768, "heads": 3, **fields}))).eval()
    save(ours, tmp_path / "out.safetensors", "timm")
    found = re.search(r"unless it is told, as in (timm\.create_model\(.*\)); a folder tells it", caplog.text)
    assert found is not None
    assert found[1].count("=") == 2 or fields
    theirs = eval(found[1], {"timm": timm}).eval()
    images = pictures(*ours.config.image_size)
    assert_same(ours(images), theirs(images))
    exact = eval(re.sub(r"act_layer='\w+'", "act_layer='gelu'", found[1]), {"timm": timm}).eval()
    assert float((exact(images) - ours(images)).abs().max()) > 1e-4
    caplog.clear()
    save(ours, tmp_path / "out", "timm")
    assert "GELU" not in caplog.text


@each_case
@pytest.mark.parametrize("name", ["out.safetensors", "out"])
def test_a_round_trip_is_exact(case: str, name: str, tmp_path: Path) -> None:
    ours = read(case, build(case), tmp_path / "vit.pth")
    ours.labels = None if ours.config.num_classes == 0 else tuple("abcdefg")
    save(ours, tmp_path / name, format="timm")
    back = load(tmp_path / name)
    assert (back.config, back.preprocess, back.labels) == (ours.config, ours.preprocess, ours.labels)
    assert back.load_report.lines() == []
    assert back.state_dict().keys() == ours.state_dict().keys()
    for key, value in ours.state_dict().items():
        assert torch.equal(back.state_dict()[key], value), key


@pytest.mark.parametrize("case", RESIZED)
@pytest.mark.parametrize("size", [(64, 64), (24, 24), (40, 16)])
@torch.no_grad()
def test_resized_on_load(case: str, size: tuple[int, int], tmp_path: Path) -> None:
    small = build(case)
    ours = read(case, small, tmp_path / "vit.pth", image_size=size)
    theirs = build(case, img_size=size)
    filtered = timm.models.vision_transformer.checkpoint_filter_fn(small.state_dict(), theirs)
    theirs.load_state_dict(filtered, strict=True)
    assert_same(ours(pictures(*size)), theirs(pictures(*size)))


@pytest.mark.parametrize("case", RESIZED)
@pytest.mark.parametrize("size", [(48, 48), (16, 40)])
@torch.no_grad()
def test_resized_at_call_time(case: str, size: tuple[int, int], tmp_path: Path) -> None:
    theirs = build(case, dynamic_img_size=True)
    ours = read(case, theirs, tmp_path / "vit.pth")
    assert_same(ours(pictures(*size)), theirs(pictures(*size)))


@pytest.mark.parametrize("size", [(30, 43), (33, 8)])
@torch.no_grad()
def test_padding(size: tuple[int, int], tmp_path: Path) -> None:
    theirs = build("class token", dynamic_img_size=True, dynamic_img_pad=True)
    ours = read("class token", theirs, tmp_path / "vit.pth", indivisible="pad")
    assert_same(ours(pictures(*size)), theirs(pictures(*size)))


@pytest.mark.parametrize("grid", [(5, 1), (2, 1), (1, 5), (1, 1), (6, 3)])
def test_positions_are_resized_as_pillow_resizes(grid: tuple[int, int]) -> None:
    """timm's rule is Pillow's bicubic; torch's own gets single columns wrong, and with it timm for some layouts."""
    table = torch.randn(16, 5, generator=torch.Generator().manual_seed(0))
    planes = [Image.fromarray(plane.numpy()) for plane in table.reshape(4, 4, 5).permute(2, 0, 1)]
    resized = [np.asarray(plane.resize((grid[1], grid[0]), Image.Resampling.BICUBIC)).flatten() for plane in planes]
    ours = resize_positions(table, grid, old_grid=(4, 4), rule="timm", num_prefix=0)
    torch.testing.assert_close(ours, torch.from_numpy(np.stack(resized, axis=1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("case", ["registers", "CLIP", "mean"])
@torch.no_grad()
def test_features_are_timms_intermediates(case: str, tmp_path: Path) -> None:
    theirs = build(case)
    ours = read(case, theirs, tmp_path / "vit.pth")
    images = pictures(32, 32)
    layers = ours.features(images)
    assert_same(layers[0].values, theirs.norm_pre(theirs._pos_embed(theirs.patch_embed(images))))
    expected = theirs.forward_intermediates(
        images, return_prefix_tokens=True, output_fmt="NLC", intermediates_only=True
    )
    assert len(layers) == 1 + len(expected)
    for layer, (patches, prefix) in zip(layers[1:], expected, strict=True):
        assert_same(layer.patches, patches)
        assert_same(layer.prefix, prefix)


@torch.no_grad()
def test_the_projection_is_timms_convolution(tmp_path: Path) -> None:
    theirs = build("class token")
    ours = read("class token", theirs, tmp_path / "vit.pth")
    images = pictures(32, 32)
    patches, grid = ours.patches(images)
    assert grid == (4, 4)
    assert_same(ours.projection(patches), theirs.patch_embed(images))
    kernel = ours.projection.weight.reshape(48, 3, 8, 8)
    assert torch.equal(kernel, theirs.patch_embed.proj.weight)
    convolved = F.conv2d(images, kernel, ours.projection.bias, stride=8)
    assert_same(ours.projection(patches), convolved.flatten(2).transpose(1, 2))


@pytest.mark.parametrize("case", ["DeiT-III", "distilled", "attention"])
def test_gradients(case: str, tmp_path: Path) -> None:
    theirs = build(case)
    ours = read(case, theirs, tmp_path / "vit.pth").double()
    theirs.double()
    images = pictures(32, 32).double()
    ours(images).square().sum().backward()
    theirs(images).square().sum().backward()
    gradients = {name: value.grad for name, value in ours.named_parameters() if value.grad is not None}
    named = to_theirs(rules(ours.config), gradients)
    expected = dict(theirs.named_parameters())
    assert named.keys() == expected.keys()
    for name, value in named.items():
        torch.testing.assert_close(value, expected[name].grad, rtol=1e-8, atol=1e-8, msg=name)


@torch.no_grad()
def test_a_folder_that_timm_wrote(tmp_path: Path) -> None:
    theirs = randomise(timm.create_model("test_vit", num_classes=5)).eval()
    labels = {"label_names": ["n1", "n2", "n3", "n4", "n5"], "label_descriptions": {"n2": "a word, for two"}}
    timm.models.save_for_hf(theirs, tmp_path, model_config=labels, safe_serialization=True)
    ours = load(tmp_path)
    assert ours.load_report.lines() == []
    assert ours.labels == ("n1", "a word, for two", "n3", "n4", "n5")
    assert_same(ours(pictures(160, 160)), theirs(pictures(160, 160)))

    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs), is_training=False)
    for array in load_sample_images().images:
        picture = Image.fromarray(array)
        torch.testing.assert_close(ours.preprocess(picture)[0], transform(picture), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("size", "edge", "resize", "interpolation"),
    [(32, 36, "shortest", "bicubic"), (32, 32, "shortest", "bilinear"), (32, None, "squash", "bilinear")],
)
def test_timm_prepares_pictures_as_we_do(
    size: int, edge: int | None, resize: Any, interpolation: Any, tmp_path: Path
) -> None:
    model = randomise(ViT(ViTConfig(image_size=(size, size), patch_size=8, width=32, heads=2, depth=1, mlp_dim=32)))
    fields = {"size": (size, size), "shortest_edge": edge, "resize": resize, "interpolation": interpolation}
    model.preprocess = type(model.preprocess)(**fields, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    save(model, tmp_path / "out", format="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}")
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(theirs), is_training=False)
    picture = Image.fromarray(load_sample_images().images[0])
    torch.testing.assert_close(model.preprocess(picture)[0], transform(picture), rtol=0, atol=1e-6)


@torch.no_grad()
def test_dinov2s_own_file_as_timm_reads_it(tmp_path: Path) -> None:
    """timm adds the class token's position to the token; the authors' files keep both, and gate with w12 and w3."""
    case = {"reg_tokens": 4, "init_values": 0.1, "mlp_layer": SwiGLUPacked, "act_layer": nn.SiLU, "num_classes": 0}
    source = randomise(VisionTransformer(**{**SIZES, **case})).state_dict()
    original = {
        name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): value for name, value in source.items()
    }
    original["register_tokens"] = original.pop("reg_token")
    original["pos_embed"] = torch.cat([original["pos_embed"][:, :1], original["pos_embed"][:, 5:]], dim=1)
    original["mask_token"] = torch.zeros(1, 48)
    torch.save(original, tmp_path / "dinov2.pth")
    ours = load(tmp_path / "dinov2.pth", heads=4)
    assert ours.load_report.unused == ["mask_token"]
    assert ours.config.positions_for_prefix == 1

    theirs = VisionTransformer(**{**SIZES, **case}, no_embed_class=True).eval()
    converted = timm.models.vision_transformer.checkpoint_filter_fn(dict(original), theirs)
    theirs.load_state_dict(converted, strict=True)
    assert_same(ours(pictures(32, 32)), theirs.forward_head(theirs.forward_features(pictures(32, 32)), pre_logits=True))


EVA: dict[str, Any] = {  # as its entry points have it; DINOv3 below
    **SIZES,
    "mlp_ratio": 2.0,
    "num_reg_tokens": 0,
    "norm_layer": functools.partial(LayerNorm, eps=1e-6),
}
DINOV3: dict[str, Any] = {
    **EVA,
    "num_classes": 0,
    "dynamic_img_size": True,
    "init_values": 0.1,
    "rope_type": "dinov3",
    "rope_temperature": 100,
    "rope_rotate_half": True,
    "use_rot_pos_emb": True,
    "use_abs_pos_emb": False,
    "num_reg_tokens": 4,
    "use_fc_norm": False,
    "norm_layer": functools.partial(LayerNorm, eps=1e-5),
}
GATED: dict[str, Any] = {"swiglu_mlp": True, "swiglu_align_to": 8}


def in_a_folder(theirs: Any, architecture: str, folder: Path) -> None:
    """A model's tensors as timm publishes those of an architecture, which is larger."""
    settings = {"architecture": architecture, "global_pool": theirs.global_pool, "model_args": {"num_heads": 4}}
    settings["pretrained_cfg"] = {"input_size": [3, 32, 32], "mean": [0.5] * 3, "std": [0.5] * 3}
    save_file({name: value.contiguous() for name, value in theirs.state_dict().items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("pool", ["avg", "token"])
@torch.no_grad()
def test_eva_whose_keys_have_no_bias(pool: str, tmp_path: Path) -> None:
    theirs = randomise(Eva(**EVA, global_pool=pool)).eval()
    in_a_folder(theirs, "eva_giant_patch14_224", tmp_path)
    ours = load(tmp_path)
    assert ours.load_report.unused == []
    assert_same(ours(pictures(32, 32)), theirs(pictures(32, 32)))
    (tmp_path / "config.json").unlink()  # EVA-02's smallest have the same names
    with pytest.raises(CheckpointError, match="config.json that came with it"):
        load(tmp_path / "model.safetensors", heads=4)


@pytest.mark.parametrize("size", [(32, 32), (24, 56)])
@pytest.mark.parametrize("fields", [{"qkv_bias": False}, {"qkv_bias": True}, GATED, {"global_pool": "token"}], ids=str)
@torch.no_grad()
def test_dinov3(fields: dict[str, Any], size: tuple[int, int], tmp_path: Path) -> None:
    theirs = randomise(Eva(**DINOV3, **fields)).eval()
    in_a_folder(theirs, "vit_small_patch16_dinov3", tmp_path)
    ours = load(tmp_path)
    assert ours.load_report.unused == []
    assert_same(ours(pictures(*size)), theirs(pictures(*size)))
    (tmp_path / "config.json").unlink()
    with pytest.raises(CheckpointError, match="for a DINOv3 without config.json rotary=True, rotary_unit='image'"):
        load(tmp_path / "model.safetensors", heads=4)
    told: dict[str, Any] = {"positions": "none", "rotary": True, "rotary_unit": "image", "norm_eps": 1e-5}
    alone = load(tmp_path / "model.safetensors", heads=4, pool=ours.config.pool, image_size=(32, 32), **told)
    assert torch.equal(alone(pictures(*size)), ours(pictures(*size)))


@pytest.mark.parametrize("gated", [False, True])
@torch.no_grad()
def test_dinov3s_own_file_as_timm_reads_it(gated: bool, tmp_path: Path) -> None:
    """The authors' files keep a mask for the biases of keys, the periods of the angles and what only training uses."""
    theirs = randomise(Eva(**DINOV3, global_pool="token", **(GATED if gated else {}))).eval()
    own = {"reg_token": "storage_tokens", "gamma_": "ls", "fc1_g": "w1", "fc1_x": "w2", "fc2": "w3" if gated else "fc2"}
    original: dict[str, Tensor] = {}
    for name, value in theirs.state_dict().items():
        renamed = functools.reduce(lambda text, pair: text.replace(*pair), own.items(), name)
        original[f"{renamed}.gamma" if "gamma" in name else renamed] = value
    for i in range(3):
        q, v = (original.pop(f"blocks.{i}.attn.{part}_bias") for part in "qv")
        original[f"blocks.{i}.attn.qkv.bias"] = torch.cat([q, torch.randn(48), v])
        original[f"blocks.{i}.attn.qkv.bias_mask"] = torch.tensor([1.0, 0.0, 1.0]).repeat_interleave(48)
    original |= {"rope_embed.periods": theirs.rope.periods, "mask_token": torch.zeros(1, 48)}
    converted = timm.models.eva.checkpoint_filter_fn(dict(original), theirs)
    theirs.load_state_dict(converted, strict=True)
    torch.save(original, tmp_path / "dinov3.pth")
    ours = load(tmp_path / "dinov3.pth", image_size=(32, 32))
    assert ours.load_report.unused == ["rope_embed.periods", "mask_token"]
    assert (ours.config.heads, ours.config.norm_eps) == (4, 1e-5)
    assert_same(ours(pictures(32, 48)), theirs(pictures(32, 48)))


@torch.no_grad()
def test_deit3s_own_file_as_timm_reads_it(tmp_path: Path) -> None:
    theirs = build("DeiT-III")
    state = {re.sub(r"ls(\d)\.gamma", r"gamma_\1", name): value for name, value in theirs.state_dict().items()}
    torch.save({"model": state}, tmp_path / "deit3.pth")
    ours = load(tmp_path / "deit3.pth", heads=4)
    assert ours.load_report.unused == []
    assert any("RoPE-ViT with added positions has the same tensors" in line for line in ours.load_report.assumed)
    assert_same(ours(pictures(32, 32)), theirs(pictures(32, 32)))


@torch.no_grad()
def test_the_representation_layer_of_old_files(tmp_path: Path) -> None:
    theirs = build("class token", num_classes=7)
    layer = randomise(nn.Linear(48, 48), seed=3)
    state = theirs.state_dict()
    state |= {"pre_logits.fc.weight": layer.weight, "pre_logits.fc.bias": layer.bias}
    torch.save(state, tmp_path / "old.pth")
    ours = load(tmp_path / "old.pth", heads=4)
    features = theirs.forward_features(pictures(32, 32))[:, 0]
    assert_same(ours(pictures(32, 32)), theirs.head(torch.tanh(layer(features))))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["vit_small_patch16_224", "deit3_small_patch16_224", "deit_tiny_distilled_patch16_224"]
)
@torch.no_grad()
def test_real_sizes(name: str, tmp_path: Path) -> None:
    theirs = randomise(timm.create_model(name)).eval()
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = load(tmp_path / "model.safetensors")
    assert_same(ours(pictures(224, 224)), theirs(pictures(224, 224)))
    save(ours, tmp_path / "out", format="timm")
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert_same(again(pictures(224, 224)), theirs(pictures(224, 224)), limit=0)


PLAIN = [
    "vit_base_patch16_224",
    "vit_base_patch16_gap_224",
    "vit_base_patch32_clip_quickgelu_224",
    "vit_so150m_patch16_reg4_map_256",
    "vit_large_patch16_siglip_gap_512",
    "vit_giantopt_patch16_siglip_256",
    "vit_so400m_patch14_siglip_384",
    "vit_giant_patch14_reg4_dinov2",
    "eva_giant_patch14_clip_224",
    "eva_giant_patch14_336",
    "eva_large_patch14_196",
    "vit_7b_patch16_dinov3",
    "vit_base_patch16_dinov3_qkvb",
    "vit_giant_patch16_lingbot",
    "vit_huge_plus_patch16_dinov3",
    "deit_base_distilled_patch16_384",
]
OTHERS = [
    "aimv2_large_patch14_224",
    "beit3_base_patch16_224",
    "beit_base_patch16_224",
    "cait_xxs24_224",
    "eva02_tiny_patch14_224",
    "resnet18",
    "samvit_base_patch16_224",
    "swin_tiny_patch4_window7_224",
    "test_vit3",
    "test_vit4",
    "vit_base_patch16_rope_ape_224",
    "vit_base_patch16_rope_reg1_gap_256",
    "vit_base_patch16_rpn_224",
    "vit_base_patch16_xp_224",
    "vit_dwee_patch16_reg1_gap_256",
    "vit_intern300m_patch14_448",
    "vit_pe_core_base_patch16_224",
    "vit_pwee_patch16_reg1_gap_256",
    "vit_relpos_small_patch16_224",
    "vit_small_patch16_18x2_224",
    "vit_base_patch16_sapiens2",
    "vit_srelpos_small_patch16_224",
    "vit_small_resnet26d_224",
]
REFUSED = re.compile("aimv2|beit3|_18x2_|_rpn_|_xp_|test_vit[34]|vit_(d|p|dp)(wee|little)|intern300m")
ENTRY_POINTS = {*timm.list_models(module="vision_transformer"), *timm.list_models(module="deit")}
ENTRY_POINTS |= {*timm.list_models("*dinov3*"), *timm.list_models("*lingbot"), *timm.list_models("eva_*")}
OTHER_PLAIN = sorted(name for name in ENTRY_POINTS - set(PLAIN) if not REFUSED.search(name))


@final
class Unread(TensorFile):
    """Names and shapes of a model on the meta device."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(Path("model.safetensors"))
        self.shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}

    def __getitem__(self, name: str) -> Tensor:
        raise AssertionError(name)


def as_published(name: str) -> tuple[Any, Location]:
    """A model of timm's, and the checkpoint that timm would publish of it."""
    with torch.device("meta"):
        model = timm.create_model(name)
    pretrained = {"input_size": list(model.pretrained_cfg["input_size"])}
    settings: dict[str, Any] = {"architecture": name, "pretrained_cfg": pretrained}
    if isinstance(getattr(model, "global_pool", None), str):
        settings["global_pool"] = model.global_pool
    return model, Location(Unread(model), settings, Path())


@pytest.mark.parametrize("name", [*PLAIN, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHER_PLAIN)])
def test_what_an_architectures_name_tells(name: str) -> None:
    """Every plain entry point of timm is read as what it is, although shapes tell only a part of it."""
    model, location = as_published(name)
    contents = Timm().read(location, {})
    config, block = contents.config, model.blocks[0]
    used = {theirs for rule in contents.rules for theirs in rule.theirs}
    assert used == set(location.tensors.shapes)
    activations = {"GELU": "exact", "GELUTanh": "tanh", "QuickGELU": "quick", "SiLU": "gated"}
    assert ("gated" if config.gated_mlp else config.gelu) == activations[type(block.mlp.act).__name__]
    assert config.heads == block.attn.num_heads
    assert config.norm_eps == block.norm1.eps
    assert config.num_prefix == model.num_prefix_tokens
    if config.rotary:  # such a model takes images of any size
        assert (config.positions, config.rotary_unit) == ("none", "image")
        assert isinstance(model.rope, timm.layers.RotaryEmbeddingDinoV3)
        assert model.rope.temperature == ROTARY_BASE
    else:
        assert config.grid == model.patch_embed.grid_size
    assert config.pool == {"token": "token", "avg": "mean", "map": "attention"}[model.global_pool]
    if config.positions == "learned":
        without = config.num_prefix if model.no_embed_class else 0
        assert min(config.positions_for_prefix, config.num_prefix) == config.num_prefix - without
    assert config.norm_pooled == isinstance(model.fc_norm, nn.LayerNorm)


@pytest.mark.parametrize(
    "name",
    [
        "vit_giant_patch14_dinov2",
        "vit_giantopt_patch16_siglip_gap_256",
        "vit_huge_patch14_clip_224",
        "vit_huge_plus_patch16_dinov3",
        "vit_7b_patch16_dinov3",
    ],
)
def test_a_file_alone_has_the_heads_of_its_size(name: str) -> None:
    model, location = as_published(name)
    hints = {"positions": "none", "rotary": True} if "dinov3" in name else {}
    config = Timm().read(Location(location.tensors, None, Path()), hints).config
    assert config.heads == model.blocks[0].attn.num_heads


@pytest.mark.parametrize("case", CASES)
def test_a_file_alone_says_that_its_gelu_may_be_another(case: str, tmp_path: Path) -> None:
    assumed = read(case, build(case), tmp_path / "vit.pth").load_report.assumed
    might = case.startswith(("attention", "mean after the norm")) or "CLIP" in case
    assert any("gelu='exact' assumed" in line for line in assumed) == might


@pytest.mark.parametrize("name", OTHERS)
def test_other_models_of_timm_are_refused(name: str) -> None:
    _, location = as_published(name)
    assert Timm().recognizes(location)
    with pytest.raises(CheckpointError, match="plain ViT"):
        Timm().read(location, {})
