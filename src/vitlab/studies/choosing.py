"""A setting chosen for each row on held-out images, with one seed, before the row is run with all."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitlab.studies.context import VAL, Context, Trained
from vitlab.studies.contract import StudyError
from vitlab.training.recipe import Recipe


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a row, and the held-out score of each option; None where its run failed."""

    option: str
    recipe: Recipe
    scores: Mapping[str, float | None]


def choose(
    context: Context, candidates: Mapping[str, Mapping[str, Recipe]], *, what: str, later: Sequence[Recipe] = ()
) -> dict[str, Chosen]:
    """Of each row the option with the best held-out score, the first of equals; seed 0 chooses for all seeds."""
    rows = context.wanted(list(candidates))
    cells = {
        (row, option): context.cell(f"{row}, {option}, seed 0", recipe)
        for row in rows
        for option, recipe in candidates[row].items()
    }
    found = context.map(list(cells.values()), what=what, later=later)
    chosen: dict[str, Chosen] = {}
    for row in rows:
        scores: dict[str, float | None] = {}
        for option in candidates[row]:
            run: Trained | None = found.get(cells[row, option].name)
            scores[option] = None if run is None else run.score(VAL)
        ended = {option: score for option, score in scores.items() if score is not None}
        if not ended:
            raise StudyError(f"{row}: every option failed ({', '.join(scores)}), so that there is none to choose.")
        best = max(ended, key=lambda option: ended[option])
        chosen[row] = Chosen(best, candidates[row][best], scores)
    return chosen
