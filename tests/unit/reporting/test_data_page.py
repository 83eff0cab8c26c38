"""The page on a data set as a reader, and a browser, take it."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor

from report_pages import Page
from vitlab.core.preprocess import Preprocess
from vitlab.data.open import open_data
from vitlab.evaluation.examination import examine
from vitlab.evaluation.subject import subject_from
from vitlab.reporting.data_page import data_page


def colors(images: Tensor) -> Tensor:
    return images.mean(dim=(2, 3))


HOSTILE = "<b>&\x1b[31m dogs"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """Red and blue noise, one of each under the other's class, a leak, a copy with two labels, an unreadable file."""
    root, rng = tmp_path_factory.mktemp("photos") / "photos", np.random.default_rng(0)
    for split, num in (("train", 16), ("test", 6)):
        for place, name in enumerate(("cats", HOSTILE)):
            for i in range(num):
                pixels = rng.integers(0, 120, (40, 40, 3), dtype=np.uint8)
                pixels[..., 2 * place] += 120
                other = (HOSTILE, "cats")[place] if split == "train" and i == 3 else name
                (root / split / other).mkdir(parents=True, exist_ok=True)
                Image.fromarray(pixels).save(root / split / other / f"{'rb'[place]}{i}.png")
    photo = Image.fromarray(load_sample_images().images[0])
    photo.save(root / "train" / "cats" / "china.jpg")
    photo.resize((320, 213)).save(root / "test" / "cats" / "again<i>.jpg")
    photo.crop((0, 0, 200, 200)).save(root / "train" / "cats" / "piece.png")
    photo.crop((0, 0, 200, 200)).save(root / "train" / HOSTILE / "piece.png")
    (root / "train" / "cats" / "bad<u>.jpg").write_text("nothing")
    dataset = open_data(root, val_fraction=0)
    subject = subject_from(colors, name="mean <colour>", preprocess=Preprocess(size=(16, 16)))
    return Page(data_page(examine(dataset, subject), dataset))


def test_the_page_stands_alone_and_names_are_escaped(page: Page) -> None:
    page.check()
    assert "\x1b" not in page.source
    for markup in ("<b>&", "<i>", "<u>", "<colour>"):
        assert markup not in page.source
        assert markup in page.text


def test_each_kind_has_its_section(page: Page) -> None:
    assert page.headings == [
        "photos: what is in the data",
        "Labels that are likely wrong",
        "Copies in two parts: leaks",
        "Copies with two labels",
        "Unlike all others",
        "What cannot be read",
        "Class by class",
        "The data",
    ]


def test_pictures_are_those_that_were_found(page: Page) -> None:
    hovers = [Path(image["title"] or "").name for image in page.images]
    assert {"r3.png", "b3.png"} <= set(hovers[:5])
    beside = list(pairwise(hovers))
    assert ("china.jpg", "again<i>.jpg") in beside
    assert ("piece.png", "piece.png") in beside
    assert "labelled cats" in page.text
    assert "looks like cats" in page.text


def test_classes_have_their_counts(page: Page) -> None:
    [cats] = [row for row in page.rows if row[0] == "cats"]
    assert cats[:4] == ["cats", "26", "19", "7"]
    assert page.row("test") == ["13 images"]
    assert page.row("largest picture") == ["640 x 427 pixels"]
