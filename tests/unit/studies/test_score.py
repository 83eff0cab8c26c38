"""The score of a model's own task beside NumPy's, and what accuracy says of a model that tells no classes of images."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from tiny_vits import random_vit
from vitlab.core.errors import Error
from vitlab.evaluation.contract import EvaluationError
from vitlab.models.vit import ViT, ViTConfig

SIZES = {"image_size": (8, 8), "patch_size": 2, "width": 16, "depth": 1, "mlp_dim": 16, "heads": 2}


@pytest.fixture
def street(tmp_path: Path) -> Path:
    """Images of 8 x 8 pixels with masks of three classes, in train and test."""
    rng = np.random.default_rng(0)
    for split, num in (("train", 4), ("test", 5)):
        for kind, shape, most in (("images", (8, 8, 3), 256), ("masks", (8, 8), 3)):
            (tmp_path / "street" / split / kind).mkdir(parents=True)
            for i in range(num):
                pixels = rng.integers(0, most, shape, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / "street" / split / kind / f"{i}.png")
    return tmp_path / "street"


def segmenter(num_classes: int = 3) -> ViT:
    model = random_vit(ViTConfig(**SIZES, num_classes=num_classes, head="patches"))
    model.task = "segmentation"
    return model.eval()


def test_the_score_of_a_segmentation(street: Path) -> None:
    model = segmenter()
    found = vitlab.evaluate("score", model, str(street), device="cpu", batch_size=2)
    pixels, truth = (
        np.stack([np.asarray(Image.open(street / "test" / kind / f"{i}.png")) for i in range(5)])
        for kind in ("images", "masks")
    )
    with torch.no_grad():
        images = torch.tensor((pixels - 127.5) / 127.5, dtype=torch.float32).permute(0, 3, 1, 2)
        said = model(images).numpy().argmax(axis=1)
    each = [((said == k) & (truth == k)).sum() / ((said == k) | (truth == k)).sum() for k in range(3)]
    assert next(iter(found.metrics)) == "score"
    assert found.metrics["mIoU"].value == found.metrics["score"].value == pytest.approx(np.mean(each))
    assert found.metrics["pixel accuracy"].value == pytest.approx((said == truth).mean())
    assert found.metrics["mIoU"].unit == "fraction"
    assert found.metrics["loss"].unit == "number"
    assert found.counts == {"test": 5}


def test_a_model_with_other_classes_is_refused(street: Path) -> None:
    with pytest.raises(EvaluationError, match="has 4 outputs and street needs 3: fine-tune it"):
        vitlab.evaluate("score", segmenter(4), str(street), device="cpu")


def test_accuracy_says_what_to_measure_instead(street: Path) -> None:
    with pytest.raises(Error, match=r"says the class of each pixel, not of the image: .*`vitlab evaluate score`"):
        vitlab.evaluate("accuracy", segmenter(), str(street), device="cpu")


def test_accuracy_of_a_model_of_numbers_says_so(tmp_path: Path) -> None:
    model = random_vit(ViTConfig(**SIZES, num_classes=1))
    model.task = "mine.py:AREA"
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / f"{i}.png")
    with pytest.raises(EvaluationError, match=r"gives one number per image .* for mine.py:AREA: .*evaluate score"):
        vitlab.evaluate("accuracy", model, str(tmp_path / "photos"), device="cpu")
