"""What the service tells of a model's insides, beside NumPy and scikit-learn."""

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vitlab.models.bit import BiT, BiTConfig
from vitlab.models.vit import ViT
from vitlab.serving.limits import Limits
from web.hostile import picture, saved
from web.live import Live, error_code, serving, small_model

pytestmark = pytest.mark.web

PNG = saved(picture(), "PNG")


@pytest.mark.parametrize("layer", [0, 1, 3])
def test_tokens_are_those_of_the_layer(live: Live, layer: int) -> None:
    answer = live.post(f"/v1/tokens?layer={layer}", PNG).json()
    with torch.inference_mode():
        tokens = live.model.features(live.model.preprocess(picture()))[layer].patches[0].double().numpy()
    lengths = np.sqrt((tokens**2).sum(axis=1))
    assert (answer["layer"], answer["grid"]) == (layer, [6, 4])
    (image,) = answer["images"]
    np.testing.assert_allclose(image["norms"], lengths.reshape(6, 4), rtol=1e-4)
    np.testing.assert_allclose(image["similarity"], tokens @ tokens.T / np.outer(lengths, lengths), atol=1e-4)


def test_without_a_layer_it_is_the_last_and_each_image_has_its_own(live: Live) -> None:
    several = live.post("/v1/tokens", files=[("i", PNG), ("i", saved(picture(31, 40), "PNG"))]).json()
    assert several["layer"] == 3
    first, second = several["images"]
    (single,) = live.post("/v1/tokens?layer=3", PNG).json()["images"]
    for name in ("norms", "similarity"):
        np.testing.assert_allclose(first[name], single[name], rtol=1e-4, atol=2e-5)
        assert first[name] != second[name]


@pytest.mark.parametrize("query", ["layer=4", "layer=-1", "layer=x", "layer=", "head=1", "layer=1&layer=1"])
def test_layers_that_are_not_there(live: Live, query: str) -> None:
    assert error_code(live.post(f"/v1/tokens?{query}", PNG)) == "bad_parameter"


def test_answers_that_would_be_too_long() -> None:
    with serving(small_model(), Limits(attention_values=24 * 25)) as live:  # 24 tokens: similarity and norms
        assert live.post("/v1/tokens", PNG).status_code == 200
        assert error_code(live.post("/v1/tokens", files=[("i", PNG)] * 2)) == "impossible"
    with serving(small_model(), Limits(attention_values=24 * 24 - 1)) as live:
        assert error_code(live.post("/v1/tokens", PNG)) == "impossible"
        learned = live.get("/v1/learned").json()
        assert (learned["positions"], learned["nearness"]) == (None, None)


def test_what_was_learned(live: Live) -> None:
    model = live.model
    assert isinstance(model, ViT)
    said = live.get("/v1/learned").json()
    assert said == live.get("/v1/learned").json()
    table = next(value for name, value in model.state_dict().items() if name.startswith("positions."))
    places = table.reshape(-1, model.config.width)[1:].double().numpy()  # without the class token's
    unit = places / np.linalg.norm(places, axis=1, keepdims=True)
    assert said["grid"] == [6, 4]
    np.testing.assert_allclose(said["positions"], unit @ unit.T, atol=1e-4)
    where = np.mgrid[:6, :4].reshape(2, -1).T
    above = np.triu_indices(24, 1)
    far = np.linalg.norm(where[:, None] - where[None], axis=-1)[above]
    correlation = np.corrcoef((unit @ unit.T)[above], -far)[0, 1]
    assert said["nearness"] == {"correlation": pytest.approx(correlation, abs=1e-3), "clear": False}  # random weights
    assert said["filters"]["smooth"] < 4
    found = PCA().fit(model.projection.weight.double().detach().numpy())
    count = min(28, 16)
    np.testing.assert_allclose(said["filters"]["explained"], found.explained_variance_ratio_[:count], atol=1e-4)
    directions = np.asarray(found.components_)
    for pixels, component in zip(said["filters"]["pictures"][:8], directions[:8], strict=True):
        values = np.transpose(component.reshape(3, 4, 4), (1, 2, 0))
        shown = 2 * np.asarray(pixels) - 1
        assert np.abs(shown).max() == pytest.approx(1, abs=1e-3)
        scaled = values / np.abs(values).max()
        assert min(np.abs(shown - scaled).max(), np.abs(shown + scaled).max()) < 1e-3  # a sign is free


def test_the_model_says_how_it_cuts_and_where_it_reads(live: Live) -> None:
    said = live.get("/v1/model").json()
    assert (said["patch"], said["token_grids"], said["reads"]) == ([4, 4], [[6, 4]] * 4, "prefix")
    with serving(small_model(class_token=False, pool="mean")) as other:
        assert other.get("/v1/model").json()["reads"] == "patches"


def test_a_network_that_cuts_nothing() -> None:
    model = BiT(BiTConfig(image_size=(64, 64), layers=(1, 1), width=32, num_classes=0)).eval()
    model.initialize()
    with serving(model) as live:
        said = live.get("/v1/model").json()
        assert (said["patch"], said["reads"], said["token_grids"]) == (None, None, [[16, 16], [16, 16], [8, 8]])
        learned = live.get("/v1/learned").json()
        assert learned["positions"] is None
        assert np.shape(learned["filters"]["pictures"]) == (28, 7, 7, 3)
        assert live.post("/v1/tokens?layer=2", PNG).json()["grid"] == [8, 8]


def test_relative_positions_are_not_compared() -> None:
    with serving(small_model(positions="relative")) as live:
        assert live.get("/v1/learned").json()["positions"] is None
