"""The attention models that the paper builds on, as their papers train them, or as their authors' code does.

Axial-ViT (arXiv 2010.11929, appendix D.6): B/32 and B/16 are "pretrained on JFT dataset" and plotted beside the ViT-Bs
that they are made of. By what row of table 3 the appendix does not say; they have here the one for ViT-B.

Stand-alone self-attention (arXiv 1906.05909, appendix A.2): 130 epochs of Nesterov's momentum in batches of 4096, a
rate of 1.6 after 10 epochs of warm-up, then a cosine; weights averaged at .9999; tuned on 4% of the training images;
128 TPUv3 cores. What the paper leaves out is as in the code of Axial-DeepLab (csrhddlam/axial-deeplab, train.py), whose
paper (arXiv 2003.07853) takes over that training: momentum .9, a decay of 8e-5, no label smoothing, its crops. Batch
norm's statistics have a decay of .9999 there; here PyTorch's, and the average of the weights takes them in.

Non-local networks (arXiv 1711.07971, section 4.1) train no classifier of ImageNet: five blocks are added to a ResNet
that was trained there, which continues with videos or with COCO. The authors' code
(facebookresearch/video-nonlocal-net, lib/core/config.py) has the training on ImageNet for its defaults: a rate of .1 in
batches of 256, a tenth of it after every 30 epochs, Nesterov's momentum of .9, a decay of 1e-4, no warm-up; the file of
weights that the blocks are added to has 90 epochs by its name (iter450450). A block begins as the identity, so that
the recipe here trains ResNet and blocks together by these figures. GCNet (arXiv 1904.11492), which measured such
blocks on ImageNet, took 120 epochs, or 40 more from a rate of .02 (xvjiarui/GCNet, issue 29); its batch and its other
figures are not confirmed, and not used.
"""

from collections.abc import Callable
from dataclasses import replace

from vitlab.data.augmentation import Augmentation
from vitlab.recipes import pretraining
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

INCEPTION = Augmentation(crop="paper", crop_area=(0.08, 1.0), flip=0.5)
SASA_SCORES = {26: "75.8", 38: "77.1", 50: "77.4"}  # table 1, convolutional stem


def _axial(name: str, patch: int) -> Callable[[], Recipe]:
    def build() -> Recipe:
        recipe = pretraining.RECIPES[f"vit-b{patch}-jft"]()
        return replace(recipe, name=name, model=replace(recipe.model, source=f"axial-vit-b{patch}-224"))

    build.__doc__ = f"""Axial-ViT-B/{patch} on JFT (arXiv 2010.11929, appendix D.6) by ViT-B/{patch}'s row of table 3.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the paper plots five-shot accuracy, without figures.
    The appendix names no row: this is the one of the ViT that it is made of.
    """
    return build


def _sasa(name: str, layers: int) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=f"sasa-{layers}"),
            data=DataChoice(source="imagenet", val_fraction=0.04),  # the part that the paper tunes on
            augmentation=INCEPTION,
            optimizer=Optimizer(name="sgd", lr=1.6, momentum=0.9, nesterov=True, l2=8e-5, ema=0.9999),
            schedule=Schedule(kind="cosine", total="130 epochs", warmup="10 epochs"),
            batch_size=4096,
            compile=True,
            keep="last",
        )

    build.__doc__ = f"""A ResNet-{layers} of stand-alone self-attention on ImageNet (arXiv 1906.05909).

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here; the paper uses 128 TPUv3 cores.
    Score: none seen here; the paper reports {SASA_SCORES[layers]}%.
    """
    return build


def nonlocal_r50_imagenet() -> Recipe:
    """A ResNet-50 with five non-local blocks (arXiv 1711.07971) on ImageNet, as its authors train the ResNet.

    Command: torchrun --nproc-per-node 8 -m vitlab train nonlocal-r50-imagenet --data.source PATH
    Hardware and time: not run here.
    Score: none seen here, and none in the paper, which continues with videos and with COCO.
    """
    return Recipe(
        name="nonlocal-r50-imagenet",
        model=ModelChoice(source="nonlocal-r50"),
        data=DataChoice(source="imagenet", val_fraction=0.01),
        augmentation=INCEPTION,
        optimizer=Optimizer(name="sgd", lr=0.1, momentum=0.9, nesterov=True, l2=1e-4),
        schedule=Schedule(
            kind="staircase", total="90 epochs", warmup="0 steps", drops=("30 epochs", "60 epochs"), drop=0.1
        ),
        batch_size=256,
        compile=True,
        keep="last",
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    **{f"axial-vit-b{patch}-jft": _axial(f"axial-vit-b{patch}-jft", patch) for patch in (32, 16)},
    **{f"sasa-{layers}-imagenet": _sasa(f"sasa-{layers}-imagenet", layers) for layers in SASA_SCORES},
    "nonlocal-r50-imagenet": nonlocal_r50_imagenet,
}
