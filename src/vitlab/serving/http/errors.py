"""Errors as responses: a status, a code for programs and a sentence for people."""

import json
from collections.abc import Mapping
from typing import Any, final

# code: its status, and what the OpenAPI document says of it
CODES: dict[str, tuple[int, str]] = {
    "bad_request": (400, "The request is not well formed"),
    "bad_parameter": (400, "A query parameter is unknown or out of its range"),
    "unauthorized": (401, "The bearer token is missing or wrong"),
    "cross_site": (403, "A page of another site may not use this service"),
    "not_found": (404, "There is nothing at this path"),
    "method_not_allowed": (405, "The path does not take this method"),
    "receive_timeout": (408, "The request did not arrive in time"),
    "body_too_large": (413, "The body has too many bytes"),
    "too_many_images": (413, "The request brings too many images"),
    "too_many_pixels": (413, "An image has too many pixels or scans, or all of them together have too many pixels"),
    "unsupported_type": (415, "The content type or encoding of the body is not taken"),
    "unsupported_image": (415, "The bytes are not an image of a format that is taken"),
    "wrong_host": (421, "The Host header is not a name of this service"),
    "damaged_image": (422, "An image cannot be decoded"),
    "impossible": (422, "The model cannot do what is asked"),
    "head_too_large": (431, "The header fields have too many bytes"),
    "internal": (500, "The service failed"),
    "overloaded": (503, "The queue is full; Retry-After says when to come back"),
    "not_ready": (503, "The service is starting or ending"),
}


@final
class APIError(Exception):
    """Raised anywhere below a route; the middleware answers with it."""

    def __init__(
        self, code: str, message: str, *, headers: Mapping[str, str] | None = None, image: int | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.image = code, message, image
        self.status = CODES[code][0]
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        """The JSON document; `image` counts from 0 and says which of several images it was."""
        error: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.image is not None:
            error["image"] = self.image
        return json.dumps({"error": error}).encode()
