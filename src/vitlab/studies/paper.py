"""What the paper has beside a study; nothing where it is not among the published figures."""

from collections.abc import Mapping

from vitlab.evaluation.published import published_columns


def published(study: str) -> Mapping[str, float]:
    """The paper's figures for the rows of a study, as fractions."""
    try:
        from vitlab.evaluation.published import published_study  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return {}
    return published_study(study)


def core_days() -> dict[str, float]:
    """TPUv3-core-days of pre-training by the models of the paper's table 2."""
    return {column.model: column.core_days for column in published_columns("v2") if column.core_days is not None}
