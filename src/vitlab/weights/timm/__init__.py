"""timm's checkpoints: state dicts, and the hub's folders."""
