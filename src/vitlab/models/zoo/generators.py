"""Rows of the zoo for generators."""

from vitlab.models.zoo.row import FORMULA, ZooRow

AUTHORS = "TransGAN, arXiv 2102.07074, sizes of the authors' script for CIFAR-10; parameters worked out by hand"
SMALL = "after TransGAN-S of arXiv 2102.07074v1, whose depths no source confirmed; parameters worked out by hand"

# name, side, layers of each stage, width, latents, parameters
SIZED: list[tuple[str, int, tuple[int, ...], int, int, str, str]] = [
    ("transgan-s-32", 32, (5, 2, 2), 384, 256, "15.49M", SMALL),
    ("transgan-xl-32", 32, (5, 4, 2), 1024, 256, "83.26M", AUTHORS),
    ("transgan-digits", 8, (2, 1), 64, 16, "122.3k", FORMULA),
]

TRANSGAN_ROWS = [
    ZooRow(
        name,
        "transgan",
        {"image_size": (side, side), "depths": depths, "width": width, "latent_dim": latents},
        parameters,
        "all",
        source,
    )
    for name, side, depths, width, latents, parameters, source in SIZED
]
