"""What a report shows of the inside of a model, with an answer to look at and without."""

from typing import Any

import numpy as np
import pytest
from PIL import Image

from tiny_vits import random_vit
from vitlab.models.vit import ViTConfig
from vitlab.reporting.inside import drawn_inside, look_inside

PICTURES = [Image.fromarray(each) for each in np.random.default_rng(0).integers(0, 256, (4, 24, 24, 3), dtype=np.uint8)]
SIZES: dict[str, Any] = {"image_size": (24, 24), "patch_size": 4, "width": 8, "depth": 2, "mlp_dim": 8, "heads": 2}


@pytest.mark.parametrize("num_classes", [3, 0])
def test_pictures_heads_and_kinds_are_shown_with_and_without_classes(num_classes: int) -> None:
    model = random_vit(ViTConfig(**SIZES, num_classes=num_classes))
    shown = [(f"picture {number}", picture) for number, picture in enumerate(PICTURES[:2])]
    found = look_inside(model, shown, PICTURES)
    assert [panel.caption for panel in found.looked] == ["picture 0", "picture 1"]
    assert found.heads is not None
    assert "Where each head of layer 2 looks" in found.heads.caption
    assert found.sections[0][0] == "What it holds to be alike"
    assert "found by k-means over all 2 pictures together" in found.sections[0][1].caption
    text = "".join(drawn_inside(found))
    assert "Where each head looked" in text
    assert ("what spoke for its answer" in text) == (num_classes > 0)


def test_without_pictures_there_are_averages_alone() -> None:
    found = look_inside(random_vit(ViTConfig(**SIZES, num_classes=0)), [], PICTURES)
    assert (found.looked, found.heads) == ((), None)
    assert "What it holds to be alike" not in [title for title, _ in found.sections]
