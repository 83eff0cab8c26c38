"""Small models with a ResNet in them learn the digits, upscaled for their stems."""

from pathlib import Path

import pytest

from changing import changed
from vitlab.recipes import find_recipe
from vitlab.training import session

SMALL = {
    "bit-r50x1": ("layers=[1,1]", "width=32"),
    "r-vit-ti16-224": (
        *("resnet_layers=[1]", "resnet_width=32", "patch_size=8"),
        *("depth=2", "width=64", "mlp_dim=128", "heads=4"),
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_digits_are_learned(name: str, tmp_path: Path) -> None:
    model = {"model.source": name, "model.set": list(SMALL[name]), "model.image_size": 32, "model.dropout": 0.0}
    short = {"schedule.total": "16 epochs", "evaluate_every": "4 epochs", "data.workers": 0, "augmentation.mixup": 0.0}
    recipe = changed(find_recipe("digits"), **model, **short, **{"optimizer.ema": None})
    ended = session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert ended.scores["test accuracy"] > 0.95
