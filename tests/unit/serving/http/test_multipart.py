"""Multipart forms: what the standard library's parser of e-mails finds in them, and what is no form."""

from email.parser import BytesParser
from email.policy import HTTP

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.serving.http.multipart import MAX_HEAD_BYTES, MAX_HEAD_FIELDS, TooManyParts, read_parts

HEAD = b'Content-Disposition: form-data; name="a"; filename="b.jpg"\r\n'


def form(*contents: bytes, head: bytes = HEAD, padding: bytes = b"") -> bytes:
    parts = (b"--xx" + padding + b"\r\n" + head + b"\r\n" + content + b"\r\n" for content in contents)
    return b"".join(parts) + b"--xx--\r\n"


def by_email(body: bytes) -> list[bytes]:
    message = BytesParser(policy=HTTP).parsebytes(b"Content-Type: multipart/form-data; boundary=xx\r\n\r\n" + body)
    payloads = [part.get_payload(decode=True) for part in message.iter_parts()]
    return [payload for payload in payloads if isinstance(payload, bytes)]


NEARLY = [b"", b"\r", b"\r\n", b"\r\n\r\n", b"--", b"--xx", b"\r\n-", b"\r\n--x"]
CONTENTS = st.binary(max_size=20) | st.sampled_from(NEARLY)


@given(st.lists(CONTENTS, min_size=1, max_size=4), st.sampled_from([b"", b" ", b"\t \t"]), st.booleans())
def test_contents_are_what_was_sent(contents: list[bytes], padding: bytes, preamble: bool) -> None:
    body = b"preamble\r\n" * preamble + form(*contents, padding=padding) + b"epilogue"
    if any((b"\r\n" + content + b"\r\n").find(b"\r\n--xx") >= 0 for content in contents):
        return  # the boundary itself
    assert read_parts(body, b"xx", 4) == contents


@pytest.mark.parametrize("body", [form(b"abc", b"d\r\ne"), b"before\r\n" + form(b"abc", padding=b" "), form(b"", b"x")])
def test_contents_are_what_the_email_parser_finds(body: bytes) -> None:
    assert read_parts(body, b"xx", 4) == by_email(body)


def test_too_many_parts() -> None:
    assert len(read_parts(form(*[b"x"] * 4), b"xx", 4)) == 4
    with pytest.raises(TooManyParts):
        read_parts(form(*[b"x"] * 5), b"xx", 4)


LONG = b"X-A: " + b"y" * 2000 + b"\r\n"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (form(b"a") + form(b"b"), None),  # an epilogue that looks like a form
        (form(b"a\r\n--xx words\r\nb"), "not alone on its line"),
        (form(b"a\r\n--xxx\r\nb"), "not alone on its line"),
        (form(b"a", b"b")[:-5], "last boundary is missing"),
        (form(b"a", head=HEAD + LONG), None),
        (form(b"a", head=HEAD + LONG * (MAX_HEAD_BYTES // len(LONG) + 1)), "head of a part is too long"),
        (form(b"a", head=HEAD + b"X: y\r\n" * MAX_HEAD_FIELDS), "header count"),
        (form(b"a", head=HEAD + b"Content-Transfer-Encoding: BINARY \r\n"), None),
        (form(b"a", head=HEAD + b"Content-Transfer-Encoding: quoted-printable\r\n"), "transfer encoding"),
        (form(b"a", head=b"Content-Disposition: form-data\r\n"), "no Content-Disposition"),
    ],
)
def test_what_is_no_form_is_said(body: bytes, says: str | None) -> None:
    if says is None:
        assert read_parts(body, b"xx", 4)[0] == b"a"
    else:
        with pytest.raises(ValueError, match=says):
            read_parts(body, b"xx", 4)
