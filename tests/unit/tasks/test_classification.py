"""Classification's scores, worked by hand, and its answers."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import log_loss

from tiny_vits import random_vit
from vitlab.data.contract import DataSet, Split
from vitlab.models.vit import ViTConfig
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks.classification import Classification, loss_kind
from vitlab.tasks.classification_report import sections
from vitlab.tasks.results import ReportContext
from vitlab.tasks.sections import Table

CONFIG = ViTConfig(image_size=(8, 8), patch_size=4, width=8, depth=1, mlp_dim=8, heads=2, num_classes=3)
CLASSES = ("ant", "bee", "cat")


class NoImages:
    """Images that nobody reads."""

    def __init__(self, num: int) -> None:
        self.num = num

    def __len__(self) -> int:
        return self.num

    def read(self, index: int) -> bytes:
        raise AssertionError(index)

    def where(self, index: int) -> str:
        return str(index)


def data_of(labels: np.ndarray, kind: str) -> DataSet:
    split = Split.labelled(NoImages(len(labels)), labels, kind)  # pyright: ignore[reportArgumentType]
    return DataSet("made", CLASSES, {"train": split}, "0")


ONE = data_of(np.array([0, 1, 2, 1]), "class")
SEVERAL = data_of(np.array([[1, 1, 0], [0, 0, 0], [0, 1, 0]]), "several")


def test_scores_are_means_of_sums_over_parts() -> None:
    logits = torch.tensor([[2.0, 0, 0], [0, 1, 3], [0, 0, 1], [9, 9, 9]])
    target = torch.eye(3)[[0, 1, 2, 1]]
    counts = torch.tensor([True, True, True, False])  # the last row is no image
    scorer = Classification().scorer(Loss(), ONE)
    parts = [scorer.sums(logits[rows], target[rows], counts[rows]) for rows in (slice(0, 2), slice(2, 4))]
    scores = scorer.scores(parts[0] + parts[1])
    assert scores["accuracy"] == scores["score"] == pytest.approx(2 / 3)
    assert scores["count"] == 3
    assert scores["loss"] == pytest.approx(log_loss([0, 1, 2], logits[:3].softmax(dim=1).numpy(), labels=[0, 1, 2]))


def test_of_several_labels_the_share_of_classes_that_are_right() -> None:
    logits = torch.tensor([[1.0, -1, -1], [-2, -2, -2], [5, 5, -5]])
    target = torch.tensor([[1.0, 1, 0], [0, 0, 0], [0, 1, 0]])
    scorer = Classification().scorer(Loss(), SEVERAL)
    scores = scorer.scores(scorer.sums(logits, target, torch.ones(3, dtype=torch.bool)))
    assert scores["accuracy"] == pytest.approx(7 / 9)  # one wrong in the first, one in the last
    signs = torch.where(target > 0, -logits, logits).double()
    assert scores["loss"] == pytest.approx(float(torch.log1p(signs.exp()).sum(dim=1).mean()))


def test_answers_are_sorted_and_named() -> None:
    model = random_vit(CONFIG)
    outputs = torch.tensor([[0.0, 2, 1], [1, 1, 1]])
    model.labels = CLASSES
    first, even = Classification().answers(model, outputs, 2)
    assert [(c.label, c.index) for c in first.classes] == [("bee", 1), ("cat", 2)]
    total = 1 + math.e + math.e**2
    assert [c.probability for c in first.classes] == pytest.approx([math.e**2 / total, math.e / total])
    assert [c.index for c in even.classes] == [0, 1]  # equal ones in the order of their numbers
    model.labels = None
    assert [c.label for c in Classification().answers(model, outputs, 1)[0].classes] == ["class 1"]


def test_answers_of_several_labels_need_not_sum_to_one() -> None:
    model = random_vit(CONFIG)
    model.multi_label = True
    (answer,) = Classification().answers(model, torch.tensor([[0.0, math.log(3), -math.log(3)]]), 3)
    assert [(c.index, pytest.approx(c.probability)) for c in answer.classes] == [(1, 0.75), (0, 0.5), (2, 0.25)]


def test_the_loss_follows_the_labels() -> None:
    assert loss_kind(Loss(), ONE) == "softmax"
    assert loss_kind(Loss(), SEVERAL) == "sigmoid"
    assert loss_kind(Loss(kind="sigmoid"), ONE) == "sigmoid"


@pytest.mark.parametrize(("extra", "ends"), [(0, 0), (1, 2)])
def test_the_largest_classes_are_listed_where_some_are_larger(extra: int, ends: int) -> None:
    labels = np.append(np.arange(40), np.full(extra, 7))
    split, names = Split.labelled(NoImages(len(labels)), labels, "class"), tuple(f"kind {k}" for k in range(40))
    context = ReportContext(loss=Loss(), classes=names, dataset=DataSet("made", names, {"train": split}, "0"))
    (section,) = sections(context)
    tables = [block for block in section.blocks if isinstance(block, Table)]
    assert len(tables) == ends
    if tables:
        assert tables[0].rows[0][0] == "kind 7"
