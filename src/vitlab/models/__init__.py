"""One file a family; vit.py is the paper."""
