"""DeiT (arXiv 2012.12877): ViTs from ImageNet alone, by strong augmentation and a teacher.

RandAugment 9/.5, mixup .8, cutmix 1, erasing .25, repeated augmentation, label smoothing .1, stochastic depth .1, AdamW
at 5e-4 for each 512 images, weight decay .05, cosine over 300 epochs to 1e-5 after 5 of warm-up, as the paper's table
of hyper-parameters and the authors' code have it. The distilled ones add their ConvNet RegNetY-16GF as a teacher.

At 384 px a trained model continues, head and augmentation kept, for 30 epochs at a constant 5e-6 for each 512 images,
weight decay 1e-8: the command in the authors' README. That code refuses a teacher there, while the paper keeps it, made
for 384 px by FixRes; it is kept here as it is, and sees the same pictures at its own size.
"""

from collections.abc import Callable
from dataclasses import replace

from vitlab.core.config import Choice
from vitlab.data.augmentation import Augmentation
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule

TEACHER = "timm:regnety_160.deit_in1k"  # the authors' teacher, 82.9%
ALONE = Choice("supervised")
HARD = Choice("distillation", {"teacher": TEACHER, "kind": "hard", "alpha": 0.5})
SOFT = Choice("distillation", {"teacher": TEACHER, "kind": "soft", "alpha": 0.1, "tau": 3.0})
BATCH = 1024
AUGMENTATION = Augmentation(
    crop="paper",
    crop_area=(0.08, 1.0),
    policy="randaugment",
    num_ops=2,
    magnitude=9.0,
    magnitude_std=0.5,
    op_prob=0.5,
    erase=0.25,
    mixup=0.8,
    cutmix=1.0,
)


def deit_recipe(
    name: str,
    model: str,
    *,
    objective: Choice,
    data: str = "imagenet",
    epochs: int = 300,
    batch_size: int = BATCH,
    set: tuple[str, ...] = (),
) -> Recipe:
    """The paper's training for any model and data; the rate follows the batch."""
    lr = 5e-4 * batch_size / 512
    return Recipe(
        name=name,
        model=ModelChoice(source=model, drop_path=0.1, set=set),
        data=DataChoice(source=data, val_fraction=0.01, repeats=3),
        augmentation=AUGMENTATION,
        loss=Loss(label_smoothing=0.1),
        objective=objective,
        optimizer=Optimizer(lr=lr, weight_decay=0.05),
        schedule=Schedule(kind="cosine", total=f"{epochs} epochs", warmup="5 epochs", end=1e-5 / lr),
        batch_size=batch_size,
        compile=True,
        keep="last",
    )


def _recipe(name: str, model: str, objective: Choice, score: str, set: tuple[str, ...] = ()) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return deit_recipe(name, model, objective=objective, set=set)

    how = f"with {objective.options['kind']} labels of a teacher" if objective.options else "without a teacher"
    build.__doc__ = f"""{model} from scratch by DeiT (arXiv 2012.12877), {how}.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH
    Hardware and time: not run here; the authors report under three days on one machine of four or eight GPUs.
    Score: none seen here; the authors report {score}.
    """
    return build


def deit_finetuning(
    name: str,
    model: str,
    *,
    objective: Choice,
    data: str = "imagenet",
    image_size: int = 384,
    epochs: int = 30,
    batch_size: int = 512,
) -> Recipe:
    """The authors' change of resolution for any trained model, on the data that it was trained on."""
    recipe = deit_recipe(name, model, objective=objective, data=data, batch_size=batch_size)
    return replace(
        recipe,
        model=replace(recipe.model, pretrained=True, keep_head=True, image_size=image_size),
        optimizer=replace(recipe.optimizer, lr=5e-6 * batch_size / 512, weight_decay=1e-8),
        # their warm-up of 5 epochs is the default of their code; its cosine ends where it begins
        schedule=Schedule(kind="constant", total=f"{epochs} epochs", warmup="5 epochs"),
    )


def _finetuning(name: str, model: str, objective: Choice, score: str) -> Callable[[], Recipe]:
    def build() -> Recipe:
        return deit_finetuning(name, model, objective=objective)

    how = f"with {objective.options['kind']} labels of a teacher" if objective.options else "without a teacher"
    build.__doc__ = f"""{model} to 384 px by DeiT (arXiv 2012.12877), {how}.

    Command: torchrun --nproc-per-node 8 -m vitlab train {name} --data.source PATH --model.source SOURCE
    Hardware and time: not run here; the authors use two machines of eight GPUs.
    Score: none seen here; the authors' README reports {score}.
    """
    return build


PLAIN = ("gelu=exact",)
RECIPES: dict[str, Callable[[], Recipe]] = {
    "deit-b16-384-imagenet": _finetuning("deit-b16-384-imagenet", "vit-b16-224.deit", ALONE, "82.9%"),
    "deit-b16-384-imagenet-distilled": _finetuning(
        "deit-b16-384-imagenet-distilled", "deit-b16-224.in1k", HARD, "85.2% from a model of 1000 epochs"
    ),
    "deit-ti16-imagenet": _recipe("deit-ti16-imagenet", "vit-ti16-224", ALONE, "72.2%", PLAIN),
    "deit-s16-imagenet": _recipe("deit-s16-imagenet", "vit-s16-224", ALONE, "79.8%", PLAIN),
    "deit-b16-imagenet": _recipe("deit-b16-imagenet", "vit-b16-224", ALONE, "81.8%", PLAIN),
    "deit-ti16-imagenet-distilled": _recipe("deit-ti16-imagenet-distilled", "deit-ti16-224", HARD, "74.5%"),
    "deit-s16-imagenet-distilled": _recipe("deit-s16-imagenet-distilled", "deit-s16-224", HARD, "81.2%"),
    "deit-b16-imagenet-distilled": _recipe("deit-b16-imagenet-distilled", "deit-b16-224", HARD, "83.4%"),
    "deit-b16-imagenet-soft": _recipe(
        "deit-b16-imagenet-soft", "vit-b16-224", SOFT, "81.8% for soft distillation without the token", PLAIN
    ),
}
