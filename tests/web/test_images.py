"""Hostile and unusual images: each gets a 4xx or the answer of `vitlab.predict`, and the next request succeeds."""

import io
from pathlib import Path

import pytest
from PIL import Image

import vitlab
from vitlab.core.errors import ConfigError
from vitlab.serving.limits import Limits
from web.hostile import FILES, REFUSED, many_scans, picture, saved
from web.live import Live, error_code, serving, small_model

pytestmark = pytest.mark.web


@pytest.mark.parametrize("name", FILES)
def test_an_image_gets_the_answer_of_predict_or_a_4xx(live: Live, name: str, tmp_path: Path) -> None:
    file = tmp_path / "image"
    file.write_bytes(FILES[name])
    (expected,) = vitlab.predict(live.model, file)
    response = live.post("/v1/predict", FILES[name])

    if name in REFUSED:
        assert error_code(response) == REFUSED[name]
    elif expected.error is not None:
        assert error_code(response) in ("damaged_image", "unsupported_image")
        assert response.json()["error"]["image"] == 0
        assert str(tmp_path) not in response.text
    else:
        assert response.status_code == 200
        (answer,) = response.json()["predictions"]
        assert answer["classes"] == [
            {"label": c.label, "index": c.index, "probability": pytest.approx(c.probability, rel=1e-5)}
            for c in expected.classes
        ]
    assert live.post("/v1/predict", FILES["jpeg"]).status_code == 200


def test_orientations_and_kinds_differ_where_they_should(live: Live) -> None:
    """The comparison above could pass with a model that sees nothing: this one sees."""
    first = {name: live.post("/v1/embed", FILES[name]).json() for name in FILES if name.startswith("EXIF orientation ")}
    turned = [str(first[f"EXIF orientation {number}"]) for number in range(1, 9)]
    assert len(set(turned)) == 8
    assert first["EXIF orientation 99"] == first["EXIF orientation 1"]


def test_an_animation_is_its_first_frame(live: Live) -> None:
    still = live.post("/v1/embed", saved(picture(), "PNG")).json()
    assert live.post("/v1/embed", FILES["animated PNG"]).json() == still
    assert live.post("/v1/embed", FILES["animated WebP"]).json() == still


def test_the_bombs_are_real() -> None:
    """What is refused by its header would else be decoded: Pillow alone opens it and sees those sizes."""
    with Image.open(io.BytesIO(FILES["bomb just over the limit"])) as image:
        image.load()
        assert image.size == (1001, 1000)
    with Image.open(io.BytesIO(many_scans(3))) as image:
        image.load()


def test_a_large_jpeg_may_have_fewer_scans() -> None:
    raw = many_scans(30)  # of 1,200 pixels
    with serving(small_model(), Limits(pixels=1200)) as live:
        assert error_code(live.post("/v1/predict", raw)) == "too_many_pixels"
        assert live.post("/v1/predict", FILES["progressive"]).status_code == 200
    with serving(small_model(), Limits(pixels=12_000)) as live:
        assert live.post("/v1/predict", raw).status_code == 200


def test_the_pixels_of_a_request_are_counted_before_any_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three of 1,200 pixels."""

    def too_early(*_: object) -> None:
        raise AssertionError

    def files(num: int) -> list[tuple[str, bytes]]:
        return [("images", FILES["jpeg"])] * num

    with serving(small_model(), Limits(pixels=1200, request_pixels=3599)) as live:
        assert live.post("/v1/predict", files=files(2)).status_code == 200
        monkeypatch.setattr("vitlab.serving.service.to_pixels", too_early)
        response = live.post("/v1/predict", files=files(3))
        assert error_code(response) == "too_many_pixels"
        assert response.status_code == 413
        assert response.json()["error"]["image"] == 2
    with pytest.raises(ConfigError, match="raise request_pixels"):
        Limits(pixels=3, request_pixels=2)


def test_limits_can_be_moved() -> None:
    limits = Limits(pixels=1001 * 1000, formats=("PNG",), scans=1000)
    with serving(small_model(), limits) as live:
        assert live.post("/v1/predict", FILES["bomb just over the limit"]).status_code == 200
        assert error_code(live.post("/v1/predict", FILES["jpeg"])) == "unsupported_image"
        assert live.get("/v1/model").json()["limits"]["formats"] == ["PNG"]
