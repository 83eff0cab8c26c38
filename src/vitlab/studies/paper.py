"""What the paper has beside a study, from the published figures."""

import statistics
from collections.abc import Iterable, Mapping

from vitlab.evaluation.published.tables import published_columns, published_study, published_table


def published(study: str) -> Mapping[str, float]:
    """The paper's figures for the rows of a study, as fractions; nothing where it has no such table."""
    return published_study(study)


def core_days() -> dict[str, float]:
    """TPUv3-core-days of pre-training by the models of the paper's table 2."""
    return {column.model: column.core_days for column in published_columns("v2") if column.core_days is not None}


def scaling() -> dict[str, tuple[float, float]]:
    """Epochs and exaFLOPs of each row of the paper's table 6, as 'ViT-B/32 7'; figure 5 draws them."""
    table = published_table("vit-v2-scaling")
    return {row: (table.figures[row, "epochs"].value, table.figures[row, "exaFLOPs"].value) for row in table.rows}


def scaling_scores() -> dict[str, tuple[float, float]]:
    """ExaFLOPs and accuracy on ImageNet, as a fraction, of the same rows."""
    table = published_table("vit-v2-scaling")
    pairs = {row: (table.figures[row, "exaFLOPs"].value, table.figures[row, "imagenet"].value) for row in table.rows}
    return {row: (exaflops, score / 100) for row, (exaflops, score) in pairs.items()}


def vtab_groups(groups: Mapping[str, Iterable[str]]) -> dict[str, dict[str, float]]:
    """By the paper's models, the mean over the tasks of each group, as fractions; figure 2 draws those of all tasks."""
    table = published_table("vit-v2-vtab")
    return {
        model: {
            group: statistics.fmean(table.figures[task, model].value for task in tasks) / 100
            for group, tasks in groups.items()
        }
        for model in table.columns
    }
