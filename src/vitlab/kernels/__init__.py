"""Operators of our own: each file holds an operator, its Triton kernels, its plain twin, and where it is used."""
