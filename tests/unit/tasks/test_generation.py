"""The task of making images: its score, what it says, what it refuses, and what a report says of it."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from box_stand_in import boxed
from changing import changed
from vitlab.core.config import Choice
from vitlab.core.errors import ConfigError, DataError, Error
from vitlab.data.contract import DataSet
from vitlab.data.open import open_data
from vitlab.evaluation.frechet import features_of, frechet_distance, gaussian, moments
from vitlab.models.generator import Generator
from vitlab.objectives.cross_entropy import Loss
from vitlab.recipes import find_recipe
from vitlab.tasks.generation import Generation, GenerationOptions
from vitlab.tasks.results import Reached, ReportContext
from vitlab.tasks.scoring import Held
from vitlab.training import session

__all__ = ["boxed"]  # a fixture
TITLE = "Frechet distance of 8 x 8 pixels"


def task() -> Generation:
    return Generation(GenerationOptions(features="pixels"))


def a_generator() -> Generator:
    torch.manual_seed(0)
    model = vitlab.create("transgan-digits", depths=(1, 1), width=32)
    assert isinstance(model, Generator)
    return model.eval()


def held(num: int = 30, size: int = 16) -> Iterator[Held]:
    """Random pictures in batches, the last of which is filled up; one could not be read."""
    pixels = torch.randint(256, (num, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    for start in range(0, num, size):
        at = torch.arange(start, start + size) % num
        counts = (torch.arange(start, start + size) < num) & (at != 3)
        yield Held(pixels[at] / 127.5 - 1, pixels[at] / 127.5 - 1, counts, pixels[at], at)


def test_its_score_is_the_distance_between_held_out_and_as_many_made_images() -> None:
    model, own = a_generator(), task()
    scorer = own.scorer(Loss(), open_data("digits"))
    with torch.no_grad():
        sums = [scorer.of(model, model, batch) for batch in held()]
        scores = scorer.scores(sums[0] + sums[1])
        subject = own._subject(torch.device("cpu"))
        places = torch.tensor([place for place in range(30) if place != 3])
        made = features_of(subject, model.pixels(model(model.latents(0, places))))
    real = torch.cat([features_of(subject, batch.pixels[batch.counts]) for batch in held()])
    expected = frechet_distance(gaussian(moments(made)), gaussian(moments(real)))
    assert scores[TITLE] == scores["loss"] == -scores["score"] == pytest.approx(expected, rel=1e-5)
    assert scores["count"] == 29
    assert scores["diversity"] == pytest.approx((made.var(dim=0).sum() / real.var(dim=0).sum()).item(), rel=1e-4)


def test_its_words() -> None:
    own = task()
    assert own.words({TITLE: 3.14159, "diversity": 0.876}) == f"{TITLE} 3.142, diversity 0.88"
    assert own.words({TITLE: 3.0, "diversity": 0.01}).endswith("diversity 0.01, nearly all alike")
    assert own.words({"real score": 1.5, "made score": -2.0}) == "real score 1.50, made score -2.00"
    assert own.words({"loss": 1.0}) == ""


def test_what_it_refuses(tmp_path: Path) -> None:
    own, digits = task(), open_data("digits")
    own.check(digits)
    with pytest.raises(DataError, match="has no training images"):
        own.check(DataSet(name="empty", classes=(), splits={}, fingerprint=""))
    with pytest.raises(ConfigError, match="needs a generator, and ViT makes no images"):
        own.fit(vitlab.create("vit-digits", num_classes=0, depth=1), digits)
    with pytest.raises(ConfigError, match=r"loss\.\* no meaning: choose an objective with a critic"):
        own.criterion(Loss(), digits, digits.splits["train"])
    with pytest.raises(Error, match="makes images and takes none"):
        own.answers(a_generator(), torch.zeros(1), 5)
    recipe = dataclasses.replace(find_recipe("transgan-digits"), task=Choice("classification"))
    with pytest.raises(ConfigError, match="tells no classes apart"):
        session.train(recipe, tmp_path / "run", device="cpu", show=False)


def test_a_collapse_is_remarked() -> None:
    reached = Reached({TITLE: 5.0, "diversity": 0.01}, "val", 100)
    context = ReportContext(loss=Loss(), logged=reached)
    [remark] = task().remarks(context)
    assert "nearly all alike" in remark.text
    assert task().remarks(ReportContext(loss=Loss())) == []
    varied = ReportContext(loss=Loss(), logged=Reached({TITLE: 5.0, "diversity": 0.9}, "val", 100))
    assert task().remarks(varied) == []
    [section] = task().sections(varied)
    assert section.title == "How near they are to real ones"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A few steps on pictures without labels."""
    folder, rng = tmp_path_factory.mktemp("generation"), np.random.default_rng(0)
    (folder / "flat").mkdir()
    for i in range(40):
        Image.fromarray(rng.integers(0, 256, (9, 11, 3), dtype=np.uint8)).save(folder / "flat" / f"{i}.png")
    short = {"schedule.total": "4 steps", "evaluate_every": "2 steps", "log_every": "1 step", "batch_size": 8}
    small = {"model.set": ["depths=1,1", "width=32"], "data.source": str(folder / "flat"), "data.workers": 0}
    session.train(changed(find_recipe("transgan-digits"), **short, **small), folder / "run", device="cpu", show=False)
    return folder / "run"


def test_the_report_shows_what_it_makes(run: Path) -> None:
    made = vitlab.report(run, device="cpu")
    assert made.missing == ()
    page = made.path.read_text()
    assert "making pictures" in page
    assert "What it makes" in page
    assert f"{TITLE}: lower is better" in page
    assert "How near they are to real ones" in page
    assert "vitlab sample" in page
    assert "vitlab predict" not in page
    assert "labelled picture" not in page
    assert "held out, and this was" not in page


@pytest.mark.usefixtures("boxed")
def test_evaluate_score_is_the_tasks_own(run: Path) -> None:
    result = vitlab.evaluate("score", run, str(run.parent / "flat"), device="cpu", split="val")
    assert any(name.startswith("Frechet distance of vitlab/tiny") for name in result.metrics)
