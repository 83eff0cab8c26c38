"""What a model's weights are known by."""

import hashlib
import json

import torch

from vitlab.core.config import to_dict
from vitlab.models.contract import Model
from vitlab.models.create import family_name

# fields that came later, as all models had them before: no part of a fingerprint
LATER = (
    *(("head", "pooled"), ("rotary", False), ("small_root", False), ("patch_dropout", 0.0)),
    ("rotary_unit", "patch"),
)


def model_fingerprint(model: Model, precision: str = "float32") -> str:
    """A hash of a model's configuration, of every tensor's bytes, and of the precision that it is computed in."""
    config = {name: value for name, value in to_dict(model.config).items() if (name, value) not in LATER}
    settings = {"family": family_name(model.config), "config": config, "precision": precision}
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().cpu().contiguous().flatten()
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()
