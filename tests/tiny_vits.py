"""Plain ViTs of every configuration, tiny and with random weights, for property tests."""

from typing import Any

import torch
from hypothesis import strategies as st

from vitlab.core.preprocess import Preprocess
from vitlab.models.vit import ViT, ViTConfig

SIZES: dict[str, Any] = {"image_size": (8, 8), "patch_size": 4, "width": 8, "depth": 2, "mlp_dim": 16, "heads": 2}
CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "image_size": st.sampled_from([(4, 4), (12, 12), (4, 8), (12, 8)]),
    "patch_size": st.sampled_from([2, 4]),
    "depth": st.integers(0, 3),
    "mlp_dim": st.sampled_from([1, 8, 24, 32]),
    "heads": st.sampled_from([1, 2, 4]),
    "num_classes": st.integers(0, 4),
    "channels": st.sampled_from([1, 3]),
    "class_token": st.booleans(),
    "distill_token": st.booleans(),
    "num_registers": st.integers(0, 2),
    "pool": st.sampled_from(["token", "mean", "attention", "token+mean"]),
    "representation": st.sampled_from([None, 5, 8]),
    "positions": st.sampled_from(["none", "learned", "learned2d", "sincos1d", "sincos2d", "relative", "relative2d"]),
    "positions_at": st.sampled_from(["stem", "every", "shared"]),
    "rotary": st.booleans(),
    "rotary_unit": st.sampled_from(["patch", "image"]),
    "positions_for_prefix": st.integers(0, 3),
    "resize_rule": st.sampled_from(["official", "timm", "hf", "torchvision"]),
    "indivisible": st.sampled_from(["error", "pad"]),
    "norm": st.sampled_from(["pre", "post"]),
    "norm_eps": st.floats(1e-12, 1e-3),
    "norm_stem": st.booleans(),
    "norm_pooled": st.booleans(),
    "gelu": st.sampled_from(["exact", "tanh", "quick"]),
    "gated_mlp": st.booleans(),
    "patch_bias": st.booleans(),
    "qkv_bias": st.booleans(),
    "qk_norm": st.booleans(),
    "layer_scale": st.sampled_from([None, 1e-5, 1.0]),
    "dropout": st.floats(0, 0.5),
    "attention_dropout": st.floats(0, 0.5),
    "drop_path": st.floats(0, 0.5),
    "patch_dropout": st.floats(0, 0.5),
    "checkpoint_blocks": st.booleans(),
}


@st.composite
def vit_configs(draw: st.DrawFn, *, max_changes: int | None = None) -> ViTConfig:
    """A configuration that can be built, away from the defaults in at most so many fields (None: in any)."""
    changed = draw(st.sets(st.sampled_from(list(CHOICES)), max_size=max_changes))
    fields: dict[str, Any] = SIZES | {"num_classes": 3} | {name: draw(CHOICES[name]) for name in sorted(changed)}
    if fields.get("distill_token"):
        fields |= {"class_token": True, "pool": "token", "representation": None}
    elif not fields.get("class_token", True) and fields.get("pool", "token").startswith("token"):
        fields["pool"] = "mean"
    elif fields.get("pool") == "token+mean":
        fields["representation"] = None
    if fields.get("positions") == "none" or (
        fields.get("positions", "").startswith("relative") and fields.get("positions_at") == "stem"
    ):
        fields["positions_at"] = None
    if fields.get("rotary") and (fields.get("heads") == 4 or fields.get("positions", "").startswith("relative")):
        fields["rotary"] = False
    return ViTConfig(**fields)


def random_vit(config: ViTConfig, *, seed: int = 0, preprocess: Preprocess | None = None) -> ViT:
    """Every parameter random, so that no two tensors are alike."""
    model = ViT(config, preprocess)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return model.eval()


def bits(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The parameters as whole numbers, so that 0 and -0 are two values."""
    return {name: value.view(torch.int32) for name, value in model.state_dict().items()}


COLOURS = ("red", "green", "blue")


def colours_vit() -> ViT:
    """A model that names the strongest primary colour: its head reads the mean pixel, untouched by the layers."""
    config = ViTConfig(
        image_size=(8, 8), patch_size=4, width=6, depth=0, mlp_dim=6, heads=1, num_classes=3, pool="mean",
        class_token=False, positions="none",
    )  # fmt: skip
    model = ViT(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        assert model.norm is not None
        model.norm.weight.fill_(1)
        kernel = model.projection.weight.view(6, 3, 16)
        assert isinstance(model.head, torch.nn.Linear)
        for channel in range(3):
            kernel[channel, channel] = 1 / 16
            kernel[channel + 3, channel] = -1 / 16  # so that the norm's mean is zero and it only scales
            model.head.weight[channel, channel] = 4
    model.labels = COLOURS
    return model
