"""The fine-tunings that the leaderboards of CIFAR-100 and ImageNet name, where no other file has them.

ViT-L/16 and H/14: the paper's best on ImageNet (arXiv 2010.11929, section 4.1) are at 512 and 518 px with weights
averaged by .9999; the rest is table 4's. H/14 is tuned at 392 px where the paper has 384, which its patches of 14 px do
not divide.

ViT-G/14 (arXiv 2106.04560): 518 px. No public text names its steps, rate and averaging: they are H/14's.

V-MoE-15B (arXiv 2106.05974): SGD in batches of 1024, 10,000 steps with 500 of warm-up, a cosine to 1e-5, gradients
clipped at norm 10, room for 1.5 times the tokens: the authors' configuration for B/16 (google-research/vmoe,
configs/vmoe_paper). The rate is one of the paper's grid, .003 to .06; 560 px is from memory, not confirmed.

EfficientNet-L2 with SAM (arXiv 2010.01412): the authors' command for ImageNet (google-research/sam, README): from Noisy
Student's weights at 475 px, SGD at .1 in batches of 512, 10 epochs, radius .1, label smoothing .1, gradients clipped at
norm 1; their schedule is taken to be a cosine. What they changed for CIFAR-100 is not in that code, so nothing is here.
The weights are timm's copy, `timm:` as everywhere.

ViT-B/16 after ImageNet-21K-P (arXiv 2104.10972): the authors' weights in timm, fine-tuned by ViT's table 4. Their score
is of a training of their own, which they have not published.
"""

import dataclasses
from collections.abc import Callable

from vitlab.data.augmentation import Augmentation
from vitlab.recipes.finetuning import ROWS, finetune_recipe
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

POLYAK = 0.9999  # the decay of the average that the paper calls Polyak's
L2_475 = "timm:tf_efficientnet_l2.ns_jft_in1k_475"

# source, the set, resolution, whether weights are averaged, whether they are sharded, the score that is reported
VITS: dict[str, tuple[str, str, int, bool, bool, str]] = {
    "vit-l16-512-imagenet": ("runs/vit-l16-jft", "imagenet", 512, True, False, "87.76%"),
    "vit-h14-518-imagenet": ("runs/vit-h14-jft", "imagenet", 518, True, False, "88.55%"),
    "vit-gigantic14-518-imagenet": ("runs/vit-gigantic14-jft", "imagenet", 518, True, True, "90.45%"),
    "vit-l16-384-cifar100": ("runs/vit-l16-jft", "cifar100", 384, False, False, "93.90%"),
    "vit-h14-392-cifar100": ("runs/vit-h14-jft", "cifar100", 392, False, False, "94.55%"),
    "vit-b16-21kp-cifar100": ("timm:vit_base_patch16_224_miil.in21k", "cifar100", 384, False, False, "94.2%"),
}


def _vit(name: str) -> Callable[[], Recipe]:
    source, data, side, averaged, sharded, score = VITS[name]
    row = ROWS[data]

    def build() -> Recipe:
        recipe = finetune_recipe(
            data,
            source,
            steps=row.steps,
            lr=row.lrs[len(row.lrs) // 2],
            warmup=row.warmup,
            held_out=row.held_out,
            image_size=side,
            name=name,
        )
        return dataclasses.replace(
            recipe,
            model=dataclasses.replace(recipe.model, checkpoint_blocks=sharded),
            optimizer=dataclasses.replace(recipe.optimizer, ema=POLYAK if averaged else None),
            strategy="shard" if sharded else "auto",
            keep="last" if averaged else "best",
        )

    build.__doc__ = f"""{source} at {side} px on {data}{", weights averaged" if averaged else ""}.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH [--model.source SOURCE]
    Hardware and time: not run here.
    Score: none seen here; {score} is reported.
    """
    return build


def vmoe_15b_560_imagenet() -> Recipe:
    """V-MoE-15B at 560 px on ImageNet, its weights sharded (arXiv 2106.05974).

    Command: torchrun --nnodes N --nproc-per-node 8 -m vitlab train vmoe-15b-560-imagenet --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the paper reports 90.35%.
    """
    return Recipe(
        name="vmoe-15b-560-imagenet",
        model=ModelChoice(
            source="runs/vmoe-15b-jft",
            pretrained=True,
            image_size=560,
            checkpoint_blocks=True,
            set=("capacity=1.5",),
        ),
        data=DataChoice(source="imagenet", val_fraction=0.01),
        augmentation=Augmentation(crop="paper", flip=0.5),
        optimizer=Optimizer(name="sgd", lr=0.003, momentum=0.9, clip=10.0),
        schedule=Schedule(kind="cosine", total="10k steps", warmup="500 steps", end=1e-5 / 0.003),
        batch_size=1024,
        strategy="shard",
        evaluate_every="10%",
        checkpoint_every="10%",
    )


def _sam(data: str, held_out: float, score: str) -> Callable[[], Recipe]:
    name = f"efficientnet-l2-sam-{data}"

    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(source=L2_475, pretrained=True, image_size=475),
            data=DataChoice(source=data, val_fraction=held_out),
            augmentation=Augmentation(crop="paper", crop_area=(0.08, 1.0), flip=0.5),
            loss=Loss(label_smoothing=0.1),
            optimizer=Optimizer(name="sgd", lr=0.1, momentum=0.9, clip=1.0, sam=0.1),
            schedule=Schedule(kind="cosine", total="10 epochs", warmup="0 steps"),
            batch_size=512,
            keep="last",
        )

    build.__doc__ = f"""EfficientNet-L2 of Noisy Student at 475 px on {data} with SAM (arXiv 2010.01412); needs timm.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; {score} is reported.
    """
    return build


RECIPES: dict[str, Callable[[], Recipe]] = {
    **{name: _vit(name) for name in VITS},
    "vmoe-15b-560-imagenet": vmoe_15b_560_imagenet,
    "efficientnet-l2-sam-imagenet": _sam("imagenet", 0.01, "88.61%"),
    "efficientnet-l2-sam-cifar100": _sam("cifar100", 0.02, "96.08%"),
}
