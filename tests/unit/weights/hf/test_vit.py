"""transformers' folders: every file they can be made of, what is said about them, and what is refused."""

import importlib
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from tiny_vits import SIZES as TINY_SIZES
from tiny_vits import bits, random_vit, vit_configs
from vitlab.core.errors import CannotHoldError, CheckpointError, Error
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD
from vitlab.models.vit import ViT, ViTConfig
from vitlab.weights.hf import vit as hf_format
from vitlab.weights.load import load, save

hf: Any = importlib.import_module("transformers")  # whose configs take fields that its types do not know
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "image_size": 32,
    "patch_size": 8,
}
TINY: dict[str, Any] = {**TINY_SIZES, "num_classes": 3}
FEATURES: dict[str, Any] = {**TINY_SIZES, "num_classes": 0}
OLD_VIT = {"do_normalize": True, "do_resize": True, "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 2}
OURS = ViTConfig(
    image_size=(32, 32),
    patch_size=8,
    width=32,
    depth=2,
    mlp_dim=64,
    heads=4,
    num_classes=3,
    gelu="exact",
    norm_eps=1e-12,
)


def theirs(folder: Path, num_labels: int = 3, **config: Any) -> Any:
    """A folder of transformers' with a ViT of random weights."""
    torch.manual_seed(0)
    model = hf.ViTForImageClassification(hf.ViTConfig(**{**SIZES, "num_labels": num_labels, **config}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    return model.eval()


def edit(path: Path, **changes: Any) -> None:
    """Fields of a JSON file changed; those that become None are taken out."""
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))


def ours(seed: int = 0, **changes: Any) -> ViT:
    torch.manual_seed(seed)
    model = ViT(ViTConfig(**{**{name: getattr(OURS, name) for name in OURS.__dataclass_fields__}, **changes}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    theirs(tmp_path / "vit")
    return tmp_path / "vit"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for tests that only change its settings."""
    folder = tmp_path_factory.mktemp("tiny")
    theirs(folder)
    return folder


def logits_agree(model: Any, reference: Any) -> bool:
    images = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(images).logits
        return bool((model(images) - expected).abs().max() < 1e-5 * expected.abs().max())


# The containers


def test_shards_pickles_and_files_by_name(tmp_path: Path) -> None:
    reference = theirs(tmp_path / "whole")
    reference.save_pretrained(tmp_path / "shards", max_shard_size="20KB")
    assert not (tmp_path / "shards" / "model.safetensors").exists()
    reference.config.save_pretrained(tmp_path / "pickle")
    torch.save(load_file(tmp_path / "whole" / "model.safetensors"), tmp_path / "pickle" / "pytorch_model.bin")
    for source in ("whole", "whole/model.safetensors", "shards", "pickle", "pickle/pytorch_model.bin"):
        assert logits_agree(load(tmp_path / source), reference), source


def test_half_precision_is_read_as_float32(folder: Path) -> None:
    tensors = {name: value.half() for name, value in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors")
    model = load(folder)
    assert all(value.dtype == torch.float32 for value in model.state_dict().values())
    assert torch.equal(model.state_dict()["head.weight"], tensors["classifier.weight"].float())


def test_published_names_are_written(tmp_path: Path) -> None:
    """The names on the hub, by hand: what every version of transformers reads."""
    layer = [
        *(f"attention.attention.{part}" for part in ("query", "key", "value")),
        *("attention.output.dense", "intermediate.dense", "output.dense", "layernorm_before", "layernorm_after"),
    ]
    parts = ["vit.embeddings.patch_embeddings.projection", "vit.layernorm", "classifier"]
    parts += [f"vit.encoder.layer.{i}.{name}" for i in range(2) for name in layer]
    names = {f"{part}.{kind}" for part in parts for kind in ("weight", "bias")}
    save(ours(), tmp_path / "vit", "hf")
    written = load_file(tmp_path / "vit" / "model.safetensors")
    assert set(written) == names | {"vit.embeddings.cls_token", "vit.embeddings.position_embeddings"}
    assert written["vit.embeddings.cls_token"].shape == (1, 1, 32)
    assert written["vit.embeddings.position_embeddings"].shape == (1, 17, 32)
    assert written["vit.embeddings.patch_embeddings.projection.weight"].shape == (32, 3, 8, 8)

    save(ours(num_classes=0, layer_scale=1.0, gated_mlp=True, mlp_dim=48, num_registers=2), tmp_path / "dino", "hf")
    written = load_file(tmp_path / "dino" / "model.safetensors")
    for name in (
        "embeddings.register_tokens",
        "encoder.layer.1.layer_scale2.lambda1",
        "encoder.layer.1.mlp.weights_in.weight",
        "encoder.layer.1.mlp.weights_out.bias",
        "encoder.layer.0.norm1.weight",
    ):
        assert name in written
    assert written["encoder.layer.0.mlp.weights_in.weight"].shape == (96, 32)


BARE: dict[str, Any] = {
    "vit": lambda: hf.ViTForImageClassification(hf.ViTConfig(**SIZES, num_labels=3)),
    "deit": lambda: hf.DeiTForImageClassificationWithTeacher(hf.DeiTConfig(**SIZES, num_labels=3)),
    "dinov2": lambda: hf.Dinov2Model(hf.Dinov2Config(**{**SIZES, "mlp_ratio": 3})),
    "dinov2_with_registers": lambda: hf.Dinov2WithRegistersModel(
        hf.Dinov2WithRegistersConfig(**{**SIZES, "mlp_ratio": 2, "use_swiglu_ffn": True, "num_register_tokens": 3})
    ),
    "dinov3_vit": lambda: hf.DINOv3ViTModel(
        hf.DINOv3ViTConfig(**{**SIZES, "image_size": 224, "num_register_tokens": 3, "query_bias": False})
    ),
    "ijepa": lambda: hf.IJepaModel(hf.IJepaConfig(**SIZES)),
    "clip_vision_model": lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**SIZES)),
    "siglip_vision_model": lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**SIZES)),
}


@pytest.mark.parametrize("kind", BARE)
def test_a_bare_file_is_recognised_by_its_names(kind: str, tmp_path: Path) -> None:
    BARE[kind]().save_pretrained(tmp_path / "folder")
    known = load(tmp_path / "folder")
    (tmp_path / "folder" / "model.safetensors").rename(tmp_path / "bare.safetensors")
    bare = load(tmp_path / "bare.safetensors", heads=4)
    assert bare.config == known.config
    assert any(f"'{kind}' were assumed" in line for line in bare.load_report.assumed)
    with pytest.raises(CheckpointError, match="give heads=N"):
        load(tmp_path / "bare.safetensors")


# Settings


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "swin"}, "the model type 'swin' is not a plain ViT"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is none of gelu"),
        ({"patch_size": [8, 4]}, "square patches only"),
        ({"image_size": "large"}, "'image_size' must be a positive whole number"),
        ({"image_size": [32, 32, 32]}, "'image_size' must be a positive whole number"),
        ({"hidden_size": 32.5}, "'hidden_size' must be a positive whole number"),
        ({"num_hidden_layers": "two"}, "depth must be a whole number"),
        ({"num_attention_heads": 5}, "not divisible by the 5 heads"),
        ({"num_attention_heads": 0}, "'num_attention_heads' must be a positive whole number"),
        ({"head_dim": 16}, "head_dim 16"),
        ({"hidden_size": 64}, "has the shape"),
        ({"num_hidden_layers": 3}, "encoder.layer.2.*is missing"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, but the file has"),
        ({"id2label": {"first": "cat"}}, "keys of 'id2label'"),
        ({"id2label": {"0": "cat", "2": "dog"}}, "keys of 'id2label'"),
        ({"id2label": {"0": "cat", "1": "dog"}}, "2 class names for 3 classes"),
    ],
)
def test_settings_that_cannot_be(folder: Path, changes: dict[str, Any], says: str) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(Error, match=says) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 10**9) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["0", "height", "width", "x"]), inner),
    max_leaves=4,
)
FIELDS = (
    *("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "hidden_act"),
    *(
        "layer_norm_eps",
        "image_size",
        "patch_size",
        "num_channels",
        "qkv_bias",
        "id2label",
        "head_dim",
        "vision_config",
    ),
    *("mlp_ratio", "layerscale_value", "use_swiglu_ffn", "num_register_tokens", "vision_config_dict"),
    *("rope_theta", "use_gated_mlp", "query_bias"),
)
STEPS = (
    *("size", "crop_size", "do_resize", "do_center_crop", "resample", "do_rescale", "rescale_factor", "do_normalize"),
    *("image_mean", "image_std", "image_processor_type"),
)


@given(
    kind=st.sampled_from([*hf_format.FAMILIES, "clip", "siglip"]),
    settings=st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2),
    steps=st.dictionaries(st.sampled_from(STEPS), JSON, max_size=3),
)
def test_any_settings_are_read_or_refused_in_one_sentence(
    tiny: Path, kind: str, settings: dict[str, Any], steps: dict[str, Any]
) -> None:
    config = {"model_type": kind, **SIZES, "vision_config": SIZES, "mlp_ratio": 2, **settings}
    (tiny / "config.json").write_text(json.dumps(config))
    (tiny / "preprocessor_config.json").write_text(json.dumps({**OLD_VIT, "size": 32, **steps}))
    try:
        load(tiny)
    except Error as error:
        sentence = str(error)
    else:
        return
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rope_theta": 10000.0}, "rope_theta is 10000.0; vitlab's is 100 alone"),
        ({"hidden_act": "silu"}, "hidden_act 'silu' is none of gelu"),
        ({"use_gated_mlp": True}, "hidden_act 'gelu' is none of silu"),
        ({"key_bias": True}, None),  # what counts is in the file
    ],
)
def test_settings_of_a_dinov3(changes: dict[str, Any], says: str | None, tmp_path: Path) -> None:
    hf.DINOv3ViTModel(hf.DINOv3ViTConfig(**SIZES)).save_pretrained(tmp_path)
    edit(tmp_path / "config.json", **changes)
    if says is None:
        assert not load(tmp_path).state_dict()["blocks.0.attention.qkv.bias"][32:64].any()
        return
    with pytest.raises(CheckpointError, match=says):
        load(tmp_path)


def test_settings_left_out_have_their_defaults(folder: Path) -> None:
    """An older version's folder, without the fields that came later."""
    edit(folder / "config.json", qkv_bias=None, num_channels=None, layer_norm_eps=None, hidden_act=None)
    config = load(folder).config
    assert (config.qkv_bias, config.channels, config.norm_eps, config.gelu) == (True, 3, 1e-12, "exact")


def test_tower_settings_of_older_clip_models(tmp_path: Path) -> None:
    """In older files `vision_config_dict` says what counts, sparsely, and transformers lets it win."""
    hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**SIZES, hidden_act="gelu")).save_pretrained(tmp_path)
    sparse = {**SIZES, "hidden_act": "gelu"}
    wrong = {"hidden_size": 768}
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "clip", "vision_config": wrong, "vision_config_dict": sparse})
    )
    assert hf.CLIPConfig(vision_config=dict(wrong), vision_config_dict=dict(sparse)).vision_config.hidden_size == 32
    config = load(tmp_path).config
    assert (config.width, config.gelu, config.norm_eps) == (32, "exact", 1e-5)


def test_patches_that_do_not_divide_the_image(tmp_path: Path) -> None:
    """As SigLIP's so400m at 384 px with patches of 14: transformers does not look at what is left over."""
    reference = hf.SiglipVisionModel(hf.SiglipVisionConfig(**{**SIZES, "image_size": 36})).eval()
    reference.save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.config.image_size == model.preprocess.size == (32, 32)
    assert any("do not divide 36 x 36" in line for line in model.load_report.assumed)
    images = torch.randn(1, 3, 36, 36)
    with torch.no_grad():
        assert torch.allclose(model(images[..., :32, :32]), reference(images).pooler_output, atol=1e-5)


# Labels


def test_class_names(folder: Path) -> None:
    assert load(folder).labels is None  # LABEL_0, LABEL_1, ... say nothing
    edit(folder / "config.json", id2label={"2": "maus", "0": "katze", "1": "hund"})
    model = load(folder)
    assert model.labels == ("katze", "hund", "maus")
    save(model, folder.parent / "again", "hf")
    assert load(folder.parent / "again").labels == model.labels
    config = hf.AutoConfig.from_pretrained(folder.parent / "again", local_files_only=True)
    assert config.id2label == {0: "katze", 1: "hund", 2: "maus"}
    assert config.label2id["maus"] == 2


def test_images_with_several_classes(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert not load(folder).multi_label
    edit(folder / "config.json", problem_type="multi_label_classification")
    model = load(folder)
    assert model.multi_label
    assert not load(folder, num_classes=5).multi_label  # a head of its own is for other classes
    save(model, folder.parent / "again", "hf")
    config = hf.AutoConfig.from_pretrained(folder.parent / "again", local_files_only=True)
    assert config.problem_type == "multi_label_classification"
    assert load(folder.parent / "again").multi_label
    save(model, folder.parent / "silent.safetensors", "timm")
    assert "several labels" in caplog.text


def test_a_thousand_unnamed_classes_are_imagenets(tmp_path: Path) -> None:
    theirs(tmp_path, num_labels=1000)
    model = load(tmp_path)
    assert model.labels is not None
    assert model.labels[0].startswith("tench")
    assert any("ImageNet" in line for line in model.load_report.assumed)


# Preprocessing


def test_preprocessing_of_older_folders(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(
        json.dumps({**OLD_VIT, "feature_extractor_type": "ViTFeatureExtractor", "size": 32})
    )
    model = load(folder)
    assert model.load_report.assumed == []
    assert (model.preprocess.resize, model.preprocess.interpolation) == ("squash", "bilinear")

    clip = {"feature_extractor_type": "CLIPFeatureExtractor", "do_center_crop": True, "crop_size": 32, "resample": 3}
    (folder / "preprocessor_config.json").write_text(json.dumps({**OLD_VIT, **clip, "size": 40}))
    preprocess = load(folder).preprocess
    assert (preprocess.resize, preprocess.shortest_edge, preprocess.size) == ("shortest", 40, (32, 32))

    deit = {**clip, "feature_extractor_type": "DeiTFeatureExtractor"}
    (folder / "preprocessor_config.json").write_text(json.dumps({**OLD_VIT, **deit, "size": 40}))
    model = load(folder)
    assert (model.preprocess.resize, model.preprocess.shortest_edge) == ("shortest", 40)
    assert any("here the aspect is kept" in line for line in model.load_report.assumed)


def test_preprocessing_inside_a_processor(folder: Path) -> None:
    inner = {**OLD_VIT, "size": {"height": 32, "width": 32}, "resample": 3}
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "X", "image_processor": inner}))
    model = load(folder)
    assert model.preprocess.interpolation == "bicubic"
    assert model.load_report.assumed == []


def test_preprocessing_that_is_missing_is_assumed(tmp_path: Path) -> None:
    hf.Dinov2Model(hf.Dinov2Config(**SIZES)).save_pretrained(tmp_path)
    model = load(tmp_path)
    assert model.preprocess.mean == IMAGENET_MEAN
    assert model.preprocess.std == IMAGENET_STD
    assert any("usual for 'dinov2' was assumed" in line for line in model.load_report.assumed)


def test_dinov2_keeps_an_input_size_of_its_own(tmp_path: Path) -> None:
    """Its positions are for 518 px and its processor gives 224 (here 32 and 16): both as transformers has them."""
    hf.Dinov2Model(hf.Dinov2Config(**SIZES)).save_pretrained(tmp_path)
    size = {"size": {"shortest_edge": 24}, "crop_size": {"height": 20, "width": 16}, "do_center_crop": True}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({**OLD_VIT, **size}))
    model = load(tmp_path)
    assert model.config.image_size == (32, 32)
    assert model.preprocess.size == (16, 16)
    assert any("asks for 20 x 16 px" in line for line in model.load_report.assumed)
    assert model(model.preprocess([torch.zeros(50, 40, 3, dtype=torch.uint8).numpy()])).shape == (1, 32)
    assert load(tmp_path, image_size=48).preprocess.size == (48, 48)


def test_preprocessing_for_another_size_than_the_model_takes(folder: Path) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps({**OLD_VIT, "size": 48}))
    model = load(folder)
    assert model.preprocess.size == (32, 32)
    assert any("asks for 48 x 48 px" in line for line in model.load_report.assumed)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"resample": 4}, "resample 4 is none of"),
        ({"size": {"longest_edge": 3}}, "a size of"),
        ({"image_mean": [0.5, 0.5]}, "'image_mean' must be three numbers"),
        ({"image_std": "grey"}, "'image_std' must be three numbers"),
        ({"image_std": 0}, "std positive"),
    ],
)
def test_preprocessing_that_cannot_be(folder: Path, changes: dict[str, Any], says: str) -> None:
    (folder / "preprocessor_config.json").write_text(json.dumps({**OLD_VIT, "size": 32, **changes}))
    with pytest.raises(Error, match=says):
        load(folder)


# Heads that ours cannot have


def test_classifiers_over_other_features(tmp_path: Path) -> None:
    model = hf.CLIPForImageClassification(hf.CLIPConfig(vision_config=SIZES, num_labels=3))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.eval().save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="load it with num_classes=0 for the features"):
        load(tmp_path)

    features, fresh = load(tmp_path, num_classes=0), load(tmp_path, num_classes=2)
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        expected = model.vision_model(images).pooler_output
        assert torch.allclose(features(images), expected, rtol=1e-5, atol=1e-5)
        assert fresh(images).shape == (1, 2)
    assert any("classes replaced by" in line for line in fresh.load_report.adapted)


@torch.no_grad()
def test_the_features_of_a_dinov2_classifier_are_what_it_reads(tmp_path: Path) -> None:
    model = hf.Dinov2ForImageClassification(hf.Dinov2Config(**SIZES, num_labels=3))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    model.eval().save_pretrained(tmp_path)
    features, fresh = load(tmp_path, num_classes=0), load(tmp_path, num_classes=2)
    images = torch.randn(1, 3, 32, 32)
    hidden = model.dinov2(images).last_hidden_state
    expected = torch.cat([hidden[:, 0], hidden[:, 1:].mean(1)], dim=1)
    assert torch.allclose(features(images), expected, rtol=1e-5, atol=1e-5)
    assert fresh(images).shape == (1, 2)
    with pytest.raises(CannotHoldError, match="pool='token\\+mean'"):
        save(load(tmp_path), tmp_path / "timm", "timm")


# Damage


def test_missing_misshapen_and_not_finite_tensors(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    name = "vit.encoder.layer.1.attention.attention.key.weight"
    for value, says in (
        (None, f"'{name}' is missing"),
        (torch.zeros(32, 31), "shape"),
        (torch.full((32, 32), float("nan")), f"'{name}' holds values that are not finite"),
    ):
        damaged = {key: tensor for key, tensor in tensors.items() if key != name}
        save_file(damaged if value is None else damaged | {name: value}, folder / "model.safetensors")
        with pytest.raises(CheckpointError, match=says):
            load(folder)


# Writing


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"pool": "mean"}, "pool='mean'"),
        ({"norm_stem": True, "num_classes": 0}, "patch_bias=True"),
        ({"norm_stem": True, "patch_bias": False}, "num_classes=3 with norm_stem=True"),
        ({"patch_bias": False}, "patch_bias=False"),
        ({"class_token": False, "pool": "attention"}, "pool='attention'"),
        ({"num_registers": 2}, "layer_scale=None"),
        ({"num_registers": 2, "layer_scale": 1.0, "mlp_dim": 50}, "mlp_dim=50"),
        ({"layer_scale": 1.0, "image_size": (32, 16)}, r"image_size=\(32, 16\)"),
        ({"gated_mlp": True, "mlp_dim": 48}, "layer_scale=None"),
        ({"positions": "sincos2d"}, "positions='sincos2d'"),
        ({"positions": "learned2d"}, "positions='learned2d'"),
        ({"positions": "none"}, "positions='none'"),
        ({"positions": "relative2d", "positions_at": "every"}, "positions='relative2d'"),
        ({"positions_at": "every"}, "positions_at='every'"),
        ({"positions_for_prefix": 0}, "positions_for_prefix=0"),
        ({"norm": "post"}, "norm='post'"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"representation": 16}, "representation=16"),
        ({"distill_token": True}, "positions_for_prefix=1"),
        ({"distill_token": True, "positions_for_prefix": 2, "layer_scale": 1.0}, "layer_scale=1.0"),
        ({"num_registers": 1, "positions_for_prefix": 2, "num_classes": 0}, "distill_token=False"),
    ],
)
def test_what_the_format_has_no_place_for(fields: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(CannotHoldError, match=f"The hf format cannot hold {says}"):
        save(ours(**fields), tmp_path / "model", "hf")
    assert list(tmp_path.iterdir()) == []


@given(config=vit_configs(max_changes=4), seed=st.integers(0, 2**31))
@example(config=ViTConfig(**TINY, layer_scale=0.1, num_registers=2), seed=0)
@example(config=ViTConfig(**TINY, distill_token=True, positions_for_prefix=2), seed=0)
@example(config=ViTConfig(**FEATURES, class_token=False, pool="attention"), seed=0)
@example(config=ViTConfig(**FEATURES, norm_stem=True, patch_bias=False), seed=0)
def test_any_model_comes_back_to_the_bit_or_is_refused(config: ViTConfig, seed: int) -> None:
    model = random_vit(config, seed=seed)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model"
        try:
            save(model, target, "hf")
        except CannotHoldError:
            assert not list(Path(folder).iterdir())
            return
        again = load(target)
    assert bits(again).keys() == bits(model).keys()
    for name, value in bits(model).items():
        assert torch.equal(bits(again)[name], value), name
    images = torch.randn(2, config.channels, *config.image_size)
    with torch.no_grad():
        assert torch.equal(again(images), model(images))
    assert again.preprocess == model.preprocess
    assert again.load_report.fresh == again.load_report.adapted == []


def test_a_failing_write_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "model"
    save(ours(), target, "hf")
    before = {file.name: file.read_bytes() for file in target.iterdir()}

    def fail(tensors: dict[str, torch.Tensor], path: Path, metadata: dict[str, str]) -> None:
        del tensors, metadata
        path.write_bytes(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(hf_format, "save_file", fail)
    with pytest.raises(OSError, match="no space"):
        save(ours(seed=1), target, "hf")
    assert {file.name: file.read_bytes() for file in target.iterdir()} == before
    assert [item.name for item in tmp_path.iterdir()] == ["model"]


def test_only_folders_of_the_format_are_replaced(tmp_path: Path) -> None:
    target = tmp_path / "model"
    save(ours(), target, "hf")
    save(ours(seed=1), target, "hf")
    assert torch.equal(load(target).state_dict()["head.bias"], ours(seed=1).state_dict()["head.bias"])
    (target / "thesis.txt").write_text("years of work")
    with pytest.raises(Error, match="holds 'thesis.txt'; it is left as it is"):
        save(ours(), target, "hf")
    assert (target / "thesis.txt").read_text() == "years of work"

    save(ours(), tmp_path / "native")
    with pytest.raises(Error, match="left as it is"):
        save(ours(), tmp_path / "native", "hf")
    with pytest.raises(Error, match="this format is a folder"):
        save(ours(), tmp_path / "model.safetensors", "hf")
