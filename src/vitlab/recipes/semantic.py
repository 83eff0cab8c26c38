"""Classes of a hierarchy by the semantic softmax (arXiv 2104.10972).

On ImageNet-21K-P the figures are those of the authors' code, Alibaba-MIIL/ImageNet21K train_semantic_softmax.py: 80
epochs from ImageNet weights, Adam at 3e-4 that rises for a tenth of the run, smoothing .2, RandAugment on images
resized to a square. What differs: weight decay is decoupled, where theirs is part of the gradient; random erasing takes
the place of Cutout; the deepest level is there. Their example names no batch size for such a run: 1024 is ours.

The hierarchy is WordNet's own, Debian's package wordnet-base; --objective.hierarchy names another file.
"""

from collections.abc import Callable
from dataclasses import replace

from vitlab.core.config import Choice
from vitlab.data.augmentation import Augmentation
from vitlab.recipes.small import cifar100, tiny_imagenet
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

WORDNET = "/usr/share/wordnet/data.noun"
SMOOTHED = Loss(label_smoothing=0.2)


def semantic_b16_imagenet21k() -> Recipe:
    """ViT-B/16 on ImageNet-21K-P for 80 epochs, from a run on ImageNet; nodes are its classes alone.

    Command: torchrun --nproc-per-node 8 -m vitlab train semantic-b16-imagenet21k --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the authors report a semantic accuracy of 77.6%, and 84.4% after fine-tuning on ImageNet.
    """
    return Recipe(
        name="semantic-b16-imagenet21k",
        model=ModelChoice(source="runs/vit-b16-imagenet", pretrained=True),
        data=DataChoice(source="imagenet21k", val_fraction=0.01),
        augmentation=Augmentation(crop="resize", flip=0.0, policy="randaugment", erase=0.5),
        objective=Choice("semantic-softmax", {"hierarchy": WORDNET, "inner": "none"}),
        loss=SMOOTHED,
        optimizer=Optimizer(name="adamw", lr=3e-4, weight_decay=1e-4),
        schedule=Schedule(kind="cosine", total="80 epochs", warmup="10%"),
        batch_size=1024,
        compile=True,
        checkpoint_every="1000 steps",
        keep="last",
    )


def semantic_cifar100() -> Recipe:
    """The recipe cifar100 with a semantic softmax over its 20 coarse classes and the 100.

    Command: vitlab train semantic-cifar100 --data.source PATH
    Hardware and time: not run here; a step is the recipe cifar100's.
    Score: none seen here.
    """
    objective = Choice("semantic-softmax", {"hierarchy": "cifar100"})
    return replace(cifar100(), name="semantic-cifar100", objective=objective, loss=SMOOTHED)


def semantic_tiny_imagenet() -> Recipe:
    """The recipe tiny-imagenet with WordNet's nodes above its classes; the deepest level has all 200.

    Command: vitlab train semantic-tiny-imagenet --data.source PATH
    Hardware and time: not run here; a step is the recipe tiny-imagenet's.
    Score: none seen here.
    """
    options = {"hierarchy": WORDNET, "inner": "branching", "extend_leaves": True}
    objective = Choice("semantic-softmax", options)
    return replace(tiny_imagenet(), name="semantic-tiny-imagenet", objective=objective, loss=SMOOTHED)


RECIPES: dict[str, Callable[[], Recipe]] = {
    "semantic-b16-imagenet21k": semantic_b16_imagenet21k,
    "semantic-cifar100": semantic_cifar100,
    "semantic-tiny-imagenet": semantic_tiny_imagenet,
}
