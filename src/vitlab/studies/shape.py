"""What to make larger: depth, width, MLP or the number of patches, one at a time (appendix D.2, figure 8)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitlab.studies.contract import Study, StudyResult

if TYPE_CHECKING:
    from vitlab.studies.context import Context

BASE = "base"
AXES = ("depth", "width", "MLP", "patch")


@dataclass(frozen=True, kw_only=True)
class ShapeOptions:
    """The model's shape: depth, width, MLP and patch, each halved and doubled while the others stay."""


def rows(config: Any) -> dict[str, dict[str, int]]:
    """What each row changes of the base's configuration; a smaller patch is the larger model."""
    found: dict[str, dict[str, int]] = {BASE: {}}
    sides = {"depth": config.depth, "width": config.width, "mlp_dim": config.mlp_dim, "patch_size": config.patch_size}
    for axis, (name, value) in zip(AXES, sides.items(), strict=True):
        found[f"{axis} {value // 2}"] = {name: value // 2}
        found[f"{axis} {value * 2}"] = {name: value * 2}
    return found


def run(context: "Context", _: ShapeOptions) -> StudyResult:
    import dataclasses

    from vitlab.recipes.scales import config_of, scale_recipe, with_model
    from vitlab.studies.ablation import ablated
    from vitlab.studies.context import samples
    from vitlab.studies.drawing import lines

    recipe = scale_recipe(context.scale)
    runs = context.over_seeds({row: with_model(recipe, **new) for row, new in rows(config_of(recipe)).items()})
    found = samples(runs)
    result = ablated(context, runs, found, base=BASE, title="The shape of the model, one side at a time")
    ordered = sorted(found, key=lambda row: context.flops(runs[row][0]))
    series = {
        axis: [(context.flops(runs[row][0]), found[row]) for row in ordered if row == BASE or row.startswith(axis)]
        for axis in AXES
    }
    figure = lines({"test accuracy": series}, across="FLOPs per image", label="percent")
    return dataclasses.replace(result, figure=figure, findings=[*result.findings, *_correlation(context, runs, found)])


def _correlation(context: "Context", runs: Any, found: Any) -> list[str]:
    """Whether FLOPs or parameters have the order of the scores, where there are enough rows to ask."""
    from vitlab.studies.findings import rank_correlation

    if len(found) < 4:
        return []
    scores = [each.mean for each in found.values()]
    by_flops = rank_correlation([context.flops(runs[row][0]) for row in found], scores)
    by_parameters = rank_correlation([context.parameters(runs[row][0]) for row in found], scores)
    return [
        f"Rank correlation of the mean score over {len(scores)} shapes: {by_flops:+.2f} with FLOPs,"
        f" {by_parameters:+.2f} with parameters."
    ]


STUDY = Study(
    name="shape",
    summary="depth, width, MLP and patch of the model, one by one",
    options=ShapeOptions,
    run=run,
    examples=("--scale digits", "--scale digits --only 'patch*'"),
    published="appendix D.2: depth helps most, width least; smaller patches help without more parameters",
)
