"""Accuracy against what training computes: families in several sizes and for several lengths (figure 5)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.studies.contract import Study, StudyResult, Table

if TYPE_CHECKING:
    from vitlab.studies.context import Context, Trained
    from vitlab.studies.findings import Sample

EXA = 1e18
TIMES = (("days", 1.0), ("seconds", 86_400.0), ("milliseconds", 86_400e3))  # how many there are in a day
JFT_IMAGES = 303e6  # the paper's JFT-300M
# what pins TPUv3-core-days to FLOPs: rows of the zoo whose training the paper's table 2 states, 14 epochs of JFT
PINNED = {"ViT-H/14 (JFT)": ("vit-h14-224", 14), "ViT-L/16 (JFT)": ("vit-l16-224", 14)}
ZOO = {  # the models of the paper's table 6
    "R50x1": "bit-r50x1",
    "R50x2": "bit-r50x2",
    "R101x1": "bit-r101x1",
    "R152x1": "bit-r152x1",
    "R152x2": "bit-r152x2",
    "R200x3": "bit-r200x3",
    **{f"ViT-{size}": f"vit-{size.lower().replace('/', '')}-224" for size in ("B/32", "B/16", "L/32", "L/16", "H/14")},
    **{f"R50+ViT-{size}": f"r50-vit-{size.lower().replace('/', '')}-224" for size in ("B/32", "B/16", "L/32", "L/16")},
}


@dataclass(frozen=True, kw_only=True)
class CostOptions:
    """Accuracy against exaFLOPs of training: ViT, BiT and a hybrid in several sizes, each trained short and long."""

    lengths: tuple[int, ...] = (1, 2)
    """How many times as long as the scale's own run."""


def core_days_per_exaflop() -> dict[str, float]:
    """By the models whose core-days the paper states, and our count of what their training computed."""
    from vitlab.studies.paper import core_days

    days = core_days()
    return {name: days[name] / on_jft(row, epochs) for name, (row, epochs) in PINNED.items()}


def on_jft(row: str, epochs: float) -> float:
    """The exaFLOPs of training a model of the zoo on JFT, by our count."""
    from vitlab.evaluation.cost import exaflops
    from vitlab.models.counts import count_flops
    from vitlab.models.create import configured, empty_model

    return exaflops(count_flops(empty_model(configured(row))), epochs * JFT_IMAGES)


def papers_table(rates: Mapping[str, float]) -> tuple[Table, ...]:
    """The paper's models on JFT: its exaFLOPs, ours beside, and core-days; nothing without the published figures."""
    from vitlab.core.words import number
    from vitlab.studies.paper import core_days, scaling

    low, high = min(rates.values()), max(rates.values())
    stated = {f"{name.split()[0]} 14": days for name, days in core_days().items() if name in PINNED}
    rows: list[list[str]] = []
    for row, (epochs, published) in scaling().items():
        ours = on_jft(ZOO[row.split()[0]], epochs)
        days = f"{stated[row]:,.0f}" if row in stated else "–"
        rows.append([row, number(published), number(ours), f"{number(ours * low)} to {number(ours * high)}", days])
    columns = [
        "model, epochs",
        ">exaFLOPs, published",
        ">counted here",
        ">core-days, estimated",
        ">core-days, published",
    ]
    return (Table("The paper's models on JFT (table 6)", columns, rows),) if rows else ()


# by scale and family: what each size changes of the scale's own model, or the recipe that trains it; the families'
# costs overlap, else none could be said to need less for the same score
SIZES: dict[str, dict[Any, dict[str, dict[str, Any] | str]]] = {
    "digits": {
        "ViT": {"2 layers": {"depth": 2}, "4 layers": {}, "4 layers, patch 2": {"patch_size": 2}},
        "BiT": {"2 units": {}, "3 units": {"layers": "[2,1]"}},
        "hybrid": {"2 layers": {}},
    },
    "cifar": {
        "ViT": {"3 layers": {"depth": 3}, "6 layers": {}},
        "BiT": {"3 units": {"layers": "[1,1,1]"}, "8 units": {}},
        "hybrid": {"3 layers": {}},
    },
    "tiny-imagenet": {
        "ViT": {"12 layers, patch 16": {"patch_size": 16}, "6 layers": {"depth": 6}, "12 layers": {}},
        "BiT": {"6 units": {}, "13 units": {"layers": "[3,4,6]"}},
        "hybrid": {"5 layers": {"depth": 5}, "10 layers": {}},
    },
    "imagenet": {
        "ViT": {"B/32": "vit-b32-imagenet", "B/16": "vit-b16-imagenet", "L/16": "vit-l16-imagenet"},
        "BiT": {"R50x1": {}, "R101x1": {"layers": "[3,4,23,3]"}, "R50x2": {"width": 128}},
        "hybrid": {"R50+B/16": {}},
    },
}


def rows(scale: str, lengths: Sequence[int]) -> dict[str, Any]:
    """A recipe for each family, size and length."""
    from vitlab.recipes import find_recipe
    from vitlab.recipes.scales import scale_recipe, steps_times, with_model

    found: dict[str, Any] = {}
    for family, own in SIZES[scale].items():
        for size, new in own.items():
            recipe = find_recipe(new) if isinstance(new, str) else with_model(scale_recipe(scale, family), **new)
            for length in lengths:
                longer = f", {length} times as long" if length > 1 else ""
                found[f"{family}, {size}{longer}"] = steps_times(recipe, length)
    return found


def run(context: "Context", options: CostOptions) -> StudyResult:
    from vitlab.core.words import UNITS
    from vitlab.studies.context import samples
    from vitlab.studies.drawing import lines

    runs = context.over_seeds(rows(context.scale, options.lengths))
    found = samples(runs)
    spent = {row: context.exaflops(own[0]) for row, own in runs.items()}
    rates = core_days_per_exaflop()
    table = _table(context, runs, found, spent, rates)
    families = list(dict.fromkeys(row.split(", ")[0] for row in found))
    ordered = sorted(found, key=lambda row: spent[row])
    most = EXA * max(spent.values(), default=0.0)
    size, prefix = next((unit for unit in UNITS if most >= unit[0]), UNITS[-1])
    series = {
        family: [(spent[row] * EXA / size, found[row]) for row in ordered if row.startswith(family)]
        for family in families
    }
    here, paper = "here, test accuracy", "the paper, ImageNet after JFT (table 6)"
    across = {here: f"{prefix}FLOPs of training", paper: "exaFLOPs of training"}
    numbers = {row: {"test accuracy": found[row].to_json(), "exaflops": spent[row]} for row in found}
    return StudyResult(
        tables=(table, *papers_table(rates)),
        findings=[*frontier(found, spent), *as_good(found, spent), _pinned(rates)],
        figure=lines({here: series, paper: papers_series()}, across=across, label="percent", joined=False),
        numbers={"rows": numbers, "core-days per exaFLOP": rates},
    )


def _table(
    context: "Context",
    runs: "Mapping[str, Sequence[Trained]]",
    found: "Mapping[str, Sample]",
    spent: Mapping[str, float],
    rates: Mapping[str, float],
) -> Table:
    from vitlab.core.words import flops, millions, number

    low, high = min(rates.values()), max(rates.values())
    most = max(spent.values(), default=0.0) * high
    time, factor = next((each for each in TIMES if most * each[1] >= 1), TIMES[-1])
    lines = [
        [
            row,
            millions(context.parameters(runs[row][0])),
            flops(spent[row] * EXA),
            f"{number(spent[row] * low * factor)} to {number(spent[row] * high * factor)}",
            f"{sum(float(run.result['seconds']) for run in runs[row]) / len(runs[row]):.1f}",
            found[row].percent(),
        ]
        for row in sorted(found, key=lambda row: spent[row])
    ]
    columns = ["", ">parameters", ">training", f">TPUv3-core-{time}, estimated", ">seconds here", ">test %"]
    return Table("Accuracy against the cost of training", columns, lines)


def frontier(found: "Mapping[str, Sample]", spent: Mapping[str, float]) -> list[str]:
    """What no cheaper row beats, by means; and which steps from one to the next are sure, of all of them together.

    Sizes as unlike as these vary unlike over seeds: each step has the variance of its own two rows.
    """
    from vitlab.studies.findings import difference, joined

    best: list[str] = []
    for row in sorted(found, key=lambda row: spent[row]):
        if not best or found[row].mean > found[best[-1]].mean:
            best.append(row)
    if not best:
        return []
    steps: list[str] = []
    for place, row in enumerate(best):
        apart = place > 0 and difference(found[row], found[best[place - 1]], comparisons=len(best) - 1).is_seen
        steps.append(f"{row} ({found[row].percent()}%{', sure' if apart else ', not sure' if place else ''})")
    return [
        f"Rows that no cheaper one beats by its mean, cheapest first: {joined(steps)}."
        + (" Sure: the 95% interval of the difference from the one before leaves out 0." if len(best) > 1 else "")
    ]


def as_good(found: "Mapping[str, Sample]", spent: Mapping[str, float]) -> list[str]:
    """What the other families need for the score of the best ViT, by means, as the paper asks."""
    ours = [row for row in found if row.startswith("ViT")]
    if not ours:
        return []
    best = max(ours, key=lambda row: found[row].mean)
    score, said = found[best].mean, list[str]()
    for family in dict.fromkeys(row.split(", ")[0] for row in found if row not in ours):
        own = [row for row in found if row.startswith(family) and found[row].mean >= score]
        if own:
            row = min(own, key=lambda row: spent[row])
            said.append(f"{row} ({found[row].percent()}%) with {spent[row] / spent[best]:.2g} times its FLOPs")
        else:
            said.append(f"no {family}")
    return (
        [f"At or above the best ViT ({best}, {found[best].percent()}%), by means: {'; '.join(said)}."] if said else []
    )


def papers_series() -> "dict[str, list[tuple[float, Sample]]]":
    """The paper's models by family: exaFLOPs and accuracy on ImageNet, the cheapest first."""
    from vitlab.studies.findings import Sample
    from vitlab.studies.paper import scaling_scores

    families: dict[str, list[tuple[float, Sample]]] = {"ViT": [], "BiT": [], "hybrid": []}
    for row, (exaflops, score) in scaling_scores().items():
        family = "hybrid" if "+" in row else "ViT" if row.startswith("ViT") else "BiT"
        families[family].append((exaflops, Sample((score,))))
    return {family: sorted(points, key=lambda point: point[0]) for family, points in families.items()}


def _pinned(rates: Mapping[str, float]) -> str:
    words = "; ".join(f"{name} {rate:.2f}" for name, rate in rates.items())
    return (
        f"TPUv3-core-days are estimated from FLOPs by what the paper states for its own models ({words} core-days per"
        " exaFLOP); small models would not reach that speed."
    )


STUDY = Study(
    name="cost",
    summary="accuracy against exaFLOPs of training, by family and size",
    options=CostOptions,
    run=run,
    examples=("--scale digits", "--scale digits --lengths 1 2 4 --only 'ViT*'"),
    published="figure 5: ViTs need 2 to 4 times less computation than BiTs for the same score; hybrids lead when small",
)
