"""Data sets as their authors publish them, one file each."""
