"""Checkpoints: one file a format; surgery.py changes a model's patch, resolution or head."""
