"""The attention models that the paper builds on, as their papers train them, or those who measured them later.

Axial-ViT: appendix D.6 of arXiv 2010.11929 pre-trains B/32 and B/16 on JFT and names no rates of their own; they have
here what table 3 has for ViT-B (that they had it there: not confirmed).

Stand-alone self-attention (arXiv 1906.05909): 130 epochs, Nesterov's momentum, 10 epochs of warm-up and a cosine, as
the public code of Axial-DeepLab (arXiv 2003.07853), which keeps that training, has them too; the decay of 8e-5 is that
code's. Batches of 4096, the rate of 1.6 and averaged weights at .9999 are the paper's (not confirmed).

Non-local networks: their paper (arXiv 1711.07971) trains no classifier of ImageNet: it adds blocks to a ResNet that was
trained there, and goes on with videos and with COCO. GCNet (arXiv 1904.11492) measures them on ImageNet: 120 epochs,
batches of 512, a rate of .1 for each 256, 5 epochs of warm-up, cosine; then 40 epochs more from .02 with the blocks
put in (not confirmed). A block begins as the identity, so that the recipe here trains both together in the 120.
"""

from collections.abc import Callable
from dataclasses import replace

from vitlab.data.augmentation import Augmentation
from vitlab.recipes import pretraining
from vitlab.training.optimisers import Optimiser
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

INCEPTION = Augmentation(crop="paper", crop_area=(0.08, 1.0), flip=0.5)
SASA_SCORES = {26: "75.8", 38: "77.1", 50: "77.4"}  # table 1, convolutional stem (not confirmed)


def _axial(name: str, patch: int) -> Callable[[], Recipe]:
    def build() -> Recipe:
        recipe = pretraining.RECIPES[f"vit-b{patch}-jft"]()
        return replace(recipe, name=name, model=replace(recipe.model, source=f"axial-vit-b{patch}-224"))

    build.__doc__ = f"""Axial-ViT-B/{patch} on JFT (arXiv 2010.11929, appendix D.6) by ViT-B/{patch}'s row of table 3.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the paper plots five-shot accuracy, without figures.
    That it was trained by that row: not confirmed.
    """
    return build


def _sasa(name: str, layers: int) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=f"sasa-{layers}"),
            data=DataChoice(source="imagenet", val_fraction=0.04),  # the part that the paper tunes on (not confirmed)
            augmentation=INCEPTION,
            optimiser=Optimiser(name="sgd", rate=1.6, momentum=0.9, nesterov=True, l2=8e-5, average=0.9999),
            schedule=Schedule(kind="cosine", total="130 epochs", warmup="10 epochs"),
            batch_size=4096,
            compile=True,
            keep="last",
        )

    build.__doc__ = f"""A ResNet-{layers} of stand-alone self-attention on ImageNet (arXiv 1906.05909).

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here; the paper uses 128 TPUv3 cores (not confirmed).
    Score: none seen here; the paper reports {SASA_SCORES[layers]}% (not confirmed).
    Not confirmed of its figures: the batch of 4096, the rate of 1.6, the average at .9999.
    """
    return build


def nonlocal_r50_imagenet() -> Recipe:
    """A ResNet-50 with five non-local blocks on ImageNet, from scratch (arXiv 1711.07971 by 1904.11492's training).

    Command: torchrun --nproc-per-node 8 -m vitlab train nonlocal-r50-imagenet --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; GCNet reports 77.2% with one block (not confirmed).
    Not confirmed of its figures: all of GCNet's.
    """
    return Recipe(
        name="nonlocal-r50-imagenet",
        model=ModelChoice(source="nonlocal-r50"),
        data=DataChoice(source="imagenet", val_fraction=0.01),
        augmentation=INCEPTION,
        optimiser=Optimiser(name="sgd", rate=0.2, momentum=0.9, l2=1e-4),
        schedule=Schedule(kind="cosine", total="120 epochs", warmup="5 epochs"),
        batch_size=512,
        compile=True,
        keep="last",
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    **{f"axial-vit-b{patch}-jft": _axial(f"axial-vit-b{patch}-jft", patch) for patch in (32, 16)},
    **{f"sasa-{layers}-imagenet": _sasa(f"sasa-{layers}-imagenet", layers) for layers in SASA_SCORES},
    "nonlocal-r50-imagenet": nonlocal_r50_imagenet,
}
