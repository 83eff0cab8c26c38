from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from shown import HOSTILE, shown
from vitlab.models.outside import wrap
from vitlab.weights.mapping import LoadReport


def test_what_a_model_takes_sees_and_answers() -> None:
    model = vitlab.create("vit-ti16-224", num_classes=3).eval()
    model.labels = ("cat", "<b>dog</b>", HOSTILE)
    page = shown(model)
    assert page.row("takes")[0].startswith("pictures of 224 x 224 px, squashed to it")
    assert page.row("sees") == ["14 x 14 patches of 16 x 16 px, and 1 token in front of them"]
    assert page.row("layers") == ["12, 3 heads each; 192 features"]
    assert page.row("answers")[0].startswith("3 classes: cat, <b>dog</b> and ")
    assert page.row("parameters") == ["5.52 million"]  # timm's vit_tiny_patch16_224: 5,717,416, less 997 x 193
    assert page.row("where") == ["float32 on cpu, in evaluation mode"]
    assert page.row("patch_size") == ["16"]
    assert len(page.source) < 12_000


def test_what_loading_said_is_shown() -> None:
    model = vitlab.create("vit-digits")
    model.load_report = LoadReport(assumed=[f"The head is fresh {HOSTILE}."])
    assert "The head is fresh" in shown(model).text


@pytest.mark.parametrize("changes", [{"num_classes": 0}, {"head": "patches"}])
def test_models_without_classes_of_the_picture(changes: dict[str, Any]) -> None:
    (answers,) = shown(vitlab.create("vit-digits", **changes)).row("answers")
    assert answers == ("10 classes for each pixel" if "head" in changes else "64 features, no classes")


def test_a_module_of_ones_own() -> None:
    module = nn.Sequential(nn.Conv2d(3, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 2))
    page = shown(wrap(module, image_size=(32, 48)))
    assert page.row("takes")[0].startswith("pictures of 48 x 32 px")
    assert page.row("parameters") == [f"{3 * 8 * 9 + 8 + 8 * 2 + 2}"]
    with torch.device("meta"):
        assert shown(vitlab.create("vit-digits")).row("where")
