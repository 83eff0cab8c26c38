"""Making images: TransGAN's generator and critic.

On CIFAR-10 the figures are those of the authors' code (VITA-Group/TransGAN, exps/cifar_train.py and functions.py):
WGAN-GP with a weight of 10, drift 1e-3, four turns of the critic to one of the generator, Adam with betas 0 and .99 at
1e-4 for both, weight decay 1e-3, gradients clipped at 5, DiffAugment of all three kinds; a critic of width 384, depth 7
and patches of 4 px, as in their first script. What differs: their decay is part of the gradient; their later critic
sees two scales, and attention has a relative bias in both players; their averaging is by images (500k, warmed up), here
by steps; their drift is of the batch's mean score, here of each image's, so that parts of a batch add up.

A step is one turn of the generator, after `n_critic` turns of the critic with as many batches of real images: an epoch
of the schedule counts the first of them.
"""

from collections.abc import Callable

from vitlab.core.config import Choice
from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


def transgan_digits() -> Recipe:
    """TransGAN on scikit-learn's embedded digits, 8 x 8 pixels.

    Command: vitlab train transgan-digits
    Hardware and time: an AMD EPYC, one thread, about 80 s of its time; not timed on an idle machine.
    Score: Frechet distance of 8 x 8 pixels 24.5 to the test part (400 images), one run; 135.0 before training, 155.2 of
    noise, 2.0 of training images.
    """
    critic = {"critic_patch": 2, "critic_width": 64, "critic_depth": 2, "critic_heads": 2, "critic_lr": 1e-3}
    return Recipe(
        name="transgan-digits",
        model=ModelChoice(source="transgan-digits"),
        data=DataChoice(source="digits", val_fraction=0.1),
        augmentation=Augmentation(crop="resize", flip=0.0),  # what is varied here would be made, too
        task=Choice("generation", {"features": "pixels"}),
        objective=Choice("transgan", {**critic, "n_critic": 1, "augment": ()}),
        optimizer=Optimizer(lr=5e-4, betas=(0.0, 0.99), ema=0.98, clip=5.0),
        schedule=Schedule(kind="linear", total="1000 steps", warmup="0 steps", end=0.2),
        batch_size=32,
        evaluate_every="10%",
        checkpoint_every="20%",
        log_every="50 steps",
    )


def transgan_cifar10() -> Recipe:
    """TransGAN-S on CIFAR-10 at 32 px.

    Command: vitlab train transgan-cifar10 --data.source DIR
    Hardware and time: meant for one GPU; not run yet.
    Score: not measured.
    """
    return Recipe(
        name="transgan-cifar10",
        model=ModelChoice(source="transgan-s-32"),
        data=DataChoice(source="cifar10", val_fraction=0.02),
        augmentation=Augmentation(crop="resize", flip=0.5),
        task=Choice("generation"),
        objective=Choice("transgan"),
        optimizer=Optimizer(lr=1e-4, weight_decay=1e-3, betas=(0.0, 0.99), ema=0.9999, clip=5.0),
        schedule=Schedule(total="320 epochs", warmup="0 steps", kind="constant"),
        batch_size=128,
        evaluate_every="10 epochs",
        checkpoint_every="10 epochs",
        log_every="100 steps",
    )


RECIPES: dict[str, Callable[[], Recipe]] = {
    "transgan-digits": transgan_digits,
    "transgan-cifar10": transgan_cifar10,
}
