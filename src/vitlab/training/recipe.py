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
    keep_head: bool = False  # pretrained: the source's head too, where the data's classes are its own
    image_size: int | None = None  # the side in pixels; None: the source's own
    dropout: float | None = None  # after the positions and in each block; None: the source's own
    attention_dropout: float | None = None  # of attention weights; None: the source's own
    drop_path: float | None = None  # stochastic depth's largest rate, the last layer's; None: the source's own
    patch_dropout: float | None = None  # the share of patches left out of each image; None: the source's own
    representation: bool = False  # the paper's pre-training head: a hidden layer of width D with tanh
    checkpoint_blocks: bool = False  # compute each block's forward pass twice instead of keeping what is inside it
    set: tuple[str, ...] = ()  # other fields of the model's configuration, as 'positions=relative'
    upcycle: tuple[str, ...] = ()  # pretrained: the dense source as a mixture of experts, as 'num_experts=8 every=2'
    train_only: Literal["all", "head"] = "all"  # the rest is frozen
    lora: PositiveInt | None = None  # low-rank adapters of this rank on every layer's products; the rest is frozen

    def __post_init__(self) -> None:
        check_fields(self, "model.")
        if self.upcycle and not self.pretrained:
            raise ConfigError("model.upcycle makes experts of trained layers: it goes with model.pretrained.")


@dataclass(frozen=True, kw_only=True)
class DataChoice:
    """Which data, and how it is read."""

    source: str = "digits"  # a path or a name: see docs/data.md
    parts: str = ""  # the set's parts arranged anew, as 'train=train+val,test=test'; empty: as they are
    val_fraction: BelowOne = 0.1  # of train, held out where the set has no validation part; 0: none
    division: Literal["class", "hash"] = "class"
    """How a set without parts is divided: class: of each class as many in val, and in test; hash: any images in val."""
    fraction: Fraction = 1.0  # of train that is trained on, of each class; a smaller part lies within a larger one
    labelled: Fraction = 1.0  # of train that keeps its labels, the same part; below 1 all its images are unlabelled too
    subset_seed: NonNegativeInt = 0  # which images `fraction` and `labelled` take: another one, another draw
    workers: NonNegativeInt | None = None  # decoding processes; None: one per core, 0: none
    resident: bool | None = None  # the whole set decoded on the device; None: where it fits
    balanced: bool = False  # every class drawn equally often
    repeats: PositiveInt = 1  # repeated augmentation
    max_unreadable: Probability = 0.01  # the fraction of files that may be unreadable; ten always may, unless it is 0

    def __post_init__(self) -> None:
        check_fields(self, "data.")


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides what a run computes, and how often it reports.

    Durations are '100 epochs', '2000 steps', '300M images' or, of the run, '5%'.
    """

    name: str = "custom"  # what the run is called, and its folder under runs/
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
    batch_size: PositiveInt = 128  # images an optimizer step, over all processes
    accumulate: PositiveInt = 1  # parts that a process's share of the batch is computed in
    seed: int = 0  # what order, augmentation, dropout and initialisation follow from
    precision: Literal["auto", "float32", "bf16"] = "auto"  # auto: bf16 on a GPU
    compile: bool = False  # with torch.compile, which takes a minute or two at first
    strategy: Literal["auto", "replicate", "shard", "experts"] = "auto"
    """Over processes: copies (DDP), shards (FSDP2), or each some experts and copies of the rest; auto: the last where
    there are experts and the processes divide them, else copies."""
    evaluate_every: str = "1 epoch"  # how often the held-out part is scored
    checkpoint_every: str = "1 epoch"  # how often a checkpoint is written, besides each time that the score is the best
    log_every: str = "20 steps"  # how often the means of loss and accuracy are logged
    patience: PositiveInt | None = None  # evaluations without a better score before the run stops early
    max_skipped: PositiveInt = 10  # steps in a row that may be skipped because something was not finite
    keep: Literal["best", "last"] = "best"  # which weights become `model/`; best: by the held-out part
    tracker: Literal["none", "mlflow", "wandb"] = "none"  # where metrics go besides metrics.jsonl and TensorBoard

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
