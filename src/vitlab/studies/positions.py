"""How positions are given to the model: the paper's ablation (appendix D.4, table 8)."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitlab.studies.contract import Study, StudyResult

if TYPE_CHECKING:
    from vitlab.studies.context import Context

# as the paper's table calls them: the kind, and where it is added
ROWS: dict[str, dict[str, str]] = {
    "none": {"positions": "none"},
    "1-D, stem": {"positions": "learned"},
    "1-D, every layer": {"positions": "learned", "positions_at": "every"},
    "1-D, every layer, shared": {"positions": "learned", "positions_at": "shared"},
    "2-D, stem": {"positions": "learned2d"},
    "2-D, every layer": {"positions": "learned2d", "positions_at": "every"},
    "2-D, every layer, shared": {"positions": "learned2d", "positions_at": "shared"},
    "relative, every layer": {"positions": "relative"},
    "relative, every layer, shared": {"positions": "relative", "positions_at": "shared"},
}


@dataclass(frozen=True, kw_only=True)
class PositionsOptions:
    """Position embeddings: none, 1-D, 2-D or relative; at the stem, at every layer, or shared between layers."""


def run(context: "Context", _: PositionsOptions) -> StudyResult:
    from vitlab.recipes.scales import scale_recipe, with_model
    from vitlab.studies.ablation import ablation
    from vitlab.studies.paper import published

    recipe = scale_recipe(context.scale)
    rows = {row: with_model(recipe, **changes) for row, changes in ROWS.items()}
    return ablation(context, rows, base="1-D, stem", title="Position embeddings", published=published("positions"))


STUDY = Study(
    name="positions",
    summary="position embeddings: none, 1-D, 2-D, relative; at the stem or in every layer",
    options=PositionsOptions,
    run=run,
    examples=("--scale digits", "--scale digits --only '1-D*' --seeds 5"),
    published="the paper's ablation, appendix D.4: without positions 61.4, with any 64.0 to 64.3",
)
