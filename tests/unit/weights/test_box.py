"""The model in the package: by its name, by default, and with its licence in all that is tuned from it."""

import dataclasses
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from huggingface_hub import ModelCard
from safetensors import safe_open

import vitlab
from box_stand_in import FULL, LICENSE, TERMS, boxed, unboxed, write_stand_in
from short_runs import short, small_set
from vitlab.core.checksums import checksum
from vitlab.core.errors import CheckpointError, Error
from vitlab.models.vit import ViT
from vitlab.training import session
from vitlab.training.recipe import ModelChoice, Recipe
from vitlab.training.schedules import Schedule
from vitlab.weights import box
from vitlab.weights.card import plain

__all__ = ["boxed", "short", "small_set", "unboxed"]  # fixtures

PHOTO = np.random.default_rng(0).integers(0, 256, (60, 80, 3), dtype=np.uint8)
SHIPPED = pytest.mark.skipif(box.DEFAULT not in box.names(), reason="this checkout has no weights in the box")
MEGABYTES = 15


def test_the_name_loads_the_folder_in_the_package(boxed: ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vitlab" / "tiny").mkdir(parents=True)  # a path of the same spelling does not take its place
    monkeypatch.chdir(tmp_path)
    model = vitlab.load("vitlab/tiny")
    assert model.load_report.lines() == []
    assert model.labels == boxed.labels
    assert model.config == boxed.config
    for name, value in boxed.state_dict().items():
        assert torch.equal(model.state_dict()[name], torch.from_numpy(value.numpy().astype(np.float16)).float()), name


def test_a_model_of_its_size_is_under_fifteen_megabytes(tmp_path: Path) -> None:
    write_stand_in(tmp_path / "tiny", **FULL)
    assert sum(file.stat().st_size for file in (tmp_path / "tiny").iterdir()) < MEGABYTES * 10**6


def test_without_a_model_it_is_the_one_in_the_package(boxed: ViT) -> None:
    stored = vitlab.load("vitlab/tiny")
    (by_default,), (given,) = vitlab.predict(images=PHOTO), vitlab.predict(stored, PHOTO)
    assert [scored.label for scored in by_default.classes] == [scored.label for scored in given.classes]
    assert by_default.classes[0].label in (boxed.labels or ())
    np.testing.assert_array_equal(vitlab.embed(images=PHOTO).features, vitlab.embed(stored, PHOTO).features)
    seen = vitlab.inspect(images=PHOTO)
    assert seen.findings.model == "vitlab/tiny"
    assert seen.findings.grid == (12, 12)


@pytest.mark.parametrize("verb", ["predict", "embed"])
def test_a_lone_argument_is_a_model_and_not_its_images(boxed: ViT, verb: str) -> None:
    del boxed
    with pytest.raises(Error, match=rf"There are no images: vitlab.{verb}\(images=...\) asks vitlab/tiny"):
        getattr(vitlab, verb)("photo.jpg")


def test_an_installation_without_it(unboxed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del unboxed
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match="came without the weights of vitlab/tiny: name another model.$"):
        vitlab.predict(images=PHOTO)


def test_a_mistyped_name_of_it(boxed: ViT, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del boxed
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"Did you mean vitlab/tiny\?"):
        vitlab.load("vitlab/tny")


def test_its_licence_goes_with_what_is_tuned_from_it(boxed: ViT, short: Recipe, tmp_path: Path) -> None:
    """A run from the box, and another from that run: text, card and architecture.json, from which runs are resumed."""
    del boxed
    source = "vitlab/tiny"
    for generation in ("child", "grandchild"):
        recipe = dataclasses.replace(
            short,
            model=ModelChoice(source=source, pretrained=True, image_size=16),
            schedule=Schedule(total="1 steps", warmup="0 steps"),
            evaluate_every="1 steps",
        )
        folder = session.train(recipe, tmp_path / generation, device="cpu", show=False).folder
        assert (folder / "model" / "LICENSE").read_text() == LICENSE
        assert json.loads((folder / "architecture.json").read_text())["license"] == LICENSE
        text = (folder / "model" / "README.md").read_text()
        assert f"## Licence\n\n{plain(TERMS)}\n" in text
        assert ModelCard(text).data.to_dict()["license"] == "other"
        assert generation == "grandchild" or "| started from | vitlab/tiny |" in text
        assert vitlab.load(folder).license == LICENSE
        source = str(folder)


@SHIPPED
def test_what_is_shipped_is_whole_and_says_what_it_is() -> None:
    folder = box.folder_of(box.DEFAULT)
    assert folder is not None
    files = {file.name: file for file in folder.iterdir()}
    assert files.keys() == {
        *("config.json", "model.safetensors", "preprocess.json", "labels.json", "checksums.json"),
        *("README.md", "LICENSE"),
    }
    assert sum(file.stat().st_size for file in files.values()) <= MEGABYTES * 10**6
    for name, sum_ in json.loads(files["checksums.json"].read_text())["files"].items():
        assert checksum(files[name]) == sum_, name
    with safe_open(files["model.safetensors"], framework="pt") as stored:
        assert {stored.get_slice(name).get_dtype() for name in stored.keys()} == {"F16"}  # noqa: SIM118
    card = files["README.md"].read_text(encoding="utf-8")
    assert "{{" not in card  # every place of the template was filled in
    assert ModelCard(card).data.to_dict()["license_link"] == "LICENSE"
    terms = files["LICENSE"].read_text(encoding="utf-8").split("\n\n")[0]
    assert " ".join(terms.split()) in " ".join(card.split())


@SHIPPED
def test_what_is_shipped_answers_in_words_over_a_grid_that_can_be_looked_at() -> None:
    model = vitlab.load(box.DEFAULT)
    assert model.load_report.lines() == []
    assert model.labels is not None
    assert len(set(model.labels)) == 200
    assert not [label for label in model.labels if re.fullmatch(r"n\d{8}", label)]
    (rows, columns) = model.embed(model.preprocess([PHOTO])).grid
    assert min(rows, columns) >= 12
    assert {value.dtype for value in model.parameters()} == {torch.float32}
