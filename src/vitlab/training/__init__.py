"""The one loop, its state, optimizers, schedules, checkpoints, distribution, precision and log."""
