"""The semantic softmax against NumPy in float64, plain cross-entropy, finite differences; and what it learns."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from batches import labelled, stepping
from digit_pictures import digits, small_vit
from tiny_vits import SIZES, random_vit
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.data.hierarchy import hierarchy_over
from vitlab.models.vit import ViTConfig
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.semantic_softmax import SemanticSoftmax
from vitlab.training.optimizers import Optimizer

# plant
# animal: cat, dog (husky)
ABOVE = {"plant": None, "animal": None, "cat": "animal", "dog": "animal", "husky": "dog"}
CLASSES = ("plant", "cat", "dog", "husky")  # then the node animal
NOW = torch.zeros(())


def semantic(smoothing: float = 0.0, classes: Any = CLASSES, above: Any = ABOVE, **options: Any) -> SemanticSoftmax:
    hierarchy = hierarchy_over(classes, above, where="here")
    return SemanticSoftmax(hierarchy, CrossEntropy(label_smoothing=smoothing), 8, **options)


def losses(objective: SemanticSoftmax, logits: Tensor, target: Tensor) -> Tensor:
    smoothing = objective.base.label_smoothing
    return torch.stack([level(logits, target, smoothing) for level in objective.levels]).sum(dim=0)


def cross_entropy(logits: np.ndarray[Any, Any], place: int, smoothing: float) -> float:
    likely = logits - np.log(np.exp(logits).sum())
    target = np.full(len(logits), smoothing / len(logits))
    target[place] += 1 - smoothing
    return float(-(target * likely).sum())


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("drop_deepest", [False, True])
def test_by_hand(smoothing: float, drop_deepest: bool) -> None:
    """5 nodes; levels {plant, animal}, {cat, dog}, and {husky} alone, which tells nothing apart."""
    logits = np.random.default_rng(0).normal(size=(4, 5))  # of plant, cat, dog, husky, animal
    top, second = logits[:, [0, 4]], logits[:, [1, 2]]
    factor = 5 / 3  # plant and animal are above: 3 nodes are here or deeper
    expected = [
        cross_entropy(top[0], 0, smoothing),  # a plant has no ancestor at the second level: it adds 0
        cross_entropy(top[1], 1, smoothing) + factor * cross_entropy(second[1], 0, smoothing),
        cross_entropy(top[2], 1, smoothing) + factor * cross_entropy(second[2], 1, smoothing),
        cross_entropy(top[3], 1, smoothing) + factor * cross_entropy(second[3], 1, smoothing),  # a husky is a dog
    ]
    objective = semantic(smoothing, drop_deepest=drop_deepest)
    found = losses(objective, torch.tensor(logits), torch.eye(4, dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)


def test_the_deepest_level_is_there_unless_it_is_left_out() -> None:
    """As the authors' loop leaves it out: then nothing tells its classes apart."""
    above = {"a": "x", "b": "x", "c": "y", "d": "y", "x": None, "y": None}
    logits, target = torch.randn(4, 6, dtype=torch.float64), torch.eye(4, dtype=torch.float64)
    whole, without = (losses(semantic(0.0, "abcd", above, drop_deepest=drop), logits, target) for drop in (False, True))
    deepest = F.cross_entropy(logits[:, :4], torch.arange(4), reduction="none")
    torch.testing.assert_close(whole - without, 6 / 4 * deepest)


def test_a_levels_factor_has_a_cap() -> None:
    above = {**{f"{i}": None for i in range(58)}, "a": "0", "b": "0"}
    classes = tuple(above)
    target = torch.zeros(1, 60, dtype=torch.float64)
    target[0, 58] = 1
    logits = torch.zeros(1, 60, dtype=torch.float64)
    expected = [np.log(58) + factor * np.log(2) for factor in (20, 30, 5)]
    found = [losses(semantic(0.0, classes, above, max_factor=cap), logits, target).item() for cap in (20, 50, 5)]
    np.testing.assert_allclose(found, expected, rtol=1e-12)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_flat_hierarchy_is_the_plain_softmax(smoothing: float) -> None:
    model, classes = random_vit(ViTConfig(**SIZES, num_classes=4)), "abcd"
    objective = semantic(smoothing, classes, dict.fromkeys(classes))
    assert list(objective.parameters()) == []
    images, target = torch.randn(6, 3, 8, 8), torch.rand(6, 4).softmax(dim=1)
    loss, metrics = objective.loss(model, labelled(images, target), NOW)
    base = CrossEntropy(label_smoothing=smoothing)
    torch.testing.assert_close(loss, base.losses(model(images).float(), target).mean())
    expected = base.right(model(images).float(), target).mean()
    assert metrics["accuracy"] == metrics["semantic accuracy"] == expected


def test_a_mixed_target_has_the_mean_of_its_classes_losses() -> None:
    objective, logits = semantic(0.2), torch.randn(1, 5, dtype=torch.float64)
    apart = losses(objective, logits.expand(4, -1), torch.eye(4, dtype=torch.float64))
    mixed = torch.tensor([[0.3, 0.0, 0.1, 0.6]], dtype=torch.float64)
    torch.testing.assert_close(losses(objective, logits, mixed), (mixed @ apart[:, None])[:, 0])


def test_gradients_are_those_of_finite_differences() -> None:
    objective, target = semantic(0.2), torch.eye(4, dtype=torch.float64)
    logits = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: losses(objective, x, target), (logits,))


def test_accuracy_counts_levels_by_the_images_that_they_have() -> None:
    objective = semantic()
    logits = torch.tensor([
        [9.0, 0, 0, 0, 1],  # of a plant: right at the only level that it has
        [9.0, 5, 0, 0, 1],  # of a cat: a plant, and if not, a cat
        [0.0, 5, 0, 0, 1],  # of a husky: an animal, and a cat
    ])  # fmt: skip
    right, there = objective.right(logits, torch.eye(4)[[0, 1, 3]])
    assert there.tolist() == [[1, 0], [1, 1], [1, 1]]
    assert right.tolist() == [[1, 0], [0, 1], [1, 0]]


def test_what_it_cannot_do_is_refused() -> None:
    hierarchy = hierarchy_over(CLASSES, ABOVE, where="here")
    for base in (CrossEntropy("sigmoid"), CrossEntropy(class_weights=torch.ones(4))):
        with pytest.raises(ConfigError, match="for one class per image and weighs levels, not classes"):
            SemanticSoftmax(hierarchy, base, 8)
    with pytest.raises(ConfigError, match="no level of two or more nodes"):
        semantic(0.0, "ab", {"a": None, "b": None}, drop_deepest=True)


class Noisy:
    """Digits, each of two classes below its own; which of the two is drawn, and nothing in the picture tells it."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.damaged = seed, dict[int, str]()

    def batch(self, step: int, part: str = "train", num: int = 64) -> Batch:
        generator, (images, labels) = torch.Generator().manual_seed(step + 1000 * self.seed), digits(part)
        chosen = torch.randint(len(images), (num,), generator=generator)
        fine = 2 * labels[chosen] + torch.randint(2, (num,), generator=generator)
        return labelled(images[chosen], torch.eye(20)[fine])

    def close(self) -> None: ...


def learned(*, shuffled: bool, seed: int = 0) -> tuple[float, float]:
    """The accuracy of test digits among the ten nodes, and among the twenty classes."""
    order = [*range(0, 20, 2), *range(1, 20, 2)] if shuffled else range(20)
    above = {str(fine): "abcdefghij"[place // 2] for place, fine in enumerate(order)}
    model = small_vit(20, seed)
    hierarchy = hierarchy_over(tuple(map(str, range(20))), {**dict.fromkeys("abcdefghij"), **above}, where="here")
    objective = SemanticSoftmax(hierarchy, CrossEntropy(), model.num_features)
    state, step = stepping(model, objective, Optimizer(lr=1e-2), Noisy(seed))
    for number in range(60):
        step(number, 1.0)
    batch = Noisy().batch(1_000_000, "test", 400)
    with torch.no_grad():
        logits = objective.logits(state.model, state.model.pooled(batch.images))
    coarse, fine = objective.right(logits, batch.targets["label"])[0].mean(dim=0).tolist()
    return coarse, fine


def test_the_coarse_level_is_learned_where_fine_labels_are_noise() -> None:
    """By its parents; with the classes below other parents than what the pictures show, it is not."""
    coarse, fine = learned(shuffled=False)
    assert coarse > 0.65  # over three seeds 0.87 to 0.93, and 0.41 to 0.48 below other parents
    assert fine < 0.6  # of two classes that nothing tells apart
    assert learned(shuffled=True)[0] < 0.65


def test_its_own_head_is_for_nodes_that_are_no_classes() -> None:
    assert isinstance(semantic().inner, nn.Linear)
    assert semantic().inner.weight.shape == (1, 8)  # pyright: ignore[reportOptionalMemberAccess]
    classes = (*CLASSES, "animal")
    assert semantic(0.0, classes).inner is None
