"""Captions on constructed figures that show what the paper found, and on those of a fresh model, which do not."""

import re
from typing import Any

import numpy as np
import pytest
import torch

from vitlab.inspection.captions import (
    distance_caption,
    entropy_caption,
    filters_caption,
    positions_caption,
    rollout_caption,
    rollout_doubt,
)
from vitlab.inspection.distance import patch_distances
from vitlab.inspection.examine import examine
from vitlab.inspection.filters import filter_components, smoothness
from vitlab.inspection.positions import position_similarity
from vitlab.inspection.rollout import coherence
from vitlab.inspection.write import model_figures, view_figures
from vitlab.models.vit import ViT, ViTConfig

GRID = (12, 12)
EQUAL = patch_distances(GRID, 8.0).mean().item()


def waves(count: int, side: int = 8) -> np.ndarray[Any, Any]:
    """Filters of slow waves across and down, the slower the stronger, as those of trained models are."""
    rng = np.random.default_rng(0)
    places = (np.arange(side) + 0.5) / side
    basis = [
        np.outer(np.cos(np.pi * down * places), np.cos(np.pi * across * places)) / (1 + down**2 + across**2)
        for down in range(4)
        for across in range(4)
    ]
    return np.einsum("dck,khw->dchw", rng.standard_normal((count, 3, len(basis))), np.stack(basis))


def test_smoothness_by_hand() -> None:
    """Pixels of a flat picture are alike, those of a checkerboard opposite."""
    flat, checks = torch.ones(1, 4, 4), torch.tensor([[1.0, -1.0] * 2, [-1.0, 1.0] * 2] * 2)[None]
    found = smoothness(torch.stack([flat, checks, torch.zeros(1, 4, 4)]))
    assert found is not None
    assert found.tolist() == pytest.approx([1, -1, 0])
    assert smoothness(torch.ones(2, 3, 1, 1)) is None


def test_smoothness_is_the_correlation_that_numpy_finds() -> None:
    pictures = np.random.default_rng(1).standard_normal((3, 1, 8, 8))
    expected = []
    for (picture,) in pictures:
        across = picture[:, 1:].ravel(), picture[:, :-1].ravel()
        down = picture[1:].ravel(), picture[:-1].ravel()
        expected.append(np.mean([a @ b / np.linalg.norm(a) / np.linalg.norm(b) for a, b in (across, down)]))
    found = smoothness(torch.from_numpy(pictures))
    assert found is not None
    np.testing.assert_allclose(found.numpy(), expected)


def test_filters_are_called_smooth_where_they_are() -> None:
    noise = np.random.default_rng(0).standard_normal((64, 3, 8, 8))
    assert "Here none of them differ from noise" in filters_caption(filter_components(noise))
    assert re.search(r"Here (all|\d+) of them are smooth", filters_caption(filter_components(waves(64))))
    mixed = filters_caption(filter_components(waves(64) + 0.3 * noise))  # as real ones: the strong ones smooth
    assert re.search(r"Here \d+ of them are smooth.*; the others look more like noise.$", mixed)
    few = filters_caption(filter_components(0.3 * waves(64) + noise))
    assert re.search(r"Here (none|only \d) of them differ from noise", few)
    small = filters_caption(filter_components(waves(64, side=2)))
    assert "2 x 2 pixels is too small" in small
    assert "smooth" not in small


def test_positions_of_a_neighbourhood_and_of_chance() -> None:
    rng = np.random.default_rng(0)
    fresh = position_similarity(rng.standard_normal((49, 64)), (7, 7))
    assert "hardly more alike than far ones" in positions_caption(fresh.numpy())
    across, down = np.meshgrid(np.arange(7.0), np.arange(7.0))
    centres = np.arange(7)[:, None]
    bumps = [np.exp(-((axis.reshape(1, -1) - centres) ** 2) / 4) for axis in (across, down)]
    learned = position_similarity(np.concatenate(bumps).T - 0.3, (7, 7))
    assert "near places are alike" in positions_caption(learned.numpy())
    assert "one row or column" in positions_caption(learned.numpy())


def test_a_round_neighbourhood_is_not_called_rows_and_columns() -> None:
    """Places of one row are alike here too, but only since they are near: a bump that falls with distance alone."""
    places = np.mgrid[:9, :9].reshape(2, -1).T
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    caption = positions_caption(np.exp(-(apart**2) / 12).reshape(9, 9, 9, 9))
    assert "near places are alike" in caption
    assert "row" not in caption.partition("Here")[2]


@pytest.mark.parametrize(
    ("shares", "says"),
    [
        ([[0.3, 1.0], [0.4, 0.9], [0.8, 1.0], [0.9, 1.0], [1.0, 1.0], [1.0, 1.0]], "have both kinds.*farther.*paper.$"),
        ([[0.3, 0.3], [0.3, 0.4], [0.9, 1.0]], "first layers look near, and the last ones look farther.*, then 4[0-9]"),
        ([[0.9, 1.0], [0.9, 0.9], [0.3, 0.3]], "none of the first layers looks near.*less far"),
        ([[0.3, 1.0], [0.6, 0.7], [0.3, 1.0]], "both kinds, and the last ones look about as far.*[0-9]\\)\\.$"),
        ([[0.6, 0.6], [0.6, 0.7], [0.6, 0.7]], "neither near nor across"),
        ([[0.98, 1.0], [1.0, 1.02], [1.0, 1.0]], "has not learned where to look.$"),
    ],
)
def test_distances_are_told_as_they_are(shares: list[list[float]], says: str) -> None:
    distance = {layer: EQUAL * np.array(heads) for layer, heads in enumerate(shares, start=1)}
    caption = distance_caption(distance, EQUAL, GRID)
    assert caption.startswith("Each dot is a head")
    assert re.search(says, caption), caption
    assert distance_caption(distance, EQUAL, (4, 4)).endswith("With 4 x 4 patches, near and far hardly differ.")


def test_heads_that_look_everywhere_are_counted() -> None:
    entropy = {1: np.array([7.0, 3.0]), 2: np.array([6.95, 0.0])}
    assert entropy_caption(entropy, 7.0).endswith("here 2 of 4 do.")
    assert entropy_caption({1: np.array([1.0])}, 7.0).endswith("here none does.")
    assert entropy_caption({1: np.array([7.0])}, 7.0).endswith("here all do.")
    assert "dashed" not in entropy_caption(entropy, None)


def test_a_map_that_tells_little_is_said_to() -> None:
    rng, (down, across) = np.random.default_rng(0), np.mgrid[:12, :12]
    spot = 1 + 8 * np.exp(-((down - 4) ** 2 + (across - 6) ** 2) / 8)  # something in the picture
    assert rollout_doubt(spot / spot.sum()) == ""
    assert rollout_caption(spot / spot.sum()).endswith(f"has {9 / spot.mean():.1f} times the mean.")
    scattered = rng.permutation(spot.ravel()).reshape(12, 12)
    assert "beside each other have little in common" in rollout_caption(scattered / scattered.sum())
    even = 1 + 0.02 * spot
    assert "1.1 times the mean. It looked everywhere nearly alike" in rollout_caption(even / even.sum())
    few = rng.permutation(spot[:4, :4].ravel()).reshape(4, 4)  # too few patches to tell an object from chance
    assert "in common" not in rollout_doubt(few / few.sum())


def test_coherence_is_the_correlation_that_numpy_finds() -> None:
    values = np.random.default_rng(0).standard_normal((9, 7))
    centred = values - values.mean()
    across = np.mean(centred[:, 1:] * centred[:, :-1]) / values.var()
    down = np.mean(centred[1:] * centred[:-1]) / values.var()
    assert coherence(values) == pytest.approx((across + down) / 2)
    assert abs(coherence(np.random.default_rng(1).standard_normal((60, 60))) or 1) < 0.05
    assert (coherence(np.add.outer(np.arange(30.0), np.arange(30.0))) or 0) > 0.9
    assert coherence(np.ones((4, 4))) is None
    assert coherence(np.ones((1, 1))) is None


def fresh() -> ViT:
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=(64, 64), patch_size=8, width=64, depth=3, mlp_dim=64, heads=2, num_classes=3))
    model.initialize()
    return model.eval()


def learned() -> ViT:
    """The same with smooth filters, positions of places, and attention to near places that widens with depth."""
    model = fresh()
    down, across = np.meshgrid(np.arange(8.0), np.arange(8.0), indexing="ij")
    centres = np.arange(8)[:, None]
    bumps = np.concatenate([np.exp(-((axis.reshape(1, -1) - centres) ** 2) / 4) for axis in (down, across)]).T
    bumps = bumps - bumps.mean(axis=0)
    with torch.no_grad():
        model.projection.weight.copy_(torch.from_numpy(waves(64)).reshape(model.projection.weight.shape))
        table = next(value for name, value in model.named_parameters() if value.shape[-2:] == (65, 64))
        table.zero_()
        table[..., 1:, :16] = 3 * torch.from_numpy(bumps)
    return model


def test_captions_of_a_fresh_model_and_of_one_that_learned() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    said: dict[str, dict[str, str]] = {}
    for name, model in (("fresh", fresh()), ("learned", learned())):
        found = examine(model, name, [("one", picture)], [picture])
        said[name] = {figure: caption for _, figure, _, caption in model_figures(found)}
        said[name] |= {figure: caption for figure, _, caption in view_figures(found.views[0])}
    assert "Here none of them differ from noise" in said["fresh"]["filters"]
    assert "hardly more alike" in said["fresh"]["positions"]
    assert "has not learned where to look" in said["fresh"]["distance"]
    assert "have little in common" in said["fresh"]["attention"]
    assert "of them are smooth" in said["learned"]["filters"]
    assert "near places are alike" in said["learned"]["positions"]
