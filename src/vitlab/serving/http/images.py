"""A request's body to the images in it: one as the body, several as multipart, or base64 in JSON."""

import binascii
import re
from typing import Any

from python_multipart.multipart import parse_options_header

from vitlab.core.reading import parse_json
from vitlab.serving.http.errors import APIError
from vitlab.serving.http.multipart import TooManyParts, read_parts
from vitlab.serving.limits import Limits

ACCEPTED = "an image as the body (image/* or application/octet-stream), multipart/form-data, or application/json"
# JSON of base64 images has one of these for each image and a few more. A body made of them would keep the parser, and
# with it the whole process, busy for seconds.
JSON_SYNTAX, MAX_JSON_SYNTAX = (b"[", b"{", b",", b":", b'"'), 1000
BOUNDARY = re.compile(rb"[0-9A-Za-z'()+_,\-./:=? ]{0,69}[0-9A-Za-z'()+_,\-./:=?]")  # RFC 2046, section 5.1.1


def check_content_type(content_type: str) -> str:
    """The lower-case type without its parameters, or an error where no image can come as that."""
    kind = content_type.partition(";")[0].strip().lower()
    known = ("", "application/octet-stream", "application/json", "multipart/form-data")
    if kind not in known and not kind.startswith("image/"):
        hint = " (curl: add -H 'Content-Type: application/octet-stream')" if "urlencoded" in kind else ""
        message = f"The content type '{kind[:80]}' is not taken: send {ACCEPTED}{hint}."
        raise APIError("unsupported_type", message)
    return kind


def read_images(body: bytes, content_type: str, limits: Limits) -> list[bytes]:
    """The encoded images in the order they came; there is at least one."""
    match check_content_type(content_type):
        case "application/json":
            images = _from_json(body, limits)
        case "multipart/form-data":
            images = _from_multipart(body, content_type, limits)
        case _:
            images = [body]
    if not images or images == [b""]:
        raise APIError("bad_request", f"There is no image in the request: send {ACCEPTED}.")
    return images


def _from_json(body: bytes, limits: Limits) -> list[bytes]:
    form = 'send {"images": ["<base64>", ...]}'
    if any(body.count(character) > MAX_JSON_SYNTAX for character in JSON_SYNTAX):
        raise APIError("bad_request", f"The JSON has too many parts: {form}.")
    try:
        document: Any = parse_json(body.decode("utf-8"))
    except ValueError:
        raise APIError("bad_request", f"The body is not JSON in UTF-8: {form}.") from None
    if not isinstance(document, dict) or list(document) != ["images"] or not isinstance(document["images"], list):
        raise APIError("bad_request", f"The JSON must be an object with one field: {form}.")
    texts: list[Any] = document["images"]
    if len(texts) > limits.images:
        raise _too_many_images(limits)
    images: list[bytes] = []
    for place, text in enumerate(texts):
        try:
            if not isinstance(text, str):
                raise TypeError
            images.append(binascii.a2b_base64(text.encode("ascii"), strict_mode=True))
        except (TypeError, ValueError):  # of which binascii's and Unicode's errors are kinds
            name = f"Image {place}" if len(texts) > 1 else "The image"
            message = f"{name} must be a text in base64, without line breaks and without a data: prefix."
            raise APIError("bad_request", message, image=place) from None
    return images


def _from_multipart(body: bytes, content_type: str, limits: Limits) -> list[bytes]:
    boundary = parse_options_header(content_type)[1].get(b"boundary", b"")
    if not BOUNDARY.fullmatch(boundary):
        raise APIError("bad_request", "The multipart content type has no valid boundary.")
    try:
        return read_parts(body, boundary, limits.images)
    except TooManyParts:
        raise _too_many_images(limits) from None
    except ValueError as error:
        raise APIError("bad_request", f"The multipart body is malformed: {error}.") from None


def _too_many_images(limits: Limits) -> APIError:
    return APIError("too_many_images", f"A request may bring {limits.images} images: send several requests.")
