"""What each network assumes, seen before any training."""

import pytest
import torch

from vitlab.studies.bias_measures import shuffled
from vitlab.studies.bias_networks import Cnn, Permuted, beside, build

KINDS = ("mlp", "cnn-batch", "cnn-layer", "rnn", "vit", "vit-none", "graph")
IMAGES = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [8, 32])
def test_sizes_are_of_one_kind(kind: str, size: int) -> None:
    network = build(kind, str(size)).eval()
    made = network(torch.randn(2, 3, size, size))
    assert made.ndim == (2 if kind == "mlp" else 4)
    assert torch.isfinite(made).all()
    if size == 8:
        assert 5_000 < sum(parameter.numel() for parameter in network.parameters()) < 50_000


def test_a_permuted_network_sees_the_same_pixels_in_another_order() -> None:
    network = Permuted(build("mlp", "8"), 8).eval()
    order = network.order
    moved = torch.empty_like(IMAGES.flatten(2))
    moved[:, :, order] = IMAGES.flatten(2)  # what the permutation undoes
    torch.testing.assert_close(network(moved.view_as(IMAGES)), network.network(IMAGES))


def test_attention_without_positions_does_not_see_the_order_of_patches() -> None:
    for kind, same in (("vit-none", True), ("vit", False), ("rnn", False)):
        network = build(kind, "8").eval()
        one, other = (network(images).mean(dim=(2, 3)) for images in (IMAGES, shuffled(IMAGES, 2)))
        assert torch.allclose(one, other, atol=1e-5) == same, kind


def test_a_convolutional_network_sees_nine_pixels() -> None:
    network = Cnn(torch.nn.Identity).eval()  # a norm would take its mean from the whole picture
    images = torch.randn(1, 3, 32, 32, requires_grad=True)
    network(images)[0, :, 16, 16].sum().backward()
    assert images.grad is not None
    rows = images.grad.abs().sum(dim=(0, 1, 3)).nonzero().flatten()
    assert (int(rows.min()), int(rows.max())) == (12, 20)


def test_a_recurrent_network_knows_only_what_came_before() -> None:
    network = build("rnn", "8").eval()
    images = torch.randn(1, 3, 8, 8, requires_grad=True)
    network(images)[0, :, 0, 1].sum().backward()  # the second patch
    assert images.grad is not None
    assert images.grad[..., :2, :4].abs().sum() > 0
    assert images.grad[..., 2:, :].abs().sum() == images.grad[..., :2, 4:].abs().sum() == 0


def test_neighbours_by_hand() -> None:
    x = torch.arange(9.0).view(1, 1, 3, 3)
    expected = [[2, 2, 3], [10 / 3, 4, 14 / 3], [5, 6, 6]]
    torch.testing.assert_close(beside(x)[0, 0], torch.tensor(expected))
