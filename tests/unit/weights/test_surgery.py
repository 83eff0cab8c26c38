"""Another patch, resolution or head for trained weights: against the linear algebra, SciPy and the NumPy model."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from peers import timm
from unit.weights import numpy_vit as reference
from unit.weights.comparing import IMAGES, answers, assert_same, random_model
from vitlab.core.errors import ConfigError
from vitlab.models.positions import AddedPositions
from vitlab.models.vit import ViT
from vitlab.weights.load import load, save
from vitlab.weights.surgery import resize_patches

sizes = st.integers(1, 12)


def resized(patches: Tensor, size: int) -> Tensor:
    """Patches [B, C, P, P] as an image library resizes them."""
    shrinks = size < patches.shape[-1]
    return F.interpolate(patches, (size, size), mode="bilinear", align_corners=False, antialias=shrinks)


@given(sizes, sizes, st.integers(1, 4), st.integers(0, 2**31))
def test_a_larger_patch_gives_the_same_tokens(old: int, new: int, channels: int, seed: int) -> None:
    assume(new >= old)
    generator = torch.Generator().manual_seed(seed)
    weight = torch.randn(5, channels * old * old, generator=generator, dtype=torch.float64)
    patches = torch.randn(7, channels, old, old, generator=generator, dtype=torch.float64)
    tokens = patches.flatten(1) @ weight.T
    enlarged = resize_patches(weight, new, old_size=old)
    assert enlarged.shape == (5, channels * new * new)
    torch.testing.assert_close(resized(patches, new).flatten(1) @ enlarged.T, tokens, rtol=1e-9, atol=1e-9)


@given(st.integers(2, 12), sizes)
def test_a_smaller_patch_is_the_least_squares_answer(old: int, new: int) -> None:
    """No other weight comes closer over all patches: the error is orthogonal to what small patches can tell."""
    assume(new < old)
    weight = torch.randn(3, old * old, dtype=torch.float64)
    shrink = resized(torch.eye(old * old, dtype=torch.float64).reshape(-1, 1, old, old), new).flatten(1)
    best = np.linalg.lstsq(shrink.numpy(), weight.T.numpy(), rcond=None)[0].T
    np.testing.assert_allclose(resize_patches(weight, new, old_size=old).numpy(), best, atol=1e-9)


@pytest.mark.parametrize("new", [4, 12, 16])
def test_patches_resize_as_timms_do(new: int) -> None:
    """timm's is FlexiViT's own rule, by default with cubic, antialiased pixels; asked for ours it must agree."""
    resample = timm.layers.resample_patch_embed
    weight = torch.randn(6, 3, 8, 8)
    theirs = resample(weight, [new, new], interpolation="bilinear", antialias=new < 8)
    ours = rearrange(resize_patches(weight.flatten(1), new, old_size=8), "d (c p q) -> d c p q", p=new, q=new)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def save_small(path: Path, **kind: Any) -> reference.Weights:
    weights = reference.random_weights(dialect="vit_jax", **{"positions": 17, **kind})
    reference.save(path, weights)
    return weights


def test_a_model_with_larger_patches_sees_a_larger_image_alike(tmp_path: Path) -> None:
    """Each patch enlarged on its own, 8 to 16 px: the tokens, and so the logits, are those of the small image."""
    save_small(tmp_path / "a.npz")
    small, large = load(tmp_path / "a.npz"), load(tmp_path / "a.npz", patch_size=16, image_size=64)
    images = torch.from_numpy(IMAGES).permute(0, 3, 1, 2)
    patches = rearrange(images, "b c (h p) (w q) -> (b h w) c p q", p=8, q=8)
    larger = rearrange(resized(patches, 16), "(b h w) c p q -> b c (h p) (w q)", h=4, w=4)
    with torch.inference_mode():
        torch.testing.assert_close(large(larger), small(images), rtol=1e-4, atol=1e-4)
    assert large.load_report.adapted == ["Patch projection resized from 8 to 16 px by pseudo-inverse."]


@pytest.mark.parametrize(
    ("size", "said"),
    [((48, 48), "4 x 4 to 6 x 6"), ((32, 64), "4 x 4 to 4 x 8"), ((24, 8), "4 x 4 to 3 x 1"), ((32, 32), None)],
)
def test_positions_are_resized_on_load(tmp_path: Path, size: tuple[int, int], said: str | None) -> None:
    weights = save_small(tmp_path / "a.npz")
    model = load(tmp_path / "a.npz", image_size=size)
    assert isinstance(model, ViT)
    positions = model.positions[0]
    assert isinstance(positions, AddedPositions)
    table = weights["Transformer/posembed_input/pos_embedding"][0]
    grid = table[1:].reshape(4, 4, -1).astype(np.float64)
    zoomed = np.asarray(scipy.ndimage.zoom(grid, (size[0] / 32, size[1] / 32, 1), order=1)).reshape(-1, 32)
    np.testing.assert_allclose(positions.table.detach().numpy(), np.concatenate([table[:1], zoomed]), atol=2e-6)
    notes = [] if said is None else [f"Positions resized from {said} by the rule 'official'."]
    assert model.load_report.adapted == notes
    assert model.config.image_size == model.preprocess.size == size


def test_positions_resized_on_load_are_those_resized_at_call_time(tmp_path: Path) -> None:
    save_small(tmp_path / "a.npz")
    images = np.random.default_rng(0).standard_normal((2, 40, 56, 3)).astype(np.float32)
    at_call, on_load = load(tmp_path / "a.npz"), load(tmp_path / "a.npz", image_size=(40, 56))
    np.testing.assert_allclose(answers(at_call, images), answers(on_load, images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rule", ["timm", "hf", "torchvision"])
def test_another_rule_can_be_asked_for(tmp_path: Path, rule: str) -> None:
    save_small(tmp_path / "a.npz")
    official, other = (load(tmp_path / "a.npz", image_size=48, resize_rule=name) for name in ("official", rule))
    assert other.load_report.adapted == [f"Positions resized from 4 x 4 to 6 x 6 by the rule '{rule}'."]
    assert not torch.equal(official.state_dict()["positions.0.table"], other.state_dict()["positions.0.table"])


@pytest.mark.parametrize("positions", ["learned2d", "relative", "relative2d"])
def test_every_kind_of_positions_goes_to_another_grid_on_load_as_at_call_time(tmp_path: Path, positions: Any) -> None:
    model = random_model(positions=positions)
    save(model, tmp_path / "model")
    images = np.random.default_rng(0).standard_normal((2, 24, 48, 3)).astype(np.float32)
    expected = answers(model, images)
    moved = load(tmp_path / "model", image_size=(24, 48))
    assert len(moved.load_report.adapted) == 1
    assert moved.config.grid == (3, 6)
    np.testing.assert_allclose(answers(moved, images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [("learned", "relative", "every"), ("relative", "learned", "stem"), ("relative", "relative2d", "every")],
)
def test_positions_of_another_kind_start_fresh_at_their_own_place(tmp_path: Path, old: Any, new: Any, at: str) -> None:
    """With tables of zeros they are none at all."""
    save(random_model(positions=old), tmp_path / "model")
    changed = load(tmp_path / "model", positions=new)
    assert changed.config.positions_at == at
    assert changed.load_report.lines() == [f"Positions changed from '{old}' to '{new}': the file's are not used."]
    tables = [value for name, value in changed.state_dict().items() if name.startswith("positions.")]
    assert all(0 < float(table.std()) < 0.04 for table in tables)  # normal, of .02
    for table in tables:
        table.zero_()
    assert_same(changed, answers(load(tmp_path / "model", positions="none"), IMAGES), exactly=False)


@pytest.mark.parametrize("num_classes", [2, 7])
def test_a_new_head_is_zero_and_the_representation_layer_goes(tmp_path: Path, num_classes: int) -> None:
    weights = save_small(tmp_path / "a.npz", representation=24)
    model = load(tmp_path / "a.npz", num_classes=num_classes)
    assert model.config.representation is None
    head = model.head
    assert isinstance(head, torch.nn.Linear)
    assert head.weight.shape == (num_classes, 32)
    assert not head.weight.any()
    assert not head.bias.any()
    assert np.array_equal(answers(model), np.zeros((3, num_classes), np.float32))
    assert model.load_report.adapted == [f"Head for 5 classes replaced by a fresh one for {num_classes}."]
    assert set(model.load_report.unused) == {"pre_logits/kernel", "pre_logits/bias"}
    assert model.labels is None

    model.head = torch.nn.Identity()
    bare = {name: value for name, value in weights.items() if not name.startswith(("head/", "pre_logits/"))}
    assert_same(model, reference.logits(bare, IMAGES, reference.VIT_JAX))


def test_a_model_without_a_head_gets_one(tmp_path: Path) -> None:
    save(random_model(num_classes=0), tmp_path / "headless")
    found = load(tmp_path / "headless", num_classes=3).load_report.adapted
    assert found == ["It had no head, and got a fresh one for 3 classes."]


def test_the_representation_layer_stays_where_it_is_wanted(tmp_path: Path) -> None:
    weights = save_small(tmp_path / "a.npz", representation=24)
    features = {name: value for name, value in weights.items() if not name.startswith("head/")}
    headless = load(tmp_path / "a.npz", num_classes=0)
    assert headless.load_report.adapted == ["Head for 5 classes replaced by none."]
    assert not headless.load_report.unused
    assert_same(headless, reference.logits(features, IMAGES, reference.VIT_JAX))
    kept = load(tmp_path / "a.npz", num_classes=7, representation=24)
    assert kept.config.representation == 24
    kept.head = torch.nn.Identity()
    assert_same(kept, reference.logits(features, IMAGES, reference.VIT_JAX))


def test_the_same_number_of_classes_keeps_the_head(tmp_path: Path) -> None:
    weights = save_small(tmp_path / "a.npz", representation=24)
    model = load(tmp_path / "a.npz", num_classes=5)
    assert model.load_report.adapted == []
    assert_same(model, reference.logits(weights, IMAGES, reference.VIT_JAX))


def test_all_at_once_is_reported_in_order(tmp_path: Path) -> None:
    save_small(tmp_path / "a.npz")
    model = load(tmp_path / "a.npz", num_classes=3, image_size=(64, 96), patch_size=16)
    assert model.load_report.adapted == [
        "Patch projection resized from 8 to 16 px by pseudo-inverse.",
        "Positions resized from 4 x 4 to 4 x 6 by the rule 'official'.",
        "Head for 5 classes replaced by a fresh one for 3.",
    ]
    lines = model.load_report.lines()
    assert all(line.endswith(".") for line in lines)
    images = np.random.default_rng(0).standard_normal((2, 64, 96, 3)).astype(np.float32)
    assert answers(model, images).shape == (2, 3)


def test_sides_that_the_patch_does_not_divide_are_refused(tmp_path: Path) -> None:
    save_small(tmp_path / "a.npz")
    with pytest.raises(ConfigError, match="do not divide"):
        load(tmp_path / "a.npz", image_size=(33, 32))
    padded = load(tmp_path / "a.npz", image_size=(33, 32), indivisible="pad")
    assert padded.config.grid == (5, 4)


def test_a_class_token_that_gets_a_position_answers_the_same(tmp_path: Path) -> None:
    weights = reference.random_weights(dialect="big_vision", positions=16)
    reference.save(tmp_path / "bv.npz", weights)
    model = load(tmp_path / "bv.npz", positions_for_prefix=1)
    table = model.state_dict()["positions.0.table"]
    assert table.shape == (17, 32)
    assert not table[0].any()
    assert model.load_report.adapted == [
        "Positions of prefix tokens that had none added as zeros, which changes no output."
    ]
    assert_same(model, reference.logits(weights, IMAGES, reference.BIG_VISION))
