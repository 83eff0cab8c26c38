"""Grids of runs that make a table or a figure of the paper."""
