import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from torchvision.transforms import functional as TF

from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.subject import subject_from
from vitlab.evaluation.testtime import TestTime, averaged, enlarged, view_images


def subject(size: tuple[int, int] = (14, 14), **preprocess: Any) -> Any:
    weights = torch.randn(3 * size[0] * size[1], 5, generator=torch.Generator().manual_seed(0)) / 10
    return subject_from(
        lambda images: images.flatten(1)[:, :7],
        logits=lambda images: images.flatten(1) @ weights,
        name="a function",
        preprocess=Preprocess(size=size, **preprocess),
        fingerprint="weights",
    )


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


def test_crops_are_torchvisions_five() -> None:
    corners = TF.five_crop(IMAGES, [14, 14])
    found = list(view_images(IMAGES, (14, 14), TestTime(crops=5)))
    for ours, theirs in zip(found, (corners[4], *corners[:4]), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_flipped_crops_are_torchvisions_ten() -> None:
    ten = {tuple(crop.flatten().tolist()) for crop in TF.ten_crop(IMAGES, [14, 14])}
    found = {tuple(view.flatten().tolist()) for view in view_images(IMAGES, (14, 14), TestTime(crops=5, flip=True))}
    assert found == ten


@pytest.mark.parametrize("views", [TestTime(crops=5), TestTime(flip=True), TestTime(crops=5, flip=True)])
def test_features_and_probabilities_are_averaged(views: TestTime) -> None:
    plain = subject()
    wide = averaged(plain, views)
    images = IMAGES if views.crops == 5 else IMAGES[..., :14, :14]
    parts = [view.numpy() for view in view_images(images, (14, 14), views)]
    assert len(parts) == views.views
    features = np.mean([part.reshape(2, -1)[:, :7] for part in parts], axis=0)
    np.testing.assert_allclose(wide.features(images).numpy(), features, atol=1e-6)
    each = [plain.logits(torch.from_numpy(part.copy())).double().numpy() for part in parts]
    softmax = np.mean([np.exp(z) / np.exp(z).sum(1, keepdims=True) for z in each], axis=0)
    assert wide.logits is not None
    np.testing.assert_allclose(wide.logits(images).double().softmax(1).numpy(), softmax, rtol=1e-5)
    sigmoid = np.mean([1 / (1 + np.exp(-z)) for z in each], axis=0)
    several = averaged(plain, views, multi_label=True)
    assert several.logits is not None
    np.testing.assert_allclose(several.logits(images).double().sigmoid().numpy(), sigmoid, rtol=1e-5)


def test_one_view_is_the_subject_itself() -> None:
    plain = subject()
    assert averaged(plain, TestTime()) is plain


def test_a_mirror_image_alone_leaves_the_pictures_as_they_were() -> None:
    plain = subject(resize="shortest", shortest_edge=16)
    assert averaged(plain, TestTime(flip=True)).preprocess == plain.preprocess


@pytest.mark.parametrize(
    ("preprocess", "views", "size"),
    [
        ({"size": (224, 224)}, TestTime(crops=5), (256, 256)),
        ({"size": (224, 224)}, TestTime(crops=5, resize=300), (300, 300)),
        ({"size": (224, 224)}, TestTime(resize=256), (256, 256)),
        ({"size": (224, 224), "resize": "shortest", "shortest_edge": 248}, TestTime(crops=5), (248, 248)),
        ({"size": (224, 224), "resize": "shortest"}, TestTime(crops=5), (256, 256)),
        ({"size": (112, 224)}, TestTime(crops=5), (128, 256)),
    ],
)
def test_pictures_are_read_at_the_larger_size(
    preprocess: dict[str, Any], views: TestTime, size: tuple[int, int]
) -> None:
    plain = subject(**preprocess)
    assert enlarged(plain, views) == size
    wide = averaged(plain, views)
    assert wide.preprocess.size == size
    assert wide.preprocess.mean == plain.preprocess.mean
    if plain.preprocess.resize == "shortest":
        assert wide.preprocess.shortest_edge == min(size)


def test_crops_larger_than_the_picture_are_refused() -> None:
    with pytest.raises(EvaluationError, match="Crops of 14 px cannot be taken from pictures of 10 px"):
        averaged(subject(), TestTime(resize=10))


@pytest.mark.parametrize("crops", [0, 2, 3, True, "5"])
def test_numbers_of_crops_that_are_not_known_are_refused(crops: Any) -> None:
    with pytest.raises(ConfigError, match=r"crops must be 1 \| 5, not"):
        TestTime(crops=crops)


def test_views_are_part_of_what_features_are_kept_under() -> None:
    plain = subject()
    prints = {averaged(plain, views).fingerprint for views in (TestTime(), TestTime(flip=True), TestTime(crops=5))}
    assert len(prints) == 3
    assert averaged(dataclasses.replace(plain, fingerprint=None), TestTime(flip=True)).fingerprint is None
