import dataclasses

import numpy as np
import pytest
from PIL import Image
from torch import nn

import vitlab
from shown import HOSTILE, shown
from tiny_vits import random_vit
from vitlab.inspection import notebook
from vitlab.inspection.gather import Inspection
from vitlab.inspection.write import model_figures
from vitlab.models.outside import wrap
from vitlab.models.vit import ViT, ViTConfig

rng = np.random.default_rng(0)


@pytest.fixture(scope="module")
def model() -> ViT:
    config = ViTConfig(image_size=(8, 8), patch_size=2, width=8, depth=2, mlp_dim=16, heads=2, num_classes=3)
    model = random_vit(config)
    model.labels = ("cat", HOSTILE, "<b>")
    return model


def looked(model: ViT, amount: int) -> Inspection:
    return vitlab.inspect(model, [rng.integers(0, 256, (8, 8, 3), dtype=np.uint8) for _ in range(amount)])


def test_figures_are_shown_with_their_sentences(model: ViT, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notebook, "MOST_PICTURES", 2)
    inspection = looked(model, 3)
    page = shown(dataclasses.replace(inspection, unread=(HOSTILE,)))
    titles = [title for title, _, _, _ in model_figures(inspection.findings)]
    assert len(titles) == 6
    assert all(title in page.text for title in titles)
    assert len(page.labels) == 4 + len(titles)  # where it looked, heads in rows, and one by one
    assert "8 x 8 pixels" in page.text
    assert "4 x 4 patches" in page.text
    assert "picture 1: " in page.text
    assert "picture 3: " not in page.text
    assert "… and 1 more" in page.text
    assert "\\x1b[2J" in page.text
    assert len(page.source) < 300_000
    assert repr(inspection) == "<Inspection of the model: 3 pictures, averages over 3>"


def test_a_model_without_attention() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    page = shown(vitlab.inspect(wrap(module, image_size=(16, 16)), Image.new("RGB", (40, 40))))
    assert "does not work by attention" in page.text
    assert len(page.labels) == 1  # the picture
