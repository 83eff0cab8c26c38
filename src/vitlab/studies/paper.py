"""What the paper has beside a study, by the study's name; nothing where it is not among the published figures."""

from collections.abc import Mapping


def published(study: str) -> Mapping[str, float]:
    """The paper's figures for the rows of a study, as fractions."""
    try:
        from vitlab.evaluation.published import published_study  # pyright: ignore[reportAttributeAccessIssue]
    except ImportError:
        return {}
    return published_study(study)
