"""Below good manners: lying lengths, slow senders, disconnects, floods. The service answers or closes, and stays.

Requests go out in one piece where nothing else is meant, so that a busy machine does not make a slow sender.
"""

import contextlib
import socket
import struct
import time
from collections.abc import Iterator

import pytest

from vitlab.serving.http import protocol
from web.conftest import IMPATIENT
from web.hostile import FILES, picture, saved
from web.live import Live, answers, head, serving, small_model, until

pytestmark = pytest.mark.web

JPEG = FILES["jpeg"]
SIZE = len(JPEG)


@pytest.fixture(autouse=True)
def _the_next_good_request_succeeds(impatient: Live) -> Iterator[None]:
    yield
    ((status, _),) = impatient.say(predict(Content_Length=SIZE, Connection="close") + JPEG)
    assert status == 200
    until(lambda: impatient.held() == (0, 0))


def chunked(*chunks: bytes, end: bytes = b"0\r\n\r\n") -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def cut_off(connection: socket.socket, again: bytes, pause: float = 0.0) -> bool:
    """Send the same again and again: whether the service ends that, which does not merely read no more."""
    try:
        for _ in range(10_000):
            connection.sendall(again)
            time.sleep(pause)
    except ConnectionError:
        return True
    return False


def predict(**headers: str | int) -> bytes:
    return head("/v1/predict", method="POST", **headers)


OFFER = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2_Settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
# what is sent, and the statuses that may come back
SENT: dict[str, tuple[bytes, list[int]]] = {
    "a length that is right": (predict(Content_Length=SIZE, Connection="close") + JPEG, [200]),
    "a length too short": (predict(Content_Length=SIZE // 2) + JPEG, [422, 400]),
    "a length too long": (predict(Content_Length=SIZE + 1) + JPEG, [408]),
    "a length beyond the limit": (predict(Content_Length=1_000_001) + JPEG, [413]),
    "a length of many digits": (predict(Content_Length="9" * 400) + JPEG, [400]),
    "a length of 2^64": (predict(Content_Length=2**64) + JPEG, [400]),
    "a negative length": (predict(Content_Length=-1) + JPEG, [400]),
    "a length that is a word": (predict(Content_Length="many") + JPEG, [400]),
    "two lengths": (predict(Content_Length=5, content_length=6) + b"hello", [400]),
    "a length and chunks": (predict(Content_Length=SIZE, Transfer_Encoding="chunked") + chunked(JPEG), [400]),
    "no length and no chunks": (predict(Connection="close"), [400]),
    "chunks": (predict(Transfer_Encoding="chunked", Connection="close") + chunked(JPEG[:99], JPEG[99:]), [200]),
    "chunks of one byte": (
        predict(Transfer_Encoding="chunked", Connection="close") + chunked(*struct.unpack(f"{SIZE}c", JPEG)), [200],
    ),
    "chunks beyond the limit": (predict(Transfer_Encoding="chunked") + chunked(*[bytes(100_000)] * 12), [413]),
    "chunks without an end": (predict(Transfer_Encoding="chunked") + chunked(JPEG, end=b""), [408]),
    "a chunk of bad size": (predict(Transfer_Encoding="chunked") + b"xyz\r\nabc\r\n0\r\n\r\n", [400]),
    "a chunk of negative size": (predict(Transfer_Encoding="chunked") + b"-5\r\nabcde\r\n0\r\n\r\n", [400]),
    "a chunk longer than it says": (predict(Transfer_Encoding="chunked") + b"3\r\nabcdef\r\n0\r\n\r\n", [400]),
    "an unknown transfer coding": (predict(Transfer_Encoding="gzip") + JPEG, [400]),
    "two good requests in a row": (
        (predict(Content_Length=SIZE) + JPEG) + (predict(Content_Length=SIZE, Connection="close") + JPEG), [200, 200],
    ),
    "an offer of HTTP/2": (predict(Content_Length=SIZE, **OFFER) + JPEG, [200]),
    "an offer of HTTP/2 and chunks": (predict(Transfer_Encoding="chunked", **OFFER) + chunked(JPEG), [200]),
    "an offer of a WebSocket": (
        head("/healthz", method="GET", Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Version=13), [200],
    ),
    "an offer of HTTP/2 and two lengths": (predict(Content_Length=5, content_length=6, **OFFER) + b"hello", [400]),
    "a body with GET": (head("/healthz", method="GET", Content_Length=5) + b"hello", [200]),
    "a body to nowhere": (head("/nowhere", Content_Length=900_000) + bytes(9000), [404]),
    "an unknown method": (head("/v1/predict", method="BREW", Connection="close"), [400, 405]),
    "TRACE": (head("/v1/predict", method="TRACE", Connection="close"), [405]),
    "CONNECT": (b"CONNECT example.org:80 HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "another version": (b"POST /v1/predict HTTP/3.7\r\nHost: localhost\r\n\r\n", [400]),
    "HTTP/0.9": (b"GET /\r\n\r\n", [400, 421]),
    "HTTP/1.0": (b"GET /healthz HTTP/1.0\r\nHost: localhost\r\n\r\n", [200]),
    "no Host": (b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n", [400, 421]),
    "another Host": (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n", [421]),
    "two Hosts": (b"GET /healthz HTTP/1.1\r\nHost: evil.example\r\nHost: localhost\r\n\r\n", [400]),
    "the same Host twice": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nhost: localhost\r\n\r\n", [400]),
    "two names in a Host": (b"GET /healthz HTTP/1.1\r\nHost: localhost:80, evil.example\r\n\r\n", [400]),
    "a user in a Host": (b"GET /healthz HTTP/1.1\r\nHost: localhost:x@evil.example\r\n\r\n", [400]),
    "a whole URL": (b"GET http://localhost/healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", [200]),
    "a URL of another host": (b"GET http://evil.example/healthz HTTP/1.1\r\nHost: localhost\r\n\r\n", [400]),
    "a URL and no Host": (b"GET http://localhost/healthz HTTP/1.1\r\n\r\n", [400]),
    "the same length twice": (b"%sContent-Length: 5\r\nContent-Length: 5\r\n\r\nhello" % predict()[:-2], [400]),
    "a list of lengths": (predict(Content_Length="5, 5") + b"hello", [400]),
    "chunks and a length": (predict(Transfer_Encoding="chunked", Content_Length=SIZE) + chunked(JPEG), [400]),
    "two content types": (b"%sContent-Type: image/png\r\nContent-Type: image/gif\r\n\r\n" % predict()[:-2], [400]),
    "no path": (b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", [400]),
    "TLS of 20 kB": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(20_000), [400]),
    "noise of 20 kB": (bytes(range(256)) * 80, [400]),
    "noise of 200 kB": (bytes(range(256)) * 800, [400]),
    "bad chunks of 20 kB": (predict(Transfer_Encoding="chunked") + b"zz" * 10_000, [400]),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(300), [400]),
    "noise": (bytes(range(256)) * 8, [400]),
    "line feeds only": (b"\n" * 100, [400, 408]),
    "a NUL in a header": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nA: \0\r\n\r\n", [400]),
    "a header without a colon": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nwords\r\n\r\n", [400]),
    "a blank before the colon": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length : 5\r\n\r\nhello", [400]),
    "a header that goes on": (head("/healthz", method="GET", A="b\r\n c", Connection="close"), [200, 400]),
    "a head of 20 kB": (head("/healthz", method="GET", X="y" * 20_000), [431]),
    "a head of 1 MB": (head("/healthz", method="GET", X="y" * 1_000_000), [400, 431]),
    "a path of 20 kB": (head("/" + "y" * 20_000, method="GET"), [400, 431]),
    "many headers": (head("/healthz", method="GET", **{f"X{number}": "y" for number in range(3000)}), [431]),
    "a path with dots": (head("/../../../etc/passwd", method="GET", Connection="close"), [404]),
    "a path with coded dots": (head("/%2e%2e/%2e%2e/etc/passwd", method="GET", Connection="close"), [404]),
    "a path with a NUL": (head("/v1/model%00", method="GET", Connection="close"), [404]),
    "a path that is not UTF-8": (head("/%ff%fe", method="GET", Connection="close"), [404]),
    "an upgrade": (predict(Connection="Upgrade", Upgrade="websocket", Sec_WebSocket_Version=13), [400]),
    "HTTP/2 without asking": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", [400]),
    "a page of another site": (predict(Sec_Fetch_Site="cross-site", Content_Length=SIZE) + JPEG, [403]),
    "a page of another port": (predict(Sec_Fetch_Site="same-site", Content_Length=SIZE) + JPEG, [403]),
}  # fmt: skip


@pytest.mark.parametrize("name", SENT)
def test_what_is_sent_gets_an_answer(impatient: Live, name: str) -> None:
    sent, allowed = SENT[name]
    found = [status for status, _ in impatient.say(sent)]
    assert found, "the connection was closed without an answer"
    assert set(found) <= set(allowed)
    assert len(found) <= 2


def test_noise_longer_than_a_head_may_be_is_refused_once(impatient: Live, caplog: pytest.LogCaptureFixture) -> None:
    ((status, _),) = impatient.say(bytes(range(256)) * 80)
    assert status == 400
    assert caplog.text == ""


@pytest.mark.parametrize(
    "sent",
    [predict()[:-4], predict()[:10], b"P", predict(Content_Length=SIZE), predict(Content_Length=SIZE) + JPEG[:-1]],
    ids=["half a head", "half a line", "a byte", "no body", "a byte less"],
)
def test_a_sender_that_stops_is_cut_off(impatient: Live, sent: bytes) -> None:
    ((status, body),) = impatient.say(sent)
    assert status == 408
    assert b"receive_timeout" in body


def test_one_who_says_nothing_is_cut_off(impatient: Live) -> None:
    with impatient.connected() as connection:
        assert connection.recv(1) == b""  # closed; its own timeout would be an error


@pytest.mark.parametrize("sent", [predict()[:-2] + b"X-A: ", predict(Content_Length=SIZE)], ids=["head", "body"])
def test_a_trickle_is_cut_off(impatient: Live, sent: bytes) -> None:
    """Byte after byte, each in time, but not the whole."""
    with impatient.connected() as connection:
        connection.sendall(sent)
        assert cut_off(connection, b"a", pause=0.05)


def test_the_second_request_of_a_connection_is_cut_off_too(impatient: Live) -> None:
    with impatient.connected() as connection:
        connection.sendall(predict(Content_Length=SIZE) + JPEG)
        time.sleep(0.1)
        connection.sendall(predict()[:-2])
        assert [status for status, _ in answers(connection)] == [200, 408]


def test_a_head_in_drops_has_a_size(impatient: Live) -> None:
    with impatient.connected() as connection, contextlib.suppress(OSError):
        connection.sendall(predict()[:-2])
        for _ in range(30):
            connection.sendall(b"X-A: " + b"y" * 1000 + b"\r\n")
            time.sleep(0.002)
        assert [status for status, _ in answers(connection)] in ([431], [])


@pytest.mark.parametrize("again", [b"A: " + b"y" * 4000 + b"\r\n", b"y" * 4000], ids=["trailers", "an extension"])
def test_what_is_around_chunks_has_a_size(live: Live, again: bytes) -> None:
    """Of neither is anything in the body, whose size is bounded."""
    with live.connected() as connection, contextlib.suppress(BrokenPipeError):
        connection.sendall(predict(Transfer_Encoding="chunked"))
        time.sleep(0.1)
        connection.sendall(b"0\r\n" if again.startswith(b"A") else b"5;")
        for _ in range(8):
            connection.sendall(again)
            time.sleep(0.01)
        assert [status for status, _ in answers(connection)] == [431]


def test_chunks_of_one_byte_may_come_one_by_one(live: Live) -> None:
    jpeg = saved(picture(400, 300), "JPEG")
    raw = chunked(*struct.unpack(f"{len(jpeg)}c", jpeg))
    assert len(raw) > 2 * IMPATIENT.head_bytes
    with live.connected() as connection:
        connection.sendall(predict(Transfer_Encoding="chunked", Connection="close"))
        time.sleep(0.1)
        for start in range(0, len(raw), 600):
            connection.sendall(raw[start : start + 600])
            time.sleep(0.001)
        assert [status for status, _ in answers(connection)] == [200]


def test_the_answer_comes_although_the_body_is_still_sent(impatient: Live) -> None:
    """Refused by its length, the body goes on for a while: a connection reset would lose the refusal."""
    with impatient.connected() as connection:
        connection.sendall(predict(Content_Length=50_000_000))
        with contextlib.suppress(OSError):
            for _ in range(40):
                connection.sendall(bytes(100_000))
        assert [status for status, _ in answers(connection)] == [413]


def test_a_refused_length_is_not_asked_to_continue(impatient: Live) -> None:
    with impatient.connected() as connection:
        connection.sendall(predict(Content_Length=50_000_000, Expect="100-continue"))
        assert connection.recv(12) == b"HTTP/1.1 413"
    with impatient.connected() as connection:
        connection.sendall(predict(Content_Length=SIZE, Expect="100-continue"))
        assert connection.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
        connection.sendall(JPEG)
        assert [status for status, _ in answers(connection)][-1] == 200


@pytest.mark.parametrize("reset", [False, True], ids=["closed", "reset"])
@pytest.mark.parametrize("cut", [5, 60, 300, None], ids=["line", "head", "body", "whole"])
def test_disconnects(impatient: Live, cut: int | None, reset: bool) -> None:
    for _ in range(5):
        with impatient.connected() as connection:
            connection.sendall((predict(Content_Length=SIZE) + JPEG)[:cut])
            if reset:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_one_who_does_not_read_is_dropped(caplog: pytest.LogCaptureFixture) -> None:
    """Answers of a megabyte that nobody takes: they are not held for ever."""
    model = small_model(num_classes=5000)
    model.labels = tuple(f"{number:0200}" for number in range(5000))
    with serving(model, IMPATIENT) as service, service.connected() as connection:
        connection.sendall(head("/v1/model", method="GET") * 15)
        until(lambda: len(service.server.server_state.connections) == 1)
        until(lambda: not service.server.server_state.connections, 5)
        assert len(answers(connection)) < 15
    assert not caplog.records


def test_pipelining_has_a_bound(impatient: Live) -> None:
    """uvicorn with httptools reads on with every answer, and one connection could fill the memory with requests."""
    request = head("/openapi.json", method="GET")
    with impatient.connected(20) as connection:
        assert cut_off(connection, request * 50)


def test_connections_have_a_number(impatient: Live) -> None:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(impatient.connected()) for _ in range(IMPATIENT.connections)]
        until(lambda: len(impatient.server.server_state.connections) >= IMPATIENT.connections)
        ((status, body),) = impatient.say(predict(Content_Length=SIZE) + JPEG)
        assert status == 503
        assert b"overloaded" in body
        assert held[0].fileno() > 0


def test_the_parser_without_extensions_is_guarded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol.limited_protocol, "__defaults__", (protocol.H11Protocol,))
    with serving(small_model(), IMPATIENT) as service:
        assert [status for status, _ in service.say(predict()[:-2])] == [408]
        assert [status for status, _ in service.say(b"\0\0\0\r\n\r\n")] == [400]
        assert {status for status, _ in service.say(head("/healthz", method="GET", X="y" * 30_000))} <= {400, 431}
        assert [status for status, _ in service.say(predict(Transfer_Encoding="chunked") + b"zz\r\n")] == [400]
        for name in (
            "two Hosts",
            "a length and chunks",
            "noise of 20 kB",
            "a URL of another host",
        ):
            assert [status for status, _ in service.say(SENT[name][0])] == [400], name
        assert service.post("/v1/predict", JPEG).status_code == 200


def test_a_whole_request_before_a_bad_one_gets_its_answer(impatient: Live) -> None:
    sent = predict(Content_Length=SIZE) + JPEG + b"\0 this is no request\r\n\r\n"
    assert [status for status, _ in impatient.say(sent)] == [200]


def test_offers_of_another_protocol_are_not_taken_up_and_their_bodies_are_read(impatient: Live) -> None:
    """As Java's client and `curl --http2` make them; the connection stays in HTTP/1.1."""
    offering, plain = predict(Content_Length=SIZE, **OFFER) + JPEG, predict(Content_Length=SIZE) + JPEG
    found = impatient.say(offering + plain + offering * 2 + plain)
    assert [status for status, _ in found] == [200] * 5
    assert len({body for _, body in found}) == 1
    with impatient.connected() as connection:  # a body that comes later, after the service asked for it
        connection.sendall(predict(Content_Length=SIZE, Expect="100-continue", **OFFER))
        assert connection.recv(1000).startswith(b"HTTP/1.1 100 ")
        for place in range(0, SIZE, 300):
            connection.sendall(JPEG[place : place + 300])
        assert [status for status, _ in answers(connection)] == [200]


def test_many_requests_at_once_are_answered_in_order(impatient: Live) -> None:
    requests = [head("/healthz", method="GET"), head("/nothing", method="GET")] * 5
    found = [status for status, _ in impatient.say(b"".join(requests))]
    assert found == [200, 404] * 5
    impatient.say(requests[0] * 1000)  # more than anybody means: cut off


def test_nothing_of_this_is_a_fault_of_ours(
    impatient: Live, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """No traceback and no line in a log, whatever was sent."""
    for sent, _ in SENT.values():
        with impatient.connected() as connection:
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
    impatient.say(head("/openapi.json", method="GET") * 1000)
    time.sleep(0.5)
    printed = capfd.readouterr()
    assert printed == ("", "")
    assert not caplog.records
