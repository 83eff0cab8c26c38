"""The leaderboards of the paper's time beside what is here: our model, its size and cost, its recipes, its score."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

from vitlab.core.errors import Error
from vitlab.core.words import listed
from vitlab.evaluation.contract import Metric, Result
from vitlab.evaluation.published.tables import Figure, published_table
from vitlab.models.counts import count_flops, count_parameters
from vitlab.models.create import configured, empty_model

Parts: TypeAlias = Mapping[str, int]
BOARDS = {"cifar100": "leaderboard-cifar100", "imagenet": "leaderboard-imagenet"}  # by data set
PARAMETERS = "parameters (M)"
MEASURED = ("finetune", "accuracy")  # protocols whose results are a score of the leaderboard


@dataclass(frozen=True)
class Ours:
    """What stands for a row here: a row of the zoo at a resolution, and the recipes from scratch to the score."""

    model: str
    image_size: int | None
    recipes: tuple[str, ...]
    note: str = ""  # on the count, where it is another than the published one and heads do not explain it


L2 = "timm:tf_efficientnet_l2.ns_jft_in1k"
OURS: dict[str, dict[str, Ours]] = {
    "cifar100": {
        "EffNet-L2 (SAM)": Ours(f"{L2}_475", 475, ("efficientnet-l2-sam-cifar100",)),
        "ViT-H/14": Ours("vit-h14-224", 392, ("vit-h14-jft", "vit-h14-392-cifar100")),
        "ViT-B/16 (ImageNet-21K-P)": Ours("vit-b16-224", 384, ("vit-b16-21kp-cifar100",)),
        "CvT-W24": Ours("cvt-w24", 384, ("cvt-w24-imagenet21k", "cvt-w24-384-cifar100")),
        "ViT-L/16": Ours(
            "vit-l16-224", 384, ("vit-l16-jft", "vit-l16-384-cifar100"), "The paper's 307M is the count of L/32."
        ),
    },
    "imagenet": {
        "CoAtNet-7": Ours("coatnet-7", 512, ("coatnet-7-jft", "coatnet-7-512-imagenet-from-jft")),
        "ViT-G/14": Ours("vit-gigantic14-224", 518, ("vit-gigantic14-jft", "vit-gigantic14-518-imagenet")),
        "CoAtNet-6": Ours("coatnet-6", 512, ("coatnet-6-jft", "coatnet-6-512-imagenet-from-jft")),
        "ViT-MoE-15B": Ours("vmoe-15b", 560, ("vmoe-15b-jft", "vmoe-15b-560-imagenet")),
        "Meta Pseudo Labels": Ours(L2, 512, ("meta-pseudo-labels-l2-imagenet",)),
    },
}


@dataclass(frozen=True)
class Count:
    """A model counted on the meta device; `outside` are parameters of pooling head and classifier by their names."""

    parameters: int
    flops: int
    side: int
    num_classes: int
    outside: Parts


@dataclass(frozen=True)
class BoardRow:
    """A row of a leaderboard with what is here; `count` is None where its family is not installed."""

    rank: int
    method: str
    published: Mapping[str, Figure]  # by column
    ours: Ours
    count: Count | None
    missing: str  # why there is no count
    measured: Metric | None

    @property
    def why(self) -> str:
        """Why our count of parameters is another than the published one; empty where it is not."""
        figure = self.published.get(PARAMETERS)
        if self.count is None or figure is None or same_count(self.count.parameters, figure.value):
            return ""
        here, outside = self.count.parameters, self.count.outside
        counts = f"{self.method}: {in_millions(here)} parameters counted here, {figure.value:,.10g}M published"
        if same_count(here - sum(outside.values()), figure.value):
            parts = listed([f"{name} ({in_millions(number)})" for name, number in outside.items()])
            return f"{counts}: the layers alone, without {parts}."
        return f"{counts}. {self.ours.note}".rstrip()


def board_rows(data: str, results: Sequence[Result] = ()) -> list[BoardRow]:
    """A leaderboard's rows in its order, with results of `vitlab evaluate` whose model has the name of ours."""
    table = published_table(BOARDS[data])
    rows: list[BoardRow] = []
    for rank, method in enumerate(table.rows, 1):
        ours = OURS[data][method]
        try:
            count, missing = count_of(ours.model, ours.image_size), ""
        except Error as error:
            count, missing = None, str(error)
        measured = measured_score(results, data, (ours.model, *ours.recipes))
        rows.append(BoardRow(rank, method, table.row(method), ours, count, missing, measured))
    return rows


@cache
def count_of(model: str, side: int | None) -> Count:
    """A row of the zoo, or one of timm's: its parameters as the row is, its FLOPs at a resolution."""
    empty = empty_model(configured(model)).eval()
    size = empty.config.image_size if side is None else (side, side)
    outside = {
        "the classifier": sum(each.numel() for each in empty.head.parameters()),
        "the pooling head": sum(
            parameter.numel() for name, parameter in empty.named_parameters() if name.startswith("attention_pool.")
        ),
    }
    return Count(
        parameters=count_parameters(empty),
        flops=count_flops(empty, size),
        side=size[0],
        num_classes=empty.config.num_classes,
        outside={name: number for name, number in outside.items() if number},
    )


def same_count(parameters: int, published: float) -> bool:
    """Whether a count is the published number of millions, rounded to the figures that this has."""
    shown = f"{published:.10g}"
    digits = len(shown.replace(".", "").rstrip("0") if "." not in shown else shown.replace(".", ""))
    return float(f"{parameters / 1e6:.{digits - 1}e}") == published


def measured_score(results: Sequence[Result], data: str, names: Sequence[str]) -> Metric | None:
    """The first metric of a result on that set for a model of one of the names; the later result goes before."""
    for result in reversed(results):
        if result.data == data and result.protocol in MEASURED and result.model in names:
            return next(iter(result.metrics.values()))
    return None


def in_millions(number: int) -> str:
    return f"{number / 1e6:,.1f}M"
