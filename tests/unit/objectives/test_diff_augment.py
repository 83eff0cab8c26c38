"""DiffAugment against a reference image by image in NumPy, and the gradients that pass through it."""

from typing import Any

import numpy as np
import torch

from vitlab.core.random import key, uniform_at
from vitlab.objectives.diff_augment import diff_augment

KEY, PLACES = key(3, "test"), torch.tensor([5, 0, 2**40, 77, 123])
ALL = ("color", "translation", "cutout")


def reference(image: np.ndarray[Any, Any], drawn: list[float]) -> np.ndarray[Any, Any]:
    """The authors' operations as their paper and code describe them, on one image [C, H, W] in float64."""
    _, height, width = image.shape
    image = image + (drawn[0] - 0.5)
    image = (image - image.mean(axis=0)) * (2 * drawn[1]) + image.mean(axis=0)
    image = (image - image.mean()) * (drawn[2] + 0.5) + image.mean()
    moved = np.zeros_like(image)
    shifts = []
    for side, draw in ((height, drawn[3]), (width, drawn[4])):
        most = int(side * 0.125 + 0.5)
        shifts.append(int(draw * (2 * most + 1)) - most)
    for i in range(height):
        for j in range(width):
            if 0 <= i + shifts[0] < height and 0 <= j + shifts[1] < width:
                moved[:, i, j] = image[:, i + shifts[0], j + shifts[1]]
    size = [int(side * 0.5 + 0.5) for side in (height, width)]
    middle = [
        int(draw * (side + 1 - own % 2)) for draw, side, own in zip(drawn[5:], (height, width), size, strict=True)
    ]
    for i in range(middle[0] - size[0] // 2, middle[0] - size[0] // 2 + size[0]):
        for j in range(middle[1] - size[1] // 2, middle[1] - size[1] // 2 + size[1]):
            if 0 <= i < height and 0 <= j < width:
                moved[:, i, j] = 0
    return moved


def images() -> torch.Tensor:
    return torch.randn(5, 3, 16, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_each_image_is_changed_as_the_paper_says() -> None:
    found = diff_augment(images(), ALL, KEY, PLACES)
    for image, place, own in zip(images().numpy(), PLACES.tolist(), found.numpy(), strict=True):
        drawn = [uniform_at(KEY, place, draw) for draw in range(7)]
        np.testing.assert_allclose(own, reference(image, drawn), atol=1e-12)


def test_what_is_not_asked_for_is_left_out() -> None:
    given = images()
    assert torch.equal(diff_augment(given, (), KEY, PLACES), given)
    cut = diff_augment(given, ("cutout",), KEY, PLACES)
    assert torch.equal(cut[cut != 0], given[cut != 0])
    assert 0.05 < (cut == 0).double().mean() <= 0.25
    shifted = diff_augment(given, ("translation",), KEY, PLACES)
    assert set(shifted.flatten().tolist()) - {0.0} <= set(given.flatten().tolist())


def test_an_image_is_changed_by_its_place_alone() -> None:
    whole = diff_augment(images(), ALL, KEY, PLACES)
    torch.testing.assert_close(diff_augment(images()[3:], ALL, KEY, PLACES[3:]), whole[3:])
    assert not torch.allclose(diff_augment(images(), ALL, KEY + 1, PLACES), whole)


def test_gradients_pass() -> None:
    given = images().requires_grad_()
    assert torch.autograd.gradcheck(lambda x: diff_augment(x, ALL, KEY, PLACES[:1]), (given[:1, :, :6, :6],))
    diff_augment(given, ("color", "translation"), KEY, PLACES).square().sum().backward()
    assert given.grad is not None
    assert (given.grad != 0).double().mean() > 0.7  # what was moved out has none
