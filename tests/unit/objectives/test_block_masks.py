"""Blocks of hidden patches: how many, where, and counted from places."""

import torch

from vitlab.objectives.block_masks import block_masks

GRID = (12, 16)


def test_blocks_have_the_sizes_that_are_drawn_and_are_connected() -> None:
    places = torch.arange(4000)
    masks = block_masks(5, places, GRID, (0.1, 0.5), 0.6)
    assert masks.patches.shape == masks.weights.shape == (4000, 96)
    counts = (masks.weights > 0).sum(dim=1)
    hidden = counts > 0
    assert abs(hidden.float().mean().item() - 0.6) < 0.03  # 4 deviations
    shares = counts[hidden] / 192
    assert 0.095 < shares.min() < 0.12
    assert 0.48 < shares.max() <= 0.5
    assert abs(shares.mean().item() - 0.3) < 0.015
    torch.testing.assert_close(masks.weights.sum(dim=1), hidden.float())
    for patches, count in zip(masks.patches[hidden][:200], counts[hidden][:200], strict=True):
        cells = {(int(p) // 16, int(p) % 16) for p in patches[:count]}
        assert len(cells) == count
        reached, todo = set[tuple[int, int]](), [next(iter(cells))]
        while todo:
            y, x = todo.pop()
            if (y, x) in cells and (y, x) not in reached:
                reached.add((y, x))
                todo += [(y + 1, x), (y - 1, x), (y, x + 1), (y, x - 1)]
        assert reached == cells


def test_every_place_is_hidden_about_as_often_and_shapes_differ() -> None:
    masks = block_masks(5, torch.arange(4000), GRID, (0.2, 0.2), 1.0)
    often = torch.zeros(192).scatter_add(0, masks.patches.flatten(), torch.ones(masks.patches.numel())) / 4000
    assert 0.08 < often.min() < often.max() < 0.3  # corners least
    rows = (masks.patches // 16).amax(dim=1) - (masks.patches // 16).amin(dim=1)
    columns = (masks.patches % 16).amax(dim=1) - (masks.patches % 16).amin(dim=1)
    assert (rows > 1.4 * columns).float().mean() > 0.15
    assert (columns > 1.4 * rows).float().mean() > 0.15


def test_masks_are_counted() -> None:
    whole = block_masks(5, torch.arange(20), GRID, (0.1, 0.5), 0.5)
    part = block_masks(5, torch.arange(8, 12), GRID, (0.1, 0.5), 0.5)
    assert torch.equal(whole.patches[8:12], part.patches)
    assert torch.equal(whole.weights[8:12], part.weights)
    assert not torch.equal(whole.patches, block_masks(6, torch.arange(20), GRID, (0.1, 0.5), 0.5).patches)


def test_hiding_and_taking() -> None:
    masks = block_masks(5, torch.arange(30), (3, 3), (0.1, 0.9), 0.7)
    values = torch.randn(30, 9, 2)
    hidden = masks.hide(values, torch.tensor([7.0, 8.0]))
    for i in range(30):
        own = set(masks.patches[i][masks.weights[i] > 0].tolist())
        for j in range(9):
            assert hidden[i, j].tolist() == ([7.0, 8.0] if j in own else values[i, j].tolist())
        assert torch.equal(masks.take(values)[i], values[i][masks.patches[i]])
