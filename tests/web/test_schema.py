"""The OpenAPI document beside what the service does, by schemathesis."""

import base64

import httpx
import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from vitlab.serving.http.errors import CODES
from vitlab.serving.openapi import IMAGE_TYPES
from web.hostile import picture, saved
from web.live import Live

pytestmark = pytest.mark.web

IMAGES = {kind: saved(picture(), name) for name, kind in IMAGE_TYPES.items()}
ANY_IMAGE = st.sampled_from(list(IMAGES.values()))
# By its schema an image is a string of bytes: what is an image is said here.
for kind in (*IMAGES, "application/octet-stream"):
    schemathesis.openapi.media_type(kind, ANY_IMAGE)
schemathesis.openapi.format("binary", ANY_IMAGE)
schemathesis.openapi.format("base64-image", ANY_IMAGE.map(lambda raw: base64.b64encode(raw).decode()))


@pytest.fixture(scope="module")
def api(live: Live) -> schemathesis.BaseSchema:
    refusals = {"negative_data_rejection": {"expected-statuses": ["4xx"]}}  # also 413, which is not among the defaults
    config = schemathesis.Config.from_dict({"checks": refusals})
    return schemathesis.openapi.from_url(live.address + "/openapi.json", config=config)


WITH_IMAGES = ("/v1/predict", "/v1/embed", "/v1/attention", "/v1/tokens")
PLAIN = ("/v1/model", "/v1/learned", "/healthz", "/readyz", "/metrics", "/openapi.json")
GOOD, BAD = GenerationMode.POSITIVE, GenerationMode.NEGATIVE
OPERATIONS = [
    *(pytest.param("POST", path, mode, id=f"{path} {mode.value}") for path in WITH_IMAGES for mode in (GOOD, BAD)),
    *(pytest.param("GET", path, GOOD, id=path) for path in PLAIN),
]


@pytest.mark.parametrize("num", [12, pytest.param(400, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("method", "path", "mode"), OPERATIONS)
def test_the_service_does_what_its_document_says(
    live: Live, api: schemathesis.BaseSchema, method: str, path: str, mode: GenerationMode, num: int
) -> None:
    """What fits is accepted, what does not is refused, and every answer is one of those that are listed."""
    accepted = f'vitlab_requests_total{{path="{path}",status="200"}}'
    before = live.metric(accepted)

    @settings(
        max_examples=num,
        deadline=None,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(case=api[path][method].as_strategy(generation_mode=mode))
    def check(case: Case) -> None:
        case.call_and_validate(base_url=live.address)

    check()
    if mode is GOOD:  # a bad request may hold a good image: its bytes have no schema to violate
        assert live.metric(accepted) > before


def test_the_document_is_openapi(live: Live) -> None:
    document = live.get("/openapi.json").json()
    assert document["openapi"] == "3.1.0"
    assert set(document["paths"]) == {*WITH_IMAGES, *PLAIN}  # each of which was asked above
    schemas = document["components"]["schemas"]
    for described in schemas.values():
        jsonschema_rs.meta.validate(described)
    assert set(schemas["Error"]["properties"]["error"]["properties"]["code"]["enum"]) == set(CODES)


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/embed", "/v1/attention?layer=1", "/v1/tokens?layer=0"])
def test_answers_and_errors_fit_their_schemas(live: Live, path: str) -> None:
    document = live.get("/openapi.json").json()
    described = document["paths"][path.partition("?")[0]]["post"]["responses"]

    def check(response: httpx.Response, status: int) -> None:
        assert response.status_code == status
        reference = described[str(status)]["content"]["application/json"]["schema"]
        validator = jsonschema_rs.Draft202012Validator({**reference, "components": document["components"]})
        validator.validate(response.json())

    check(live.post(path, next(iter(IMAGES.values()))), 200)
    check(live.post(path, b"no image"), 415)
    check(live.post(path, bytes(1_000_001)), 413)
