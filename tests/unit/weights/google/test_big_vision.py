"""big_vision's `.npz` files, written by their documented names with NumPy, against the NumPy forward pass and timm."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
from torch import nn

from peers import timm
from unit.weights import numpy_vit as reference
from unit.weights.comparing import IMAGES, answers, assert_same, random_model
from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.core.preprocess import Preprocess
from vitlab.models.vit import ViT
from vitlab.weights.files.npz import NpzFile
from vitlab.weights.load import load, save

MEAN: dict[str, Any] = {"cls": False}
TOKEN: dict[str, Any] = {"cls": True}
OLD_TOKEN: dict[str, Any] = {"cls": True, "positions": 17}
MAP: dict[str, Any] = {"cls": False, "attention_pool": True}


def random_mean_model(**changes: Any) -> ViT:
    return random_model(**{"class_token": False, "pool": "mean", **changes})


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/", "params/img/", "img/"])
@pytest.mark.parametrize("scan", [False, True], ids=["layers", "scanned"])
@pytest.mark.parametrize(
    "kind",
    [MEAN, TOKEN, OLD_TOKEN, MAP, {**MAP, "representation": 24}, {**MAP, "classes": None}],
    ids=["mean", "token", "old token", "map", "map with representation", "map headless"],
)
def test_files_by_documented_names(tmp_path: Path, kind: dict[str, Any], scan: bool, prefix: str) -> None:
    weights = reference.random_weights(dialect="big_vision", depth=3, **kind)
    reference.save(tmp_path / "bv.npz", reference.stacked(weights, 3) if scan else weights, prefix)
    model = load(tmp_path / "bv.npz")
    config = model.config
    assert (config.image_size, config.patch_size, config.width, config.depth) == ((32, 32), 8, 32, 3)
    assert (config.mlp_dim, config.heads, config.gelu, config.norm_eps) == (48, 4, "tanh", 1e-6)
    assert not model.load_report.unused
    assert not model.load_report.fresh
    assert_same(model, reference.logits(weights, IMAGES, reference.BIG_VISION))


def test_positions_of_a_file_before_2022(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="big_vision", **MEAN)
    expected = reference.logits(weights, IMAGES, reference.BIG_VISION)
    weights["Transformer/pos_embedding"] = weights.pop("pos_embedding")
    reference.save(tmp_path / "old.npz", weights)
    assert_same(load(tmp_path / "old.npz"), expected)


@pytest.mark.parametrize("kind", [MEAN, TOKEN], ids=["mean", "token"])
def test_sine_cosine_positions_are_not_in_the_file(tmp_path: Path, kind: dict[str, Any]) -> None:
    """x and y angles at D/4 rates from 1 to 1/10000: [sin x, cos x, sin y, cos y]."""
    weights = reference.random_weights(dialect="big_vision", positions=None, **kind)
    rates = np.array([10000 ** -(i / 7) for i in range(8)])
    places = [
        np.concatenate([np.sin(x * rates), np.cos(x * rates), np.sin(y * rates), np.cos(y * rates)])
        for y in range(4)
        for x in range(4)
    ]
    expected = reference.logits(weights, IMAGES, reference.BIG_VISION, positions=np.stack(places))
    reference.save(tmp_path / "sincos.npz", weights)
    model = load(tmp_path / "sincos.npz", image_size=32)
    assert model.config.positions == "sincos2d"
    assert_same(model, expected, exactly=False)
    assert any("image size" in line for line in load(tmp_path / "sincos.npz").load_report.assumed)


@pytest.mark.parametrize(
    ("cls", "prefix_places"), [(False, 0), (True, 0), (True, 1)], ids=["mean", "token", "old token"]
)
def test_positions_are_resized_by_scipys_zoom(tmp_path: Path, cls: bool, prefix_places: int) -> None:
    weights = reference.random_weights(dialect="big_vision", cls=cls, positions=16 + prefix_places)
    reference.save(tmp_path / "a.npz", weights)
    table = weights["pos_embedding"][0].astype(np.float64)
    zoomed = np.asarray(scipy.ndimage.zoom(table[prefix_places:].reshape(4, 4, -1), (5 / 4, 6 / 4, 1), order=1))
    positions = np.concatenate([table[:prefix_places], zoomed.reshape(30, -1)])
    images = np.random.default_rng(1).standard_normal((2, 40, 48, 3)).astype(np.float32)
    expected = reference.logits(weights, images, reference.BIG_VISION, positions=positions)
    model = load(tmp_path / "a.npz", image_size=(40, 48))
    assert_same(model, expected, images, exactly=False)


@pytest.mark.parametrize(("positions", "size", "prefix_places"), [(15, (24, 40), 0), (22, (24, 56), 1)])
def test_a_hint_tells_the_grid_of_non_square_positions(
    tmp_path: Path, positions: int, size: tuple[int, int], prefix_places: int
) -> None:
    weights = reference.random_weights(dialect="big_vision", positions=positions)
    reference.save(tmp_path / "wide.npz", weights)
    with pytest.raises(CheckpointError, match="not a square grid"):
        load(tmp_path / "wide.npz")
    images = np.random.default_rng(1).standard_normal((2, *size, 3)).astype(np.float32)
    model = load(tmp_path / "wide.npz", image_size=size)
    assert model.config.positions_for_prefix == prefix_places
    assert_same(model, reference.logits(weights, images, reference.BIG_VISION), images)


@pytest.mark.parametrize("compressed", [False, True])
def test_stacks_are_not_read_once_a_layer(tmp_path: Path, compressed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = reference.random_weights(dialect="big_vision", depth=12, **MAP)
    path = tmp_path / "bv.npz"
    reference.save(path, reference.stacked(weights, 12), compressed=compressed)
    whole: list[str] = []
    array = NpzFile._array
    monkeypatch.setattr(NpzFile, "_array", lambda self, name: whole.append(name) or array(self, name))
    model = load(path)
    stacks = [name for name in whole if "encoderblock/" in name]
    assert len(stacks) == (16 if compressed else 0)
    assert len(set(whole)) == len(whole)
    assert_same(model, reference.logits(weights, IMAGES, reference.BIG_VISION))


def test_parameters_do_not_share_memory(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="big_vision", depth=3, **MEAN)
    reference.save(tmp_path / "bv.npz", reference.stacked(weights, 3), compressed=True)
    model = load(tmp_path / "bv.npz")
    storages = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    assert len(storages) == len(list(model.parameters()))


def test_the_text_tower_beside_the_image_tower_is_reported(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="big_vision", classes=None, **MAP)
    whole = {f"params/img/{name}": value for name, value in weights.items()}
    whole |= {"params/txt/Embed_0/embedding": np.ones((9, 32), np.float32), "params/t": np.ones(1, np.float32)}
    reference.save(tmp_path / "siglip.npz", whole)
    model = load(tmp_path / "siglip.npz")
    assert model.load_report.unused == ["params/txt/Embed_0/embedding", "params/t"]
    assert model.preprocess == Preprocess(size=(32, 32))
    assert_same(model, reference.logits(weights, IMAGES, reference.BIG_VISION))


def test_preprocessing_of_a_classifier_crops(tmp_path: Path) -> None:
    reference.save(tmp_path / "a.npz", reference.random_weights(dialect="big_vision", **MEAN))
    model = load(tmp_path / "a.npz")
    assert model.preprocess == Preprocess(size=(32, 32), resize="shortest", shortest_edge=37)
    assert any("No preprocessing in the file" in line for line in model.load_report.assumed)


ROUND_TRIPS = [
    {},
    {"class_token": True, "pool": "token", "positions_for_prefix": 0},
    {"class_token": True, "pool": "token", "positions_for_prefix": 1},
    {"pool": "attention"},
    {"pool": "attention", "representation": 24, "num_classes": 0},
    {"image_size": (16, 64), "class_token": True, "pool": "token", "positions_for_prefix": 0},
    {"image_size": (24, 40)},
    {"positions": "sincos2d"},
    {"class_token": True, "pool": "token", "positions": "sincos2d", "image_size": (16, 40)},
]


@pytest.mark.parametrize("changes", ROUND_TRIPS, ids=str)
def test_round_trips_are_exact(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = random_mean_model(**changes)
    save(model, tmp_path / "out.npz", format="big_vision")
    back = load(tmp_path / "out.npz")
    before, after = model.state_dict(), back.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    images = torch.randn(2, 3, *model.config.image_size)
    with torch.inference_mode():
        assert torch.equal(model(images), back(images))


@pytest.mark.parametrize("kind", [MEAN, TOKEN, OLD_TOKEN, {**MAP, "representation": 24}], ids=str)
def test_written_files_are_what_the_names_say(tmp_path: Path, kind: dict[str, Any]) -> None:
    twin = reference.random_weights(dialect="big_vision", seed=1, **kind)
    reference.save(tmp_path / "in.npz", reference.stacked(twin, 2), "params/")
    save(load(tmp_path / "in.npz"), tmp_path / "out.npz", format="big_vision")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        assert set(file.files) == set(twin)
        assert all(np.array_equal(file[name], value) for name, value in twin.items())


def test_timm_reads_what_is_written(tmp_path: Path) -> None:
    model = random_mean_model(pool="attention")
    save(model, tmp_path / "out.npz", format="big_vision")
    peer = timm.models.VisionTransformer(
        img_size=32,
        patch_size=8,
        embed_dim=32,
        depth=2,
        num_heads=4,
        mlp_ratio=1.5,
        num_classes=5,
        class_token=False,
        global_pool="map",
        act_layer="gelu_tanh",
    )
    peer.attn_pool.mlp.act = nn.GELU(approximate="tanh")  # timm's pooling head has the exact one, big_vision's not
    peer.load_pretrained(str(tmp_path / "out.npz"))
    assert_same(model, answers(peer.eval().double()))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_registers": 2}, "num_registers=2"),
        ({"norm_pooled": True}, "norm_pooled=True"),
        ({"gelu": "exact"}, "gelu='exact'"),
        ({"layer_scale": 0.1}, "layer_scale=0.1"),
        ({"class_token": True}, "pool='mean'"),
        ({"positions": "none"}, "positions='none'"),
        ({"image_size": (30, 30), "indivisible": "pad"}, "image_size=(30, 30)"),
    ],
    ids=str,
)
def test_what_it_cannot_hold_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotHoldError) as caught:
        save(random_mean_model(**changes), tmp_path / "out.npz", format="big_vision")
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_a_token_model_goes_from_either_dialect_to_the_other(tmp_path: Path) -> None:
    """Their class tokens differ: vit_jax's has a position."""
    weights = reference.random_weights(dialect="big_vision", **TOKEN)
    expected = reference.logits(weights, IMAGES, reference.BIG_VISION)
    reference.save(tmp_path / "bv.npz", weights)
    with pytest.raises(CannotHoldError, match="positions_for_prefix=1 first"):
        save(load(tmp_path / "bv.npz"), tmp_path / "jax.npz", format="google")
    moved = load(tmp_path / "bv.npz", positions_for_prefix=1)
    assert any("added as zeros" in line for line in moved.load_report.adapted)
    save(moved, tmp_path / "jax.npz", format="google")
    assert_same(load(tmp_path / "jax.npz"), expected)
    save(load(tmp_path / "jax.npz"), tmp_path / "back.npz", format="big_vision")
    assert_same(load(tmp_path / "back.npz"), expected)


def unequal(weights: reference.Weights) -> reference.Weights:
    name = "Transformer/encoderblock/MlpBlock_0/Dense_0/bias"
    return {**weights, name: weights[name][:1]}


def scalar(weights: reference.Weights) -> reference.Weights:
    return {**weights, "Transformer/encoderblock/LayerNorm_0/scale": np.array(1.0, np.float32)}


def without(weights: reference.Weights) -> reference.Weights:
    return {name: value for name, value in weights.items() if "encoderblock/" not in name or "value/bias" not in name}


def unpooled(weights: reference.Weights) -> reference.Weights:
    return {name: value for name, value in weights.items() if name != "MAPHead_0/LayerNorm_0/scale"}


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (unequal, "does not stack as many layers"),
        (scalar, "does not stack as many layers"),
        (without, "encoderblock_0/MultiHeadDotProductAttention_0/value/bias' is missing"),
        (unpooled, "'MAPHead_0/LayerNorm_0/scale' is missing"),
    ],
)
def test_damaged_files_get_a_sentence(tmp_path: Path, spoil: Any, words: str) -> None:
    path = tmp_path / "bad.npz"
    reference.save(path, spoil(reference.stacked(reference.random_weights(dialect="big_vision", **MAP), 2)))
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
