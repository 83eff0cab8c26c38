"""What a network assumes of pictures before it has seen one: fully connected, convolutional, recurrent, attention.

All are trained alike, on pictures as they are and without augmentation, which would teach what a network could assume.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.studies.contract import Study, StudyResult, Table

if TYPE_CHECKING:
    from vitlab.studies.context import Context, Trained
    from vitlab.studies.findings import Sample

NETWORKS = {
    "fully connected": "mlp",
    "convolutional": "cnn-batch",
    "recurrent": "rnn",
    "attention": "vit",
    "attention, no positions": "vit-none",
    "graph": "graph",
}
LAYER_NORM = "convolutional, layer norm"
SMALL_BATCHES = {"convolutional, batches of 4": "cnn-batch", f"{LAYER_NORM}, batches of 4": "cnn-layer"}
PERMUTED = "{}, pixels permuted"
BATCH, LONGER = 4, 4  # the small batch, and how many times as many steps it gets
SIDES = {"digits": 8, "cifar": 32, "tiny-imagenet": 64}
PLAIN = "as they are"


@dataclass(frozen=True, kw_only=True)
class BiasOptions:
    """Inductive bias: four kinds of network and a graph network, trained the same way, on transformed pictures."""


def run(context: "Context", _: BiasOptions) -> StudyResult:
    recipes, modules = _grid(context.scale)
    runs = context.over_seeds(recipes, modules=modules)
    measured = {row: _measured(context, own) for row, own in runs.items()}
    tests = {row: _by_test(own) for row, own in measured.items()}
    return StudyResult(
        tables=_tables(context, runs, measured, tests),
        findings=_findings(measured, tests),
        figure=_figure(tests),
        numbers={
            row: {"measured": measured[row], "tests": {test: each.to_json() for test, each in own.items()}}
            for row, own in tests.items()
        },
    )


def _grid(scale: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The recipe of each row, and the function that builds its network."""
    import dataclasses

    from vitlab.recipes.scales import scale_recipe, with_batches
    from vitlab.training.recipe import ModelChoice

    recipe, side = scale_recipe(scale), SIDES[scale]
    plain = dataclasses.replace(
        recipe,
        model=ModelChoice(image_size=side),
        augmentation=dataclasses.replace(recipe.augmentation, crop="resize", flip=0.0),
    )
    small = with_batches(plain, BATCH, factor=LONGER)
    kinds = {**NETWORKS, LAYER_NORM: "cnn-layer", **SMALL_BATCHES}
    modules = {row: f"vitlab.studies.bias_networks:build:{kind}:{side}" for row, kind in kinds.items()}
    modules |= {PERMUTED.format(row): f"{modules[row]}:permuted" for row in NETWORKS}
    return {row: small if row in SMALL_BATCHES else plain for row in modules}, modules


def _measured(context: "Context", runs: "Sequence[Trained]") -> list[dict[str, Any]]:
    """Of each run: accuracies under the tests, equivariance, reach, and what positions became."""
    from vitlab.studies import bias_measures
    from vitlab.studies.bias_networks import Attention, patch_of

    found: list[dict[str, Any]] = []
    for run in runs:
        model: Any = run.model()
        images, labels = bias_measures.pictures_of(context.opened(run.recipe).splits["test"], model)
        side = images.shape[-1]
        one: dict[str, Any] = {
            "accuracies": bias_measures.accuracies(model, images, labels),
            "equivariance": bias_measures.equivariance(model, images, patch_of(side)),
            "reach": bias_measures.gradient_reach(model, images),
        }
        if isinstance(model.net, Attention):
            vit = model.net.vit
            one["attention"] = bias_measures.attention_reach(vit, images)
            one["uniform attention"] = bias_measures.uniform_attention(vit)
            if vit.taps.positions is not None:
                one["positions"] = bias_measures.position_structure(vit.taps.positions(), vit.config.grid)
                one["fresh positions"] = _fresh_positions(run)
        found.append(one)
    return found


def _fresh_positions(run: "Trained") -> dict[str, float]:
    """What the positions of the same run were before its first step."""
    from vitlab.studies import bias_measures
    from vitlab.studies.cells import build_module

    vit: Any = build_module(run.cell.module, run.recipe.seed).vit
    return bias_measures.position_structure(vit.taps.positions(), vit.config.grid)


def _by_test(measured: Sequence[Mapping[str, Any]]) -> "dict[str, Sample]":
    from vitlab.studies.findings import Sample

    return {test: Sample(tuple(one["accuracies"][test] for one in measured)) for test in measured[0]["accuracies"]}


def _mean(measured: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = [one[name] for one in measured if one.get(name) is not None]
    return sum(values) / len(values) if values else None


def _tables(
    context: "Context",
    runs: "Mapping[str, Sequence[Trained]]",
    measured: Mapping[str, Sequence[Mapping[str, Any]]],
    tests: "Mapping[str, Mapping[str, Sample]]",
) -> tuple[Table, ...]:
    from vitlab.core.words import millions

    names = list(next(iter(tests.values())))
    rows = [
        [row, millions(context.parameters(runs[row][0])), *(tests[row][name].percent() for name in names)]
        for row in tests
    ]
    answers = Table("Test accuracy in percent, on pictures", ["", ">parameters", *(f">{name}" for name in names)], rows)
    shown = [
        [row, _number(_mean(own, "equivariance")), _number(_mean(own, "reach"))]
        for row, own in measured.items()
        if row in NETWORKS or row == LAYER_NORM
    ]
    inside = Table("Inside: means over seeds", ["", ">equivariance to a shift", ">reach of the gradient, px"], shown)
    return answers, inside


def _number(value: float | None) -> str:
    return "no map" if value is None else f"{value:.2f}"


def _findings(
    measured: Mapping[str, Sequence[Mapping[str, Any]]], tests: "Mapping[str, Mapping[str, Sample]]"
) -> list[str]:
    from vitlab.studies.findings import Sample, joined, pair

    found: list[str] = []
    there = [row for row in NETWORKS if row in tests]
    for test in [name for name in (next(iter(tests.values()), {})) if name != PLAIN]:
        lost = {
            row: Sample(tuple(a - b for a, b in zip(tests[row][PLAIN].values, tests[row][test].values, strict=True)))
            for row in there
        }
        order = sorted(lost, key=lambda row: lost[row].mean)
        found.append(f"Points lost on pictures {test}: {joined([f'{row} {lost[row].percent()}' for row in order])}.")
    plain = {row: own[PLAIN] for row, own in tests.items()}
    pairs = [*((row, PERMUTED.format(row)) for row in there), ("convolutional", LAYER_NORM), tuple(SMALL_BATCHES)]
    found += [pair(one, other, plain) for one, other in pairs if one in plain and other in plain]
    return [*found, *_inside(measured)]


def _inside(measured: Mapping[str, Sequence[Mapping[str, Any]]]) -> list[str]:
    """How far the networks look, and what positions became, where the rows are there."""
    found: list[str] = []
    if "convolutional" in measured and "attention" in measured:
        layers = list(zip(*(one["attention"] for one in measured["attention"]), strict=True))
        means = ", ".join(f"{sum(layer) / len(layer):.2f}" for layer in layers)
        uniform = measured["attention"][0]["uniform attention"]
        conv, attention = (_mean(measured[row], "reach") for row in ("convolutional", "attention"))
        found.append(
            f"The middle of the convolutional map looks {conv:.2f} px far by its gradient, that of the attention map"
            f" {attention:.2f} px; the ViT's attention distance is {means} px from the first layer to the last, and"
            f" {uniform:.2f} px for one that looks everywhere alike."
        )
    if "attention" in measured:
        kinds = list(measured["attention"][0]["positions"])

        def words(name: str) -> str:
            own = [one[name] for one in measured["attention"]]
            return ", ".join(f"{kind} {sum(each[kind] for each in own) / len(own):.2f}" for kind in kinds)

        found.append(f"Learned positions became {words('positions')}; fresh ones are {words('fresh positions')}.")
    return found


def _figure(tests: "Mapping[str, Mapping[str, Sample]]") -> Any:
    from vitlab.studies.drawing import bars

    rows = [row for row in tests if row in NETWORKS]
    names = list(next(iter(tests.values()), {}))
    groups = {name: {row: tests[row][name] for row in rows} for name in names}
    permuted = {row: tests[PERMUTED.format(row)][PLAIN] for row in rows if PERMUTED.format(row) in tests}
    return bars({**groups, "permuted, trained so": permuted}, label="test accuracy, percent")


STUDY = Study(
    name="bias",
    summary="inductive bias: fully connected, convolutional, recurrent, attention, on transformed pictures",
    options=BiasOptions,
    run=run,
    scales=tuple(SIDES),
    examples=("--scale digits", "--scale digits --only 'convolutional*'"),
)
