"""A run's report: what was trained on what, how well, where it fails, what it cost and what to do next."""
