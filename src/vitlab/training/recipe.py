"""The complete, typed configuration of a run; named ones are in vitlab.recipes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeVar

from vitlab.core.bounds import BelowOne, Fraction, NonNegativeInt, PositiveInt, Probability
from vitlab.core.config import Choice, check_fields, from_dict, to_dict
from vitlab.core.errors import ConfigError
from vitlab.core.registry import Registry, is_permitted
from vitlab.data.augmentation import Augmentation
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.cross_entropy import Loss
from vitlab.tasks import TASKS
from vitlab.training.durations import parse
from vitlab.training.optimizers import Optimizer
from vitlab.training.schedules import Schedule

RENAMED = {  # fields, and options of the command line, as versions before the first release called them
    "optimiser": "optimizer",
    "optimiser.rate": "optimizer.lr",
    "optimiser.head_rate": "optimizer.head_lr_scale",
    "optimiser.average": "optimizer.ema",
    "spread": "strategy",
    "loss.whole": "loss.binarize",
}
GIVEN = "given:"  # begins the name of a model or an objective that the caller handed over as an object


@dataclass(frozen=True, kw_only=True)
class ModelChoice:
    """Which model: a row of the zoo with fresh weights, or a source of trained ones."""

    source: str = "vit-digits"  # a row of the zoo, timm:NAME, or with `pretrained` whatever `load` takes
    pretrained: bool = False  # weights from `source`, with a zero head for the data's classes
    keep_head: bool = False  # pretrained: keep the source's head too, if the data has the source's classes
    image_size: int | None = None  # the side in pixels; None: the source's own
    dropout: float | None = None  # dropout after the positions and in each block; None: the source's own
    attention_dropout: float | None = None  # dropout of attention weights; None: the source's own
    drop_path: float | None = None  # stochastic depth: the last layer's rate, the largest; None: the source's own
    patch_dropout: float | None = None  # the share of patches left out of each image; None: the source's own
    representation: bool = False  # the paper's pre-training head: a hidden layer of width D with tanh
    checkpoint_blocks: bool = False  # compute each block's forward pass twice instead of storing its activations
    set: tuple[str, ...] = ()  # other fields of the model's configuration, such as 'positions=relative'
    upcycle: tuple[str, ...] = ()  # pretrained: make the dense source a mixture of experts: 'num_experts=8 every=2'
    train_only: Literal["all", "head"] = "all"  # which part is trained; the rest is frozen
    lora: PositiveInt | None = None  # low-rank adapters of this rank on every layer's products; the rest is frozen

    def __post_init__(self) -> None:
        check_fields(self, "model.")
        if self.upcycle and not self.pretrained:
            raise ConfigError("model.upcycle makes experts of trained layers: it goes with model.pretrained.")


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """Which data, and how it is read."""

    source: str = "digits"  # a path or a name: see docs/data.md
    parts: str = ""  # rearranges the set's splits, such as 'train=train+val,test=test'; empty: as they are
    val_fraction: BelowOne = 0.1  # the fraction of train that is held out if the set has no validation split; 0: none
    division: Literal["class", "hash"] = "class"
    """How a set without splits is split; class: a share of each class in val and in test; hash: any images in val."""
    fraction: Fraction = 1.0  # the fraction of each class of train to train on; a larger one contains a smaller one
    labelled: Fraction = 1.0  # the fraction of train that keeps its labels; below 1 all images are also unlabelled ones
    subset_seed: NonNegativeInt = 0  # the draw of the images that `fraction` and `labelled` take
    workers: NonNegativeInt | None = None  # decoding processes; None: one per core, 0: none
    resident: bool | None = None  # keep the whole set, decoded, on the device; None: if it fits
    balanced: bool = False  # draw every class equally often
    repeats: PositiveInt = 1  # repeated augmentation: how many copies of each image an epoch has
    max_unreadable: Probability = 0.01  # the fraction of files that may be unreadable; ten always may, unless it is 0

    def __post_init__(self) -> None:
        check_fields(self, "data.")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what a run computes, and how often it reports.

    Durations are '100 epochs', '2000 steps', '300M images' or, of the run, '5%'. Fields have docstrings, not comments:
    the command line derives a class from this one, in which only docstrings are found.
    """

    name: str = "custom"
    """The name of the run, and of its folder under runs/."""
    model: ModelChoice = field(default_factory=ModelChoice)
    data: DataChoice = field(default_factory=DataChoice)
    augmentation: Augmentation = field(default_factory=Augmentation)
    task: Choice = field(default_factory=lambda: Choice("classification"))
    """What the model is for, with the task's own options."""
    objective: Choice = field(default_factory=lambda: Choice("supervised"))
    """What a step minimises, with the objective's own options."""
    loss: Loss = field(default_factory=Loss)
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    batch_size: PositiveInt = 128
    """Images per optimizer step, over all processes."""
    accumulate: PositiveInt = 1
    """The number of parts in which a process computes its share of the batch (gradient accumulation)."""
    seed: int = 0
    """The seed of initialisation, order, augmentation and dropout."""
    precision: Literal["auto", "float32", "bf16"] = "auto"
    """auto: bf16 on a GPU, float32 on a CPU."""
    compile: bool = False
    """Use torch.compile, which takes a minute or two at the start."""
    strategy: Literal["auto", "replicate", "shard", "experts"] = "auto"
    """Over several processes: replicate: copies (DDP); shard: shards (FSDP2); experts: some experts each, and copies of
    the rest; auto: experts if there are any and the number of processes divides them, else replicate."""
    evaluate_every: str = "1 epoch"
    """How often the held-out part is scored."""
    checkpoint_every: str = "1 epoch"
    """How often a checkpoint is written, besides whenever the score is the best so far."""
    log_every: str = "20 steps"
    """How often the means of loss and accuracy are logged."""
    patience: PositiveInt | None = None
    """Evaluations without a better score before the run stops early; None: never."""
    max_skipped: PositiveInt = 10
    """Steps in a row that may be skipped because something was not finite."""
    keep: Literal["best", "last"] = "best"
    """Which weights become RUN/model: those with the best held-out score, or the last."""
    tracker: Literal["none", "mlflow", "wandb"] = "none"
    """Also log metrics to MLflow or Weights & Biases, besides metrics.jsonl and TensorBoard."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.seed < 2**64:
            raise ConfigError(f"seed must be a whole number from 0 to 2^64 - 1, not {self.seed}.")
        for name, registry in (("task", TASKS), ("objective", OBJECTIVES)):
            if isinstance(choice := getattr(self, name), Choice):
                object.__setattr__(self, name, complete(registry, choice, where=name))
        for duration in (self.evaluate_every, self.checkpoint_every, self.log_every, self.augmentation.mix_until):
            parse(duration)
        if self.data.balanced and self.loss.class_weights:
            raise ConfigError("data.balanced and loss.class_weights both even out the classes: choose one of them.")

    def names(self) -> dict[str, str]:
        """What may be code in a file (mine.py:NAME), by what it is: whoever gives a recipe gives these."""
        found = {"task": self.task.name, "objective": self.objective.name}
        return {**found, "model": self.model.source, "data set": self.data.source}


class Kind(Protocol):
    """What a registry of choices holds."""

    @property
    def name(self) -> str: ...

    @property
    def options(self) -> type[Any]: ...


K = TypeVar("K", bound=Kind)


def chosen(registry: Registry[K], choice: Choice, *, where: str) -> tuple[K, Any]:
    """What a choice names, and its options as their own type."""
    kind = registry.find(choice.name)
    return kind, from_dict(kind.options, choice.options, where=where)


def complete(registry: Registry[Any], choice: Choice, *, where: str) -> Choice:
    """The choice with all of its options, checked; one in a file is left alone until the caller gives its name."""
    if not is_permitted(choice.name) or choice.name.startswith(GIVEN):
        return choice
    return Choice(choice.name, to_dict(chosen(registry, choice, where=where)[1]))


def read_recipe(data: Mapping[str, Any], *, where: str) -> Recipe:
    """A recipe from JSON, also as an earlier version wrote it."""
    fields = dict[str, Any]()
    for name, value in data.items():
        inner = isinstance(value, Mapping) and name in ("optimiser", "optimizer")
        fields[RENAMED.get(name, name)] = {_last(f"{name}.{key}"): it for key, it in value.items()} if inner else value
    if isinstance(chosen_data := fields.get("data"), Mapping):
        fields["data"] = {"division": "hash", **chosen_data}  # as all runs were divided before they said how
    if isinstance(chosen_optimizer := fields.get("optimizer"), Mapping):
        fields["optimizer"] = {"muon_kernels": False, **chosen_optimizer}  # before they said so, AdamW had them
    teacher = fields.pop("teacher", None)
    if isinstance(teacher, Mapping) and teacher.get("source") is not None:
        options = {"teacher" if name == "source" else name: value for name, value in teacher.items()}
        fields["objective"] = {"name": "distillation", **options}
    return from_dict(Recipe, fields, where=where)


def _last(name: str) -> str:
    """The last part of a field's name as it is now."""
    return RENAMED.get(name, name).rpartition(".")[2]
