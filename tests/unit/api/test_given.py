"""What the functions are given: paths as text or as Path, models, modules, and what is none of these."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import vitlab

MODEL: Any = vitlab.create("vit-digits", depth=1)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            Image.new("L", (8, 8), 50 * i).save(tmp_path / "photos" / name / f"{i}.png")
    return tmp_path / "photos"


def test_data_may_be_a_path(photos: Path) -> None:
    model = vitlab.create("vit-digits", depth=1, num_classes=2)
    by_path, by_text = (vitlab.evaluate("knn", model, data, keep=False, ks=(1,)) for data in (photos, str(photos)))
    assert by_path.metrics == by_text.metrics
    assert vitlab.inspect(model, data=photos, limit=2).findings.num_images == 2


NONE: Any = 3
REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "data": (lambda: vitlab.evaluate("knn", MODEL, NONE), "`data` must be a path or a name, not int"),
    "model": (lambda: vitlab.predict(NONE, []), "`model` must be a model of vitlab's, a path or a name, not int"),
    "trained": (lambda: vitlab.train("digits", model=NONE), "`model` must be a path, a name, a model or a module, not"),
    "tuned": (lambda: vitlab.finetune("digits", NONE), "`model` must be a path, a name, a model or a module, not int"),
    "size": (lambda: vitlab.finetune("digits", MODEL, image_size=16), "load it with image_size instead"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_none_is_refused_in_a_sentence(case: str) -> None:
    call, says = REFUSED[case]
    with pytest.raises(vitlab.Error, match=says):
        call()
