"""A request's body to the images in it: one as the body, several as multipart, or base64 in JSON."""

import binascii
import json
import re
from typing import Any

from vitlab.serving.limits import Limits
from vitlab.serving.refusals import Refusal

TAKEN = "an image as the body (image/* or application/octet-stream), multipart/form-data, or application/json"
# JSON of base64 images has one of these for each image and a few more. A body made of them would keep the parser, and
# with it the whole process, busy for seconds.
STRUCTURE, MOST_STRUCTURE = (b"[", b"{", b",", b":", b'"'), 1000
BOUNDARY = re.compile(r"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046, section 5.1.1
PART_HEAD_BYTES = 4096
PARAMETER = re.compile(r';\s*([\w!#$%&\'*+.^`|~-]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;"]+)\s*')


def read_images(body: bytes, content_type: str, limits: Limits) -> list[bytes]:
    """The encoded images in the order they came; there is at least one."""
    kind, parameters = parse_content_type(content_type)
    if kind == "application/json":
        images = _from_json(body, limits)
    elif kind == "multipart/form-data":
        images = _from_multipart(body, parameters.get("boundary", ""), limits)
    elif kind in ("", "application/octet-stream") or kind.startswith("image/"):
        images = [body]
    else:
        raise unsupported_type(kind)
    if not images or images == [b""]:
        raise Refusal("bad_request", f"There is no image in the request: send {TAKEN}.")
    return images


def unsupported_type(kind: str) -> Refusal:
    hint = " (curl: add -H 'Content-Type: application/octet-stream')" if "urlencoded" in kind else ""
    return Refusal("unsupported_type", f"The content type '{kind[:80]}' is not taken: send {TAKEN}{hint}.")


def parse_content_type(value: str) -> tuple[str, dict[str, str]]:
    """'text/html; charset=utf-8' as its lower-case type and its parameters; what does not parse has none."""
    kind, _, _ = value.partition(";")
    parameters: dict[str, str] = {}
    for name, given in PARAMETER.findall(value[len(kind) :]):
        text = re.sub(r"\\(.)", r"\1", given[1:-1]) if given.startswith('"') else given
        parameters.setdefault(name.lower(), text)
    return kind.strip().lower(), parameters


def _from_json(body: bytes, limits: Limits) -> list[bytes]:
    form = 'send {"images": ["<base64>", ...]}'
    if any(body.count(character) > MOST_STRUCTURE for character in STRUCTURE):
        raise Refusal("bad_request", f"The JSON has too many parts: {form}.")
    try:
        document: Any = json.loads(body.decode("utf-8"))
    except (ValueError, RecursionError):
        raise Refusal("bad_request", f"The body is not JSON in UTF-8: {form}.") from None
    if not isinstance(document, dict) or list(document) != ["images"] or not isinstance(document["images"], list):
        raise Refusal("bad_request", f"The JSON must be an object with one field: {form}.")
    texts: list[Any] = document["images"]
    _check_number(len(texts), limits)
    images: list[bytes] = []
    for place, text in enumerate(texts):
        try:
            if not isinstance(text, str):
                raise TypeError
            images.append(binascii.a2b_base64(text.encode("ascii"), strict_mode=True))
        except (TypeError, ValueError):  # of which binascii's and Unicode's errors are kinds
            message = f"Image {place} must be a text in base64, without line breaks and without a data: prefix."
            raise Refusal("bad_request", message, image=place) from None
    return images


def _from_multipart(body: bytes, boundary: str, limits: Limits) -> list[bytes]:
    """The contents of all parts, whatever their fields are called (RFC 7578)."""
    if not BOUNDARY.fullmatch(boundary):
        raise Refusal("bad_request", "The multipart content type has no valid boundary.")
    delimiter = b"--" + boundary.encode("ascii")
    at = 0 if body.startswith(delimiter) else body.find(b"\r\n" + delimiter)
    if at < 0:
        raise _bad_multipart("its boundary does not occur")
    at += len(delimiter) + (2 if at else 0)
    images: list[bytes] = []
    while not body.startswith(b"--", at):
        line_end = body.find(b"\r\n", at, at + 128)
        if line_end < 0 or body[at:line_end].strip(b" \t"):
            raise _bad_multipart("a boundary is not alone on its line")
        at = line_end + 2
        head_end = at if body.startswith(b"\r\n", at) else body.find(b"\r\n\r\n", at, at + PART_HEAD_BYTES) + 2
        if head_end < at:
            raise _bad_multipart("the head of a part does not end")
        head = body[at:head_end].lower()
        end = body.find(b"\r\n" + delimiter, head_end)
        if end < 0:
            raise _bad_multipart("the last boundary is missing")
        if not re.match(rb"(?:.*\r\n)?content-disposition:\s*form-data\s*;", head, re.DOTALL):
            raise _bad_multipart("a part has no Content-Disposition: form-data")
        if b"content-transfer-encoding:" in head and not re.search(rb"encoding:\s*(binary|8bit|7bit)\s*\r\n", head):
            raise _bad_multipart("a part has a transfer encoding")
        images.append(body[head_end + 2 : end])
        _check_number(len(images), limits)
        at = end + 2 + len(delimiter)
    return images


def _bad_multipart(why: str) -> Refusal:
    return Refusal("bad_request", f"The multipart body is malformed: {why}.")


def _check_number(num: int, limits: Limits) -> None:
    if num > limits.images:
        raise Refusal("too_many_images", f"A request may bring {limits.images} images: send several requests.")
