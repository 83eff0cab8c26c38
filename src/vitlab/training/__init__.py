"""The one loop, its state, optimisers, schedules, checkpoints, distribution, precision and log."""
