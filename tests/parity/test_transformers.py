"""The same numbers as transformers, in both directions, for every model type that a folder of its can have."""

import importlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_images
from torch import Tensor, nn

from vitlab.models.contract import Model
from vitlab.models.vit import ViT, ViTConfig
from vitlab.weights.load import load, save

hf: Any = importlib.import_module("transformers")  # whose configs take fields that its types do not know
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "image_size": 32,
    "patch_size": 8,
}
MLP: dict[str, Any] = {**SIZES, "intermediate_size": 48}
TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "vocab_size": 20,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}


@dataclass(frozen=True)
class Case:
    """A model of transformers', how it is called, and which of its outputs ours is compared with."""

    build: Callable[[], Any]
    answer: Callable[[Any, Tensor], Tensor]
    unused: tuple[str, ...] = ()  # what ours has no place for
    resized: bool = True  # whether it takes other resolutions
    write: bool = True  # whether ours is written as the same class again
    options: tuple[tuple[str, Any], ...] = ()  # of from_pretrained


def logits(model: Any, images: Tensor) -> Tensor:
    return model(images).logits


def logits_of_any_size(model: Any, images: Tensor) -> Tensor:
    return model(images, interpolate_pos_encoding=True).logits


def first_token(model: Any, images: Tensor) -> Tensor:
    return model(images, interpolate_pos_encoding=True).last_hidden_state[:, 0]


def pooled(model: Any, images: Tensor) -> Tensor:
    return model(images, interpolate_pos_encoding=True).pooler_output


def pooled_always(model: Any, images: Tensor) -> Tensor:
    return model(images).pooler_output


def mean(model: Any, images: Tensor) -> Tensor:
    return model(images, interpolate_pos_encoding=True).last_hidden_state.mean(dim=1)


def both_tokens(model: Any, images: Tensor) -> Tensor:
    return model(images, interpolate_pos_encoding=True).last_hidden_state[:, :2].flatten(1)


def tower(model: Any, images: Tensor) -> Tensor:
    return model.vision_model(images, interpolate_pos_encoding=True).pooler_output


CASES: dict[str, Case] = {
    "vit": Case(lambda: hf.ViTForImageClassification(hf.ViTConfig(**MLP, num_labels=5)), logits_of_any_size),
    "vit-odd": Case(  # every setting away from its default
        lambda: hf.ViTForImageClassification(
            hf.ViTConfig(
                **MLP | {"image_size": [24, 40]},
                num_labels=3,
                qkv_bias=False,
                hidden_act="gelu_new",
                layer_norm_eps=1e-3,
                num_channels=1,
            )
        ),
        logits,
        resized=False,
    ),
    "vit-backbone": Case(
        lambda: hf.ViTModel(hf.ViTConfig(**MLP)),
        first_token,
        unused=("pooler.dense.bias", "pooler.dense.weight"),
        options=(("add_pooling_layer", False),),
    ),
    "deit-distilled": Case(
        lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**MLP, num_labels=5)), logits_of_any_size
    ),
    "deit-class-token": Case(
        lambda: hf.DeiTForImageClassification(hf.DeiTConfig(**MLP, num_labels=5)), logits_of_any_size
    ),
    "deit-backbone": Case(
        lambda: hf.DeiTModel(hf.DeiTConfig(**MLP), add_pooling_layer=False),
        both_tokens,
        options=(("add_pooling_layer", False),),
    ),
    "dinov2": Case(
        lambda: hf.Dinov2Model(hf.Dinov2Config(**SIZES, mlp_ratio=2)), pooled_always, unused=("embeddings.mask_token",)
    ),
    "dinov2-swiglu": Case(
        lambda: hf.Dinov2Model(hf.Dinov2Config(**SIZES, mlp_ratio=3, use_swiglu_ffn=True, use_mask_token=False)),
        pooled_always,
    ),
    "dinov2-registers": Case(
        lambda: hf.Dinov2WithRegistersModel(hf.Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2, num_register_tokens=3)),
        pooled_always,
        unused=("embeddings.mask_token",),
    ),
    "dinov2-registers-swiglu": Case(
        lambda: hf.Dinov2WithRegistersModel(
            hf.Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2, num_register_tokens=1, use_swiglu_ffn=True)
        ),
        pooled_always,
        unused=("embeddings.mask_token",),
    ),
    "dinov2-classifier": Case(
        lambda: hf.Dinov2ForImageClassification(
            hf.Dinov2Config(**SIZES, mlp_ratio=2, num_labels=5, use_mask_token=False)
        ),
        logits,
    ),
    "dinov2-registers-classifier": Case(
        lambda: hf.Dinov2WithRegistersForImageClassification(
            hf.Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2, num_register_tokens=3, num_labels=5)
        ),
        logits,
        unused=("dinov2_with_registers.embeddings.mask_token",),
    ),
    "dinov3": Case(
        lambda: hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**MLP, num_register_tokens=3, key_bias=True)),
        pooled_always,
        unused=("embeddings.mask_token",),
    ),
    "dinov3-gated": Case(  # as the 7B, but for the biases of values
        lambda: hf.DINOv3ViTModel(
            hf.DINOv3ViTConfig(
                **{**MLP, "hidden_act": "silu"}, num_register_tokens=1, use_gated_mlp=True, query_bias=False
            )
        ),
        pooled_always,
        unused=("embeddings.mask_token",),
        write=False,
    ),
    "msn": Case(lambda: hf.ViTMSNModel(hf.ViTMSNConfig(**MLP)), first_token, write=False),
    "i-jepa": Case(lambda: hf.IJepaModel(hf.IJepaConfig(**MLP), add_pooling_layer=False), mean, write=False),
    "i-jepa-classifier": Case(
        lambda: hf.IJepaForImageClassification(hf.IJepaConfig(**MLP, num_labels=5)), logits_of_any_size, write=False
    ),
    "metaclip-2": Case(lambda: hf.MetaClip2VisionModel(hf.MetaClip2VisionConfig(**MLP)), pooled, write=False),
    "chinese-clip": Case(lambda: hf.ChineseCLIPVisionModel(hf.ChineseCLIPVisionConfig(**MLP)), pooled, write=False),
    "clip-quick-gelu": Case(lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**MLP)), pooled),
    "clip-gelu": Case(lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**MLP, hidden_act="gelu")), pooled),
    "clip-projection": Case(
        lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**MLP, projection_dim=16)),
        tower,
        unused=("visual_projection.weight",),
        write=False,
    ),
    "siglip": Case(lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**MLP)), pooled),
    "siglip-classifier": Case(
        lambda: hf.SiglipForImageClassification(
            hf.SiglipConfig(vision_config={**MLP, "vision_use_head": False}, num_labels=5)
        ),
        logits_of_any_size,
    ),
    "mae": Case(lambda: hf.ViTMAEModel(hf.ViTMAEConfig(**MLP, mask_ratio=0.0)), first_token, write=False),
}
EVERY = pytest.mark.parametrize("name", CASES)


def randomised(model: nn.Module, seed: int = 0) -> Any:
    """Every parameter away from its initial value, so that none can be left out or mistaken for another."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            center = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            parameter.copy_(center + 0.2 * noise)
    return model.eval()


def pictures(channels: int, size: tuple[int, int]) -> Tensor:
    return torch.randn(2, channels, *size, generator=torch.Generator().manual_seed(1))


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max() / theirs.abs().max()) < 1e-5


def same_weights(ours: Model, theirs: Model) -> None:
    assert ours.state_dict().keys() == theirs.state_dict().keys()
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name


@EVERY
@torch.no_grad()
def test_a_folder_of_theirs(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    theirs = randomised(case.build())
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert sorted(ours.load_report.unused) == sorted(case.unused)
    assert ours.load_report.fresh == []
    assert ours.load_report.adapted == []
    images = pictures(ours.config.channels, ours.config.image_size)
    assert_close(ours(images), case.answer(theirs, images))


@pytest.mark.parametrize("size", [(48, 64), (24, 16)])
@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.resized])
@torch.no_grad()
def test_another_resolution(name: str, size: tuple[int, int], tmp_path: Path) -> None:
    """At call time, and with the positions resized when the folder is loaded."""
    case = CASES[name]
    theirs = randomised(case.build())
    theirs.save_pretrained(tmp_path)
    images = pictures(3, size)
    expected = case.answer(theirs, images)
    assert_close(load(tmp_path)(images), expected)
    resized = load(tmp_path, image_size=size)
    assert resized.config.image_size == size
    assert resized.preprocess.size == size
    assert_close(resized(images), expected)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.write])
@torch.no_grad()
def test_a_folder_of_ours(name: str, tmp_path: Path) -> None:
    """Their class reads what ours wrote, with no tensor missing or left over, and answers the same."""
    case = CASES[name]
    theirs = randomised(case.build())
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    save(ours, tmp_path / "ours", "hf")
    again = load(tmp_path / "ours")
    assert again.config == ours.config
    assert again.preprocess == ours.preprocess
    same_weights(again, ours)

    written = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert written["architectures"] == [type(theirs).__name__]
    back, info = type(theirs).from_pretrained(
        tmp_path / "ours", local_files_only=True, output_loading_info=True, **dict(case.options)
    )
    assert not any(info.values()), info
    images = pictures(ours.config.channels, ours.config.image_size)
    assert_close(ours(images), case.answer(back.eval(), images))


@pytest.mark.parametrize(
    "name", ["vit", "deit-distilled", "dinov2", "dinov2-swiglu", "dinov2-registers", "dinov3", "mae"]
)
@torch.no_grad()
def test_names_of_the_modules(name: str, tmp_path: Path) -> None:
    """A state dict under the names that the modules have had since transformers 5, which no published file has."""
    case = CASES[name]
    theirs = randomised(case.build())
    theirs.config.save_pretrained(tmp_path)
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    assert any(key.endswith("attention.q_proj.weight") for key in theirs.state_dict())
    ours = load(tmp_path)
    images = pictures(3, ours.config.image_size)
    assert_close(ours(images), case.answer(theirs, images))


@pytest.mark.parametrize("kind", ["CLIP", "MetaClip2", "ChineseCLIP", "Siglip"])
@torch.no_grad()
def test_the_image_tower_of_a_model_for_images_and_texts(kind: str, tmp_path: Path) -> None:
    projection = {} if kind == "Siglip" else {"projection_dim": 16}
    config = getattr(hf, f"{kind}Config")(vision_config=MLP, text_config=TEXT, **projection)
    theirs = getattr(hf, f"{kind}Model")(config)
    theirs = randomised(theirs)
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.config.num_classes == 0
    assert all(not name.startswith("vision_model.") for name in ours.load_report.unused)
    assert any(name.startswith("text_model.") for name in ours.load_report.unused)
    images = pictures(3, (32, 32))
    assert_close(ours(images), theirs.vision_model(images).pooler_output)


@torch.no_grad()
def test_pooler_as_representation(tmp_path: Path) -> None:
    """ViTModel's pooler is the paper's pre-training representation; whoever wants it asks for it."""
    theirs = randomised(hf.ViTModel(hf.ViTConfig(**MLP)))
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path, representation=32)
    images = pictures(3, (32, 32))
    assert ours.load_report.unused == []
    assert_close(ours(images), theirs(images).pooler_output)


@torch.no_grad()
def test_masked_autoencoder_with_its_decoder(tmp_path: Path) -> None:
    decoder = {f"decoder_{name}": MLP[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    config = hf.ViTMAEConfig(**MLP, **decoder, decoder_intermediate_size=32, mask_ratio=0.0)
    theirs = randomised(hf.ViTMAEForPreTraining(config))
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    assert ours.load_report.unused
    assert all(name.startswith("decoder.") for name in ours.load_report.unused)
    images = pictures(3, (32, 32))
    assert_close(ours(images), first_token(theirs.vit, images))


DINOV3: dict[str, Any] = {
    "num_classes": 0,
    "positions": "none",
    "rotary": True,
    "rotary_unit": "image",
    "layer_scale": 1.0,
    "norm_eps": 1e-5,
}
CREATED: dict[str, dict[str, Any]] = {
    "vit": {},
    "without classifier": {"num_classes": 0},
    "tanh": {"gelu": "tanh", "norm_eps": 1e-6},
    "quick": {"gelu": "quick", "qkv_bias": False},
    "not square": {"image_size": (16, 40)},
    "grey": {"channels": 1},
    "distilled": {"distill_token": True, "positions_for_prefix": 2},
    "a token more": {"num_registers": 1, "positions_for_prefix": 2},
    "layer scale": {"layer_scale": 0.1},
    "registers": {"layer_scale": 1e-5, "num_registers": 2},
    "gated": {"layer_scale": 1.0, "gated_mlp": True, "mlp_dim": 48},
    "mean of patches": {"class_token": False, "pool": "mean"},
    "rotary": {**DINOV3, "num_registers": 2},
    "rotary, gated": {**DINOV3, "gated_mlp": True},
    "rotary, no bias": {**DINOV3, "qkv_bias": False},
    "stem norm": {"num_classes": 0, "norm_stem": True, "patch_bias": False},
    "attention pool": {"num_classes": 0, "class_token": False, "pool": "attention", "gelu": "tanh"},
}


@pytest.mark.parametrize("fields", CREATED.values(), ids=CREATED)
@torch.no_grad()
def test_models_of_ours_in_their_classes(fields: dict[str, Any], tmp_path: Path) -> None:
    """Through transformers' own choice of a class; also a classifier on a DINOv2's class token."""
    sizes: dict[str, Any] = {
        "image_size": (32, 32),
        "patch_size": 8,
        "width": 32,
        "depth": 2,
        "heads": 2,
        "mlp_dim": 64,
    }
    config = ViTConfig(**{**sizes, "gelu": "exact", "num_classes": 7, **fields})
    ours = randomised(ViT(config))
    save(ours, tmp_path, "hf")
    automatic = hf.AutoModelForImageClassification if config.num_classes else hf.AutoModel
    theirs, info = automatic.from_pretrained(tmp_path, local_files_only=True, output_loading_info=True)
    missing = {"pooler.dense.weight", "pooler.dense.bias"} if type(theirs) is hf.ViTModel else set()
    assert set(info["missing_keys"]) == missing
    assert not info["unexpected_keys"]
    assert not info["mismatched_keys"]
    outputs = theirs.eval()(pictures(config.channels, config.image_size))
    if config.num_classes:
        expected = outputs.logits
    else:
        expected = outputs.last_hidden_state[:, 0] if missing else outputs.pooler_output
    assert_close(ours(pictures(config.channels, config.image_size)), expected)


PROCESSORS: dict[str, Callable[[], Any]] = {
    "squash": lambda: hf.ViTImageProcessorPil(size={"height": 32, "width": 32}),
    "squash, not square": lambda: hf.ViTImageProcessorPil(size={"height": 24, "width": 40}, resample=3),
    "shortest": lambda: hf.BitImageProcessorPil(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}),
    "clip": lambda: hf.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}),
    "siglip": lambda: hf.SiglipImageProcessorPil(size={"height": 32, "width": 32}),
    "not normalised": lambda: hf.ViTImageProcessorPil(size={"height": 32, "width": 32}, do_normalize=False),
    "another scale": lambda: hf.ViTImageProcessorPil(size={"height": 32, "width": 32}, rescale_factor=1 / 127.5),
}


def photo() -> Image.Image:
    """One of scikit-learn's; 427 x 426 so that halves of pixels do not arise in the crops."""
    picture = Image.fromarray(np.asarray(load_sample_images().images[0]))
    return picture.crop((100, 0, 526, 427))


@pytest.mark.parametrize("processor", PROCESSORS.values(), ids=PROCESSORS)
def test_preprocessing(processor: Callable[[], Any], tmp_path: Path) -> None:
    """Their processor's own file, then ours written and read by theirs again."""
    theirs = processor()
    size = (24, 40) if theirs.size.get("height") == 24 else (32, 32)
    model = hf.ViTForImageClassification(hf.ViTConfig(**MLP | {"image_size": list(size)}, num_labels=2))
    model.save_pretrained(tmp_path / "theirs")
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load(tmp_path / "theirs")
    assert ours.load_report.assumed == []
    expected = theirs(photo(), return_tensors="pt")["pixel_values"]
    scale = float(min(ours.preprocess.std)) * 255  # a grey level is 1 / scale of a normalised value
    assert float((ours.preprocess(photo()) - expected).abs().max()) * scale < 1e-2

    save(ours, tmp_path / "ours", "hf")
    again = load(tmp_path / "ours").preprocess
    assert again == ours.preprocess
    read = hf.AutoImageProcessor.from_pretrained(tmp_path / "ours", local_files_only=True, backend="pil")
    assert float((read(photo(), return_tensors="pt")["pixel_values"] - expected).abs().max()) * scale < 1e-2
