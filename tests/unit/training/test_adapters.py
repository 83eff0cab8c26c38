"""Low-rank adapters: which layers have them, and folded in they are weights like any others."""

from pathlib import Path
from typing import Any

import pytest
import torch

from vitlab.core.errors import ConfigError
from vitlab.models.create import create, empty_model
from vitlab.training.adapters import LowRank, choose, merged
from vitlab.weights.load import load, save

TINY: dict[str, Any] = {"image_size": 32, "embed_dim": 24, "depth": 2, "num_heads": 3}
WINDOWS: dict[str, Any] = {"image_size": 32, "embed_dim": 12, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}


@pytest.mark.parametrize(
    ("name", "fields", "adapted"),
    [
        ("vit-digits", {}, 16),  # four in each of four blocks
        ("timm:vit_tiny_patch16_224", TINY, 8),
        ("timm:deit_tiny_distilled_patch16_224", TINY, 8),
        ("timm:swin_tiny_patch4_window7_224", WINDOWS, 9),  # and one that merges patches
        ("timm:test_convnext", {"image_size": 32}, None),
    ],
)
@torch.no_grad()
def test_adapters_are_on_the_layers_products(
    name: str, fields: dict[str, Any], adapted: int | None, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model = create(name, num_classes=3, **fields).eval()
    images = torch.randn(2, 3, *model.config.image_size)
    before = model(images)
    choose(model, "all", 2)
    adapters = [module for module in model.modules() if isinstance(module, LowRank)]
    assert len(adapters) == adapted or (adapted is None and adapters)
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    heads = {name for name, _ in model.named_parameters() if name.startswith("head.")}
    assert trained == heads | {name for name, _ in model.named_parameters() if name.endswith((".0.a", ".0.b"))}
    assert torch.equal(model(images), before)
    for adapter in adapters:
        adapter.b.normal_(std=0.3)
    for value in model.head.parameters():
        value.normal_()
    whole = empty_model(model.config, model.preprocess)
    whole.load_state_dict(merged(model.state_dict()), assign=True)
    save(whole, tmp_path / "model")
    assert not torch.allclose(model(images), before, atol=1e-2)
    torch.testing.assert_close(load(tmp_path / "model")(images), model(images))


def test_a_model_of_convolutions_is_refused() -> None:
    with pytest.raises(ConfigError, match="which this model lacks"):
        choose(create("timm:test_resnet"), "all", 2)
