"""The fixtures of whole runs."""

from short_runs import short, small_set

__all__ = ["short", "small_set"]
