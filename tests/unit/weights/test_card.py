"""Model cards: read by the hub's own parser and by a Markdown parser, with texts that want to be more than texts."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

import vitlab
from short_runs import short, small_set
from tiny_vits import random_vit
from vitlab.core.preprocess import Preprocess
from vitlab.models.vit import ViT, ViTConfig
from vitlab.training.recipe import Recipe
from vitlab.weights import card
from vitlab.weights.load import load, save

__all__ = ["short", "small_set"]  # fixtures

NASTY = 'Straße | "x" \\ `code` *bold* <img src=x onerror=alert(1)> [link](http://x) & \n---\n# heading: - y'


def tiny(num_classes: int = 3) -> ViT:
    sizes: dict[str, Any] = {
        "image_size": (16, 24),
        "patch_size": 8,
        "width": 16,
        "depth": 1,
        "mlp_dim": 24,
        "heads": 2,
    }
    return random_vit(ViTConfig(**sizes, num_classes=num_classes), preprocess=Preprocess(size=(16, 24)))


def a_run(folder: Path, **result: Any) -> Path:
    """A run's files as the loop writes them, and its model."""
    folder.mkdir(parents=True)
    recipe = {
        "name": "finetune",
        "model": {"source": "/home/someone/secret/weights/B_16.npz", "set": ["a=1"]},
        "data": {"source": "/home/someone/photos/"},
        "teacher": {"source": "hf-hub:owner/name"},
        "batch_size": 64,
    }
    (folder / "recipe.json").write_text(json.dumps(recipe))
    (folder / "data.json").write_text(json.dumps({"name": "pho|tos", "fingerprint": "0", "classes": list("abc")}))
    if result:
        (folder / "result.json").write_text(json.dumps(result))
    model = tiny()
    model.labels = ("a", "b", "c")
    save(model, folder / "model")
    return folder


def test_a_native_folder_has_a_card(tmp_path: Path) -> None:
    model = tiny()
    model.labels = ("cat", "dog", NASTY)
    save(model, tmp_path / "a model")
    text = (tmp_path / "a model" / "README.md").read_text(encoding="utf-8")
    read = ModelCard(text)
    data = read.data.to_dict()
    assert data["library_name"] == "vitlab"
    assert data["license"] == "unknown"
    assert data["pipeline_tag"] == "image-classification"
    assert data["tags"] == ["vitlab", "image-classification", "vit"]
    assert "model-index" not in data
    assert "# a model" in text
    assert f"with {sum(value.numel() for value in model.parameters()):,} parameters" in text
    assert "resized to 16 x 24 px whatever their aspect (bilinear)" in text
    assert "mean (0.5, 0.5, 0.5)" in text
    assert "| patch\\_size | 8 |" in text
    assert 'vitlab.load("a model")' in text
    assert load(tmp_path / "a model").load_report.lines() == []


def test_texts_stay_texts() -> None:
    """Of all that a class's or a model's name tries, nothing becomes a heading, a link, HTML or a table's cell."""
    model = tiny()
    model.labels = (NASTY, "b", "c")
    text = card.model_card(model, NASTY, license=NASTY)
    assert ModelCard(text).data.to_dict()["license"] == NASTY
    body = text.split("---\n", 2)[2]
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(body)
    inline = [child for token in tokens for child in token.children or ()]
    headings = [tokens[i + 1].content for i, token in enumerate(tokens) if token.type == "heading_open"]
    assert headings[0].startswith("Straße")
    assert headings[1:] == ["How to use it", "Classes", "Preprocessing", "Architecture"]
    assert [token.type for token in tokens].count("html_block") == 1  # our own comment
    assert not {child.type for child in inline} & {"link_open", "html_inline", "strong_open", "em_open", "image"}
    assert any(
        "<img src=x onerror=alert(1)> [link](http://x)" in child.content for child in inline if child.type == "text"
    )


TINY = tiny()


ODD = ["null", "yes", "1e5", "- a", "a: b", "---", "\n---\n", "'", '"', "\r", "\x85", "\u2028"]


@given(st.text(max_size=30) | st.sampled_from(ODD))
def test_any_text_survives_in_the_head(text: str) -> None:
    data = ModelCard(card.model_card(TINY, "x", license=text)).data.to_dict()
    if not set(text) & {"\x85", "\u2028", "\u2029"}:  # line breaks of which PyYAML makes blanks
        assert data.pop("license") == (text or "unknown")
    assert data.keys() - {"license"} == {"library_name", "pipeline_tag", "tags"}


def test_a_runs_card_has_its_scores_and_recipe(tmp_path: Path) -> None:
    run = a_run(tmp_path / "mine")
    before = (run / "model" / "README.md").read_text()
    assert "# mine" in before
    assert "## Scores" not in before
    result = {"test accuracy": 0.9775, "test loss": 0.19, "test count": 400.0, "best val score": 1.0, "step": 1967}
    (run / "result.json").write_text(json.dumps(result | {"test score": 0.9775, "images_seen": 125888}))
    card.renew_card(run)
    text = (run / "model" / "README.md").read_text()
    (scored,) = ModelCard(text).data.to_dict()["model-index"][0]["results"]
    assert scored["dataset"]["name"] == "pho|tos"
    assert [(metric["type"], metric["value"]) for metric in scored["metrics"]] == [("accuracy", 0.9775)]
    assert "| test accuracy | 0.9775 |" in text
    assert "over 400 images" in text
    assert "| steps | 1967 |" in text
    assert "| data | pho\\|tos |" in text
    assert '"source": "hf-hub:owner/name"' in text
    assert '"source": "B_16.npz"' in text
    assert '"source": "photos"' in text
    assert "someone" not in text
    assert load(run).labels == ("a", "b", "c")


@pytest.mark.slow
def test_a_run_that_ended_has_its_scores_in_the_card(short: Recipe, tmp_path: Path) -> None:
    outcome = vitlab.train(short, out=tmp_path / "run")
    text = (tmp_path / "run" / "model" / "README.md").read_text()
    assert f"| best val score | {outcome.scores['best val score']:.4g} |" in text
    assert "| steps | 24 |" in text
    assert "| data | a set |" in text
    assert str(tmp_path) not in text


def test_a_users_own_card_is_kept(tmp_path: Path) -> None:
    run = a_run(tmp_path / "mine", step=3)
    own = "My text, in Latin-1: \xe9".encode("latin-1")
    (run / "model" / "README.md").write_bytes(own)
    card.renew_card(run)
    save(tiny(), run / "model")
    assert (run / "model" / "README.md").read_bytes() == own
    assert load(run).labels is None


def test_a_damaged_run_does_not_keep_a_model_from_being_saved(tmp_path: Path) -> None:
    run = a_run(tmp_path / "mine")
    (run / "recipe.json").write_text("{")
    save(tiny(), run / "model")
    assert "## Training" not in (run / "model" / "README.md").read_text()


def test_features_only(tmp_path: Path) -> None:
    save(tiny(0), tmp_path / "features")
    text = (tmp_path / "features" / "README.md").read_text()
    assert ModelCard(text).data.to_dict()["pipeline_tag"] == "image-feature-extraction"
    assert "## Classes" not in text


@pytest.mark.parametrize(("spec", "says"), [({"resize": "shortest", "shortest_edge": 32}, "a shorter side of 32 px")])
def test_other_preprocessing_is_told(spec: dict[str, Any], says: str) -> None:
    model = tiny()
    model.preprocess = Preprocess(size=(16, 24), **spec)
    assert says in card.model_card(model, "x")
