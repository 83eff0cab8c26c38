"""The analyses together, on models that have everything and on ones that do not."""

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tiny_vits import random_vit
from vitlab.core.errors import Error
from vitlab.core.preprocess import Preprocess
from vitlab.inspection.capture import InspectionError, attention_of
from vitlab.inspection.examine import examine
from vitlab.inspection.gather import inspect_pictures
from vitlab.inspection.view import geometry_of
from vitlab.inspection.write import numbers
from vitlab.models.contract import AttentionTap, Model, Taps, Tokens
from vitlab.models.vit import ViT, ViTConfig

PICTURES = list(np.random.default_rng(0).integers(0, 256, (5, 8, 12, 3), dtype=np.uint8))


def tiny(**changes: Any) -> ViT:
    sizes: dict[str, Any] = {"image_size": (8, 12), "patch_size": 4, "width": 8, "depth": 3, "mlp_dim": 8, "heads": 2}
    model = random_vit(ViTConfig(**{**sizes, "num_classes": 3, **changes}))
    model.labels = tuple(f"kind {number}" for number in range(model.config.num_classes)) or None
    return model


@dataclass(frozen=True)
class OddConfig:
    image_size: tuple[int, int] = (8, 12)
    num_classes: int = 3


@final
class Odd(Model):
    """A CNN, or with `coarse` a model whose queries attend to a coarser grid of keys."""

    config: OddConfig

    def __init__(self, *, coarse: bool) -> None:
        super().__init__(OddConfig(), Preprocess(size=(8, 12)))
        self.stem, self.layer, self.head = nn.Conv2d(3, 4, 4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        self.coarse = coarse

    def embed(self, images: Tensor) -> Tokens:
        return Tokens(values=self.stem(images).flatten(2).mT, grid=(2, 3))

    def encode(self, tokens: Tokens) -> Tokens:
        return tokens.with_values(self.layer(tokens.values))

    def pool(self, tokens: Tokens) -> Tensor:
        return tokens.values.mean(dim=1)

    def features(self, images: Tensor) -> list[Tokens]:
        tokens = self.embed(images)
        return [tokens, self.encode(tokens)]

    def initialize(self) -> None: ...

    @property
    def num_features(self) -> int:
        return 4

    @property
    def taps(self) -> Taps:
        if not self.coarse:
            return Taps()
        return Taps(attention=(AttentionTap(self.layer, lambda z: torch.full((len(z), 2, 6, 2), 0.5)),))


def test_averages_do_not_depend_on_the_batches() -> None:
    model = tiny()
    one, all_at_once = (examine(model, "tiny", [], PICTURES, batch_size=size) for size in (2, 5))
    assert one.num_images == all_at_once.num_images == 5
    assert list(one.distance) == list(one.entropy) == [1, 2, 3]
    for layer in (1, 2, 3):
        np.testing.assert_allclose(one.distance[layer], all_at_once.distance[layer], rtol=1e-5)
        np.testing.assert_allclose(one.entropy[layer], all_at_once.entropy[layer], rtol=1e-5)


def test_distance_over_the_pictures_is_the_mean_over_each() -> None:
    model = tiny()
    found = examine(model, "tiny", [], PICTURES, batch_size=2)
    attention = attention_of(model, model.preprocess(PICTURES))[1].double().numpy()[:, :, 1:, 1:]
    places = np.array([(row * 4, column * 4) for row in range(2) for column in range(3)])
    apart = np.linalg.norm(places[:, None] - places[None], axis=-1)
    expected = ((attention * apart).sum(-1) / attention.sum(-1)).mean(axis=(0, 2))
    np.testing.assert_allclose(found.distance[2], expected, rtol=1e-5)


def test_a_view_has_the_class_tokens_rows() -> None:
    model = tiny(num_registers=1)
    (view,) = examine(model, "tiny", [("one", PICTURES[0])], [], layers=[2]).views
    attention = {
        layer: a[0].double().numpy() for layer, a in attention_of(model, model.preprocess(PICTURES[0])).items()
    }
    assert list(view.heads) == [3]
    np.testing.assert_allclose(view.heads[3], attention[2][:, 0, 2:].reshape(2, 2, 3), rtol=1e-5)
    flow = np.eye(8)
    for layer in range(3):
        flow = (attention[layer].mean(axis=0) + np.eye(8)) / 2 @ flow
    assert view.rollout is not None
    np.testing.assert_allclose(view.rollout, flow[0, 2:].reshape(2, 3) / flow[0, 2:].sum(), rtol=1e-4)
    assert view.gradient is not None
    assert view.gradient.sum() == pytest.approx(1)
    probabilities = model(model.preprocess(PICTURES[0]))[0].detach().softmax(-1)
    assert view.classes[0] == (f"kind {int(probabilities.argmax())}", pytest.approx(float(probabilities.max())))


def test_without_a_class_token_the_rows_of_all_patches_are_averaged() -> None:
    model = tiny(class_token=False, pool="mean")
    (view,) = examine(model, "tiny", [("one", PICTURES[0])], []).views
    attention = attention_of(model, model.preprocess(PICTURES[0]))[0][0]
    np.testing.assert_allclose(view.heads[1], attention.mean(dim=1).reshape(2, 2, 3), rtol=1e-5)


def test_layers_of_a_model_are_like_those_of_itself_and_not_of_another() -> None:
    model = tiny()
    found = examine(model, "tiny", [], PICTURES, other=(model, "itself"))
    assert found.similarity is not None
    assert found.other_similarity is not None
    np.testing.assert_allclose(found.other_similarity, found.similarity, rtol=1e-6)
    other = random_vit(ViTConfig(image_size=(16, 16), patch_size=2, width=16, depth=1, mlp_dim=8, heads=2), seed=9)
    found = examine(model, "tiny", [], PICTURES, other=(other, "another"))
    assert found.other_similarity is not None
    assert found.other_similarity.shape == (4, 2)
    assert (found.other_similarity < 0.95).all()


def test_a_model_without_attention_gets_what_it_has() -> None:
    found = examine(Odd(coarse=False), "CNN", [("one", PICTURES[0])], PICTURES)
    assert found.views[0].classes
    assert found.views[0].rollout is None
    assert found.similarity is not None
    assert not found.distance
    assert any("does not work by attention" in sentence for sentence in found.missing)
    assert any("no filters" in sentence for sentence in found.missing)
    assert any("position" in sentence for sentence in found.missing)
    with pytest.raises(InspectionError, match="no attention"):
        examine(Odd(coarse=False), "CNN", [], PICTURES, layers=[0])


def test_attention_to_a_coarser_grid_is_refused_in_a_sentence() -> None:
    found = examine(Odd(coarse=True), "coarse", [("one", PICTURES[0])], PICTURES)
    assert found.entropy[1].tolist() == [1, 1]  # half to each of two keys
    assert not found.distance
    assert found.views[0].rollout is None
    assert found.views[0].heads == {}
    said = [sentence for sentence in found.missing if sentence.startswith("Layer 1 attends")]
    assert len(said) == 2
    assert "6 x 2" in said[0]


def test_a_model_without_classes_or_positions() -> None:
    found = examine(tiny(num_classes=0, positions="relative"), "bare", [("one", PICTURES[0])], PICTURES)
    assert found.views[0].classes == ()
    assert found.views[0].rollout is not None
    assert found.views[0].gradient is None
    assert len(found.missing) == 2


def test_damaged_weights_are_an_error() -> None:
    model = tiny()
    with torch.no_grad():
        model.projection.weight[0, 0] = float("nan")
    with pytest.raises(Error, match="not finite"):
        examine(model, "damaged", [], PICTURES)
    with pytest.raises(Error, match="not finite"):
        examine(model, "damaged", [("one", PICTURES[0])], [])


def test_patches_that_are_filled_up_keep_their_size() -> None:
    geometry = geometry_of(tiny(image_size=(9, 12), indivisible="pad"))
    assert (geometry.layout.grid, geometry.patch) == ((3, 3), (4.0, 4.0))
    assert geometry_of(Odd(coarse=False)).patch == (4.0, 4.0)


def test_files_of_a_model_that_has_little(tmp_path: Path) -> None:
    seen = inspect_pictures(Odd(coarse=False), "CNN", PICTURES, out=tmp_path / "new" / "out", num_shown=1)
    names = [file.name for file in seen.files]
    assert names == [f"{name}.{kind}" for name in ("attention-1", "similarity") for kind in ("png", "svg")] + [
        "inspect.json",
        "inspect.html",
    ]
    assert all(file.stat().st_size for file in seen.files)
    told = json.loads((tmp_path / "new" / "out" / "inspect.json").read_text())
    assert told == numbers(seen.findings)
    assert told["pictures"][0]["name"] == "picture 1"
    assert told["averages"] == {"data": None, "images": 5}


def test_numbers_of_constant_tokens_are_null() -> None:
    """Every layer's tokens are the same: there is nothing to align."""
    model = Odd(coarse=False)
    nn.init.zeros_(model.layer.weight)
    told = numbers(examine(model, "flat", [], PICTURES))
    assert told["similarity"][0][0] == 1
    assert told["similarity"][1] == [None, None]
    json.dumps(told, allow_nan=False)
    assert not math.isnan(told["similarity"][0][0])


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"limit": 0}, "limit must be at least 1"),
        ({"batch_size": 0}, "batch size must be at least 1"),
        ({"num_shown": -1}, "must be at least 0"),
    ],
)
def test_impossible_numbers(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Error, match=sentence):
        inspect_pictures(tiny(), "tiny", PICTURES, **changes)


def test_no_pictures_or_none_that_can_be_read(tmp_path: Path) -> None:
    with pytest.raises(Error, match="at least one picture"):
        inspect_pictures(tiny(), "tiny", [])
    for shown in (0, 1):
        with pytest.raises(Error, match="There is no file"):
            inspect_pictures(tiny(), "tiny", [tmp_path / "gone.png"], num_shown=shown)
