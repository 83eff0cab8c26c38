"""What the paper has beside a study; nothing where it is not among the published figures."""

import importlib
from collections.abc import Mapping
from typing import Any

from vitlab.evaluation.published import published_columns


def published(study: str) -> Mapping[str, float]:
    """The paper's figures for the rows of a study, as fractions."""
    tables = _tables()
    return {} if tables is None else tables.published_study(study)


def core_days() -> dict[str, float]:
    """TPUv3-core-days of pre-training by the models of the paper's table 2."""
    return {column.model: column.core_days for column in published_columns("v2") if column.core_days is not None}


def scaling() -> dict[str, tuple[float, float]]:
    """Epochs and exaFLOPs of each row of the paper's table 6, as 'ViT-B/32 7'; figure 5 draws them."""
    if (tables := _tables()) is None:
        return {}
    table = tables.published_table("vit-v2-scaling")
    return {row: (table.figures[row, "epochs"].value, table.figures[row, "exaFLOPs"].value) for row in table.rows}


def vtab_groups() -> dict[str, dict[str, float]]:
    """By the paper's models, the mean of each group of VTAB's tasks, as fractions; figure 2 draws them."""
    if (tables := _tables()) is None:
        return {}
    models = tables.published_table("vit-v2-vtab").columns
    return {model: {group: mean / 100 for group, mean in tables.group_means(model).items()} for model in models}


def _tables() -> Any:
    """The published figures as tables, where this version has them."""
    try:
        return importlib.import_module("vitlab.evaluation.published.tables")
    except ImportError:
        return None
