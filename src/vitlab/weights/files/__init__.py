"""Containers of named tensors: .npz, .safetensors, msgpack, pickles that may not run code."""
