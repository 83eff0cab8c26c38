"""Where to compute."""

import torch

from vitlab.core.errors import ConfigError


def choose_device(name: str | None = None) -> str:
    """The device of that name, refused where this machine has none such; None: a GPU where there is one."""
    if name is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        kind, index = torch.device(name).type, torch.device(name).index or 0
    except RuntimeError:
        kind, index = name, 0
    gpu = torch.accelerator.current_accelerator(check_available=True)
    if kind != "cpu" and (gpu is None or kind != gpu.type or index >= torch.accelerator.device_count()):
        known = "cpu" if gpu is None else f"cpu or {gpu.type}"
        raise ConfigError(f"This machine has no device '{name}': choose {known}.")
    return name
