import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitlab
from tiny_vits import random_vit
from vitlab.cli import main
from vitlab.inspection.document import Panel, panel_markup
from vitlab.models.vit import ViTConfig

MODEL_FIGURES = ("distance", "entropy", "filters", "positions", "similarity")
VIEW_FIGURES = ("attention", "last-layer", "heads")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    config = ViTConfig(image_size=(8, 8), patch_size=2, width=16, depth=3, mlp_dim=16, heads=2, num_classes=2)
    model = random_vit(config)
    model.labels = ("a cat", "a <dog> & its $leash$")
    path = tmp_path_factory.mktemp("a model") / "tiny"
    vitlab.save(model, path)
    return str(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "my photos"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for name in ("a one.png", "b $<b>two & 日本$.jpg"):
        Image.fromarray(rng.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(folder / name)
    return folder


class Links(HTMLParser):
    """What a page would fetch, and whether its elements are closed."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.open: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag not in ("script", "link", "iframe", "object")
        self.links += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "srcset", "data")]
        self.links += re.findall(r"url\((.*?)\)", " ".join(value or "" for _, value in attrs))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.handle_starttag(tag, attrs)
        if tag != "meta":
            self.open.pop()

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_without_a_folder_a_new_one_is_made_and_said(
    source: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "inspect").write_text("mine")
    image = str(photos / "a one.png")
    assert main(["inspect", image, "--model", source]) == 0
    assert f"The page with all of them: {Path('inspect-2', 'inspect.html')}" in capsys.readouterr().out
    first = (tmp_path / "inspect-2" / "inspect.html").read_bytes()
    assert main(["inspect", image, "--model", source, "--show", "0", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["averages"]["images"] == 1
    assert printed.err == "Written to inspect-3.\n"
    assert (tmp_path / "inspect-3" / "inspect.html").is_file()
    assert (tmp_path / "inspect-2" / "inspect.html").read_bytes() == first
    assert (tmp_path / "inspect").read_text() == "mine"


def test_figures_numbers_and_a_page_of_its_own(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "inside"
    assert main(["inspect", str(photos), "--model", source, "--out", str(out)]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    assert str(out / "inspect.html") in printed.out
    figures = [*MODEL_FIGURES, "kinds", *(f"{kind}-{number}" for kind in VIEW_FIGURES for number in (1, 2))]
    expected = {f"{name}.{kind}" for name in figures for kind in ("png", "svg")} | {"inspect.json", "inspect.html"}
    assert {file.name for file in out.iterdir()} == expected

    page = (out / "inspect.html").read_text(encoding="utf-8")
    parser = Links()
    parser.feed(page)
    assert parser.open == []
    assert parser.links
    assert all(link.startswith(("data:image/png;base64,", "#")) for link in parser.links)
    assert "http" not in page
    assert "@import" not in page
    assert page.count("<svg") == page.count("<figcaption>") == len(figures)
    text = "".join(parser.texts)
    assert str(photos / "b $<b>two & 日本$.jpg") in text
    assert "<b>" not in page
    assert 'name="viewport"' in page
    assert "prefers-color-scheme: dark" in page

    told = json.loads((out / "inspect.json").read_text())
    assert told["grid"] == [4, 4]
    assert told["patch_pixels"] == [2, 2]
    assert {layer: len(heads) for layer, heads in told["distance_pixels"].items()} == {"1": 2, "2": 2, "3": 2}
    assert np.shape(told["similarity"]) == (4, 4)
    assert np.sum(told["pictures"][1]["rollout"]) == pytest.approx(1, abs=1e-4)
    assert told["pictures"][0]["classes"][0]["label"] in ("a cat", "a <dog> & its $leash$")


def test_a_folder_that_was_used_before_keeps_only_what_is_not_ours(source: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "inside"
    more = ["--model", source, "--out", str(out)]
    assert main(["inspect", str(photos), "--compare", source, *more]) == 0
    others = {"notes.txt", "attention-9.png", "heads.png"}
    for name in others:
        (out / name).touch()
    assert main(["inspect", str(photos / "a one.png"), *more]) == 0
    drawn = (*MODEL_FIGURES, "kinds", *(f"{name}-1" for name in VIEW_FIGURES))
    figures = {f"{name}.{kind}" for name in drawn for kind in ("png", "svg")}
    assert {file.name for file in out.iterdir()} == figures | others | {"inspect.json", "inspect.html"}


def test_a_folder_with_figures_of_somebody_else_is_left_alone(source: str, photos: Path, tmp_path: Path) -> None:
    (tmp_path / "attention-2.png").touch()
    assert main(["inspect", str(photos / "a one.png"), "--model", source, "--out", str(tmp_path)]) == 0
    assert (tmp_path / "attention-2.png").exists()


def test_averages_over_a_data_set_and_chosen_layers_as_json(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--data", "digits", "--limit", "20", "--layers", "3", "1", "--compare", source, "--json"]
    picture = str(photos / "a one.png")
    assert main(["inspect", picture, "--model", source, "--out", str(tmp_path / "x"), *arguments]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == json.loads((tmp_path / "x" / "inspect.json").read_text())
    assert told["averages"] == {"data": "digits (test)", "images": 20}
    assert list(told["distance_pixels"]) == list(told["entropy_bits"]) == ["1", "3"]
    np.testing.assert_allclose(told["other_similarity"], told["similarity"], rtol=1e-4)
    assert (tmp_path / "x" / "similarity-other.png").exists()


def test_a_data_set_alone(source: str, tmp_path: Path) -> None:
    arguments = ["--model", source, "--data", "digits", "--limit", "4", "--out", str(tmp_path / "x")]
    assert main(["inspect", *arguments]) == 0
    names = {file.stem for file in (tmp_path / "x").glob("*.png")}
    assert names == set(MODEL_FIGURES)


def test_an_unreadable_image_is_named_and_the_rest_shown(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = photos / "a bad one.jpg"
    bad.write_text("no image")
    assert main(["inspect", str(photos), "--model", source, "--out", str(tmp_path / "x"), "--json"]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"vitlab: skipped: {bad} is not an image that can be read.\n"
    assert len(json.loads(printed.out)["pictures"]) == 2
    assert main(["inspect", str(bad), "--model", source, "--out", str(tmp_path / "y")]) == 2
    assert capsys.readouterr() == ("", f"vitlab: {bad} is not an image that can be read.\n")
    assert not (tmp_path / "y").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["{photos}", "--layers", "4"], "There is no layer 4: the model has 3 with attention."),
        (["{photos}", "--layers", "0"], "There is no layer 0: the model has 3 with attention."),
        (["{photos}", "--limit", "0"], "--limit must be at least 1, not 0."),
        (["{photos}", "--show", "-1"], "--show must be at least 0, not -1."),
        (["{photos}", "--batch-size", "0"], "--batch-size must be at least 1, not 0."),
        ([], "Give at least one image or folder, or a data set (--data)."),
    ],
)
def test_mistakes_are_one_sentence(
    arguments: list[str], sentence: str, source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(photos=photos) for argument in arguments]
    assert main(["inspect", *given, "--model", source, "--out", str(tmp_path / "x")]) == 2
    assert capsys.readouterr() == ("", f"vitlab: {sentence}\n")


def test_out_must_not_be_a_file(source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").write_text("")
    assert main(["inspect", str(photos), "--model", source, "--out", str(tmp_path / "x")]) == 2
    assert (
        capsys.readouterr().err == f"vitlab: {tmp_path / 'x'} is a file; give the name of a folder to write (--out).\n"
    )


def test_a_figure_says_that_it_is_wider_than_the_screen() -> None:
    markup = panel_markup(Panel('<svg style="max-width:665px;min-width:466px"></svg>', "a & b"))
    assert "max-height:clamp(0px, (466px - 100cqi) * 999, 1.6rem)" in markup
    assert "a &amp; b" in markup
