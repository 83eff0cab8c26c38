"""Small images from scratch: digits, CIFAR-10 and CIFAR-100, Tiny-ImageNet; CamVid, a class for every pixel."""

from collections.abc import Callable
from dataclasses import replace

from vitlab.core.config import Choice
from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


def digits() -> Recipe:
    """A tiny ViT on scikit-learn's embedded digits.

    Command: vitlab train digits
    Hardware and time: an AMD EPYC, one thread, 80 s.
    Score: 98.75% on the test part (400 images), two seeds.
    """
    return Recipe(
        name="digits",
        model=ModelChoice(source="vit-digits", dropout=0.1, set=("positions_std=0.5", "residual_scale=0")),
        data=DataChoice(source="digits", val_fraction=0.1),
        augmentation=Augmentation(crop="paper", crop_area=(0.6, 1.0), flip=0.0, mixup=0.4),
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(name="muon", lr=4e-3, momentum=0.95, weight_decay=0.05, clip=1.0, ema=0.99),
        schedule=Schedule(kind="cosine", total="100 epochs", warmup="5%"),
        batch_size=64,
        evaluate_every="5 epochs",
        checkpoint_every="10 epochs",
        keep="last",  # a tenth of so few images selects by luck
    )


def _small_images(
    name: str,
    model: str,
    *,
    image_size: int,
    epochs: int,
    mixed: str,
    decay: float,
    ema: float,
    drop_path: float = 0.1,
) -> Recipe:
    """`mixed` is the part of the run with mixup and cutmix."""
    return Recipe(
        name=name,
        model=ModelChoice(
            source=model,
            drop_path=drop_path,
            image_size=image_size,
            set=("pool=mean", "class_token=false", "positions_std=0.5", "residual_scale=0", "rotary=true"),
        ),
        data=DataChoice(source=name, val_fraction=0.02),
        augmentation=Augmentation(
            crop="pad",
            pad=image_size // 8,
            flip=0.5,
            policy="randaugment",
            magnitude=9.0,
            erase=0.25,
            mixup=0.8,
            cutmix=1.0,
            mix_until=mixed,
        ),
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(name="muon", lr=1.4e-3, momentum=0.95, weight_decay=decay, clip=1.0, ema=ema),
        schedule=Schedule(kind="cosine", total=f"{epochs} epochs", warmup="4%"),
        batch_size=512,
        compile=True,
        evaluate_every="10 epochs",
        checkpoint_every="20 epochs",
        log_every="100 steps",
        keep="last",
    )


def cifar10() -> Recipe:
    """A plain ViT with rotary positions on CIFAR-10 from scratch, the set resident on the device.

    Command: vitlab train cifar10 --data.source PATH
    Hardware and time: one H200, 471 s for the whole command, with compilation and report.
    Score: 96.88, 96.76 and 96.67% on the test part, seeds 0 to 2 (docs/results/small_data.md).
    """
    return _small_images("cifar10", "vit-s4-32", image_size=32, epochs=235, mixed="85%", decay=0.0475, ema=0.99963)


def vitc_cifar10() -> Recipe:
    """The recipe cifar10 with ViT_C: convolutions instead of the patches and of one block.

    Command: vitlab train vitc-cifar10 --data.source PATH
    Hardware and time: one H200, shared with other runs and not timed.
    Score: 96.10% on the test part, one run: less than the plain ViT (docs/results/small_data.md).
    """
    made = _small_images("cifar10", "vitc-s4-32", image_size=32, epochs=200, mixed="85%", decay=0.0558, ema=0.99957)
    return replace(made, name="vitc-cifar10", optimizer=replace(made.optimizer, muon_kernels=False))


def cifar10_d128() -> Recipe:
    """The smallest ViT that reads like the paper, on CIFAR-10: 4 px patches, 65 tokens of 128 numbers, a class token.

    It trains the zoo's vit-cifar-d128 as it is, so that every shape is that of `vitlab models vit-cifar-d128 --shapes`.

    Command: vitlab train cifar10-d128 --data.source PATH
    Hardware and time: not run here.
    Score: none seen here.
    """
    return Recipe(
        name="cifar10-d128",
        model=ModelChoice(source="vit-cifar-d128", dropout=0.1),
        data=DataChoice(source="cifar10", val_fraction=0.02),
        augmentation=Augmentation(crop="pad", pad=4, flip=0.5, policy="randaugment", magnitude=9.0),
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(lr=1e-3, weight_decay=0.05, clip=1.0),
        schedule=Schedule(kind="cosine", total="200 epochs", warmup="5%"),
        batch_size=128,
        evaluate_every="10 epochs",
        checkpoint_every="20 epochs",
        log_every="100 steps",
        keep="last",
    )


def cifar100() -> Recipe:
    """The recipe cifar10 on CIFAR-100: a plain ViT with rotary positions from scratch.

    Command: vitlab train cifar100 --data.source PATH
    Hardware and time: one H200, 391 s for the whole command, with compilation and report.
    Score: 81.68, 81.62 and 81.91% on the test part, seeds 0 to 2 (docs/results/small_data.md).
    """
    return _small_images(
        "cifar100", "vit-s4-32", image_size=32, epochs=170, mixed="90%", decay=0.066, ema=0.99949, drop_path=0.2
    )


def resnet18_cifar100() -> Recipe:
    """ResNet-18 on CIFAR-100 by Muon with the augmentation of the recipe cifar100: a teacher for a ViT.

    Command: vitlab train resnet18-cifar100 --data.source PATH
    Hardware and time: one H200, shared with other runs; 68 s of steps alone, 64,800 images/s.
    Score: 78.87% on the test part, one run (docs/results/small_data.md).
    """
    made = _small_images("cifar100", "resnet18-32", image_size=32, epochs=90, mixed="80%", decay=0.1, ema=0.999)
    return replace(
        made,
        name="resnet18-cifar100",
        model=ModelChoice(source="resnet18-32", image_size=32),
        optimizer=replace(made.optimizer, lr=2e-3),
    )


def distilled_cifar100() -> Recipe:
    """The plain ViT of the recipe cifar100 with a convolutional teacher trained on the same images.

    Command: vitlab train resnet18-cifar100 --data.source PATH --out runs/teacher
             vitlab train distilled-cifar100 --data.source PATH --objective.teacher runs/teacher
    Hardware and time: one H200, shared with other runs and not timed.
    Score: 83.31% on the test part, one run; 81.7 without a teacher, which has 78.87 (docs/results/small_data.md).
    """
    made = _small_images("cifar100", "vit-s4-32", image_size=32, epochs=110, mixed="90%", decay=0.102, ema=0.99921)
    taught = Choice("distillation", {"kind": "soft", "alpha": 0.7, "tau": 2.0})
    return replace(made, name="distilled-cifar100", objective=taught)


def tiny_imagenet() -> Recipe:
    """The recipe cifar10 on Tiny-ImageNet: a plain ViT with rotary positions, 64 px in patches of 8.

    Command: vitlab train tiny-imagenet --data.source PATH
    Hardware and time: one H200, 457 s for the whole command, with compilation and report.
    Score: 67.80% on its published val part, one run (docs/results/small_data.md).
    """
    return _small_images(
        "tiny-imagenet", "vit-s8-64", image_size=64, epochs=112, mixed="90%", decay=0.05, ema=0.99961, drop_path=0.2
    )


def camvid() -> Recipe:
    """A small plain ViT from scratch for CamVid's 11 classes: a linear head on patch tokens, 96 px in patches of 8.

    Command: vitlab train camvid --data.source PATH
    Hardware and time: one H200 and three decoding processes, 38 s of steps.
    Score: mean IoU 44.2% on val and 27.6% on test, one run (docs/results/segmentation.md).
    """
    return Recipe(
        name="camvid",
        model=ModelChoice(
            source="vit-ti16-224",
            image_size=96,
            dropout=0.1,
            set=("depth=6", "mlp_dim=384", "patch_size=8", "pool=mean", "class_token=false"),
        ),
        data=DataChoice(source="camvid", val_fraction=0.1),
        task=Choice("segmentation"),
        augmentation=Augmentation(crop="paper", crop_area=(0.25, 1.0), flip=0.0),
        optimizer=Optimizer(name="muon", lr=1e-3, momentum=0.95, weight_decay=0.05, clip=1.0, ema=0.99),
        schedule=Schedule(kind="cosine", total="60 epochs", warmup="5%"),
        batch_size=16,
        evaluate_every="10 epochs",
        checkpoint_every="10 epochs",
        keep="last",
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "camvid": camvid,
    "digits": digits,
    "cifar10": cifar10,
    "vitc-cifar10": vitc_cifar10,
    "cifar10-d128": cifar10_d128,
    "cifar100": cifar100,
    "resnet18-cifar100": resnet18_cifar100,
    "distilled-cifar100": distilled_cifar100,
    "tiny-imagenet": tiny_imagenet,
}
