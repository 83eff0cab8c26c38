"""What surrounds images: content types, multipart and JSON, right and wrong."""

import base64
import json
from typing import Any

import httpx
import pytest

from web.hostile import FILES
from web.live import Live, error_code

pytestmark = pytest.mark.web

JPEG, PNG = FILES["jpeg"], FILES["png"]
DISPOSITION = b'Content-Disposition: form-data; name="a"; filename="a.jpg"\r\n\r\n'


def encoded(*images: bytes) -> dict[str, list[str]]:
    return {"images": [base64.b64encode(image).decode() for image in images]}


def parts(*contents: bytes, boundary: bytes = b"xx", head: bytes = DISPOSITION) -> bytes:
    delimited = b"".join(b"--" + boundary + b"\r\n" + head + content + b"\r\n" for content in contents)
    return delimited + b"--" + boundary + b"--\r\n"


MULTIPART = {"content-type": "multipart/form-data; boundary=xx"}


@pytest.mark.parametrize(
    "kind", ["image/jpeg", "image/png", "image/svg+xml", "IMAGE/JPEG; q=1", "application/octet-stream", ""]
)
def test_the_bytes_decide_not_the_content_type(live: Live, kind: str) -> None:
    response = live.post("/v1/predict", JPEG, headers={"content-type": kind})
    assert response.json() == live.post("/v1/predict", JPEG).json()


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ({"content-type": "text/plain"}, "unsupported_type"),
        ({"content-type": "application/x-www-form-urlencoded"}, "unsupported_type"),
        ({"content-type": "text/html; charset=utf-8"}, "unsupported_type"),
        ({"content-type": "application/xml"}, "unsupported_type"),
        ({"content-type": "multipart/mixed; boundary=xx"}, "unsupported_type"),
        ({"content-type": "image"}, "unsupported_type"),
        ({"content-type": "\xff\xfe"}, "unsupported_type"),
        ({"content-type": "a" * 5000}, "unsupported_type"),
        ({"content-encoding": "gzip"}, "unsupported_type"),
        ({"content-encoding": "identity"}, "unsupported_type"),
        ({"content-type": "application/json"}, "bad_request"),
        ({"content-type": "multipart/form-data"}, "bad_request"),
        ({"content-type": "multipart/form-data; boundary="}, "bad_request"),
        ({"content-type": f"multipart/form-data; boundary={'x' * 71}"}, "bad_request"),
        ({"content-type": 'multipart/form-data; boundary="a\\"b"'}, "bad_request"),
        ({"content-type": "multipart/form-data; boundary=other"}, "bad_request"),
    ],
)
def test_a_wrong_type_is_refused(live: Live, headers: dict[str, str], code: str) -> None:
    sent = {name: value.encode("latin-1") for name, value in headers.items()}
    assert error_code(live.post("/v1/predict", JPEG, headers=sent)) == code


@pytest.mark.parametrize("path", ["/v1/predict", "/v1/embed", "/v1/attention"])
def test_one_as_the_body_several_as_multipart_and_json_are_the_same(live: Live, path: str) -> None:
    singles = [live.post(path, image).json() for image in (JPEG, PNG)]
    key = {"/v1/predict": "predictions", "/v1/embed": "embeddings", "/v1/attention": "images"}[path]
    files = [("images", ("a.jpg", JPEG, "image/jpeg")), ("images", ("b", PNG, "application/x-anything"))]
    by_multipart = live.post(path, files=files)
    by_json = live.post(path, json=encoded(JPEG, PNG))
    expected = [single[key][0] for single in singles]
    for response in (by_multipart, by_json):
        assert response.status_code == 200
        assert_near(response.json()[key], expected)


def assert_near(ours: Any, theirs: Any) -> None:
    """The same document but for the last digits of its numbers: batches of other sizes round otherwise."""
    if isinstance(ours, dict):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert_near(value, theirs[key])
    elif isinstance(ours, list):
        assert len(ours) == len(theirs)
        for our, their in zip(ours, theirs, strict=True):
            assert_near(our, their)
    elif isinstance(ours, float):
        assert ours == pytest.approx(theirs, rel=1e-4, abs=1e-6)
    else:
        assert ours == theirs


GOOD_MULTIPART = {
    "a preamble": b"to be ignored\r\n" + parts(JPEG),
    "an epilogue": parts(JPEG) + b"to be ignored",
    "blanks after the boundary": parts(JPEG).replace(b"--xx\r\n", b"--xx \t\r\n"),
    "dashes within": parts(JPEG + b"\r\n--x\r\n--y"),
    "headers in another order": parts(JPEG, head=b"Content-Type: image/jpeg\r\n" + DISPOSITION),
    "a path as the name": parts(JPEG, head=DISPOSITION.replace(b"a.jpg", b"../../etc/passwd")),
    "no filename": parts(JPEG, head=b'content-disposition:form-data;name="a"\r\n\r\n'),
}


@pytest.mark.parametrize("name", GOOD_MULTIPART)
def test_unusual_multipart_is_understood(live: Live, name: str) -> None:
    response = live.post("/v1/predict", GOOD_MULTIPART[name], headers=MULTIPART)
    assert response.json() == live.post("/v1/predict", JPEG).json()


BAD_MULTIPART = {
    "nothing": b"",
    "an image without parts": JPEG,
    "no parts": b"--xx--\r\n",
    "no end": parts(JPEG)[:-8],
    "an end in the middle": parts(JPEG)[:600],
    "only a boundary": b"--xx",
    "a boundary and a line": b"--xx\r\n",
    "a head that does not end": b"--xx\r\nContent-Disposition: form-data; name=a" + b"x" * 9000,
    "no head": parts(JPEG, head=b"\r\n"),
    "another disposition": parts(JPEG, head=b"Content-Disposition: attachment; name=a\r\n\r\n"),
    "a transfer encoding": parts(base64.b64encode(JPEG), head=b"Content-Transfer-Encoding: base64\r\n" + DISPOSITION),
    "bare line feeds": parts(JPEG).replace(b"\r\n", b"\n"),
    "words after the boundary": parts(JPEG).replace(b"--xx\r\n", b"--xx words\r\n"),
}


@pytest.mark.parametrize("name", BAD_MULTIPART)
def test_bad_multipart_is_refused(live: Live, name: str) -> None:
    assert error_code(live.post("/v1/predict", BAD_MULTIPART[name], headers=MULTIPART)) == "bad_request"
    assert live.post("/v1/predict", files={"a": JPEG}).status_code == 200


BAD_JSON: dict[str, bytes] = {
    "nothing": b"",
    "no JSON": b"{'images': []}",
    "not UTF-8": b'{"images": ["\xff"]}',
    "UTF-16": json.dumps(encoded(JPEG)).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf" + json.dumps(encoded(JPEG)).encode(),
    "a list": json.dumps(encoded(JPEG)["images"]).encode(),
    "no images": b'{"images": []}',
    "another field": json.dumps(encoded(JPEG) | {"url": "http://127.0.0.1:1/"}).encode(),
    "another name": json.dumps({"image": encoded(JPEG)["images"]}).encode(),
    "a text": json.dumps({"images": encoded(JPEG)["images"][0]}).encode(),
    "a number": b'{"images": [1]}',
    "null": b'{"images": [null]}',
    "a nested list": b'{"images": [["aaaa"]]}',
    "a URL": b'{"images": ["http://127.0.0.1:1/cat.jpg"]}',
    "a file URL": b'{"images": ["file:///etc/passwd"]}',
    "a data URL": b'{"images": ["data:image/jpeg;base64,' + base64.b64encode(JPEG) + b'"]}',
    "base64 with line breaks": json.dumps({"images": [base64.encodebytes(JPEG).decode()]}).encode(),
    "base64 of the URL kind": b'{"images": ["_-_-"]}',
    "base64 cut off": b'{"images": ["abcde"]}',
    "base64 with text behind": b'{"images": ["YWJj====x"]}',
    "letters beyond ASCII": '{"images": ["ÿ½"]}'.encode(),
    "deep nesting": b"[" * 900_000,
    "many empty lists": b"[" + b"[]," * 300_000 + b"[]]",
    "many fields": b"{" + b",".join(b'"%d":1' % number for number in range(50_000)) + b"}",
    "a huge number": b'{"images": [' + b"9" * 900_000 + b"]}",
    "NaN": b'{"images": NaN}',
    "two documents": json.dumps(encoded(JPEG)).encode() * 2,
}


@pytest.mark.parametrize("name", BAD_JSON)
def test_bad_json_is_refused(live: Live, name: str) -> None:
    response = live.post("/v1/predict", BAD_JSON[name], headers={"content-type": "application/json"})
    assert error_code(response) == "bad_request"
    assert response.elapsed.total_seconds() < 2
    assert live.post("/v1/predict", json=encoded(JPEG)).status_code == 200


def test_which_of_several_images_was_wrong(live: Live) -> None:
    files = {"a": JPEG, "b": FILES["truncated PNG"], "c": JPEG}
    response = live.post("/v1/predict", files=files)
    assert response.status_code == 422
    assert response.json()["error"]["image"] == 1
    assert live.post("/v1/predict", json=encoded(JPEG, JPEG, b"")).json()["error"]["image"] == 2
    assert live.metric("vitlab_queue_images") == 0


@pytest.mark.parametrize("form", ["multipart", "json"])
def test_too_many_images(live: Live, form: str) -> None:
    def send(num: int) -> httpx.Response:
        if form == "json":
            return live.post("/v1/predict", json=encoded(*[JPEG] * num))
        return live.post("/v1/predict", files=[("i", JPEG)] * num)

    assert error_code(send(5)) == "too_many_images"
    assert len(send(4).json()["predictions"]) == 4


@pytest.mark.parametrize(
    "query",
    [
        "top=0",
        "top=-1",
        "top=1001",
        "top=1.5",
        "top=",
        "top=x",
        "top=1&top=2",
        "top=99999999999",
        "top=٣",
        "tpo=1",
        "=",
    ],
)
def test_bad_parameters(live: Live, query: str) -> None:
    assert error_code(live.post(f"/v1/predict?{query}", JPEG)) == "bad_parameter"
