"""What a model costs: parameters, and FLOPs counted from its operations."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from vitlab.models.contract import Model
from vitlab.models.create import empty_model


def count_parameters(model: Model) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def count_flops(model: Model, image_size: tuple[int, int] | None = None) -> int:
    """FLOPs of one image through the four steps, or of making one, two a multiply-add, matrix products and attention.

    Counted on a model of the same configuration on the meta device: there no arithmetic is done, and attention is its
    two products, while a CPU's fused kernel would not be counted at all.
    """
    empty = empty_model(model.config).eval()
    given = empty.example("meta")
    if image_size is not None and empty.takes_images:
        given = given.new_zeros(*given.shape[:2], *image_size)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        if empty.is_dense or not empty.takes_images:
            empty(given)
        else:
            empty.head(empty.pool(empty.encode(empty.embed(given))))
    return counter.get_total_flops()
