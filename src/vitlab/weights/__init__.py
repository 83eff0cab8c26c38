"""Checkpoints: one file per format; surgery.py changes a model's patch, resolution or head."""
