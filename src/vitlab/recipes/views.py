"""Learning without labels from several views of each image: DINO, iBOT, SimCLR and LeJEPA.

What a run makes is a model without a head: `vitlab evaluate knn --model RUN`, `vitlab finetune DATA --model RUN`.

On ImageNet the figures are those of the authors' code: facebookresearch/dino main_dino.py, bytedance/ibot
main_ibot.py; on Imagenette rbalestr-lab/lejepa MINIMAL.md. What differs: weight decay stays constant here, where DINO's
and iBOT's rises from .04 to .4; clipping is of all gradients together, where theirs is of each tensor's; both large
views get a blur or a solarisation as often, where theirs differ (1 and .1, 0 and .2). SimCLR's authors train ResNets:
the optimizer for ViTs is DINO's.

For sets of 50,000 small pictures: 1024 outputs of DINO's head, large views of .7 to 1 of a picture and small ones of .2
to .5 on CIFAR-10, of .5 to 1 and .2 to .4 on Tiny-ImageNet, as hananshafi/vits-for-small-scale-datasets has them.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from vitlab.core.config import Choice
from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

# the colours of DINO's and SimCLR's views; a blur is for pictures that are larger than CIFAR's
COLORS = Augmentation(crop="paper", jitter=0.4, hue=0.1, jitter_prob=0.8, gray=0.2)
BLURRED = replace(COLORS, blur=0.5, solarize=0.1)
DIGITS = Augmentation(crop="paper", crop_area=(0.5, 1.0), flip=0.0, jitter=0.4)
# The recipe cifar10's model, but for layers that add nothing at first (residual_scale=0): it is to see shapes from the
# start, since a teacher that sees none has nothing to say of an image.
SMALL_VIT = ("pool=mean", "class_token=false", "positions_std=0.5", "rotary=true")
SMALL_HEAD = {"out_dim": 1024, "hidden": 1024, "bottleneck": 256}


def _digits(objective: str, epochs: int, **options: Any) -> Recipe:
    return Recipe(
        name=f"{objective}-digits",
        model=ModelChoice(source="vit-digits", set=("pool=mean", "positions_std=0.5")),
        data=DataChoice(source="digits", val_fraction=0.1),
        augmentation=DIGITS,
        objective=Choice(objective, options),
        optimizer=Optimizer(lr=3e-3, weight_decay=0.05, clip=1.0),
        schedule=Schedule(total=f"{epochs} epochs", warmup="10%"),
        batch_size=64,
        evaluate_every="10 epochs",
        checkpoint_every="10 epochs",
        keep="last",
    )


def _small_images(
    objective: str, data: str, *, epochs: int, augmentation: Augmentation, lr: float = 1e-3, **options: Any
) -> Recipe:
    model, size = {"cifar10": ("vit-s4-32", 32), "tiny-imagenet": ("vit-s8-64", 64)}[data]
    return Recipe(
        name=f"{objective}-{data}",
        model=ModelChoice(source=model, image_size=size, drop_path=0.1, set=SMALL_VIT),
        data=DataChoice(source=data, val_fraction=0.02),
        augmentation=augmentation,
        objective=Choice(objective, options),
        optimizer=Optimizer(lr=lr, weight_decay=0.05, clip=1.0),
        schedule=Schedule(total=f"{epochs} epochs", warmup="10%"),
        batch_size=512,
        compile=True,
        evaluate_every="10 epochs",
        checkpoint_every="20 epochs",
        log_every="100 steps",
        keep="last",
    )


def _imagenet(name: str, objective: str, *, epochs: int, area: tuple[float, float], **options: Any) -> Recipe:
    batch_size, lr = 1024, 5e-4 * 1024 / 256
    return Recipe(
        name=name,
        model=ModelChoice(source="vit-s16-224", drop_path=0.1),
        data=DataChoice(source="imagenet", val_fraction=0.01),
        augmentation=replace(BLURRED, crop_area=area),
        objective=Choice(objective, options),
        optimizer=Optimizer(lr=lr, weight_decay=0.1, clip=3.0),
        schedule=Schedule(total=f"{epochs} epochs", warmup="10 epochs", end=1e-6 / lr),
        batch_size=batch_size,
        compile=True,
        keep="last",
    )


def dino_digits() -> Recipe:
    """DINO with two large and two small views, and KoLeo, on scikit-learn's embedded digits.

    Command: vitlab train dino-digits
    Hardware and time: an AMD EPYC, one thread; about 100 s (estimated).
    Score: k-NN 90.75% on the test part (400 images), one run; fresh weights give 77.75%.
    """
    head = {"out_dim": 256, "hidden": 256, "bottleneck": 64, "freeze_last": 0.05}
    small = {"num_small": 2, "small_side": 0.5, "small_area": (0.25, 0.5)}
    # in a few hundred steps of small batches a centre of .9 lags behind the teacher, and all images get one answer
    short = {"teacher_temp": 0.02, "teacher_temp_start": 0.02, "center_momentum": 0.5, "momentum": 0.99, "koleo": 0.05}
    return _digits("dino", 30, **head, **small, **short)


def simclr_digits() -> Recipe:
    """SimCLR on scikit-learn's embedded digits.

    Command: vitlab train simclr-digits
    Hardware and time: an AMD EPYC, one thread, 45 s.
    Score: k-NN 94.25% on the test part (400 images), one run; fresh weights give 77.75%.
    """
    return _digits("simclr", 20, hidden=256, out_dim=64)


def lejepa_digits() -> Recipe:
    """LeJEPA with four views on scikit-learn's embedded digits.

    Command: vitlab train lejepa-digits
    Hardware and time: an AMD EPYC, one thread, 70 s.
    Score: k-NN 95.25% on the test part (400 images), one run; fresh weights give 77.75%.
    """
    return _digits("lejepa", 20, hidden=256, slices=64)


def dino_cifar10() -> Recipe:
    """DINO with two large and eight small views on CIFAR-10, by the model of the recipe cifar10.

    Command: vitlab train dino-cifar10 --data.source PATH
    Hardware and time: one H200, 27 s of steps (1,499) with --model.source vit-lite7-4-32; not run longer.
    Score: then, with all labels, k-NN 37.3%, linear 49.0%, fine-tuned 74.4% (docs/results/methods.md).
    """
    small = {"num_small": 8, "small_side": 0.5, "small_area": (0.2, 0.5)}
    return _small_images(
        "dino", "cifar10", epochs=100, augmentation=replace(COLORS, crop_area=(0.7, 1.0)), **SMALL_HEAD, **small
    )


def dino_tiny_imagenet() -> Recipe:
    """DINO on Tiny-ImageNet, 64 px in patches of 8.

    Command: vitlab train dino-tiny-imagenet --data.source PATH
    Hardware and time: not run here.
    Score: none seen here.
    """
    small = {"num_small": 8, "small_side": 0.5, "small_area": (0.2, 0.4)}
    return _small_images(
        "dino", "tiny-imagenet", epochs=100, augmentation=replace(COLORS, crop_area=(0.5, 1.0)), **SMALL_HEAD, **small
    )


def simclr_cifar10() -> Recipe:
    """SimCLR on CIFAR-10, by the model of the recipe cifar10.

    Command: vitlab train simclr-cifar10 --data.source PATH
    Hardware and time: one H200, 27 s of steps (3,129) with --model.source vit-lite7-4-32; not run longer.
    Score: then, with all labels, k-NN 68.4%, linear 72.5%, fine-tuned 84.6% (docs/results/methods.md).
    """
    return _small_images("simclr", "cifar10", epochs=200, augmentation=replace(COLORS, crop_area=(0.2, 1.0)))


def simclr_tiny_imagenet() -> Recipe:
    """SimCLR on Tiny-ImageNet, 64 px in patches of 8.

    Command: vitlab train simclr-tiny-imagenet --data.source PATH
    Hardware and time: one H200, 68 s of steps (5,742) with --model.source vit-ti8-64; not run longer.
    Score: then, with 10% of the labels, k-NN 16.9%, linear 24.0%, fine-tuned 34.9% (docs/results/methods.md).
    """
    return _small_images("simclr", "tiny-imagenet", epochs=200, augmentation=replace(COLORS, crop_area=(0.2, 1.0)))


def lejepa_cifar10() -> Recipe:
    """LeJEPA with four views on CIFAR-10, by the model of the recipe cifar10.

    Command: vitlab train lejepa-cifar10 --data.source PATH
    Hardware and time: one H200, 27 s of steps (2,029) with --model.source vit-lite7-4-32; not run longer.
    Score: then, with all labels, k-NN 63.9%, linear 67.3%, fine-tuned 82.1% (docs/results/methods.md).
    """
    return _small_images("lejepa", "cifar10", epochs=100, augmentation=replace(COLORS, crop_area=(0.2, 1.0)))


def lejepa_tiny_imagenet() -> Recipe:
    """LeJEPA on Tiny-ImageNet, 64 px in patches of 8.

    Command: vitlab train lejepa-tiny-imagenet --data.source PATH
    Hardware and time: not run here.
    Score: none seen here.
    """
    return _small_images("lejepa", "tiny-imagenet", epochs=100, augmentation=replace(COLORS, crop_area=(0.2, 1.0)))


def dino_imagenet() -> Recipe:
    """ViT-S/16 on ImageNet for 100 epochs by DINO (arXiv 2104.14294), two large and eight small views.

    Command: torchrun --nproc-per-node 8 -m vitlab train dino-imagenet --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; lightly's benchmark reports k-NN 67.5%, linear 73.3%, fine-tuned 79.8%.
    """
    return _imagenet("dino-imagenet", "dino", epochs=100, area=(0.4, 1.0), teacher_temp=0.04)


def ibot_imagenet() -> Recipe:
    """The recipe dino-imagenet with iBOT's masked patches (arXiv 2111.07832), 8192 outputs and one shared head.

    Command: torchrun --nproc-per-node 8 -m vitlab train ibot-imagenet --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; lightly's benchmark reports k-NN 65.4%, linear 72.2%, fine-tuned 78.3%.
    """
    return _imagenet(
        "ibot-imagenet", "dino", epochs=100, area=(0.4, 1.0), out_dim=8192, patch_weight=1.0, teacher_temp=0.07
    )


def simclr_imagenet() -> Recipe:
    """ViT-S/16 on ImageNet for 100 epochs by SimCLR (arXiv 2002.05709).

    Command: torchrun --nproc-per-node 8 -m vitlab train simclr-imagenet --data.source PATH
    Hardware and time: not run here.
    Score: none seen here.
    """
    return _imagenet("simclr-imagenet", "simclr", epochs=100, area=(0.08, 1.0), temperature=0.1)


def lejepa_imagenette() -> Recipe:
    """ViT-S/8 on Imagenette at 128 px for 800 epochs by LeJEPA (arXiv 2511.08544), the authors' minimal example.

    Command: vitlab train lejepa-imagenette --data.source PATH
    Hardware and time: not run here; the authors report 200 minutes on one GPU.
    Score: none seen here; the authors report 90.7% by a linear probe that is trained beside it.
    """
    return Recipe(
        name="lejepa-imagenette",
        model=ModelChoice(source="vit-s8-64", image_size=128, drop_path=0.1),
        data=DataChoice(source="imagenette", val_fraction=0.02),
        augmentation=Augmentation(
            crop="paper", crop_area=(0.08, 1.0), jitter=0.8, hue=0.2, jitter_prob=0.8, gray=0.2, blur=0.5, solarize=0.2
        ),
        objective=Choice("lejepa"),
        optimizer=Optimizer(lr=2e-3, weight_decay=0.05),
        schedule=Schedule(total="800 epochs", warmup="1 epoch", end=0.5),
        batch_size=256,
        compile=True,
        evaluate_every="10 epochs",
        checkpoint_every="10 epochs",
        keep="last",
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "dino-digits": dino_digits,
    "dino-cifar10": dino_cifar10,
    "dino-tiny-imagenet": dino_tiny_imagenet,
    "dino-imagenet": dino_imagenet,
    "ibot-imagenet": ibot_imagenet,
    "simclr-digits": simclr_digits,
    "simclr-cifar10": simclr_cifar10,
    "simclr-tiny-imagenet": simclr_tiny_imagenet,
    "simclr-imagenet": simclr_imagenet,
    "lejepa-digits": lejepa_digits,
    "lejepa-cifar10": lejepa_cifar10,
    "lejepa-tiny-imagenet": lejepa_tiny_imagenet,
    "lejepa-imagenette": lejepa_imagenette,
}
