"""The libraries that tests compare with, imported in one place: their types are theirs, so that any use is allowed."""

from typing import Any

from vitlab.core.peers import import_timm, import_torchvision

torchvision: Any = import_torchvision()  # first: beside a CPU torch, timm and transformers cannot import it themselves
timm: Any = import_timm()
