"""From scratch on ImageNet, as later work does it.

ViT-S/16 (arXiv 2205.01580): the authors' configuration, google-research/big_vision, configs/vit_s16_i1k.py.

DeiT III (arXiv 2204.07118): the authors' commands, facebookresearch/deit, README_revenge.md: 800 epochs, B at 192 px;
their LAMB clips at norm 1 by default. 20 epochs more follow, of B at 224 px and of S at 384, head kept: AdamW at 1e-5,
weight decay .1, DeiT's RandAugment without erasing or repeats. They continue from the run of the recipe before, or from
what --model.source names; the authors published no B of 192 px.
"""

from collections.abc import Callable
from dataclasses import replace

from vitlab.data.augmentation import Augmentation
from vitlab.recipes.deit import AUGMENTATION as DEIT
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


def _better_baseline(epochs: int) -> Recipe:
    return Recipe(
        name=f"vit-s16-imagenet-{epochs}ep",
        model=ModelChoice(
            source="vit-s16-224",
            representation=True,
            set=("positions=sincos2d", "class_token=false", "pool=mean"),
        ),
        data=DataChoice(source="imagenet", val_fraction=0.01),
        augmentation=Augmentation(crop="paper", policy="randaugment-official", num_ops=2, magnitude=10.0, mixup=0.2),
        optimizer=Optimizer(lr=1e-3, weight_decay=0.1, clip=1.0),
        schedule=Schedule(kind="cosine", total=f"{epochs} epochs", warmup="10k steps"),
        batch_size=1024,
        compile=True,
        keep="last",
    )


def vit_s16_imagenet_90ep() -> Recipe:
    """ViT-S/16 for 90 epochs by "Better plain ViT baselines for ImageNet-1k" (arXiv 2205.01580).

    Command: vitlab train vit-s16-imagenet-90ep --data.source PATH
    Hardware and time: not run here; the authors report under seven hours on a TPUv3-8.
    Score: none seen here; the authors report more than 76%.
    """
    return _better_baseline(90)


def vit_s16_imagenet_300ep() -> Recipe:
    """ViT-S/16 for 300 epochs by "Better plain ViT baselines for ImageNet-1k" (arXiv 2205.01580).

    Command: vitlab train vit-s16-imagenet-300ep --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the authors report 80%.
    """
    return _better_baseline(300)


def _deit3(name: str, source: str, *, image_size: int, lr: float, drop_path: float, score: str) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(
                source=source,
                image_size=image_size,
                drop_path=drop_path,
                set=("layer_scale=0.0001", "positions_for_prefix=0", "gelu=exact"),
            ),
            data=DataChoice(source="imagenet", val_fraction=0.01, repeats=3),
            augmentation=Augmentation(
                crop="paper", crop_area=(0.08, 1.0), policy="three", jitter=0.3, mixup=0.8, cutmix=1.0
            ),
            loss=Loss(kind="sigmoid", class_mean=True, binarize=True),
            optimizer=Optimizer(name="lamb", lr=lr, weight_decay=0.05, clip=1.0),
            schedule=Schedule(kind="cosine", total="800 epochs", warmup="5 epochs", end=1e-5 / lr),
            batch_size=2048,
            compile=True,
            keep="last",
        )

    build.__doc__ = f"""{source} from scratch by DeiT III (arXiv 2204.07118): LAMB, three-augment, sigmoid loss.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here; the authors use one machine of eight GPUs.
    Score: none seen here; the authors report {score}.
    """
    return build


def _deit3_finetuning(name: str, before: str, *, image_size: int, drop_path: float, score: str) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(
                source=f"runs/{before}",
                pretrained=True,
                keep_head=True,
                image_size=image_size,
                drop_path=drop_path,
            ),
            data=DataChoice(source="imagenet", val_fraction=0.01),
            augmentation=replace(DEIT, erase=0.0),
            loss=Loss(label_smoothing=0.1),
            optimizer=Optimizer(lr=1e-5, weight_decay=0.1),
            # their cosine ends at their code's least rate, 1e-5, where it begins
            schedule=Schedule(kind="constant", total="20 epochs", warmup="5 epochs"),
            batch_size=512,
            compile=True,
            keep="last",
        )

    build.__doc__ = f"""The model of {before} at {image_size} px by DeiT III (arXiv 2204.07118).

    Starts from runs/{before}, or from SOURCE.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH [--model.source SOURCE]
    Hardware and time: not run here; the authors use one machine of eight GPUs.
    Score: none seen here; the authors report {score}.
    """
    return build


RECIPES: dict[str, Callable[[], Recipe]] = {
    "vit-s16-imagenet-90ep": vit_s16_imagenet_90ep,
    "vit-s16-imagenet-300ep": vit_s16_imagenet_300ep,
    "deit3-s16-imagenet": _deit3(
        "deit3-s16-imagenet", "vit-s16-224", image_size=224, lr=4e-3, drop_path=0.05, score="81.4%"
    ),
    "deit3-b16-imagenet": _deit3(
        "deit3-b16-imagenet",
        "vit-b16-224",
        image_size=192,
        lr=3e-3,
        drop_path=0.2,
        score="83.8% after the 20 epochs at 224 px",
    ),
    "deit3-s16-384-imagenet": _deit3_finetuning(
        "deit3-s16-384-imagenet", "deit3-s16-imagenet", image_size=384, drop_path=0.0, score="83.4%"
    ),
    "deit3-b16-224-imagenet": _deit3_finetuning(
        "deit3-b16-224-imagenet", "deit3-b16-imagenet", image_size=224, drop_path=0.2, score="83.8%"
    ),
}
