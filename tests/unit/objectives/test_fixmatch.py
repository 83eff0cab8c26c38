"""FixMatch's loss against NumPy in float64, and what its labels let through."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tiny_vits import SIZES, random_vit
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import Split
from vitlab.data.sources.pixels import Pixels
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.fixmatch import Fixmatch, FixmatchOptions, pseudo_labels

NOTHING = Split(Pixels(np.zeros((1, 8, 8, 3), np.uint8), "them"))
NOW = torch.zeros(())


def objective(criterion: CrossEntropy | None = None, **options: Any) -> Fixmatch:
    return Fixmatch(FixmatchOptions(**options), criterion or CrossEntropy(), NOTHING, small_vit())


def small_vit(**config: Any) -> ViT:
    return random_vit(ViTConfig(**SIZES, num_classes=4, **config))


def batch_of(labelled: Tensor, labels: Tensor, weak: Tensor, strong: Tensor) -> Batch:
    """Images that are their own logits: [b, k] as [b, k, 1, 1]."""
    first, *views = (values[:, :, None, None] for values in (labelled, weak, strong))
    return Batch(
        {
            "labelled": Stream((first,), {"label": labels}, torch.arange(len(first))),
            "unlabelled": Stream(tuple(views), {}, torch.arange(len(weak))),
        }
    )


def handed_on(images: Tensor) -> Tensor:
    """A model whose answers are the images."""
    return images.flatten(1)


def log_softmax(x: Any) -> Any:
    x = np.asarray(x, dtype=np.float64)
    x = x - x.max(axis=-1, keepdims=True)
    return x - np.log(np.exp(x).sum(axis=-1, keepdims=True))


def expected(batch: Batch, threshold: float, weight: float, temperature: float) -> tuple[float, float]:
    """Equations 3 and 4 of arXiv 2001.07685, image by image, and the share that passes."""
    labelled, labels = batch.images.flatten(1).numpy(), batch.targets["label"].numpy()
    weak, strong = (view.flatten(1).numpy() for view in batch.streams["unlabelled"].views)
    supervised = np.mean([-(y * log_softmax(own)).sum() for own, y in zip(labelled, labels, strict=True)])
    total, passed = 0.0, 0
    for own, other in zip(weak, strong, strict=True):
        probabilities = np.exp(log_softmax(own.astype(np.float64) / temperature))
        if probabilities.max() >= threshold:
            total -= log_softmax(other)[probabilities.argmax()]
            passed += 1
    return float(supervised + weight * total / len(weak)), passed / len(weak)


@pytest.mark.parametrize(
    ("threshold", "weight", "temperature"), [(0.95, 1.0, 1.0), (0.5, 2.5, 1.0), (0.0, 1.0, 1.0), (0.9, 1.0, 0.3)]
)
def test_the_loss_is_that_of_the_paper(threshold: float, weight: float, temperature: float) -> None:
    generator = torch.Generator().manual_seed(0)
    values = [torch.randn(num, 4, generator=generator) * 4 for num in (5, 35, 35)]
    labels = torch.eye(4)[torch.arange(5) % 4]
    batch = batch_of(values[0], labels, values[1], values[2])
    made: Any = objective(threshold=threshold, weight=weight, temperature=temperature)
    loss, metrics = made.loss(handed_on, batch, NOW)
    found, share = expected(batch, threshold, weight, temperature)
    assert loss.item() == pytest.approx(found, rel=1e-6)
    assert metrics["above threshold"].item() == pytest.approx(share)
    assert 0 < share <= 1


def test_by_hand() -> None:
    """Two classes; of two unlabelled images one is sure of the first class: ln 2 / 2, and the labelled one's ln 2."""
    even = torch.zeros(1, 2)
    weak = torch.tensor([[8.0, 0.0], [1.0, 0.0]])  # .9997 and .73
    batch = batch_of(even, torch.tensor([[1.0, 0.0]]), weak, torch.zeros(2, 2))
    made: Any = objective()
    loss, metrics = made.loss(handed_on, batch, NOW)
    assert loss.item() == pytest.approx(1.5 * np.log(2), rel=1e-6)
    assert metrics["unlabelled loss"].item() == pytest.approx(0.5 * np.log(2), rel=1e-6)
    assert metrics["above threshold"].item() == 0.5


def test_no_gradient_passes_through_the_labels_nor_from_unsure_images() -> None:
    weak = torch.tensor([[8.0, 0.0], [1.0, 0.0]], requires_grad=True)
    strong = torch.zeros(2, 2, requires_grad=True)
    batch = batch_of(torch.zeros(1, 2), torch.tensor([[1.0, 0.0]]), weak, strong)
    made: Any = objective()
    made.loss(handed_on, batch, NOW)[0].backward()
    assert weak.grad is None  # not even a pass is made for it
    # softmax minus the label, over both images: the unsure one has none
    torch.testing.assert_close(strong.grad, torch.tensor([[-0.25, 0.25], [0.0, 0.0]]))


def drawn_batch() -> tuple[list[Tensor], Batch]:
    """Four labelled images and two views of twelve others."""
    generator = torch.Generator().manual_seed(0)
    images = [torch.randn(num, 3, 8, 8, generator=generator) for num in (4, 12, 12)]
    labelled = Stream((images[0],), {"label": torch.eye(4)}, torch.arange(4))
    return images, Batch({"labelled": labelled, "unlabelled": Stream((images[1], images[2]), {}, torch.arange(12))})


def test_views_pass_apart_as_they_would_together() -> None:
    model = small_vit().train()
    images, batch = drawn_batch()
    loss, _ = objective(threshold=0.4).loss(model, batch, NOW)
    first, weak, strong = model(torch.cat(images)).split([4, 12, 12])
    sure, labels = weak.detach().softmax(dim=1).max(dim=1)
    others = F.cross_entropy(strong, labels, reduction="none") * (sure >= 0.4)
    wanted = F.cross_entropy(first, torch.arange(4)) + others.mean()
    torch.testing.assert_close(loss, wanted)
    parameters = list(model.parameters())
    for own, other in zip(torch.autograd.grad(loss, parameters), torch.autograd.grad(wanted, parameters), strict=True):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-6)


def test_a_threshold_is_reached_by_its_own_value_and_never_above_one() -> None:
    logits = torch.tensor([[np.log(0.95), np.log(0.05)], [np.log(0.9499), np.log(0.0501)]], dtype=torch.float64)
    labels, sure = pseudo_labels(logits, 0.95 - 1e-12)
    assert labels.tolist() == [0, 0]
    assert sure.tolist() == [True, False]
    assert not pseudo_labels(torch.tensor([[1e4, 0.0]]), 1.0001)[1].any()
    assert pseudo_labels(torch.tensor([[1e4, 0.0]]), 1.0)[1].all()


def test_labels_of_an_average() -> None:
    """It answers without dropout, has no gradient, and follows the model by its share after steps that are made."""
    model, (images, batch) = small_vit(dropout=0.5).train(), drawn_batch()
    made = Fixmatch(FixmatchOptions(teacher_ema=0.9, threshold=0.6), CrossEntropy(), NOTHING, model)
    average = made.ema_model
    assert average is not None
    started = [p.clone() for p in average.parameters()]
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p))
    torch.manual_seed(1)
    loss, _ = made.loss(model, batch, NOW)
    sure, labels = average.eval()(images[1]).softmax(dim=1).max(dim=1)
    torch.manual_seed(1)
    first, strong = model(torch.cat([images[0], images[2]])).split([4, 12])
    others = F.cross_entropy(strong, labels, reduction="none") * (sure >= 0.6)
    torch.testing.assert_close(loss, F.cross_entropy(first, torch.arange(4)) + others.mean())
    assert 0 < (sure >= 0.6).float().mean() < 1
    assert not any(p.requires_grad for p in average.parameters())
    made.after_step(model, torch.tensor(False))
    assert all(torch.equal(now, old) for now, old in zip(average.parameters(), started, strict=True))
    made.after_step(model, torch.tensor(True))
    for now, old, own in zip(average.parameters(), started, model.parameters(), strict=True):
        torch.testing.assert_close(now, 0.9 * old + 0.1 * own)


def test_a_sigmoid_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"FixMatch needs loss\.kind='softmax'"):
        objective(CrossEntropy("sigmoid"))
