"""timm's files as they are found: other people's names, settings beside them, notes in them, and damage."""

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitlab.core.errors import CannotHoldError, CheckpointError, Error
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.models.contract import Model
from vitlab.models.vit import ViT, ViTConfig
from vitlab.weights.load import load, save
from vitlab.weights.timm.hub_config import hub_settings

SMALL: dict[str, Any] = {
    "image_size": (32, 32),
    "patch_size": 8,
    "width": 64,
    "depth": 2,
    "mlp_dim": 96,
    "heads": 1,
    "num_classes": 5,
    "gelu": "exact",
}


def small(**changes: Any) -> ViT:
    model = ViT(ViTConfig(**{**SMALL, **changes}))
    generator = torch.Generator().manual_seed(0)
    for value in model.parameters():
        value.data = torch.randn(value.shape, generator=generator) / 4
    return model.eval()


def plain_state(width: int = 64) -> dict[str, Tensor]:
    """A state dict by timm's documented names, written down here and not by the code under test."""
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, width),
        "pos_embed": (1, 17, width),
        "patch_embed.proj.weight": (width, 3, 8, 8),
        "patch_embed.proj.bias": (width,),
        "norm.weight": (width,),
        "norm.bias": (width,),
        "head.weight": (5, width),
        "head.bias": (5,),
    }
    for i in range(2):
        shapes |= {
            f"blocks.{i}.norm1.weight": (width,),
            f"blocks.{i}.norm1.bias": (width,),
            f"blocks.{i}.attn.qkv.weight": (3 * width, width),
            f"blocks.{i}.attn.qkv.bias": (3 * width,),
            f"blocks.{i}.attn.proj.weight": (width, width),
            f"blocks.{i}.attn.proj.bias": (width,),
            f"blocks.{i}.norm2.weight": (width,),
            f"blocks.{i}.norm2.bias": (width,),
            f"blocks.{i}.mlp.fc1.weight": (96, width),
            f"blocks.{i}.mlp.fc1.bias": (96,),
            f"blocks.{i}.mlp.fc2.weight": (width, 96),
            f"blocks.{i}.mlp.fc2.bias": (width,),
        }
    generator = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=generator) / 4 for name, shape in shapes.items()}


def written(folder: Path, state: dict[str, Tensor], settings: dict[str, Any] | None = None) -> Path:
    save_file(state, folder / "model.safetensors")
    if settings is not None:
        (folder / "config.json").write_text(json.dumps(settings))
    return folder / "model.safetensors"


def answer(model: Model) -> Tensor:
    return model(torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1)))


@pytest.mark.parametrize("prefix", ["backbone.", "visual.trunk.", "timm_model."])
def test_names_may_have_a_prefix(prefix: str, tmp_path: Path) -> None:
    bare, inside = tmp_path / "bare.pth", tmp_path / "inside.pth"
    torch.save(plain_state(), bare)
    projector = {"projector.0.weight": torch.zeros(3)}
    torch.save({"state_dict": {f"{prefix}{k}": v for k, v in plain_state().items()} | projector}, inside)
    assert torch.equal(answer(load(inside)), answer(load(bare)))
    assert load(inside).load_report.unused == ["projector.0.weight"]


def test_two_models_in_a_file_are_refused(tmp_path: Path) -> None:
    both = {f"{who}.{name}": value for who in ("student", "other") for name, value in plain_state().items()}
    torch.save(both, tmp_path / "both.pth")
    with pytest.raises(CheckpointError, match=r"several models \(other\., student\.\)"):
        load(tmp_path / "both.pth")


def test_the_decoder_of_mae_is_reported(tmp_path: Path) -> None:
    decoder = {
        "mask_token": torch.zeros(1, 1, 16),
        "decoder_pos_embed": torch.zeros(1, 17, 16),
        "decoder_blocks.0.norm1.weight": torch.zeros(16),
        "decoder_blocks.2.norm1.weight": torch.zeros(16),
    }
    state = {name: value for name, value in plain_state().items() if not name.startswith("head")}
    torch.save({"model": state | decoder}, tmp_path / "mae.pth")
    model = load(tmp_path / "mae.pth")
    assert sorted(model.load_report.unused) == sorted(decoder)
    assert model.config.num_classes == 0
    assert (model.preprocess.mean, model.preprocess.std) == (IMAGENET_MEAN, IMAGENET_STD)


def test_a_bare_file_says_what_was_assumed(tmp_path: Path) -> None:
    model = load(written(tmp_path, plain_state()))
    assert (model.config.norm_eps, model.config.gelu, model.config.resize_rule) == (1e-6, "exact", "timm")
    assert model.preprocess == Preprocess(size=(32, 32), resize="shortest", shortest_edge=35, interpolation="bicubic")
    heads, preprocessing = model.load_report.lines()
    assert "1 of width 64 were assumed" in heads
    assert "ViT's default was assumed" in preprocessing


@pytest.mark.parametrize(
    ("extra", "mean"),
    [
        (
            {"blocks.0.ls1.gamma": 64, "blocks.1.ls1.gamma": 64, "blocks.0.ls2.gamma": 64, "blocks.1.ls2.gamma": 64},
            0.485,
        ),
        ({"norm_pre.weight": 64, "norm_pre.bias": 64}, 0.48145466),
    ],
)
def test_a_bare_files_family_has_its_own_preprocessing(extra: dict[str, int], mean: float, tmp_path: Path) -> None:
    scales = {name: torch.ones(size) for name, size in extra.items()}
    model = load(written(tmp_path, plain_state() | scales))
    assert model.preprocess.mean[0] == mean
    assert model.config.norm_eps == (1e-5 if model.config.norm_stem else 1e-6)


SETTINGS: dict[str, Any] = {
    "architecture": "vit_base_patch16_224",
    "num_classes": 5,
    "num_features": 64,
    "global_pool": "token",
    "model_args": {"num_heads": 4, "act_layer": "gelu_tanh"},
    "pretrained_cfg": {
        "input_size": [3, 32, 32],
        "interpolation": "bilinear",
        "crop_pct": 0.8,
        "crop_mode": "center",
        "mean": [0.1, 0.2, 0.3],
        "std": [0.4, 0.5, 0.6],
        "label_names": ["a", "b", "c", "d", "e"],
    },
}


def settings(**changes: Any) -> dict[str, Any]:
    """SETTINGS with fields changed at the top, or in the part that has them."""
    result = {**SETTINGS, **{k: v for k, v in changes.items() if k in SETTINGS}}
    rest = {k: v for k, v in changes.items() if k not in SETTINGS}
    return {**result, "pretrained_cfg": {**SETTINGS["pretrained_cfg"], **rest}}


@pytest.mark.parametrize("source", ["model.safetensors", "."])
def test_settings_beside_the_file_are_followed(source: str, tmp_path: Path) -> None:
    written(tmp_path, plain_state(), SETTINGS)
    model = load(tmp_path / source)
    assert (model.config.heads, model.config.gelu) == (4, "tanh")
    assert model.preprocess == Preprocess((32, 32), "shortest", 40, "bilinear", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert model.labels == ("a", "b", "c", "d", "e")
    assert model.load_report.lines() == []


@pytest.mark.parametrize(
    ("changes", "resize", "edge", "note"),
    [
        ({"crop_mode": "squash", "crop_pct": 1.0}, "squash", None, None),
        ({"crop_mode": "squash"}, "squash", None, "not cropped (squash, 0.8)"),
        ({"crop_mode": "border", "crop_pct": 1.0}, "squash", None, "not cropped (border, 1.0)"),
        ({"interpolation": "random"}, "shortest", 40, "no interpolation 'random'"),
    ],
)
def test_crop_modes(changes: dict[str, Any], resize: str, edge: int | None, note: str | None, tmp_path: Path) -> None:
    written(tmp_path, plain_state(), settings(**changes))
    model = load(tmp_path)
    assert (model.preprocess.resize, model.preprocess.shortest_edge) == (resize, edge)
    lines = model.load_report.lines()
    assert lines == [] if note is None else note in lines[0]


def test_settings_without_a_pretrained_part_are_the_older_layout(tmp_path: Path) -> None:
    flat = {"architecture": "vit_base_patch16_224.tag", "model_args": {"num_heads": 2}, **SETTINGS["pretrained_cfg"]}
    written(tmp_path, plain_state(), flat)
    model = load(tmp_path)
    assert model.config.heads == 2
    assert model.preprocess.shortest_edge == 40


def test_a_size_that_the_patch_does_not_divide_is_cut_as_timms_convolution_does(tmp_path: Path) -> None:
    written(tmp_path, plain_state(), settings(input_size=[3, 39, 34]))
    model = load(tmp_path)
    assert model.config.image_size == (32, 32)
    assert any("do not divide 39 x 34" in line for line in model.load_report.lines())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "resnet50.a1_in1k", "model_args": None}, None),
        ({"architecture": "vit_small_patch16_rope_224"}, "not a plain ViT"),
        ({"architecture": "vit_small_patch16_dinov3"}, "has 'pos_embed', and so is not the model that it is said"),
        ({"global_pool": "avgmax"}, "no pooling 'avgmax'"),
        ({"global_pool": "map"}, "no pooling 'map', or its tensors are missing"),
        ({"model_args": {"act_layer": "silu"}}, "has GELU, not 'silu'"),
        ({"model_args": {"act_layer": ["gelu"]}}, "has GELU"),
        ({"model_args": {"num_heads": "four"}}, "'num_heads'"),
        ({"model_args": {"num_heads": 5}}, "not divisible by the 5 heads"),
        ({"model_args": {"img_size": [1, 2, 3]}}, "not an image size"),
        ({"model_args": {"pool_include_prefix": True}}, "pools patches only"),
        ({"model_args": {"rope_temperature": 10}}, "'rope_temperature' of its config.json is set"),
        ({"model_args": []}, None),
        ({"model_args": [1]}, "must be objects"),
        ({"crop_pct": 0}, "'crop_pct'"),
        ({"crop_pct": "all"}, "'crop_pct'"),
        ({"mean": [1]}, "mean"),
        ({"std": [0, 1, 1]}, "std"),
        ({"label_names": "abcde"}, "must be a list of texts"),
        ({"label_names": ["a", "b"]}, "2 class names for 5 classes"),
    ],
)
def test_impossible_settings_are_one_sentence(changes: dict[str, Any], message: str | None, tmp_path: Path) -> None:
    written(tmp_path, plain_state(), settings(**changes))
    if message is None:  # harmless: what counts is in the tensors
        load(tmp_path, heads=4)
        return
    with pytest.raises(Error, match=message) as caught:
        load(tmp_path)
    assert "\n" not in str(caught.value)


def without(*parts: str) -> dict[str, Tensor]:
    return {k: v for k, v in plain_state().items() if not any(part in k for part in parts)}


def with_(name: str, *shape: int, value: float = 1.0) -> dict[str, Tensor]:
    return plain_state() | {name: torch.full(shape, value)}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (with_("blocks.0.attn.rel_pos_h", 64), "no place for 'blocks.0.attn.rel_pos_h'"),
        (with_("blocks.0.attn.q_bias", 64), "may be EVA's"),
        (with_("cls_norm.weight", 64), "no place for 'cls_norm.weight'"),
        (with_("patch_embed.backbone.conv1.0.weight", 1), "no place for 'patch_embed.backbone"),
        (
            with_("patch_embed.backbone.conv.weight", 1),
            "'patch_embed.backbone.conv.weight' is missing or no convolution",
        ),
        (with_("patch_embed.backbone.conv.weight", 64, 3, 7, 7), "but its ResNet makes 64"),
        (with_("layers.0.blocks.0.norm1.weight", 1), "no place for 'layers"),
        (with_("fc_norm.weight", 64), "a norm before pooling and another after it"),
        (without("pos_embed"), "no 'pos_embed'"),
        (without("norm1.bias", "norm2.bias"), "'blocks.0.norm1.bias' is missing"),
        (without("blocks"), "'blocks.0.norm1.bias' is missing"),
        (without("blocks.0."), "'blocks.0.norm1.bias' is missing"),
        (with_("blocks.3.norm1.weight", 64), "layer 2 is missing"),
        (without("norm.weight", "norm.bias"), "'norm.bias' is missing"),
        (without("head.bias"), "'head.bias' is missing"),
        (without("blocks.1.mlp.fc2.bias"), "'blocks.1.mlp.fc2.bias' is missing"),
        (with_("pos_embed", 1, 19, 64), "19 positions, not a square grid: give its image_size"),
        (with_("pos_embed", 17, 64), "'pos_embed' has an impossible shape"),
        (with_("patch_embed.proj.weight", 64, 3, 8), "'patch_embed.proj.weight' has an impossible"),
        (with_("patch_embed.proj.weight", 64, 3, 8, 4), "patches are 8 x 4 px"),
        (with_("head.weight", 5), "'head.weight' has an impossible shape"),
        (with_("cls_token", 1, 2, 64), "'cls_token' has the shape"),
        (with_("blocks.1.mlp.fc1.weight", 95, 64), "'blocks.1.mlp.fc1.weight' has the shape"),
        (with_("norm.bias", 64, value=torch.nan), "'norm.bias' holds values that are not finite"),
        (plain_state(width=40), "width 40 is unusual: give heads=N"),
    ],
)
def test_damage_and_other_models_are_one_sentence(state: dict[str, Tensor], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message) as caught:
        load(written(tmp_path, state))
    assert "\n" not in str(caught.value)


def test_positions_may_be_absent_where_the_caller_says_so(tmp_path: Path) -> None:
    model = load(written(tmp_path, without("pos_embed")), positions="none", image_size=(32, 32))
    assert model.config.positions == "none"
    assert not any(name.startswith("positions") for name in model.state_dict())


# What a bare state dict would be read back as something else, and a header tells.
TOLD: dict[str, dict[str, Any]] = {
    "heads": {"heads": 4},
    "norm_eps": {"norm_eps": 1e-12},
    "gelu": {"gelu": "tanh"},
    "pool": {"pool": "mean"},
    "positions": {"positions": "none"},
    "image_size": {"image_size": (16, 64)},
    "odd width": {"width": 40, "heads": 5},
}


@pytest.mark.parametrize("case", TOLD)
def test_safetensors_carry_what_shapes_cannot_tell(case: str, tmp_path: Path) -> None:
    model = small(**TOLD[case])
    model.preprocess = Preprocess(model.config.image_size, "shortest", 33, "lanczos", (0.1, 0.2, 0.3), (0.3, 0.2, 0.1))
    model.labels = ("ä", "b", "c", "d", "e")
    save(model, tmp_path / "model.safetensors", format="timm")
    back = load(tmp_path / "model.safetensors")
    assert (back.config, back.preprocess, back.labels) == (model.config, model.preprocess, model.labels)
    assert back.load_report.lines() == []
    images = torch.randn(1, 3, *model.config.image_size)
    assert torch.equal(back(images), model(images))


@pytest.mark.parametrize("case", TOLD)
@pytest.mark.parametrize("name", ["model.pth", "model.pt"])
def test_a_pickle_that_would_be_read_as_another_model_is_not_written(case: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(CannotHoldError):
        save(small(**TOLD[case]), tmp_path / name, format="timm")
    assert list(tmp_path.iterdir()) == []


def test_a_pickle_holds_the_tensors_and_says_what_it_lacks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = small(layer_scale=0.1, num_registers=2, positions_for_prefix=3)
    with caplog.at_level(logging.WARNING, logger="vitlab"):
        save(model, tmp_path / "model.pth", format="timm")
    assert "neither preprocessing nor class names" in caplog.text
    back = load(tmp_path / "model.pth")
    assert dataclasses.replace(back.config, layer_scale=0.1, resize_rule="official") == model.config
    assert torch.equal(answer(back), answer(model))


def test_settings_that_already_lie_beside_a_new_file_count(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(settings(model_args={"num_heads": 4})))
    with pytest.raises(CannotHoldError, match="heads=1"):
        save(small(), tmp_path / "model.pth", format="timm")
    for name, model in {"model.pth": small(heads=4), "model.safetensors": small(heads=2)}.items():
        save(model, tmp_path / name, format="timm")
        assert torch.equal(answer(load(tmp_path / name)), answer(model))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"norm": "post"}, "norm='post'"),
        ({"representation": 16}, "representation=16"),
        ({"positions": "sincos2d"}, "positions='sincos2d'"),
        ({"positions": "learned2d"}, "positions='learned2d'"),
        ({"positions": "relative"}, "positions='relative'"),
        ({"positions_at": "every"}, "positions_at='every'"),
        ({"patch_bias": False}, "patch_bias=False"),
        ({"norm_stem": True}, "patch_bias=True"),
        ({"num_registers": 3, "positions_for_prefix": 1}, "this model has 1 of 4"),
        ({"distill_token": True, "positions_for_prefix": 2, "num_registers": 1}, "this model has 2 of 3"),
        ({"image_size": (30, 30), "indivisible": "pad"}, r"image_size=\(30, 30\)"),
        ({"pool": "attention", "class_token": False, "gated_mlp": True}, "gated_mlp=True"),
    ],
)
@pytest.mark.parametrize("name", ["out.safetensors", "out.pth", "out"])
def test_what_timm_has_no_place_for(fields: dict[str, Any], message: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(CannotHoldError, match=message):
        save(small(**fields), tmp_path / name, format="timm")
    assert list(tmp_path.iterdir()) == []


def test_an_epsilon_that_timm_cannot_be_told_makes_no_folder(tmp_path: Path) -> None:
    with pytest.raises(CannotHoldError, match="norm_eps=1e-12"):
        save(small(norm_eps=1e-12), tmp_path / "out", format="timm")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_has_the_hubs_layout(tmp_path: Path) -> None:
    model = small(width=192, heads=3, depth=12, mlp_dim=500, patch_size=16)
    model.labels = ("a", "b", "c", "d", "e")
    save(model, tmp_path / "out", format="timm")
    content = json.loads((tmp_path / "out" / "config.json").read_text())
    assert content["architecture"] == "vit_tiny_patch16_224"
    assert (content["num_classes"], content["num_features"], content["global_pool"]) == (5, 192, "token")
    assert content["label_names"] == ["a", "b", "c", "d", "e"]
    assert content["pretrained_cfg"]["input_size"] == [3, 32, 32]
    assert int(192 * content["model_args"]["mlp_ratio"]) == 500
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert file.metadata()["format"] == "pt"


@pytest.mark.parametrize("mlp_dim", range(1, 200, 3))
def test_timms_truncation_gives_the_hidden_size_back(mlp_dim: int) -> None:
    with torch.device("meta"):
        model = ViT(ViTConfig(**{**SMALL, "width": 49, "heads": 7, "mlp_dim": mlp_dim}))
    assert int(49 * hub_settings(model, model.config)["model_args"]["mlp_ratio"]) == mlp_dim


def test_other_peoples_folders_and_endings_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(Error, match="is left as it is"):
        save(small(), tmp_path / "photos", format="timm")
    assert (tmp_path / "photos" / "cat.jpg").read_bytes() == b"cat"
    with pytest.raises(Error, match=r"\.safetensors, \.pth, \.pt"):
        save(small(), tmp_path / "vit.npz", format="timm")
    save(small(), tmp_path / "out.v1", format="timm")
    save(small(num_classes=3), tmp_path / "out.v1", format="timm")  # its own folder it may replace
    assert load(tmp_path / "out.v1").config.num_classes == 3


@pytest.mark.parametrize("note", ["{", "[1]", '{"config": 3}', '{"config": {"heads": "x"}}', '{"a": 1}'])
def test_a_header_that_is_not_ours_is_refused(note: str, tmp_path: Path) -> None:
    save_file(plain_state(), tmp_path / "model.safetensors", metadata={"vitlab": note})
    with pytest.raises(Error, match="model.safetensors"):
        load(tmp_path / "model.safetensors")


def test_half_precision_is_read(tmp_path: Path) -> None:
    state = {name: value.half() for name, value in plain_state().items()}
    model = load(written(tmp_path, state))
    assert torch.equal(model.state_dict()["norm.bias"], state["norm.bias"].float())
    save(model, tmp_path / "out.safetensors", format="timm")
    assert load_file(tmp_path / "out.safetensors")["norm.bias"].dtype == torch.float32
