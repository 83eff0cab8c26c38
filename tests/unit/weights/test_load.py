"""`load` and `save`: what a source can be, what is adapted and reported, and what is said when it is none."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from einops import rearrange
from safetensors.torch import load_file, save_file

from vitlab.core.config import from_dict
from vitlab.core.errors import CheckpointError, ConfigError, Error, UnknownNameError
from vitlab.core.imagenet import imagenet_labels
from vitlab.models import FAMILIES
from vitlab.models.create import create, empty_model, family_of
from vitlab.models.vit import ViT, ViTConfig
from vitlab.models.zoo.rows import ZOO
from vitlab.weights import hub
from vitlab.weights.load import formats, load, save
from vitlab.weights.published import PUBLISHED

CONFIG = ViTConfig(
    image_size=(16, 16),
    patch_size=4,
    width=16,
    depth=2,
    mlp_dim=24,
    heads=2,
    num_classes=5,
    gelu="exact",
    norm_eps=1e-12,
)


def model(**changes: Any) -> ViT:
    built = ViT(ViTConfig(**{name: getattr(CONFIG, name) for name in CONFIG.__dataclass_fields__} | changes))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return built.eval()


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    built = model()
    built.labels = ("a", "b", "c", "d", "e")
    save(built, tmp_path / "model")
    return tmp_path / "model"


def images(*size: int) -> torch.Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


# Sources


def test_a_run_stands_for_its_model(saved: Path) -> None:
    run = saved.parent
    (run / "metrics.jsonl").write_text("{}\n")
    assert load(run).config == load(str(saved)).config == CONFIG


def test_a_file_inside_a_folder(saved: Path) -> None:
    assert load(saved / "model.safetensors").labels == ("a", "b", "c", "d", "e")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("vit-b16-224", "is a model of the zoo without weights of its own.*create.*Did you mean vit-b16-224"),
        ("vit-b16-225", "no file, folder, hf-hub: source or checkpoint name. Did you mean .*vit-b16-224"),
        ("vit-b16-224.orig-in21", "Did you mean vit-b16-224.orig-in21k"),
        ("/nowhere/model.npz", "is no file, folder"),
        ("digits", "checkpoint name.$"),  # the zoo's vit-digits has no weights
        ("google/vit-base-patch16-224", r"Did you mean hf-hub:google/vit-base-patch16-224[,?]"),
    ],
)
def test_names_that_are_no_source(source: str, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=says) as caught:
        load(source)
    assert "\n" not in str(caught.value)


def test_a_published_name_goes_to_the_hub(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def stand_in(source: str, *, named: str | None = None) -> Path:
        asked.append(f"{source} as {named}")
        return saved

    monkeypatch.setattr(hub, "download", stand_in)
    assert load("vit-b16-224.orig-in21k").config == CONFIG
    assert load("hf-hub:owner/name@v1").config == CONFIG
    assert asked == [
        "hf-hub:google/vit-base-patch16-224-in21k as vit-b16-224.orig-in21k",
        "hf-hub:owner/name@v1 as None",
    ]


def test_published_names_are_zoo_rows_and_sources() -> None:
    for name, source in PUBLISHED.items():
        row, _, training = name.partition(".")
        assert row in ZOO or training.startswith("dinov2"), name  # DINOv2's 518 px are no rows of the zoo
        assert training
        assert source.startswith("hf-hub:")
        assert source.count("/") == 1


def test_folders_without_a_model(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no model.safetensors"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config.json: cannot be read as JSON"):
        load(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match=r"config.json: holds no JSON object"):
        load(tmp_path)


def test_tensors_of_no_known_format(tmp_path: Path) -> None:
    save_file({"conv1.weight": torch.zeros(3, 3)}, tmp_path / "x.safetensors")
    with pytest.raises(CheckpointError, match="conv1.weight.*belong to no checkpoint format"):
        load(tmp_path / "x.safetensors")


@pytest.mark.parametrize("family", [name for name in FAMILIES.names() if name != "timm"])
def test_own_weights_without_their_configuration(family: str, tmp_path: Path) -> None:
    row = next(row for row in ZOO.values() if row.family == family)
    names = empty_model(from_dict(family_of(family).config, row.config, where=row.name)).state_dict()
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "model.safetensors")
    torch.save({name: torch.zeros(1) for name in names}, tmp_path / "model.pth")
    for source in (tmp_path, tmp_path / "model.pth"):
        with pytest.raises(CheckpointError, match="vitlab's own weights without their config.json: give the whole fol"):
            load(source)


def test_a_run_without_a_model_yet(tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(CheckpointError, match="this run has no model yet"):
        load(tmp_path)


def test_unknown_format_to_save(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean torchvision"):
        save(model(), tmp_path / "x", "torchvison")
    assert list(formats()) == ["vitlab", "google", "big_vision", "timm", "hf", "torchvision"]
    assert list(tmp_path.iterdir()) == []


# What is adapted, and said


def test_nothing_to_say(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vitlab"):
        assert load(saved).load_report.lines() == []
    assert caplog.records == []


@torch.no_grad()
def test_another_number_of_classes(saved: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "vitlab"):
        changed = load(saved, num_classes=7)
    assert changed.load_report.lines() == ["Head for 5 classes replaced by a fresh one for 7."]
    assert [record.getMessage() for record in caplog.records] == [
        f"{saved / 'model.safetensors'}: Head for 5 classes replaced by a fresh one for 7."
    ]
    assert changed.labels is None
    assert torch.equal(changed(images(16, 16)), torch.zeros(2, 7))  # the paper's zero-initialised head
    same = load(saved, num_classes=5)
    assert same.load_report.lines() == []
    assert same.labels is not None
    features = load(saved, num_classes=0)
    assert features.load_report.lines() == ["Head for 5 classes replaced by none."]
    head = load_file(saved / "model.safetensors")
    logits = features(images(16, 16)) @ head["head.weight"].T + head["head.bias"]
    assert torch.allclose(logits, load(saved)(images(16, 16)), rtol=1e-4, atol=1e-4)


def test_a_new_head_leaves_the_representation_out(tmp_path: Path) -> None:
    save(model(representation=12), tmp_path / "model")
    assert load(tmp_path / "model", num_classes=5).config.representation == 12
    changed = load(tmp_path / "model", num_classes=7)
    assert changed.config.representation is None
    assert changed.load_report.unused == ["representation.bias", "representation.weight"]


@torch.no_grad()
def test_another_image_size(saved: Path) -> None:
    changed = load(saved, image_size=(24, 32))
    assert changed.load_report.lines() == ["Positions resized from 4 x 4 to 6 x 8 by the rule 'official'."]
    assert changed.preprocess.size == (24, 32)
    expected = load(saved)(images(24, 32))  # resized in every call
    assert torch.allclose(changed(images(24, 32)), expected, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_another_patch_size(saved: Path) -> None:
    changed = load(saved, patch_size=8, image_size=32)
    assert changed.load_report.lines() == ["Patch projection resized from 4 to 8 px by pseudo-inverse."]
    small = images(16, 16)
    patches = rearrange(small, "b c (h p) (w q) -> (b h w) c p q", p=4, q=4)
    patches = torch.nn.functional.interpolate(patches, scale_factor=2, mode="bilinear")  # each by itself
    large = rearrange(patches, "(b h w) c p q -> b c (h p) (w q)", b=2, h=4)
    assert torch.allclose(changed(large), load(saved)(small), rtol=1e-4, atol=1e-4)


def test_parts_that_the_file_does_not_hold(saved: Path) -> None:
    assert all(name.startswith("blocks.2.") for name in load(saved, depth=3).load_report.fresh)
    changed = load(saved, layer_scale=0.5)
    assert "blocks.0.scale1" in changed.load_report.fresh
    assert any("freshly initialised" in line for line in changed.load_report.lines())
    assert torch.equal(changed.state_dict()["blocks.0.scale1"], torch.full((16,), 0.5))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"widht": 16}, "no field 'widht'.*Did you mean width"),
        ({"depth": "two"}, "depth must be a whole number"),
        ({"num_classes": -1}, "num_classes must be at least 0"),
        ({"image_size": 18}, "do not divide an image of 18 x 18"),
        ({"width": 32}, "has the shape"),
    ],
)
def test_changes_that_cannot_be(saved: Path, changes: dict[str, Any], says: str) -> None:
    with pytest.raises(Error, match=says) as caught:
        load(saved, **changes)
    assert isinstance(caught.value, CheckpointError | ConfigError)
    assert "\n" not in str(caught.value)


def test_a_bare_file_of_a_thousand_classes_gets_imagenets_names(tmp_path: Path) -> None:
    """Here under transformers' names; the sentence says that it was assumed."""
    save(model(num_classes=1000), tmp_path / "folder", "hf")
    (tmp_path / "folder" / "model.safetensors").rename(tmp_path / "bare.safetensors")
    loaded = load(tmp_path / "bare.safetensors", heads=2)
    assert loaded.labels == imagenet_labels()
    assert len(imagenet_labels()) == 1000
    assert "No class names in the file: with 1000 classes, ImageNet's were assumed." in loaded.load_report.lines()
    assert any("preprocessing" in line and "assumed" in line for line in loaded.load_report.lines())

    save(loaded, tmp_path / "native")
    again = load(tmp_path / "native")
    assert again.labels == imagenet_labels()
    assert again.load_report.lines() == []


def test_labels_of_more_or_fewer_classes_are_not_assumed(tmp_path: Path) -> None:
    save(model(num_classes=999), tmp_path / "model")
    assert load(tmp_path / "model").labels is None


def test_a_mistyped_path_is_answered_with_the_nearest_one(
    saved: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    shutil.copytree(saved, "runs/pets/model")
    for wrong, right in (("runs/pest", "runs/pets"), ("rusn/pets/model", "runs/pets/model"), ("pets", "runs/pets")):
        with pytest.raises(CheckpointError, match=rf"'{wrong}' is no file.*Did you mean {right}[,?]"):
            load(wrong)


def test_a_model_that_was_trained_with_patch_dropout_gets_a_head_on_patches(tmp_path: Path) -> None:
    save(create("vit-digits", depth=1, patch_dropout=0.5), tmp_path / "trained")
    assert load(tmp_path / "trained").config.patch_dropout == 0.5
    dense = load(tmp_path / "trained", num_classes=4, head="patches")
    assert dense.config.patch_dropout == 0
    assert dense.train()(torch.randn(2, 3, 8, 8)).shape == (2, 4, 8, 8)
    with pytest.raises(ConfigError, match="every patch needs all of them"):
        load(tmp_path / "trained", num_classes=4, head="patches", patch_dropout=0.5)
