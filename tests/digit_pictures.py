"""Real pictures for tests of what a method learns: scikit-learn's digits, 8 x 8, and the same in another light."""

import functools

import torch
from torch import Tensor

from vitlab.core.preprocess import Preprocess
from vitlab.data.batch import Batch, Stream
from vitlab.data.open import open_data
from vitlab.evaluation.knn import knn_accuracy
from vitlab.models.contract import Model, evaluating
from vitlab.models.vit import ViT, ViTConfig

SIDE, PATCH, CLASSES = 8, 4, 10
LABELLED, OTHERS, KNOWN = 32, 96, 10  # images of a batch with labels and without, and of each class with labels in all


@functools.cache
def digits(part: str) -> tuple[Tensor, Tensor]:
    """Pictures [N, 3, 8, 8] of -1 to 1, and what they show."""
    split = open_data("digits").splits[part]
    pixels = torch.stack([torch.as_tensor(split.images.read(i)) for i in range(len(split))])
    return (pixels.float() / 127.5 - 1)[:, None].expand(-1, 3, -1, -1).contiguous(), torch.as_tensor(split.labels)


def lit(images: Tensor, generator: torch.Generator) -> Tensor:
    """Each patch brighter or darker by more than the digit itself, each picture fainter or bolder, and noise."""
    patches = SIDE // PATCH
    light = 2 * torch.randn(len(images), 1, patches, patches, generator=generator)
    contrast = 0.7 + 0.6 * torch.rand(len(images), 1, 1, 1, generator=generator)
    noise = 0.4 * torch.randn(images.shape, generator=generator)
    return contrast * images + light.repeat_interleave(PATCH, dim=2).repeat_interleave(PATCH, dim=3) + noise


def small_vit(num_classes: int, seed: int = 0, *, class_token: bool = True) -> ViT:
    """One layer of width 32 over four patches; its positions count, by which fresh weights see shapes."""
    torch.manual_seed(seed)
    config = ViTConfig(
        image_size=(SIDE, SIDE), patch_size=PATCH, width=32, depth=1, mlp_dim=64, heads=2, num_classes=num_classes,
        pool="mean", class_token=class_token, positions_std=0.5,
    )  # fmt: skip
    model = ViT(config, Preprocess(size=(SIDE, SIDE)))
    model.initialize()
    return model


class FewLabels:
    """Batches of the few labelled digits and of all of them in two views, the second in another light.

    `teacher`: the second view alone, with its labels of the first. `shuffled`: the second view, or the label, is
    another image's.
    """

    def __init__(self, teacher: Model | None = None, *, shuffled: bool = False, seed: int = 0) -> None:
        self.teacher, self.shuffled, self.seed, self.damaged = teacher, shuffled, seed, dict[int, str]()
        images, labels = digits("train")
        known = torch.cat([(labels == each).nonzero()[:KNOWN, 0] for each in range(CLASSES)])
        self.images, self.known, self.labels = images, images[known], torch.eye(CLASSES)[labels[known]]

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step + 1000 * self.seed)
        own, others = (
            torch.randint(len(images), (num,), generator=generator)
            for images, num in ((self.known, LABELLED), (self.images, OTHERS))
        )
        weak, strong = self.images[others], lit(self.images[others], generator)
        order = torch.randperm(OTHERS, generator=generator) if self.shuffled else torch.arange(OTHERS)
        views, targets = (weak, strong[order]), dict[str, Tensor]()
        if self.teacher is not None:
            with torch.no_grad(), evaluating(self.teacher):
                views, targets = (strong,), {"label": self.teacher(weak).softmax(dim=1)[order]}
        return Batch(
            {
                "labelled": Stream((self.known[own],), {"label": self.labels[own]}, own),
                "unlabelled": Stream(views, targets, torch.arange(OTHERS) + step * OTHERS),
            }
        )

    def close(self) -> None: ...


def lit_accuracy(model: Model) -> float:
    """On test digits in another light."""
    images, labels = digits("test")
    with torch.no_grad(), evaluating(model):
        answers = model(lit(images, torch.Generator().manual_seed(1_000_000))).argmax(dim=1)
    return (answers == labels).float().mean().item()


def lit_neighbours(model: Model) -> float:
    """The accuracy of nearest neighbours by features, among digits in other lights."""
    generator = torch.Generator().manual_seed(1_000_000)
    images, labels = zip(*map(digits, ("train", "test")), strict=True)
    with torch.no_grad(), evaluating(model):
        features = [model.pooled(lit(own, generator)).numpy() for own in images]
    return float(knn_accuracy(features[0], labels[0], features[1], labels[1], ks=(10,))[0])
