"""Published figures as data: a file of JSON per table, and where each figure is stated."""

from vitlab.evaluation.published.tables import published_columns, published_study

__all__ = ["published_columns", "published_study"]
