"""Google's `.npz` files of hybrids and BiT, written by their documented names, against a forward pass in NumPy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unit.weights import numpy_resnet as reference
from unit.weights import numpy_vit
from unit.weights.comparing import assert_same
from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.core.preprocess import Preprocess
from vitlab.models.bit import BiT, BiTConfig
from vitlab.models.hybrid import Hybrid, HybridConfig
from vitlab.weights.load import load, save

LAYERS = (2, 1)
FORMATS = {"bit": "google", "v1": "big_vision", "v2": "big_vision"}
each_dialect = pytest.mark.parametrize("dialect", FORMATS)


def pictures(height: int, width: int) -> reference.Array:
    return np.random.default_rng(7).standard_normal((2, height, width, 3)).astype(np.float32)


def stored(path: Path) -> dict[str, Any]:
    with np.load(path) as file:
        return dict(file)


@each_dialect
@pytest.mark.parametrize("size", [(32, 32), (33, 46)])
def test_bit_by_documented_names(tmp_path: Path, dialect: str, size: tuple[int, int]) -> None:
    weights = reference.random_weights(dialect, LAYERS)
    numpy_vit.save(tmp_path / "bit.npz", weights)
    model, images = load(tmp_path / "bit.npz", image_size=size), pictures(*size)
    assert isinstance(model, BiT)
    assert (model.config.layers, model.config.width, model.config.num_classes) == (LAYERS, 32, 5)
    assert model.load_report.unused == model.load_report.fresh == []
    assert_same(model, reference.logits(weights, images, dialect, LAYERS), images)


@pytest.mark.parametrize("prefix", ["params/", "opt/target/"])
@pytest.mark.parametrize(("dialect", "axes"), [("v1", 4), ("v2", 4), ("v1", 1)])
def test_prefixes_and_the_axes_of_norms(tmp_path: Path, dialect: str, axes: int, prefix: str) -> None:
    weights = reference.random_weights(dialect, (1,), axes=axes)
    numpy_vit.save(tmp_path / "bit.npz", weights, prefix)
    images = pictures(32, 32)
    assert_same(load(tmp_path / "bit.npz", image_size=32), reference.logits(weights, images, dialect, (1,)), images)


def test_numbered_convolutions_are_read(tmp_path: Path) -> None:
    weights = reference.random_weights("bit", (1,))
    numbered = {
        name.replace("standardized_conv2d/", f"standardized_conv2d_{i}/"): value
        for i, (name, value) in enumerate(weights.items())
    }
    numpy_vit.save(tmp_path / "bit.npz", numbered)
    images = pictures(32, 32)
    assert_same(load(tmp_path / "bit.npz", image_size=32), reference.logits(weights, images, "bit", (1,)), images)


@each_dialect
def test_bit_is_written_to_the_bit(tmp_path: Path, dialect: str) -> None:
    weights = reference.random_weights(dialect, LAYERS, axes=4 if dialect == "v2" else 1)
    numpy_vit.save(tmp_path / "a.npz", weights)
    model = load(tmp_path / "a.npz", image_size=64)
    model.labels = tuple("abcde")
    save(model, tmp_path / "b.npz", format=FORMATS[dialect])
    again = stored(tmp_path / "b.npz")
    assert again.keys() == weights.keys()
    assert all(np.array_equal(again[name], weights[name]) for name in weights)
    twice = load(tmp_path / "b.npz")
    assert (twice.config, twice.preprocess, twice.labels) == (model.config, model.preprocess, model.labels)
    assert twice.load_report.lines() == []


@each_dialect
def test_what_a_file_does_not_say_is_assumed_aloud(tmp_path: Path, dialect: str) -> None:
    numpy_vit.save(tmp_path / "bit.npz", reference.random_weights(dialect, (1,), classes=None))
    model = load(tmp_path / "bit.npz")
    assert model.config.num_classes == 0
    assert model.config.image_size == (224, 224)
    edges = {"bit": {}, "v1": {"resize": "shortest", "shortest_edge": 256}}
    assert model.preprocess == Preprocess(size=(224, 224), **edges.get(dialect, edges["v1"]))
    assert len(model.load_report.assumed) == 2


@pytest.mark.parametrize(
    ("format", "field", "fields"),
    [
        ("google", "pool_padding", {"pool_padding": "infinity"}),
        ("google", "activation", {"activation": "post"}),
        ("google", "weight_eps", {"weight_eps": 1e-8}),
        ("big_vision", "pool_padding", {}),
        ("big_vision", "padding", {"activation": "post"}),
        ("google", "groups", {"groups": 16}),
    ],
)
def test_what_would_be_another_model_is_not_written(
    tmp_path: Path, format: str, field: str, fields: dict[str, Any]
) -> None:
    model = BiT(BiTConfig(layers=(1,), width=32, **fields))
    with pytest.raises(CannotHoldError, match=f"cannot hold {field}="):
        save(model, tmp_path / "bit.npz", format=format)
    assert not list(tmp_path.iterdir())


def hybrid_weights(layers: tuple[int, ...], side: int, places: int, **kind: Any) -> reference.Weights:
    """A plain ViT's file with a ResNet's names, its patches cut from features."""
    weights = numpy_vit.random_weights(dialect="vit_jax", patch=side, positions=places, **kind)
    features = 32 * 2 ** (len(layers) + 1) if layers else 32
    rng = np.random.default_rng(9)
    kernel = rng.standard_normal((side, side, features, 32)) / (side * side * features) ** 0.5
    return weights | {
        "embedding/kernel": kernel.astype(np.float32),
        **reference.random_weights("v1", layers, classes=None, axes=kind.pop("axes", 1)),
    }


@pytest.mark.parametrize(
    ("layers", "side", "size"),
    [((2, 1), 1, (32, 32)), ((1, 1, 1), 1, (64, 32)), ((), 8, (64, 64)), ((1,), 2, (16, 24))],
)
def test_hybrids_by_documented_names(tmp_path: Path, layers: tuple[int, ...], side: int, size: tuple[int, int]) -> None:
    covers = side * 4 * 2 ** max(len(layers) - 1, 0)
    places = 1 + (size[0] // covers) * (size[1] // covers)
    weights = hybrid_weights(layers, side, places)
    numpy_vit.save(tmp_path / "R.npz", weights)
    model, images = load(tmp_path / "R.npz", image_size=size), pictures(*size)
    assert isinstance(model, Hybrid)
    assert isinstance(model.config, HybridConfig)
    assert (model.config.resnet_layers, model.config.patch_size, model.config.image_size) == (layers, covers, size)
    assert model.load_report.unused == model.load_report.fresh == []
    features = reference.feature_map(weights, images, "v1", layers)
    assert_same(model, numpy_vit.logits(weights, features, numpy_vit.VIT_JAX), images)


def test_a_hybrid_is_written_to_the_bit(tmp_path: Path) -> None:
    weights = hybrid_weights((1, 1), 1, 17, representation=24)
    numpy_vit.save(tmp_path / "a.npz", weights, "opt/target/")
    model = load(tmp_path / "a.npz")
    assert model.config.image_size == (32, 32)
    save(model, tmp_path / "b.npz", format="google")
    again = stored(tmp_path / "b.npz")
    assert again.keys() == weights.keys()
    assert all(np.array_equal(again[name], weights[name]) for name in weights)
    assert load(tmp_path / "b.npz").config == model.config
    with pytest.raises(CannotHoldError, match="no names for models of this family"):
        save(model, tmp_path / "c.npz", format="big_vision")


def test_a_hybrids_positions_resize_with_the_image(tmp_path: Path) -> None:
    numpy_vit.save(tmp_path / "a.npz", hybrid_weights((1, 1), 1, 17))
    model = load(tmp_path / "a.npz", image_size=64)
    assert model.config.grid == (8, 8)
    assert model.positions[0].table.shape[0] == 65  # pyright: ignore[reportIndexIssue, reportAttributeAccessIssue]
    assert model(torch.zeros(1, 3, 64, 64)).shape == (1, 5)


def test_official_numbers_are_not_written_for_timm(tmp_path: Path) -> None:
    """The official standardisation is 1e-3 apart from timm's: a folder for timm would be another model."""
    sizes: dict[str, Any] = {"width": 32, "depth": 1, "mlp_dim": 32, "heads": 2, "num_classes": 3}
    model = Hybrid(HybridConfig(image_size=(64, 64), patch_size=32, resnet_layers=(), **sizes))
    model.initialize()
    with pytest.raises(CannotHoldError, match="cannot hold group_eps=1e-06: it would be read back as 1e-05"):
        save(model, tmp_path / "out", format="timm")
    save(model, tmp_path / "out.safetensors", format="timm")  # whose header can say it
    again, images = load(tmp_path / "out.safetensors"), torch.randn(1, 3, 64, 64)
    assert again.config == model.config
    assert torch.equal(again(images), model.eval()(images))


@pytest.mark.parametrize(
    ("dialect", "change", "words"),
    [
        ("bit", {"resnet/block1/unit01/b/group_norm/gamma": np.ones(31, np.float32)}, "has the shape [31]"),
        ("v2", {"block1/unit01/conv2/kernel": np.ones((3, 3, 16, 32), np.float32)}, "has the shape [3, 3, 16, 32]"),
        ("v1", {"block1/unit04/conv1/kernel": np.ones((1, 1, 128, 32), np.float32)}, "units are missing"),
        ("v1", {"conv_root/kernel": np.ones((7, 32), np.float32)}, "not that of a ResNet"),
        ("v2", {"root_block/conv_root/kernel": np.ones((7, 7, 3, 33), np.float32)}, "not divisible"),
        ("bit", {"resnet/group_norm/beta": np.full(128, np.nan, np.float32)}, "not finite"),
    ],
)
def test_damaged_files_get_a_sentence(tmp_path: Path, dialect: str, change: dict[str, Any], words: str) -> None:
    path = tmp_path / "bad.npz"
    numpy_vit.save(path, reference.random_weights(dialect, (1,)) | change)
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
