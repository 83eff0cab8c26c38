"""`timm:` names: bare timm's numbers to the bit, in and out of every verb, and a sentence for what cannot be done."""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from torch import Tensor, nn

import vitlab
from peers import timm
from vitlab.core.config import from_dict
from vitlab.core.errors import (
    CannotHoldError,
    CheckpointError,
    ConfigError,
    ImageError,
    MissingDependencyError,
    UnknownNameError,
)
from vitlab.inspection.capture import attention_gradients, attention_of
from vitlab.models.counts import count_parameters
from vitlab.models.create import empty_model
from vitlab.models.heads import DistilledHead
from vitlab.models.timm.adapter import TimmModel
from vitlab.models.timm.build import TimmConfig
from vitlab.models.zoo.rows import find_row, list_models
from vitlab.training.optimizers import Optimizer, kinds

VIT: dict[str, Any] = {"embed_dim": 24, "depth": 2, "num_heads": 3}
SWIN: dict[str, Any] = {"embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}
# a name of timm's, arguments, and an image size: each of the forms in which timm gives features
CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    "efficientnet": ("efficientnet_b0", {}, 64),
    "resnet": ("resnet18", {}, 64),
    "convolution as classifier": ("resnetv2_18", {}, 64),
    "vit": ("vit_tiny_patch16_224", VIT, 32),
    "registers": ("vit_small_patch16_dinov3", VIT, 32),
    "two heads": ("deit_tiny_distilled_patch16_224", VIT, 32),
    "two heads over one vector": ("levit_128s", {"embed_dim": [16, 24, 32], "num_heads": [2, 2, 2]}, 64),
    "windows": ("swin_tiny_patch4_window7_224", SWIN, 32),
    "sequence": ("cait_xxs24_224", VIT, 32),
    "several branches": ("crossvit_tiny_240", {"embed_dim": [24, 48], "depth": [[1, 1, 0]]}, 240),
}
each = pytest.mark.parametrize("case", CASES)
# the smallest model of many of timm's families
FAMILIES = (
    *("test_convnext", "test_nfnet", "test_mambaout", "test_byobnet", "starnet_s050", "dla46x_c", "mobilevit_xxs"),
    *("edgenext_xx_small", "mobilenetv3_small_050", "mnasnet_small", "repghostnet_050", "efficientvit_m0"),
    *("ghostnet_050", "regnetx_002", "iformer_t", "cs3darknet_focus_s", "efficientvit_b0", "swiftformer_xs"),
    *("efficientformerv2_s0", "pvt_v2_b0", "fasternet_t0", "fastvit_t8", "lcnetv2_small", "rexnet_100", "pit_ti_224"),
    *("repvit_m1", "coat_tiny", "eva02_tiny_patch14_224", "convit_tiny", "gmlp_ti16_224", "hgnetv2_b0", "shvit_s1"),
    *("vit_tiny_r_s16_p8_224", "efficientvim_m1", "maxvit_pico_rw_256", "levit_128s", "densenet121", "visformer_tiny"),
    *("resnest14d", "resnetv2_18", "cait_xxs24_224", "gcvit_xxtiny", "tiny_vit_5m_224", "efficientformer_l1"),
    *("hrnet_w18_small", "sequencer2d_s", "hiera_tiny_224", "swinv2_tiny_window16_256", "davit_tiny"),
)


def both(case: str, num_classes: int = 5) -> tuple[TimmModel, Any]:
    """Our model and bare timm's, each made after the same seed."""
    name, arguments, size = CASES[case]
    torch.manual_seed(0)
    ours = vitlab.create(f"timm:{name}", num_classes=num_classes, image_size=size, **arguments)
    assert isinstance(ours, TimmModel)
    sized = {"img_size": size} if "img_size" in _takes(name) else {}
    torch.manual_seed(0)
    return ours, timm.create_model(name, num_classes=num_classes, **sized, **arguments)


def _takes(name: str) -> str:
    return "" if name.startswith(("efficientnet", "resnet")) else "img_size"


def pictures(model: TimmModel, num: int = 2) -> Tensor:
    return torch.randn(num, 3, *model.config.image_size, generator=torch.Generator().manual_seed(1))


@each
def test_answers_and_gradients_are_timms_to_the_bit(case: str) -> None:
    ours, theirs = both(case)
    images = pictures(ours)
    with torch.no_grad():
        assert torch.equal(ours.eval()(images), theirs.eval()(images))
    for model in (ours, theirs):
        torch.manual_seed(2)
        model.train()(images).square().sum().backward()
    gradients = {name: value.grad for name, value in theirs.named_parameters() if value.grad is not None}
    own = [value.grad for value in ours.parameters() if value.grad is not None]
    assert len(own) == len(gradients) > 0
    total = sum(value.abs().sum() for value in gradients.values())
    torch.testing.assert_close(sum(value.abs().sum() for value in own), total, rtol=1e-5, atol=0)


@each
@torch.no_grad()
def test_the_four_steps_and_the_layers(case: str) -> None:
    ours, theirs = both(case)
    ours.eval()
    images = pictures(ours)
    features = ours.pool(ours.encode(ours.embed(images)))
    assert features.shape == (2, ours.num_features)
    assert torch.equal(ours.head(features), ours(images))
    layers = ours.features(images)
    assert torch.equal(layers[0].values, ours.embed(images).values)
    assert all(each.values.shape[1] == each.num_prefix + each.grid[0] * each.grid[1] for each in layers)
    if case not in ("two heads", "two heads over one vector", "several branches"):
        theirs.eval()
        told = theirs.forward_head(theirs.forward_features(images), pre_logits=True)
        assert torch.equal(features, told.flatten(1))


@torch.no_grad()
def test_layers_of_a_vit_are_timms_intermediates() -> None:
    ours, theirs = both("vit")
    images = pictures(ours)
    made = theirs.eval().forward_intermediates(
        images, output_fmt="NLC", return_prefix_tokens=True, intermediates_only=True
    )
    layers = ours.eval().features(images)
    assert len(layers) == 1 + len(made)
    for layer, (patches, prefix) in zip(layers[1:], made, strict=True):
        assert layer.num_prefix == 1
        assert torch.equal(layer.patches, patches)
        assert torch.equal(layer.prefix, prefix)


@pytest.mark.parametrize("case", ["vit", "two heads"])
def test_attention_is_what_timm_forms_without_its_fused_product(case: str) -> None:
    ours, theirs = both(case)
    images, formed = pictures(ours), list[Tensor]()
    for block in theirs.eval().blocks:
        block.attn.fused_attn = False
        block.attn.attn_drop.register_forward_pre_hook(lambda _, args: formed.append(args[0]))
    theirs(images)
    seen = attention_of(ours, images)
    assert len(seen) == len(formed) == 2
    for layer, expected in enumerate(formed):
        torch.testing.assert_close(seen[layer], expected, rtol=1e-5, atol=1e-6)
    logits = theirs(images)
    wanted = torch.autograd.grad(logits.max(dim=-1).values.sum(), formed[-2:])
    for (_, _, gradient), expected in zip(attention_gradients(ours, images), wanted, strict=True):
        torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-7)


def test_what_can_be_looked_at() -> None:
    vit, theirs = both("vit")
    taps = vit.taps
    assert taps.filters is not None
    assert taps.positions is not None
    assert torch.equal(taps.filters(), theirs.patch_embed.proj.weight)
    assert torch.equal(taps.positions(), theirs.pos_embed[0, 1:])
    resnet, theirs = both("resnet")
    assert resnet.taps.attention == ()
    assert resnet.taps.positions is None
    assert resnet.taps.filters is not None
    assert torch.equal(resnet.taps.filters(), theirs.conv1.weight)


@pytest.mark.parametrize(
    ("name", "published"),  # millions; EfficientNet's table 2 (arXiv 1905.11946), L2: arXiv 1911.04252, table 7
    [
        *(("efficientnet_b0", 5.3), ("efficientnet_b1", 7.8), ("efficientnet_b2", 9.2), ("efficientnet_b3", 12)),
        *(("efficientnet_b4", 19), ("efficientnet_b5", 30), ("efficientnet_b6", 43), ("efficientnet_b7", 66)),
        ("tf_efficientnet_l2", 480),
    ],
)
def test_efficientnets_have_the_published_parameters(name: str, published: float) -> None:
    row = find_row(f"timm:{name}")
    model = empty_model(from_dict(TimmConfig, {**row.config, "image_size": (64, 64)}, where=name))
    count = count_parameters(model)
    assert count / 1e6 == pytest.approx(published, rel=0.02)
    assert f"{count / 1e6:.2f}M" == row.published


def test_layers_fall_as_timm_groups_them() -> None:
    """The head has the whole rate, and each layer below a factor less, as timm's layer decay gives them."""
    for case in ("vit", "resnet"):
        ours, theirs = both(case)
        scales = {
            id(value): group["lr_scale"]
            for group in importlib.import_module("timm.optim").param_groups_layer_decay(theirs, layer_decay=0.5)
            for value in group["params"]
        }
        expected = {name: scales[id(value)] for name, value in theirs.named_parameters()}
        found = kinds(ours, Optimizer(layer_decay=0.5))
        for name, kind in found.items():
            named = name.removeprefix("net.")
            if name.startswith("head."):
                assert kind.lr_scale == 1
            else:
                assert kind.lr_scale == expected[named], name
        assert ours.layer_of("net.blocks.1.mlp.fc1.parametrizations.weight.0.a") == (
            ours.layer_of("net.blocks.1.mlp.fc1.weight")
        )


def trained(model: TimmModel) -> TimmModel:
    """Batch norm's statistics away from their start."""
    with torch.no_grad():
        for _ in range(2):
            model.train()(pictures(model, 4))
    return model.eval()


@each
def test_saved_and_loaded_to_the_bit(case: str, tmp_path: Path) -> None:
    ours = trained(both(case)[0])
    vitlab.save(ours, tmp_path / "model")
    again = vitlab.load(tmp_path / "model")
    settings = json.loads((tmp_path / "model" / "config.json").read_text())
    assert settings["family"] == "timm"
    assert settings["config"]["name"] == CASES[case][0]
    assert again.config == ours.config
    assert again.preprocess == ours.preprocess
    assert again.load_report.lines() == []
    images = pictures(ours)
    with torch.no_grad():
        assert torch.equal(again(images), ours(images))


def test_another_head_and_the_rest_as_it_was(tmp_path: Path) -> None:
    ours = trained(both("resnet")[0])
    vitlab.save(ours, tmp_path / "model")
    again = vitlab.load(tmp_path / "model", num_classes=3)
    assert again.config.num_classes == 3
    assert "Head for 5 classes" in again.load_report.lines()[0]
    images = pictures(ours)
    with torch.no_grad():
        assert again(images).shape == (2, 3)
        assert torch.equal(again.pool(again.encode(again.embed(images))), ours.pool(ours.encode(ours.embed(images))))


@pytest.mark.parametrize("case", ["vit", "windows", "resnet"])
def test_another_resolution_is_timms(case: str, tmp_path: Path) -> None:
    ours = trained(both(case)[0])
    vitlab.save(ours, tmp_path / "model")
    again = vitlab.load(tmp_path / "model", image_size=64)
    assert again.preprocess.size == (64, 64)
    _, theirs = both(case)
    theirs.load_state_dict({**theirs.state_dict(), **_their_names(ours, theirs)})
    if case == "vit":
        theirs.set_input_size(img_size=(64, 64))
    elif case == "windows":  # of the same size: only their number changes
        state = theirs.state_dict()
        theirs = timm.create_model(CASES[case][0], num_classes=5, img_size=64, **SWIN)
        theirs.load_state_dict(state)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(again(images), theirs.eval()(images))
    vitlab.save(again, tmp_path / "larger")
    with torch.no_grad():
        assert torch.equal(vitlab.load(tmp_path / "larger")(images), again(images))


@pytest.mark.parametrize("name", ["test_vit", "test_vit4"])
@torch.no_grad()
def test_positions_of_any_resolution_are_stored_for_the_models_own(name: str, tmp_path: Path) -> None:
    """timm resizes them in each pass where a model takes any size: that is the reference."""
    ours = vitlab.create(f"timm:{name}", num_classes=5).eval()
    assert isinstance(ours, TimmModel)
    nn.init.normal_(ours.net.pos_embed)
    images = torch.randn(2, 3, 64, 64)
    vitlab.save(ours, tmp_path / "model")
    smaller = vitlab.load(tmp_path / "model", image_size=64)
    assert torch.equal(smaller(images), ours(images))
    vitlab.save(smaller, tmp_path / "smaller")
    again = vitlab.load(tmp_path / "smaller")
    assert again.taps.positions is not None
    assert again.taps.positions().shape[0] == 16  # of 64 px in patches of 16
    assert torch.equal(again(images), ours(images))


def _their_names(ours: TimmModel, theirs: Any) -> dict[str, Tensor]:
    named = {name.removeprefix("net."): value for name, value in ours.state_dict().items() if name.startswith("net.")}
    classifier = next(name for name, module in theirs.named_modules() if module is theirs.get_classifier())
    return named | {f"{classifier}.{leaf}": value for leaf, value in ours.head.state_dict().items()}


def test_the_preprocessing_is_timms() -> None:
    for name in ("efficientnet_b0", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"):
        with torch.device("meta"):
            expected = timm.data.resolve_data_config(model=timm.create_model(name))
        row = find_row(f"timm:{name}")
        found = empty_model(from_dict(TimmConfig, row.config, where=name)).preprocess
        height = expected["input_size"][1]
        assert (found.mean, found.std) == (expected["mean"], expected["std"])
        assert found.interpolation == expected["interpolation"]
        assert found.size == (height, height)
        assert found.shortest_edge == int(height / expected["crop_pct"])


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A hub cache on disk that holds random weights of test_vit's."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    home = tmp_path / "hub" / "models--timm--test_vit.r160_in1k"
    snapshot = home / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("a" * 40)
    theirs = timm.create_model("test_vit").eval()
    for value in theirs.parameters():
        nn.init.normal_(value, std=0.1)
    save_file(theirs.state_dict(), snapshot / "model.safetensors")
    return theirs


def test_published_weights_come_through_timm(cached: Any) -> None:
    model = vitlab.load("timm:test_vit.r160_in1k")
    images = torch.randn(1, 3, 160, 160)
    with torch.no_grad():
        assert torch.equal(model(images), cached(images))
    assert model.labels is not None
    assert len(model.labels) == 1000
    assert model.preprocess.size == (160, 160)
    assert model.load_report.lines() == []
    changed = vitlab.load("timm:test_vit.r160_in1k", num_classes=3, image_size=96)
    assert changed(torch.randn(1, 3, 96, 96)).shape == (1, 3)
    assert changed.labels is None
    assert len(changed.load_report.lines()) == 2


def test_weights_that_cannot_be_had_are_one_sentence(cached: Any) -> None:
    del cached
    with pytest.raises(CheckpointError, match="timm:resnet18 are not in the local cache.*vitlab.create"):
        vitlab.load("timm:resnet18")


def test_what_a_user_can_do_wrong_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match=r"Did you mean.*timm:resnet18"):
        vitlab.create("timm:resnet188")
    with pytest.raises(UnknownNameError, match="timm:resnet18"):
        vitlab.create("timm:resnet18.no_such_tag")
    for name in ("hf-hub:owner/name", "local-dir:/tmp", ""):
        with pytest.raises(UnknownNameError):
            vitlab.create(f"timm:{name}")
    with pytest.raises(ConfigError, match="no_such_argument"):
        vitlab.create("timm:test_vit", no_such_argument=1)
    for name in ("checkpoint_path", "pretrained_cfg", "features_only", "pretrained"):
        with pytest.raises(ConfigError, match="leave it out"):
            vitlab.create("timm:test_vit", arguments={name: "weights.pth"})
    with pytest.raises(ConfigError, match="Give image_size"):
        vitlab.create("timm:test_vit", img_size=64)
    with pytest.raises(ConfigError, match="cannot be stored"):
        vitlab.create("timm:test_vit", act_layer=nn.ReLU)
    with pytest.raises(ConfigError, match="px"):
        vitlab.create("timm:swin_tiny_patch4_window7_224", image_size=2)
    with pytest.raises(ConfigError, match="takes no images of 64 x 64 px"):
        vitlab.create("timm:efficientformer_l1", image_size=64)
    fixed = both("vit")[0]
    with pytest.raises(ImageError, match="32 x 32 px only, not 64 x 64"):
        fixed(torch.zeros(1, 3, 64, 64))
    with pytest.raises(ImageError, match="3 channels"):
        fixed(torch.zeros(1, 1, 32, 32))
    with pytest.raises(ConfigError, match="not a subset"):
        fixed.encode(fixed.embed(pictures(fixed)).keep(torch.zeros(2, 1, dtype=torch.int64)))
    vitlab.save(both("two heads over one vector")[0], tmp_path / "levit")
    with pytest.raises(ConfigError, match="cannot change its resolution"):
        vitlab.load(tmp_path / "levit", image_size=96)


def test_other_formats_have_no_names_for_it(tmp_path: Path) -> None:
    model = both("resnet")[0]
    for name in ("google", "big_vision", "timm", "hf", "torchvision"):
        with pytest.raises(CannotHoldError, match="vitlab"):
            vitlab.save(model, tmp_path / name, format=name)


def test_without_timm_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises((MissingDependencyError, ModuleNotFoundError)) as caught:
        vitlab.create("timm:resnet18")
    assert "pip install 'vitlab[timm]'" in str(caught.value)


def test_names_are_listed() -> None:
    rows = list_models("timm:efficientnet_b?")
    assert [row.name for row in rows][:2] == ["timm:efficientnet_b0", "timm:efficientnet_b1"]
    assert rows[0].published == "5.29M"
    assert not any(row.name.startswith("timm:") for row in list_models())


def test_more_channels_and_regularisation() -> None:
    model = vitlab.create("timm:resnet18", channels=1, dropout=0.2, drop_path=0.1, checkpoint_blocks=True)
    assert isinstance(model, TimmModel)
    assert model.net.drop_rate == 0.2
    assert model.net.grad_checkpointing
    assert model.eval()(torch.zeros(1, 1, 64, 64)).shape == (1, 1000)
    drops = [module.drop_prob for module in model.net.modules() if type(module).__name__ == "DropPath"]
    assert max(drops) == pytest.approx(0.1)


def test_distilled_models_have_both_heads() -> None:
    ours, theirs = both("two heads")
    assert isinstance(ours.head, DistilledHead)
    images = pictures(ours)
    ours.eval()
    tokens = theirs.eval().forward_features(images)
    label, teacher = ours.head.both(ours.pool(ours.encode(ours.embed(images))))
    assert torch.equal(label, theirs.head(tokens[:, 0]))
    assert torch.equal(teacher, theirs.head_dist(tokens[:, 1]))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Two classes of ten pictures, dark and bright."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for label, low in (("dark", 0), ("bright", 130)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(10):
            pixels = rng.integers(low, low + 120, size=(40, 36, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / label / f"{i}.png")
    return tmp_path / "photos"


@pytest.mark.parametrize("case", ["resnet", "vit"])
def test_every_verb(case: str, photos: Path, tmp_path: Path) -> None:
    arguments = {"name": "test_resnet"} if case == "resnet" else {"name": CASES[case][0], **CASES[case][1]}
    model = vitlab.create(f"timm:{arguments.pop('name')}", num_classes=4, image_size=32, **arguments)
    vitlab.save(model, tmp_path / "start")
    run = tmp_path / "run"
    ended = vitlab.finetune(str(photos), str(tmp_path / "start"), out=run, steps=2, batch_size=4, device="cpu")
    assert ended.step == 2
    tuned = vitlab.load(run)
    assert tuned.labels == ("bright", "dark")
    assert isinstance(tuned, TimmModel)
    before, after = model.state_dict(), tuned.state_dict()
    assert any(not torch.equal(before[name], after[name]) for name in before if not name.startswith("head."))
    answers = vitlab.predict(run, photos, top=1)
    assert len(answers) == 20
    assert all(answer.error is None for answer in answers)
    result = vitlab.evaluate("accuracy", str(run), str(photos), split="train", keep=False, device="cpu", workers=0)
    assert result.metrics["top-1"].count == 16  # and four held out
    embedding = vitlab.embed(str(run), [photos / "dark" / "0.png"], device="cpu", workers=0)
    assert embedding.features.shape == (1, tuned.num_features)
    found = vitlab.inspect(str(run), photos / "dark" / "0.png").findings
    assert found.num_images == 1


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_the_smallest_of_each_family_is_timms_to_the_bit(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ours = vitlab.create(f"timm:{name}").eval()
    torch.manual_seed(0)
    theirs = timm.create_model(name).eval()
    images = torch.randn(2, 3, *ours.config.image_size)
    assert torch.equal(ours(images), theirs(images))
    assert len(ours.features(images)) > 1
    vitlab.save(ours, tmp_path / "model")
    assert torch.equal(vitlab.load(tmp_path / "model")(images), ours(images))


def test_the_cost_of_a_name() -> None:
    result = vitlab.evaluate("cost", "timm:efficientnet_b0", count_only=True)
    assert result.cost["parameters"] == 5288548  # timm's table: 5.29M


def test_a_second_classifier_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match="volo_d1_224 has a second classifier for its patches"):
        vitlab.create("timm:volo_d1_224", num_classes=3)
