"""Each family's small model learns the digits."""

from pathlib import Path

import pytest

from changing import changed
from vitlab.recipes import find_recipe
from vitlab.training import session

# 32 px, for stems of stride 4; few epochs, so no average of weights and no mixing
UPSCALED: dict[str, object] = {
    "model.image_size": 32,
    "model.dropout": 0.0,
    "augmentation.mixup": 0.0,
    "optimizer.ema": None,
    "schedule.total": "16 epochs",
    "evaluate_every": "4 epochs",
    "data.workers": 0,
}
CVT = [
    "widths=[32,64]",
    "depths=[1,2]",
    "heads=[1,2]",
    "patch_sizes=[7,3]",
    "patch_strides=[4,2]",
    "patch_paddings=[2,1]",
]
COATNET = [
    "stem=[16,16]",
    "kinds=[conv,attention]",
    "depths=[1,2]",
    "widths=[32,64]",
    "strides=[2,2]",
    "representation=64",
]

# name: the recipe it starts from, and what is changed in it
SMALL: dict[str, tuple[str, dict[str, object]]] = {
    "cvt": ("digits", UPSCALED | {"model.source": "cvt-13", "model.set": CVT}),
    "coatnet": ("digits", UPSCALED | {"model.source": "coatnet-0", "model.set": COATNET}),
    "axial": ("digits", {"model.source": "axial-vit-digits", "schedule.total": "25 epochs", "data.workers": 0}),
    "sasa": ("digits", UPSCALED | {"model.source": "sasa-digits", "model.set": []}),
    "non-local": ("digits", UPSCALED | {"model.source": "nonlocal-digits", "model.set": []}),
    "vmoe": ("vmoe-digits", {"schedule.total": "25 epochs", "evaluate_every": "25 epochs"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_digits_are_learned(name: str, tmp_path: Path) -> None:
    recipe, fields = SMALL[name]
    ended = session.train(changed(find_recipe(recipe), **fields), tmp_path / "run", device="cpu", show=False)
    assert ended.scores["test accuracy"] > 0.95
