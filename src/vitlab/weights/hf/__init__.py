"""transformers' checkpoints: folders with config.json."""
