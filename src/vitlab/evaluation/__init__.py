"""Protocols that measure a model, each over functions from images to features."""
