"""From scratch on ImageNet, as later work does it."""

from collections.abc import Callable

from vitlab.data.augmentation import Augmentation
from vitlab.training.optimisers import Optimiser
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule


def _better_baseline(epochs: int) -> Recipe:
    return Recipe(
        name=f"vit-s16-imagenet-{epochs}ep",
        model=ModelChoice(source="vit-s16-224", set=("positions=sincos2d", "class_token=false", "pool=mean")),
        data=DataChoice(source="imagenet", val_fraction=0.01),
        augmentation=Augmentation(
            crop="paper", policy="randaugment", num_ops=2, magnitude=10.0, magnitude_std=0.0, op_prob=1.0, mixup=0.2
        ),
        optimiser=Optimiser(rate=1e-3, weight_decay=0.1, clip=1.0),
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
    """The same for 300 epochs.

    Command: vitlab train vit-s16-imagenet-300ep --data.source PATH
    Hardware and time: not run here.
    Score: none seen here; the authors report 80%.
    """
    return _better_baseline(300)


def _deit3(name: str, source: str, rate: float, drop_path: float, epochs: int) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return Recipe(
            name=name,
            model=ModelChoice(
                source=source,
                drop_path=drop_path,
                set=("layer_scale=0.0001", "positions_for_prefix=0", "gelu=exact"),
            ),
            data=DataChoice(source="imagenet", val_fraction=0.01, repeats=3),
            augmentation=Augmentation(
                crop="paper", crop_area=(0.08, 1.0), policy="three", jitter=0.3, mixup=0.8, cutmix=1.0
            ),
            loss=Loss(kind="sigmoid"),
            optimiser=Optimiser(name="lamb", rate=rate, weight_decay=0.02, clip=1.0),
            schedule=Schedule(kind="cosine", total=f"{epochs} epochs", warmup="5 epochs"),
            batch_size=2048,
            compile=True,
            keep="last",
        )

    build.__doc__ = f"""{source} from scratch by DeiT III (arXiv 2204.07118): LAMB, three-augment, sigmoid loss.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here.
    Score: none seen here.
    """
    return build


RECIPES: dict[str, Callable[[], Recipe]] = {
    "vit-s16-imagenet-90ep": vit_s16_imagenet_90ep,
    "vit-s16-imagenet-300ep": vit_s16_imagenet_300ep,
    "deit3-s16-imagenet": _deit3("deit3-s16-imagenet", "vit-s16-224", 4e-3, 0.05, 800),
    "deit3-b16-imagenet": _deit3("deit3-b16-imagenet", "vit-b16-224", 3e-3, 0.2, 800),
}
