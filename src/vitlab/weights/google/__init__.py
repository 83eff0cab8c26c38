"""Google's checkpoints: vit_jax, big_vision, BiT, V-MoE."""
