"""Changes of a trained model's patch, resolution or head, tensor by tensor."""

from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitlab.models.coatnet import CoAtNetConfig
from vitlab.models.positions import resize_positions
from vitlab.models.relative import resize_bias
from vitlab.models.vit import ViTConfig


def replaces_head(old: Any, new: Any) -> bool:
    """Whether the head is another one, to start from fresh weights."""
    return old.num_classes != new.num_classes or _head(old) != _head(new)


def replaces_positions(old: Any, new: Any) -> bool:
    """Whether positions are of another kind, to start from fresh weights."""
    return isinstance(old, ViTConfig) and isinstance(new, ViTConfig) and old.positions != new.positions


def new_head(old: Any, new: Any) -> str:
    """What `replaces_head` does, in a sentence."""
    what = f"a fresh {'dense ' if _head(new) == 'patches' else ''}one for {new.num_classes}"
    if not old.num_classes:
        return f"It had no head, and got {what} classes."
    return f"Head for {old.num_classes} classes replaced by {what if new.num_classes else 'none'}."


def _head(config: Any) -> str:
    return getattr(config, "head", "pooled")  # a family from outside may have no choice


def adapt(name: str, value: Tensor, old: Any, new: Any) -> Tensor:
    """One tensor of a model of configuration `old` for a model of configuration `new`."""
    if isinstance(old, CoAtNetConfig) and isinstance(new, CoAtNetConfig) and name.endswith(".relative.table"):
        block = int(name.split(".")[1])
        before, after = old.blocks[block].grid, new.blocks[block].grid
        return resize_bias(value, after, old_grid=before, rule=new.resize_rule)
    if not (isinstance(old, ViTConfig) and isinstance(new, ViTConfig)):
        return value
    if name == "projection.weight" and old.patch_size != new.patch_size:
        return resize_patches(value, new.patch_shape[-1], old_size=old.patch_shape[-1])
    if name.startswith("positions."):
        resized = value if old.grid == new.grid else _resize_table(name, value, old, new)
        return _with_prefix_places(name, resized, old, new)
    return value


def describe(old: Any, new: Any) -> list[str]:
    """What `adapt` changes between two configurations, in sentences."""
    if isinstance(old, CoAtNetConfig) and isinstance(new, CoAtNetConfig):
        grids = [[block.grid for block in config.blocks if block.kind == "attention"] for config in (old, new)]
        resized = old.relative == "bias" and grids[0] != grids[1]
        return [f"Relative biases resized by the rule '{new.resize_rule}'."] if resized else []
    if not (isinstance(old, ViTConfig) and isinstance(new, ViTConfig)):
        return []
    notes: list[str] = []
    if old.patch_size != new.patch_size:
        notes.append(f"Patch projection resized from {old.patch_size} to {new.patch_size} px by pseudo-inverse.")
    if replaces_positions(old, new):
        return [*notes, f"Positions changed from '{old.positions}' to '{new.positions}': the file's are not used."]
    if old.grid != new.grid and old.positions in ("learned", "learned2d", "relative", "relative2d"):
        notes.append(
            f"Positions resized from {old.grid[0]} x {old.grid[1]} to {new.grid[0]} x {new.grid[1]}"
            f" by the rule '{new.resize_rule}'."
        )
    if old.positions == "learned" and _num_placed(new) > _num_placed(old):
        notes.append("Positions of prefix tokens that had none added as zeros, which changes no output.")
    return notes


def transfer_config(old: Any, num_classes: int) -> dict[str, Any]:
    """The fields that a new head for `num_classes` changes: fine-tuning has one linear layer, without the tanh."""
    changes: dict[str, Any] = {"num_classes": num_classes}
    if isinstance(old, ViTConfig) and old.representation is not None and num_classes not in (0, old.num_classes):
        changes["representation"] = None
    return changes


def resize_patches(weight: Float[Tensor, "d pixels"], size: int, *, old_size: int) -> Float[Tensor, "d new_pixels"]:
    """The patch projection for another patch size, so that resized patches give the same tokens (FlexiViT).

    A patch x resized by the linear map B is x B^T; the weight that best undoes it is w pinv(B), in least squares.
    """
    basis = torch.eye(old_size**2, dtype=torch.float64).reshape(-1, 1, old_size, old_size)
    antialias = size < old_size
    resized = F.interpolate(basis, (size, size), mode="bilinear", align_corners=False, antialias=antialias)
    matrix = resized.reshape(old_size**2, size**2)  # row i: what pixel i becomes
    kernels = rearrange(weight.double(), "d (c p) -> d c p", p=old_size**2)
    return rearrange(kernels @ torch.linalg.pinv(matrix).T, "d c p -> d (c p)").to(weight.dtype)


def _resize_table(name: str, value: Tensor, old: ViTConfig, new: ViTConfig) -> Tensor:
    part = name.rsplit(".", 1)[-1]
    if part == "prefix":
        return value
    if part in ("rows", "columns"):
        axis = 0 if part == "rows" else 1
        return resize_positions(
            value, (1, new.grid[axis]), old_grid=(1, old.grid[axis]), rule=new.resize_rule, num_prefix=0
        )
    if old.relative:
        from_grid, to_grid = _offsets(old), _offsets(new)
        return resize_positions(value, to_grid, old_grid=from_grid, rule=new.resize_rule, num_prefix=0)
    return resize_positions(value, new.grid, old_grid=old.grid, rule=new.resize_rule, num_prefix=_num_placed(old))


def _with_prefix_places(name: str, value: Tensor, old: ViTConfig, new: ViTConfig) -> Tensor:
    """big_vision's class token has no position, vit_jax's has: a position of zero is none."""
    first, last = _num_placed(old), _num_placed(new)
    if old.positions != "learned" or not name.endswith(".table") or last <= first:
        return value
    return torch.cat([value[:first], value.new_zeros(last - first, value.shape[1]), value[first:]])


def _num_placed(config: ViTConfig) -> int:
    return min(config.positions_for_prefix, config.num_prefix)


def _offsets(config: ViTConfig) -> tuple[int, int]:
    height, width = config.grid
    return (1, 2 * height * width - 1) if config.positions == "relative" else (2 * height - 1, 2 * width - 1)
