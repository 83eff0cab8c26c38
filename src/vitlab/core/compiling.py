"""What torch's compiler is told beyond its defaults."""

from typing import Any

import torch


def compile_options(device: torch.device) -> dict[str, Any]:
    """On a GPU, small passes over data that do not wait for each other become one kernel.

    A small model's weights are cast to bf16 and back in a hundred kernels of a microsecond or two, every step. Only
    elementwise passes are put together: reductions were seen to become several times slower. The softmax in one pass is
    off: where the compiler cannot use it, as in the loss of a small batch, it warns the user.
    """
    wanted = {"combo_kernels": True, "combo_kernels_pointwise_only": True, "online_softmax": False}
    list_options = getattr(getattr(torch, "_inductor", None), "list_options", list)  # the documented one is private
    known = list_options() if device.type == "cuda" else []
    return wanted if all(name in known for name in wanted) else {}
