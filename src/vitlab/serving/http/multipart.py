"""The parts of a multipart/form-data body (RFC 7578), by python-multipart."""

import logging
import re
from typing import final

from python_multipart import MultipartParser

MAX_HEAD_BYTES, MAX_HEAD_FIELDS = 4096, 32  # of a part
MAX_PADDING = 128  # blanks after a boundary
PLAIN_ENCODINGS = (b"binary", b"8bit", b"7bit")

logging.getLogger("python_multipart").setLevel(logging.ERROR)  # what strangers send is no news


class TooManyParts(ValueError):  # noqa: N818  a reason, like OverflowError's
    """The body has more parts than it may have."""


def read_parts(body: bytes, boundary: bytes, max_parts: int) -> list[bytes]:
    """The contents of all parts, whatever their fields are called; a ValueError says what is malformed."""
    delimiter = b"\r\n--" + boundary
    if not body.startswith(delimiter[2:]):  # a preamble, which python-multipart does not know
        at = body.find(delimiter)
        if at < 0:
            raise ValueError("its boundary does not occur")
        body = body[at + 2 :]
    num = body.count(delimiter)
    if num > max_parts:  # counted beforehand: the parser takes a while for each boundary that is none
        raise TooManyParts
    try:
        return _parse(body, boundary, num)
    except ValueError:
        # Blanks may follow a boundary (RFC 2046, section 5.1.1); nobody sends them, and python-multipart knows none.
        padded = re.compile(re.escape(delimiter) + rb"[ \t]{1,%d}\r\n" % MAX_PADDING)
        plain, num_padded = padded.subn(lambda _: delimiter + b"\r\n", b"\r\n" + body)
        if not num_padded:
            raise
        return _parse(plain[2:], boundary, num)


def _parse(body: bytes, boundary: bytes, num_delimiters: int) -> list[bytes]:
    parts = _Parts()
    parser = MultipartParser(
        boundary,
        {
            "on_part_begin": parts.begin,
            "on_header_field": parts.header_name,
            "on_header_value": parts.header_value,
            "on_headers_finished": parts.end_head,
            "on_part_data": parts.data,
            "on_end": parts.end,
        },
        max_header_size=MAX_HEAD_BYTES,
        max_header_count=MAX_HEAD_FIELDS,
    )
    parser.write(body)
    if not parts.ended:
        raise ValueError("the last boundary is missing")
    delimiter = b"\r\n--" + boundary
    if num_delimiters != len(parts.contents) and any(delimiter in content for content in parts.contents):
        raise ValueError("a boundary is not alone on its line")
    return parts.contents


@final
class _Parts:
    """What the parser tells, as it tells it."""

    def __init__(self) -> None:
        self.contents: list[bytes] = []
        self.ended = False
        self._name = b""
        self._head: dict[bytes, bytes] = {}
        self._head_bytes = 0

    def begin(self) -> None:
        self.contents.append(b"")
        self._head, self._head_bytes = {}, 0

    def header_name(self, data: bytes, start: int, end: int) -> None:
        self._name = data[start:end].lower()
        self._count(end - start)

    def header_value(self, data: bytes, start: int, end: int) -> None:
        self._head[self._name] = data[start:end].strip().lower()
        self._count(end - start)

    def end_head(self) -> None:
        kind, separator, _ = self._head.get(b"content-disposition", b"").partition(b";")
        if kind.rstrip() != b"form-data" or not separator:
            raise ValueError("a part has no Content-Disposition: form-data")
        if self._head.get(b"content-transfer-encoding", b"binary") not in PLAIN_ENCODINGS:
            raise ValueError("a part has a transfer encoding")

    def data(self, data: bytes, start: int, end: int) -> None:
        self.contents[-1] += data[start:end]

    def end(self) -> None:
        self.ended = True

    def _count(self, size: int) -> None:
        self._head_bytes += size + 2  # the colon and blank, or the line's end
        if self._head_bytes > MAX_HEAD_BYTES:
            raise ValueError("the head of a part is too long")
