"""Accuracy at each level of a hierarchy, by hand."""

import pytest
import torch

from vitlab.data.hierarchy import hierarchy_over
from vitlab.evaluation.semantic import SemanticAccuracy

ABOVE = {"plant": None, "animal": None, "cat": "animal", "dog": "animal"}


def test_a_level_of_classes_is_told_by_their_own_logits() -> None:
    """As ImageNet-21K-P's authors count: a plant's image has no ancestor at the second level."""
    counter = SemanticAccuracy(hierarchy_over(("plant", "animal", "cat", "dog"), ABOVE, where="here"))
    logits = torch.tensor([[5.0, 1, 9, 0], [5.0, 1, 9, 0], [0.0, 1, 2, 3], [0.0, 1, 2, 3]])
    counter.add(logits, torch.tensor([0, 2, 2, 1]))  # plant: right; cat: wrong, right; cat: right, wrong; animal: right
    metrics = counter.outcome().metrics
    assert metrics["semantic"].value == pytest.approx(4 / 6)
    assert (metrics["level 0"].value, metrics["level 0"].count) == (pytest.approx(3 / 4), 4)
    assert (metrics["level 1"].value, metrics["level 1"].count) == (pytest.approx(1 / 2), 2)


def test_other_nodes_are_as_probable_as_what_is_below_them() -> None:
    """The plant is the most probable class, and the two animals together more probable."""
    counter = SemanticAccuracy(hierarchy_over(("plant", "cat", "dog"), ABOVE, where="here"))
    counter.add(torch.tensor([[0.4, 0.3, 0.3]]).log(), torch.tensor([1]))
    metrics = counter.outcome().metrics
    assert metrics["level 0"].value == 1
    assert metrics["level 1"].value == 1  # of cats and dogs, as probable as each other, the first
    assert counter.outcome().details["nodes of levels"] == {"0": 2, "1": 2}


def test_batches_add_up() -> None:
    hierarchy = hierarchy_over(("plant", "cat", "dog"), ABOVE, where="here")
    logits, labels = torch.randn(20, 3), torch.arange(20) % 3
    whole, parts = SemanticAccuracy(hierarchy), SemanticAccuracy(hierarchy)
    whole.add(logits, labels)
    for rows in torch.arange(20).split(6):
        parts.add(logits[rows], labels[rows])
    assert whole.outcome() == parts.outcome()
