"""The masked autoencoder: what enters the model, what is predicted, and by which models."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from batches import labelled
from tiny_vits import SIZES, random_vit
from vitlab.core.errors import ConfigError
from vitlab.models.create import create
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.dino import Dino, DinoOptions
from vitlab.objectives.mae import MAEOptions, MaskedAutoencoder
from vitlab.objectives.masked_patches import MaskedPatches, MaskedPatchesOptions
from vitlab.objectives.patches import patches_of

NOW = torch.zeros(())
SMALL: dict[str, Any] = {"decoder_width": 8, "decoder_depth": 1, "decoder_heads": 2}


def made(*, options: dict[str, Any] | None = None, **fields: Any) -> tuple[ViT, MaskedAutoencoder]:
    """A ViT of 16 patches and its objective."""
    sizes = {**SIZES, "image_size": (16, 16), "num_classes": 0, **fields}
    model = random_vit(ViTConfig(**sizes))
    torch.manual_seed(0)
    return model, MaskedAutoencoder(MAEOptions(**{**SMALL, **(options or {})}), model)


def images(num: int = 4) -> Tensor:
    return torch.randn(num, 3, 16, 16, generator=torch.Generator().manual_seed(2))


def a_batch(num: int = 4) -> Any:
    return labelled(images(num), torch.zeros(num, 1))


def silent(objective: MaskedAutoencoder) -> None:
    """Let the decoder predict zeros."""
    torch.nn.init.zeros_(objective.decoder.leave.weight)
    torch.nn.init.zeros_(objective.decoder.leave.bias)


def test_who_says_nothing_is_wrong_by_the_variance_of_removed_patches() -> None:
    """Normalised by torch's unbiased variance, a patch of n values has a mean square of (n - 1) / n."""
    model, objective = made()
    silent(objective)
    n = 3 * 4 * 4
    assert objective.loss(model, a_batch(), NOW)[0].item() == pytest.approx((n - 1) / n, rel=1e-4)


def test_pixels_as_they_are_by_numpy() -> None:
    model, objective = made(options={"target": "pixels"})
    silent(objective)
    batch = a_batch()
    removed = objective.order(batch.places)[:, 4:]
    values = batch.images.double().numpy().reshape(4, 3, 4, 4, 4, 4)  # b c row p column q
    squares = [np.mean(values[b, :, n // 4, :, n % 4, :] ** 2) for b in range(4) for n in removed[b].tolist()]
    assert objective.loss(model, batch, NOW)[0].item() == pytest.approx(np.mean(squares), rel=1e-5)


@pytest.mark.parametrize(("ratio", "kept"), [(0.75, 4), (0.5, 8), (0.6, 6), (0.95, 1), (0.01, 15)])
def test_as_many_patches_are_kept_as_the_authors_keep(ratio: float, kept: int) -> None:
    _, objective = made(options={"mask_ratio": ratio})
    assert objective.sizes == (kept, 16 - kept)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"pool": "mean", "class_token": False},
        {"rotary": True},
        {"positions": "relative2d", "pool": "mean", "class_token": False},
        {"positions": "relative", "num_registers": 2},
        {"positions": "sincos2d", "positions_at": "every"},
        {"norm_pooled": True, "pool": "mean"},
    ],
    ids=lambda fields: "-".join(fields) or "plain",
)
def test_only_kept_patches_enter_at_their_own_places(fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The model sees a quarter of the patches; in which order they are listed changes nothing, where they are does."""
    model, objective = made(**fields)
    batch = a_batch()
    kept, removed = objective.order(batch.places).split([4, 12], dim=1)
    seen = images().requires_grad_()
    encoded = model.encode(model.place(model.patchify(seen).keep(kept)))
    assert encoded.patches.shape[1] == 4
    [gradient] = torch.autograd.grad(objective.decoder(encoded, removed).square().sum(), seen)
    moved = model.patches(gradient)[0].abs().sum(dim=2) > 0
    assert torch.equal(moved, torch.zeros(4, 16, dtype=torch.bool).scatter(1, kept, torch.ones(4, 4, dtype=torch.bool)))
    expected = objective.loss(model, batch, NOW)[0]
    listed = torch.cat([kept.flip(1), removed.roll(3, 1)], dim=1)
    monkeypatch.setattr(objective, "order", lambda _: listed)
    torch.testing.assert_close(objective.loss(model, batch, NOW)[0], expected)
    monkeypatch.setattr(objective, "order", lambda _: listed.roll(1, 1))
    assert abs(objective.loss(model, batch, NOW)[0].item() - expected.item()) > 1e-4


def test_removed_patches_are_counted_from_places() -> None:
    _, objective = made()
    whole = objective.order(torch.arange(1000))
    assert torch.equal(objective.order(torch.arange(300, 310)), whole[300:310])
    assert torch.equal(whole.sort(dim=1).values, torch.arange(16).expand(1000, 16))
    counts = whole[:, :4].flatten().bincount(minlength=16)
    assert counts.min() > 190  # of 250
    assert counts.max() < 310


def test_a_hybrid_shows_what_is_hidden_and_is_refused() -> None:
    hybrid = create("r50-vit-b16-224", num_classes=0, image_size=32, resnet_layers=(1,), resnet_width=32, patch_size=8)
    for build in (
        lambda: MaskedAutoencoder(MAEOptions(**SMALL), hybrid),
        lambda: MaskedPatches(MaskedPatchesOptions(), hybrid),
        lambda: Dino(DinoOptions(patch_weight=1.0, out_dim=8), hybrid),
    ):
        with pytest.raises(ConfigError, match="Tokens of Hybrid see beyond their own patches, so that [mi]"):
            build()
    Dino(DinoOptions(out_dim=8), hybrid)  # which hides nothing


def test_models_that_cannot_are_refused_in_a_sentence() -> None:
    class Whole(ViT):
        takes_subsets = False

    whole = Whole(ViTConfig(**{**SIZES, "num_classes": 0}))
    whole.initialize()
    with pytest.raises(ConfigError, match="mae encodes some of an image's patches and Whole takes all of them"):
        MaskedAutoencoder(MAEOptions(**SMALL), whole)
    MaskedPatches(MaskedPatchesOptions(), whole)  # which leaves none out
    with pytest.raises(ConfigError, match="does not cut images into patches: choose a Vision Transformer"):
        MaskedAutoencoder(MAEOptions(**SMALL), create("sasa-digits", num_classes=0))
    with pytest.raises(ConfigError, match="does not cut images into patches: choose a Vision Transformer"):
        Dino(DinoOptions(patch_weight=1.0, out_dim=8), create("sasa-digits", num_classes=0))
    with pytest.raises(ConfigError, match="needs images of two patches at least"):
        made(image_size=(4, 4))
    with pytest.raises(ConfigError, match="objective.mask_ratio must be above 0 and below 1"):
        MAEOptions(mask_ratio=1.0)
    with pytest.raises(ConfigError, match="objective.decoder_width must be a multiple of 4, not 6"):
        MAEOptions(decoder_width=6)
    with pytest.raises(ConfigError, match=r"objective.decoder_width \(16\) must be a multiple of .*heads \(3\)"):
        MAEOptions(decoder_width=16, decoder_heads=3)


def test_patch_dropout_is_refused_where_the_objective_chooses_patches() -> None:
    """Which would otherwise be ignored: these leave out or hide patches between `patchify` and `place`."""
    model = create("vit-digits", num_classes=0, depth=1, patch_dropout=0.5)
    for what, build in {
        "mae": lambda: MaskedAutoencoder(MAEOptions(**SMALL), model),
        "masked-patches": lambda: MaskedPatches(MaskedPatchesOptions(), model),
        r"iBOT \(objective.patch_weight\)": lambda: Dino(DinoOptions(patch_weight=1.0, out_dim=8), model),
    }.items():
        with pytest.raises(ConfigError, match=f"^{what} decides by itself .* set model.patch_dropout to 0"):
            build()
    Dino(DinoOptions(out_dim=8), model)  # whose student sees some patches of a view, and its teacher all


def test_pictures_show_what_is_left_and_what_is_filled_in() -> None:
    model, objective = made()
    silent(objective)
    batch = a_batch(2)
    shown = objective.show(model, batch)
    kept = objective.order(batch.places)[:, :4]
    for b, row in enumerate(shown.rows):
        pictures = dict(row)
        assert set(pictures) == {"what was left", "filled in", "the picture"}
        whole = pictures["the picture"]
        expected = (batch.images[b].double().permute(1, 2, 0).numpy() * 0.5 + 0.5) * 255
        assert np.abs(whole - expected.clip(0, 255)).max() <= 0.5 + 1e-6
        for n in range(16):
            y, x = 4 * (n // 4), 4 * (n % 4)
            place = np.s_[y : y + 4, x : x + 4]
            if n in kept[b]:
                assert np.array_equal(pictures["what was left"][place], whole[place])
                assert np.array_equal(pictures["filled in"][place], whole[place])
            else:
                assert (pictures["what was left"][place] == 128).all()
                assert len(np.unique(pictures["filled in"][place])) == 1  # its true mean, for nothing else was said


@pytest.mark.parametrize("seed", [0, 1])
def test_the_look_at_a_models_patches_draws_nothing_from_the_runs_generator(seed: int) -> None:
    """It is made on the model's device: fresh weights would depend on where the model is."""
    model = random_vit(ViTConfig(**{**SIZES, "image_size": (16, 16), "num_classes": 0}))
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    patches_of(model, "mae")
    assert torch.equal(torch.get_rng_state(), before)
