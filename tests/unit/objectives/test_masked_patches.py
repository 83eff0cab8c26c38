"""Masked patch prediction: colours by hand and by NumPy, shares over many draws, and what a corrupted patch shows."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tiny_vits import SIZES, random_vit
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import IMAGENET_MEAN, IMAGENET_STD, Preprocess
from vitlab.data.batch import Batch, Stream
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.masked_patches import (
    MaskedPatches,
    MaskedPatchesOptions,
    class_colors,
    color_classes,
    thumbnails,
)

NOW = torch.zeros(())
PREPROCESS = Preprocess(size=(16, 16), mean=IMAGENET_MEAN, std=IMAGENET_STD)


def made(patch_size: int = 4, image_size: int = 16, **options: Any) -> tuple[ViT, MaskedPatches]:
    """A ViT of 16 patches, or as many as asked for, and its objective."""
    sizes = {**SIZES, "image_size": (image_size, image_size), "patch_size": patch_size, "num_classes": 0}
    model = random_vit(ViTConfig(**sizes), preprocess=PREPROCESS.with_size((image_size, image_size)))
    torch.manual_seed(0)
    return model, MaskedPatches(MaskedPatchesOptions(**options), model)


def photos(num: int, side: int = 16) -> Tensor:
    return torch.randint(256, (num, 3, side, side), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)


def batch_of(pixels: Tensor, first: int = 0) -> Batch:
    places = torch.arange(first, first + len(pixels))
    return Batch({"train": Stream((PREPROCESS.normalize(pixels),), {}, places)})


@pytest.mark.parametrize(
    ("color", "expected"),
    [
        ((0, 0, 0), 0),
        ((255, 255, 255), 511),
        ((255, 0, 0), 7 * 64),
        ((0, 255, 0), 7 * 8),
        ((0, 0, 255), 7),
        ((31, 32, 63), 8 + 1),  # a level ends at 31.875 and at 63.75
        ((64, 95, 96), 2 * 64 + 2 * 8 + 3),
        ((127.5, 127.4, 127.6), 4 * 64 + 3 * 8 + 4),  # one half is the fifth level's
        ((-3.0, 300.0, 128.0), 7 * 8 + 4),  # of erased noise
    ],
)
def test_colors_by_hand(color: tuple[float, float, float], expected: int) -> None:
    assert color_classes(torch.tensor(color).float()).item() == expected


def test_a_grey_picture_has_one_class() -> None:
    model, objective = made()
    grey = torch.full((2, 3, 16, 16), 128, dtype=torch.uint8)
    assert objective.classes(model, PREPROCESS.normalize(grey)).unique().tolist() == [4 * 64 + 4 * 8 + 4]


@pytest.mark.parametrize(("target", "side"), [("color", 1), ("thumbnail", 4)])
@pytest.mark.parametrize("patch", [4, 8, 16])
def test_classes_are_those_of_numpy(target: str, side: int, patch: int) -> None:
    """In float64, from the bytes: floor of the mean of [0, 1] times 8, at most 7."""
    model, objective = made(patch, 32, target=target)
    squares = photos(5, 8).repeat_interleave(4, 2).repeat_interleave(4, 3)
    pixels = squares // 2 + photos(5, 32) // 2
    found = objective.classes(model, PREPROCESS.normalize(pixels))
    cut = patch // side
    blocks = pixels.numpy().astype(np.float64).reshape(5, 3, 32 // patch, side, cut, 32 // patch, side, cut)
    means = blocks.mean(axis=(4, 7)).transpose(0, 2, 4, 3, 5, 1).reshape(5, (32 // patch) ** 2, side**2, 3)
    level = np.minimum(np.floor(means / 255 * 8), 7)
    assert np.array_equal(found.numpy(), level @ np.array([64, 8, 1]))
    assert len(found.unique()) > 6  # not all alike


def test_a_patch_that_four_does_not_divide_is_downsized_too() -> None:
    flat = torch.arange(14 * 14.0).repeat(3)[None, None]  # rows of 14 px
    small = thumbnails(flat, 4)[0, 0].reshape(4, 4, 3)
    rows = np.arange(14 * 14.0).reshape(14, 14)
    edges = [(0, 4), (3, 7), (7, 11), (10, 14)]  # as torch's adaptive pooling divides: floor and ceil
    expected = [[rows[a:b, c:d].mean() for c, d in edges] for a, b in edges]
    np.testing.assert_allclose(small[:, :, 1].numpy(), expected, rtol=1e-5)


def test_a_class_is_that_of_its_own_color() -> None:
    every = torch.arange(512)
    assert torch.equal(color_classes(class_colors(every)), every)


@pytest.mark.parametrize("target", ["color", "thumbnail"])
def test_who_knows_nothing_has_a_loss_of_ln_512(target: str) -> None:
    model, objective = made(target=target)
    torch.nn.init.zeros_(objective.predict.weight)
    loss, metrics = objective.loss(model, batch_of(photos(6)), NOW)
    assert loss.item() == pytest.approx(math.log(512), rel=1e-6)
    assert 0 <= metrics["color accuracy"].item() < 0.2


@pytest.mark.parametrize(
    ("options", "corrupted", "masked", "swapped"),
    [
        ({}, 8, 0.4, 0.05),
        ({"fraction": 0.15}, 2, 0.1, 0.0125),  # BERT's, of 16 patches
        ({"mask_share": 0.5, "random_share": 0.25}, 8, 0.25, 0.125),
        ({"mask_share": 1.0, "random_share": 0.0}, 8, 0.5, 0.0),
    ],
)
def test_shares_over_many_draws(options: dict[str, Any], corrupted: int, masked: float, swapped: float) -> None:
    """Of all patches: .40 masked, .05 swapped and .05 left as they are, by default."""
    _, objective = made(**options)
    how = objective.corruption(torch.arange(20_000))
    assert how.places.shape == (20_000, corrupted)
    assert all(len(set(row)) == corrupted for row in how.places[:500].tolist())
    error = 4 * math.sqrt(0.25 / how.masked.numel())
    assert how.masked.float().mean().item() * corrupted / 16 == pytest.approx(masked, abs=error)
    assert how.swapped.float().mean().item() * corrupted / 16 == pytest.approx(swapped, abs=error)
    assert not (how.masked & how.swapped).any()
    assert not (how.others == how.places).any()
    for chosen in (how.places, how.others):  # every patch as often as the others
        counts = chosen.flatten().bincount(minlength=16) / chosen.numel()
        assert counts.min() > 0.9 / 16
        assert counts.max() < 1.1 / 16


def test_draws_are_counted_from_places() -> None:
    """An image's own, whatever else is in the batch, and others in the next epoch."""
    _, objective = made()
    whole, part = objective.corruption(torch.arange(64)), objective.corruption(torch.arange(40, 48))
    assert all(torch.equal(a[40:48], b) for a, b in zip(whole, part, strict=True))
    assert not torch.equal(whole.places, objective.corruption(torch.arange(64, 128)).places)
    _, again = made()
    assert torch.equal(again.corruption(torch.arange(64)).places, whole.places)
    torch.manual_seed(1)
    other = MaskedPatches(MaskedPatchesOptions(), made()[0])
    assert not torch.equal(other.corruption(torch.arange(64)).places, whole.places)
    other.load_state_dict(again.state_dict())  # a checkpoint brings its draws along
    assert torch.equal(other.corruption(torch.arange(64)).places, whole.places)


def test_tokens_become_what_was_drawn() -> None:
    model, objective = made()
    batch = batch_of(photos(40))
    tokens, how = model.patchify(batch.images), objective.corruption(batch.places)
    found = objective.corrupted(tokens, how)
    kinds = {"masked": 0, "swapped": 0, "kept": 0}
    for b in range(40):
        touched = how.places[b].tolist()
        for n in range(16):
            if n not in touched:
                assert torch.equal(found.values[b, n], tokens.values[b, n])
                continue
            at = touched.index(n)
            if how.masked[b, at]:
                kind, expected = "masked", objective.mask
            elif how.swapped[b, at]:
                kind, expected = "swapped", tokens.values[b, how.others[b, at]]
            else:
                kind, expected = "kept", tokens.values[b, n]
            assert torch.equal(found.values[b, n], expected)
            kinds[kind] += 1
    assert all(kinds.values())


@pytest.mark.parametrize("target", ["color", "thumbnail", "pixels"])
def test_the_loss_is_that_of_corrupted_patches(target: str) -> None:
    """By NumPy in float64, from what is predicted of them."""
    model, objective = made(target=target)
    batch = batch_of(photos(6))
    loss, _ = objective.loss(model, batch, NOW)
    how = objective.corruption(batch.places)
    said = objective.predicted(model, batch.images, how).detach().double().numpy()
    sought = model.patches(batch.images)[0] if target == "pixels" else objective.classes(model, batch.images)
    each: list[float] = []
    for b in range(6):
        for m, n in enumerate(how.places[b].tolist()):
            if target == "pixels":
                each.append(float(np.mean((said[b, m] - sought[b, n].double().numpy()) ** 2)))
                continue
            for logits, k in zip(said[b, m].reshape(-1, 512), sought[b, n].tolist(), strict=True):
                top = logits.max()
                each.append(float(np.log(np.exp(logits - top).sum()) + top - logits[k]))
    assert loss.item() == pytest.approx(np.mean(each), rel=1e-5)


def test_nothing_shows_of_masked_patches() -> None:
    """What is predicted does not move with the pixels of patches that are masked; it does with those of the others."""
    model, objective = made(mask_share=1.0, random_share=0.0)
    batch = batch_of(photos(3))
    how, images = objective.corruption(batch.places), batch.images.clone().requires_grad_()
    [gradient] = torch.autograd.grad(objective.predicted(model, images, how).square().sum(), images)
    moved = model.patches(gradient)[0].abs().sum(dim=2) > 0
    hidden = torch.zeros(3, 16, dtype=torch.bool).scatter(1, how.places, torch.ones(3, 8, dtype=torch.bool))
    assert torch.equal(moved, ~hidden)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="add up to 1.2: make that at most 1"):
        MaskedPatchesOptions(mask_share=0.9, random_share=0.3)
    with pytest.raises(ConfigError, match="objective.fraction"):
        MaskedPatchesOptions(fraction=0.0)
    with pytest.raises(ConfigError, match="downsizes a patch to 4 x 4, and these have 2 x 2 px"):
        made(2, 8, target="thumbnail")
    with pytest.raises(ConfigError, match="needs images of two patches at least"):
        made(16, 16)


@pytest.mark.parametrize("target", ["color", "thumbnail", "pixels"])
def test_pictures_show_what_was_hidden_and_said(target: str) -> None:
    model, objective = made(target=target, mask_share=1.0, random_share=0.0)
    pixels = photos(2)
    batch = batch_of(pixels)
    shown = objective.show(model, batch)
    assert len(shown.rows) == 2
    places = objective.corruption(batch.places).places
    for b, row in enumerate(shown.rows):
        pictures = dict(row)
        original = pixels[b].permute(1, 2, 0).numpy()
        assert np.array_equal(pictures["the picture"], original)
        for n in range(16):
            y, x = 4 * (n // 4), 4 * (n % 4)
            square = {words: picture[y : y + 4, x : x + 4] for words, picture in pictures.items()}
            if n not in places[b]:
                assert all(np.array_equal(each, original[y : y + 4, x : x + 4]) for each in square.values())
                continue
            mean = np.round(np.array(IMAGENET_MEAN) * 255)
            assert np.array_equal(square["as the model saw it"], np.broadcast_to(mean, (4, 4, 3)))
            if target == "color":
                assert len(np.unique(square["what it said"].reshape(-1, 3), axis=0)) == 1
                off = square["what is there"].reshape(-1, 3)[0] - original[y : y + 4, x : x + 4].mean(axis=(0, 1))
                assert np.abs(off).max() <= 255 / 16 + 1  # half a level
            if target == "pixels":
                assert np.array_equal(square["what is there"], original[y : y + 4, x : x + 4])
