"""The paper's `.npz` files, written by their documented names with NumPy, against the NumPy forward pass and timm."""

import logging
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch

import vitlab
from peers import timm
from unit.weights import numpy_vit as reference
from unit.weights.comparing import IMAGES, answers, assert_same, random_model
from vitlab.core.errors import CannotHoldError, CheckpointError, Error
from vitlab.core.preprocess import Preprocess
from vitlab.models.create import create
from vitlab.weights.load import load, save


@pytest.mark.parametrize("prefix", ["", "opt/target/", "params/"])
@pytest.mark.parametrize(
    "kind",
    [
        {"positions": 17},
        {"positions": 17, "representation": 24},
        {"positions": 16, "cls": False},
        {"positions": 17, "classes": None},
        {"positions": 17, "classes": None, "representation": 24},
        {"positions": 17, "parts": reference.BIG_VISION},  # what the code names its parts since Flax's linen
    ],
    ids=["token", "representation", "mean", "headless", "features", "linen"],
)
def test_files_by_documented_names(tmp_path: Path, kind: dict[str, Any], prefix: str) -> None:
    weights = reference.random_weights(dialect="vit_jax", **kind)
    reference.save(tmp_path / "B_8.npz", weights, prefix)
    model = load(tmp_path / "B_8.npz")
    config = model.config
    assert (config.image_size, config.patch_size, config.width, config.depth) == ((32, 32), 8, 32, 2)
    assert (config.mlp_dim, config.heads, config.gelu, config.norm_eps) == (48, 4, "tanh", 1e-6)
    assert config.resize_rule == "official"
    assert not model.load_report.unused
    assert not model.load_report.fresh
    assert_same(model, reference.logits(weights, IMAGES, kind.get("parts", reference.VIT_JAX)))


def test_a_file_without_positions(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="vit_jax", positions=None)
    reference.save(tmp_path / "none.npz", weights)
    model = load(tmp_path / "none.npz", image_size=32)
    assert model.config.positions == "none"
    assert_same(model, reference.logits(weights, IMAGES, reference.VIT_JAX))
    assumed = load(tmp_path / "none.npz")
    assert assumed.config.image_size == (224, 224)
    assert any("image size: 224 px was assumed" in line for line in assumed.load_report.assumed)


@pytest.mark.parametrize("size", [(48, 48), (32, 64), (24, 16)])
def test_positions_are_resized_by_scipys_zoom(tmp_path: Path, size: tuple[int, int]) -> None:
    weights = reference.random_weights(dialect="vit_jax", positions=17)
    reference.save(tmp_path / "a.npz", weights)
    model = load(tmp_path / "a.npz", image_size=size)
    table = weights["Transformer/posembed_input/pos_embedding"][0].astype(np.float64)
    grid = (size[0] // 8, size[1] // 8)
    zoomed = np.asarray(scipy.ndimage.zoom(table[1:].reshape(4, 4, -1), (grid[0] / 4, grid[1] / 4, 1), order=1))
    positions = np.concatenate([table[:1], zoomed.reshape(grid[0] * grid[1], -1)])
    images = np.random.default_rng(1).standard_normal((2, *size, 3)).astype(np.float32)
    expected = reference.logits(weights, images, reference.VIT_JAX, positions=positions)
    assert_same(model, expected, images, exactly=False)


def test_preprocessing_is_the_papers_and_said_to_be_assumed(tmp_path: Path) -> None:
    reference.save(tmp_path / "a.npz", reference.random_weights(dialect="vit_jax", positions=17))
    model = load(tmp_path / "a.npz")
    assert model.preprocess == Preprocess(size=(32, 32), resize="squash", mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert any("No preprocessing in the file" in line for line in model.load_report.assumed)


def test_optimiser_state_beside_the_weights_is_counted_not_listed(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="vit_jax", positions=17)
    state = {f"opt/state/param_states/{name}/grad_ema": value for name, value in weights.items()}
    prefixed = {f"opt/target/{name}": value for name, value in weights.items()}
    reference.save(tmp_path / "run.npz", {**state, **prefixed, "opt/state/step": np.array(10)})
    model = load(tmp_path / "run.npz")
    assert len(model.load_report.unused) == len(weights) + 1
    assert len(next(line for line in model.load_report.lines() if "not used" in line)) < 600
    assert_same(model, reference.logits(weights, IMAGES, reference.VIT_JAX))


def test_bfloat16_half_big_endian_and_fortran_arrays(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="vit_jax", positions=17)
    stored, meant = dict(weights), dict(weights)
    for number, (name, value) in enumerate(weights.items()):
        if number % 4 == 0:  # JAX's bfloat16 is the upper half of a float32, which NumPy saves as two raw bytes
            upper = (value.view(np.uint32) >> 16).astype(np.uint16)
            stored[name] = upper.view("V2")
            meant[name] = (upper.astype(np.uint32) << 16).view(np.float32)
        elif number % 4 == 1:
            stored[name] = value.astype(np.float16)
            meant[name] = stored[name].astype(np.float32)
        elif number % 4 == 2:
            stored[name] = value.astype(">f4")
        else:
            stored[name] = np.asfortranarray(value)
    reference.save(tmp_path / "mixed.npz", stored)
    assert_same(load(tmp_path / "mixed.npz"), reference.logits(meant, IMAGES, reference.VIT_JAX))


def test_a_compressed_file_is_the_same(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="vit_jax", positions=17)
    reference.save(tmp_path / "plain.npz", weights)
    reference.save(tmp_path / "small.npz", weights, compressed=True)
    plain, small = load(tmp_path / "plain.npz").state_dict(), load(tmp_path / "small.npz").state_dict()
    assert all(torch.equal(plain[name], small[name]) for name in plain)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"representation": 24},
        {"class_token": False, "pool": "mean"},
        {"num_classes": 0},
        {"channels": 1},
        {"image_size": (16, 64)},  # as many places as 4 x 4
        {"image_size": (24, 40)},
        {"positions": "none"},
        {"dropout": 0.1, "drop_path": 0.1, "resize_rule": "timm"},
    ],
    ids=str,
)
def test_round_trips_are_exact(tmp_path: Path, changes: dict[str, Any]) -> None:
    model = random_model(**changes)
    save(model, tmp_path / "out.npz", format="google")
    back = load(tmp_path / "out.npz")
    assert back.config.resize_rule == model.config.resize_rule
    assert back.config.image_size == model.config.image_size
    before, after = model.state_dict(), back.state_dict()
    assert list(before) == list(after)
    assert all(torch.equal(before[name], after[name]) for name in before)
    images = torch.randn(2, model.config.channels, *model.config.image_size)
    with torch.inference_mode():
        assert torch.equal(model(images), back(images))


def test_written_files_are_what_the_names_say(tmp_path: Path) -> None:
    model = random_model(representation=24)
    save(model, tmp_path / "out.npz", format="google")
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:
        weights = {name: file[name] for name in file.files}
    twin = reference.random_weights(dialect="vit_jax", positions=17, representation=24)
    assert {name: value.shape for name, value in weights.items()} == {name: value.shape for name, value in twin.items()}
    assert {value.dtype for value in weights.values()} == {np.dtype(np.float32)}
    assert_same(model, reference.logits(weights, IMAGES, reference.VIT_JAX))


def test_timm_reads_what_is_written(tmp_path: Path) -> None:
    model = random_model()
    save(model, tmp_path / "out.npz", format="google")
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 1.5}
    peer = timm.models.VisionTransformer(**sizes, num_classes=5, act_layer="gelu_tanh").eval()
    peer.load_pretrained(str(tmp_path / "out.npz"))
    assert_same(model, answers(peer.double()))


def test_writing_takes_any_precision_and_leaves_the_model_alone(tmp_path: Path) -> None:
    model = random_model().bfloat16()
    save(model, tmp_path / "out.npz", format="google")
    assert next(model.parameters()).dtype == torch.bfloat16
    after = load(tmp_path / "out.npz").state_dict()
    assert all(torch.equal(value.float(), after[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_registers": 2}, "num_registers=2"),
        ({"layer_scale": 0.1}, "layer_scale=0.1"),
        ({"gelu": "exact"}, "gelu='exact'"),
        ({"norm_eps": 1e-12}, "norm_eps=1e-12"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"qkv_bias": False}, "qkv_bias=False"),
        ({"patch_bias": False}, "patch_bias=False"),
        ({"gated_mlp": True}, "gated_mlp=True"),
        ({"norm_stem": True}, "norm_stem=True"),
        ({"norm": "post"}, "norm='post'"),
        ({"distill_token": True, "positions_for_prefix": 2}, "distill_token=True"),
        ({"pool": "mean"}, "pool='mean'"),
        ({"class_token": False, "pool": "mean", "norm_pooled": True}, "norm_pooled=True"),
        ({"positions": "sincos2d"}, "positions='sincos2d'"),
        ({"positions": "learned2d"}, "positions='learned2d'"),
        ({"positions": "relative"}, "positions='relative'"),
        ({"positions_at": "every"}, "positions_at='every'"),
        ({"positions_for_prefix": 0}, "positions_for_prefix=0"),
        ({"image_size": (30, 30), "indivisible": "pad"}, "image_size=(30, 30)"),
        ({"depth": 0}, "without layers"),
    ],
    ids=str,
)
def test_what_it_cannot_hold_is_refused(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(CannotHoldError) as caught:
        save(random_model(**changes), tmp_path / "out.npz", format="google")
    assert words in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_attention_pooling_has_no_place(tmp_path: Path) -> None:
    with pytest.raises(CannotHoldError, match="pool='attention'"):
        save(random_model(class_token=False, pool="attention"), tmp_path / "out.npz", format="google")


def test_preprocessing_and_class_names_travel_with_the_weights(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = random_model()
    model.labels = ("a", "b", "naïve", "日本", "e")
    model.preprocess = Preprocess(size=(32, 32), resize="shortest", shortest_edge=40, mean=(0.4, 0.5, 0.6))
    save(model, tmp_path / "out.npz", format="google")
    back = load(tmp_path / "out.npz")
    assert (back.labels, back.preprocess) == (model.labels, model.preprocess)
    assert back.load_report.lines() == []
    with np.load(tmp_path / "out.npz", allow_pickle=False) as file:  # others see arrays and nothing else
        assert set(file.files) == set(reference.random_weights(dialect="vit_jax", positions=17))

    model.labels = tuple(f"{'long' * 5000}{i}" for i in range(5))
    with caplog.at_level(logging.WARNING, "vitlab"):
        save(model, tmp_path / "long.npz", format="google")
    assert "too long" in caplog.text
    back = load(tmp_path / "long.npz")
    assert (back.labels, back.preprocess) == (None, model.preprocess)


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        (b"made by another program", None),
        (b'["a"]', None),
        (b'{"vitlab": 3}', None),
        (b'{"vitlab": "{\\"config\\": {\\"image_size\\": [64, 8]}}"}', None),  # does not fit the positions
        (b'{"vitlab": "{\\"config\\": {\\"image_size\\": \\"wide\\"}}"}', None),
        (b'{"vitlab": "{\\"config\\": {\\"resize_rule\\": \\"cubic\\"}}"}', "resize_rule"),
        (b'{"vitlab": "{"}', "JSON"),
        (b'{"vitlab": "[]"}', "config"),
    ],
)
def test_comments_of_a_zip(tmp_path: Path, comment: bytes, words: str | None) -> None:
    weights = reference.random_weights(dialect="vit_jax", positions=17)
    reference.save(tmp_path / "a.npz", weights)
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.comment = comment
    if words is None:
        assert_same(load(tmp_path / "a.npz"), reference.logits(weights, IMAGES, reference.VIT_JAX))
    else:
        with pytest.raises(CheckpointError, match=words):
            load(tmp_path / "a.npz")


def test_a_name_without_the_suffix_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Error, match=r"\.npz"):
        save(random_model(), tmp_path / "out", format="google")
    assert not list(tmp_path.iterdir())


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.npz"
    save(random_model(), path, format="google")
    before, written = path.read_bytes(), []
    write_array = np.lib.format.write_array

    def fails(*args: Any, **options: Any) -> None:
        written.append(args)
        if len(written) == 5:
            raise OSError(28, "No space left on device")
        write_array(*args, **options)

    monkeypatch.setattr(np.lib.format, "write_array", fails)
    with pytest.raises(OSError, match="No space"):
        save(random_model(num_classes=7), path, format="google")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["out.npz"]


def broken(weights: reference.Weights, case: str) -> reference.Weights:
    first = "Transformer/encoderblock_0/"
    match case:
        case "wrong shape":
            weights[f"{first}LayerNorm_2/scale"] = np.ones(31, np.float32)
        case "heads last":
            kernel = weights[f"{first}MultiHeadDotProductAttention_1/key/kernel"]
            weights[f"{first}MultiHeadDotProductAttention_1/key/kernel"] = kernel.transpose(0, 2, 1)
        case "absent layer":
            weights = {name: value for name, value in weights.items() if "encoderblock_1/" not in name}
        case "absent tensor":
            del weights[f"{first}MlpBlock_3/Dense_1/bias"]
        case "absent query":
            del weights[f"{first}MultiHeadDotProductAttention_1/query/kernel"]
        case "absent patches":
            del weights["embedding/kernel"]
        case "flat patches":
            weights["embedding/kernel"] = weights["embedding/kernel"].reshape(-1, 32)
        case "not finite":
            weights["head/bias"][2] = np.nan
        case "odd positions":
            weights["Transformer/posembed_input/pos_embedding"] = np.ones((1, 16, 32), np.float32)
        case _:
            weights["conv_root/kernel"] = np.ones((7, 7, 3, 64), np.float32)
    return weights


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("wrong shape", "encoderblock_0/LayerNorm_2/scale' has the shape [31]"),
        ("heads last", "key/kernel' has the shape [32, 8, 4]"),
        ("absent layer", "layer 1 is missing"),
        ("absent tensor", "'Transformer/encoderblock_0/MlpBlock_3/Dense_1/bias' is missing"),
        ("absent query", "query/kernel' is missing"),
        ("absent patches", "'embedding/kernel' is missing"),
        ("flat patches", "'embedding/kernel' has the shape [192, 32]"),
        ("not finite", "'head/bias' holds values that are not finite"),
        ("odd positions", "15 positions, not a square grid"),
        (
            "stem of a hybrid",
            "'embedding/kernel' has the shape [8, 8, 3, 32] where the other tensors call for [8, 8, 64",
        ),
    ],
)
def test_damaged_files_get_a_sentence(tmp_path: Path, case: str, words: str) -> None:
    path = tmp_path / "bad.npz"
    reference.save(path, broken(reference.random_weights(dialect="vit_jax", positions=17, depth=3), case))
    with pytest.raises(CheckpointError) as caught:
        load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_positions_hint_makes_a_non_square_file_readable(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="vit_jax", positions=1 + 2 * 4)
    images = np.random.default_rng(2).standard_normal((2, 16, 32, 3)).astype(np.float32)
    weights["Transformer/posembed_input/pos_embedding"] = np.random.default_rng(3).random((1, 9, 32), np.float32)
    reference.save(tmp_path / "wide.npz", weights)
    with pytest.raises(CheckpointError, match="image_size"):
        load(tmp_path / "wide.npz")
    assert_same(
        load(tmp_path / "wide.npz", image_size=(16, 32)), reference.logits(weights, images, reference.VIT_JAX), images
    )


def test_a_whole_size_of_the_zoo(tmp_path: Path) -> None:
    model = create("vit-ti16-224")
    save(model, tmp_path / "Ti_16.npz", format="google")
    back = vitlab.load(tmp_path / "Ti_16.npz")
    assert back.config == model.config
    assert back.labels is not None
    assert len(back.labels) == 1000
