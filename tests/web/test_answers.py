"""What the service says when all is well, beside the model itself and NumPy."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.core.errors import ConfigError, Error
from vitlab.models.vit import ViT
from vitlab.serving.engine import Classify, Engine
from vitlab.serving.limits import Limits
from vitlab.serving.service import Settings
from vitlab.serving.static import POLICY, File, page_routes
from web.hostile import picture, saved
from web.live import LABELS, Live, error_code, serving, small_model

pytestmark = pytest.mark.web

PNG = saved(picture(), "PNG")


def attention_in_numpy(model: ViT, image: Image.Image) -> np.ndarray[Any, Any]:
    """[layers, heads, N, N] from the tokens that enter each layer, in double precision."""
    with torch.inference_mode():
        entering = [tokens.values[0].double().numpy() for tokens in model.features(model.preprocess(image))[:-1]]
    weights = {name: value.double().numpy() for name, value in model.state_dict().items()}
    layers = []
    for number, z in enumerate(entering):
        at = f"blocks.{number}."
        centred = z - z.mean(-1, keepdims=True)
        normal = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + model.config.norm_eps)
        normal = normal * weights[at + "norm1.weight"] + weights[at + "norm1.bias"]
        qkv = normal @ weights[at + "attention.qkv.weight"].T + weights[at + "attention.qkv.bias"]
        q, k, _ = qkv.reshape(len(z), 3, model.config.heads, -1).transpose(1, 2, 0, 3)
        logits = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        powers = np.exp(logits - logits.max(-1, keepdims=True))
        layers.append(powers / powers.sum(-1, keepdims=True))
    return np.stack(layers)


def rollout_in_numpy(attention: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    flow = np.eye(attention.shape[-1])
    for layer in attention.mean(axis=1):
        flow = (layer + np.eye(len(layer))) / 2 @ flow
    return flow


def test_predictions_are_those_of_predict(live: Live) -> None:
    (expected,) = vitlab.predict(live.model, picture(), top=3)
    (answer,) = live.post("/v1/predict?top=3", PNG).json()["predictions"]
    assert [c["label"] for c in answer["classes"]] == [c.label for c in expected.classes]
    assert [LABELS[c["index"]] for c in answer["classes"]] == [c.label for c in expected.classes]
    assert [c["probability"] for c in answer["classes"]] == pytest.approx([c.probability for c in expected.classes])


def test_equal_probabilities_are_in_order() -> None:
    with serving(vitlab.create("vit-digits")) as live:  # a fresh head is zero
        (answer,) = live.post("/v1/predict?top=1000", PNG).json()["predictions"]
    assert [c["index"] for c in answer["classes"]] == list(range(10))
    assert [c["label"] for c in answer["classes"]][:2] == ["class 0", "class 1"]


def test_embeddings_are_the_model_s_features(live: Live) -> None:
    model = live.model
    with torch.inference_mode():
        expected = model.pool(model.encode(model.embed(model.preprocess(picture()))))
    (answer,) = live.post("/v1/embed", PNG).json()["embeddings"]
    np.testing.assert_allclose(answer, expected[0].numpy(), rtol=1e-4, atol=1e-5)


def test_rollout_is_that_of_numpy(live: Live) -> None:
    assert isinstance(live.model, ViT)
    flow = rollout_in_numpy(attention_in_numpy(live.model, picture()))
    answer = live.post("/v1/attention", PNG).json()
    assert (answer["grid"], answer["num_prefix"], answer["layer"], answer["head"]) == ([6, 4], 1, None, None)
    (image,) = answer["images"]
    assert image["heads"] is None
    np.testing.assert_allclose(image["rollout"], (flow[0, 1:] / flow[0, 1:].sum()).reshape(6, 4), atol=1e-5)
    whole = live.post("/v1/attention?rows=all", PNG).json()["images"][0]["rollout"]
    np.testing.assert_allclose(whole, flow, atol=1e-5)


def test_heads_are_those_of_numpy(live: Live) -> None:
    assert isinstance(live.model, ViT)
    expected = attention_in_numpy(live.model, picture())
    answer = live.post("/v1/attention?layer=2&rollout=false", PNG).json()
    assert answer["layer"] == 2
    assert answer["images"][0]["rollout"] is None
    np.testing.assert_allclose(answer["images"][0]["heads"], expected[1, :, 0, 1:].reshape(2, 6, 4), atol=1e-5)
    one = live.post("/v1/attention?head=2&rows=all&rollout=false", PNG).json()
    assert (one["layer"], one["head"]) == (3, 2)  # without a layer the last
    np.testing.assert_allclose(one["images"][0]["heads"], expected[2, 1:2], atol=1e-5)


def test_rollout_where_the_answer_is_a_mean_of_patches() -> None:
    model = small_model(class_token=False, pool="mean")
    flow = rollout_in_numpy(attention_in_numpy(model, picture())).mean(axis=0)
    with serving(model) as live:
        (image,) = live.post("/v1/attention", PNG).json()["images"]
    np.testing.assert_allclose(image["rollout"], flow.reshape(6, 4), atol=1e-5)


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("layer=4", "bad_parameter"),
        ("layer=0", "bad_parameter"),
        ("head=3", "bad_parameter"),
        ("rollout=yes", "bad_parameter"),
        ("rows=some", "bad_parameter"),
        ("token=1", "bad_parameter"),
    ],
)
def test_attention_that_is_not_there(live: Live, query: str, code: str) -> None:
    assert error_code(live.post(f"/v1/attention?{query}", PNG)) == code


def test_what_a_model_cannot_do() -> None:
    with serving(small_model(depth=0, num_classes=0), Limits(attention_values=100)) as live:
        assert error_code(live.post("/v1/predict", PNG)) == "impossible"
        assert error_code(live.post("/v1/attention", PNG)) == "impossible"
        assert live.post("/v1/embed", PNG).status_code == 200
        assert live.get("/v1/model").json()["attention"] is None
    with serving(small_model(), Limits(attention_values=100)) as live:
        assert live.post("/v1/attention", PNG).status_code == 200
        assert error_code(live.post("/v1/attention?rows=all", PNG)) == "impossible"


def test_the_model_says_what_it_is(live: Live) -> None:
    said = live.get("/v1/model").json()
    assert said["name"] == "small"
    assert said["labels"] == list(LABELS)
    assert said["parameters"] == sum(parameter.numel() for parameter in live.model.parameters())
    assert said["attention"] == {"layers": 3, "heads": [2, 2, 2]}
    assert said["preprocess"]["size"] == [24, 16]


def test_health_and_readiness(live: Live) -> None:
    assert live.get("/healthz").json() == {"status": "ok"}
    assert live.get("/readyz").json() == {"status": "ready"}


LINE = re.compile(r'^[a-z_]+(\{([a-z]+="(?:[^"\\\n]|\\["\\n])*",?)+\})? (-?[0-9.]+(e[-+]?[0-9]+)?|\+Inf|NaN)$')


def test_metrics_count(live: Live) -> None:
    name = 'vitlab_requests_total{path="/v1/embed",status="200"}'
    before, images = live.metric(name), live.metric('vitlab_batch_images_sum{task="embed"}')
    files = [("i", PNG)] * 3
    assert live.post("/v1/embed", files=files).status_code == 200
    live.post("/v1/embed/strange/" + "x" * 50, PNG)
    assert live.metric(name) == before + 1
    assert live.metric('vitlab_batch_images_sum{task="embed"}') == images + 3
    text = live.get("/metrics").text
    assert "strange" not in text
    samples = [line for line in text.splitlines() if not line.startswith("#")]
    assert samples
    assert all(LINE.fullmatch(line) for line in samples)
    ours = [line for line in samples if line.startswith("vitlab_request_seconds_bucket") and '"/v1/embed"' in line]
    buckets = [float(line.rpartition(" ")[2]) for line in ours]
    assert buckets == sorted(buckets)
    assert buckets[-1] == live.metric('vitlab_request_seconds_count{path="/v1/embed"}')


@pytest.mark.parametrize("path", ["/healthz", "/v1/model", "/nothing", "/openapi.json"])
def test_security_headers_are_on_everything(live: Live, path: str) -> None:
    headers = live.get(path).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "server" not in headers
    assert "access-control-allow-origin" not in headers


def test_a_token_guards_what_it_should() -> None:
    with serving(small_model(), token="s3cret") as live:
        for path in ("/healthz", "/readyz", "/openapi.json"):
            assert live.get(path).status_code == 200
        wrong: list[dict[str, str]] = [{}, {"authorization": "Bearer s3cre"}, {"authorization": "Basic s3cret"}]
        wrong += [{"authorization": "Bearer s3cret2"}, {"authorization": "s3cret"}, {"authorization": "Bearer"}]
        for headers in wrong:
            response = live.post("/v1/predict", PNG, headers=headers)
            assert error_code(response) == "unauthorized"
            assert response.headers["www-authenticate"] == "Bearer"
            assert live.get("/v1/model", headers=headers).status_code == 401
            assert live.get("/metrics", headers=headers).status_code == 401
        assert live.post("/v1/predict", PNG, headers={"authorization": "bearer s3cret"}).status_code == 200
        assert live.get("/openapi.json").json()["paths"]["/v1/predict"]["post"]["security"]


def test_another_host_name_is_refused(live: Live) -> None:
    for host in ("evil.example", "127.0.0.1.evil.example", "", "localhost.evil.example:80"):
        assert live.get("/v1/model", headers={"host": host}).status_code == 421
    for host in ("localhost", "LOCALHOST:99", "127.0.0.1", "[::1]:8000", "localhost."):
        assert live.get("/v1/model", headers={"host": host}).status_code == 200


def test_damaged_weights_are_found_before_anyone_asks() -> None:
    model = small_model()
    with torch.no_grad():
        next(model.parameters()).fill_(float("nan"))
    with pytest.raises(Error, match="not finite"):
        Engine(model, "damaged").warm_up()


def test_an_image_whose_answer_is_not_finite_fails_alone() -> None:
    """White overflows half precision in the projection; grey, which is zero after normalisation, does not."""
    model = small_model().half()
    model.preprocess = dataclasses.replace(model.preprocess, mean=(128 / 255,) * 3)
    with torch.no_grad():
        model.projection.weight.fill_(6e4)
    pictures = [np.full((24, 16, 3), value, np.uint8) for value in (128, 255, 128)]
    answers = Engine(model, "half").run(Classify(), pictures)
    assert [isinstance(answer, Exception) for answer in answers] == [False, True, False]


@pytest.mark.parametrize(
    "make",
    [
        lambda: Limits(body_bytes=0),
        lambda: Limits(images=9, queue=8),
        lambda: Limits(formats=("TIFF",)),
        lambda: Limits(formats=()),
        lambda: Limits(body_bytes=10**9),
        lambda: Settings(max_batch=0),
        lambda: Settings(max_wait=-1),
        lambda: Settings(token="ü"),
    ],
)
def test_impossible_settings(make: Any) -> None:
    with pytest.raises(ConfigError):
        make()


def test_the_page_is_served_under_a_strict_policy(tmp_path: Path) -> None:
    from starlette.routing import Router
    from starlette.testclient import TestClient

    (tmp_path / "parts").mkdir()
    (tmp_path / "index.html").write_text("<!doctype html><title>x</title>")
    (tmp_path / "parts" / "walk.js").write_text("'use strict'")
    (tmp_path / ".hidden").write_text("no")
    client = TestClient(Router(page_routes(tmp_path)))
    index, script = client.get("/"), client.get("/parts/walk.js")
    assert index.text.startswith("<!doctype html>")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    assert index.headers["content-security-policy"] == script.headers["content-security-policy"] == POLICY
    assert "unsafe" not in POLICY
    assert client.get("/", headers={"if-none-match": index.headers["etag"]}).status_code == 304
    assert client.get("/.hidden").status_code == 404
    assert client.get("/index.html").status_code == 404
    assert page_routes(tmp_path / "parts") == []


def test_limits_are_those_that_are_promised() -> None:
    limits = Limits()
    assert (limits.body_bytes, limits.pixels) == (10_000_000, 40_000_000)
    with pytest.raises(dataclasses.FrozenInstanceError):
        limits.pixels = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_a_picture_for_the_page_is_given_as_it_is_and_only_where_there_is_one(live: Live) -> None:
    assert live.get("/picture").status_code == 404
    with serving(small_model(), picture=File(b"the bytes", "picture.png")) as showing:
        answer = showing.get("/picture")
    assert (answer.content, answer.headers["content-type"]) == (b"the bytes", "image/png")
