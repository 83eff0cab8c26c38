"""What only the server sees: connections past their number, heads that do not end, readers that do not read."""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from vitlab.serving.http.errors import APIError
from vitlab.serving.http.middleware import CONTENT_POLICY, NO_STORE, SECURITY_HEADERS
from vitlab.serving.limits import Limits

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as FastestProtocol
except ImportError:  # httptools has no wheel for some platforms
    FastestProtocol = H11Protocol


MAX_PIPELINED = 16  # requests of a connection that wait for the one before them
CHUNK_BYTES = 6  # of a chunk with one byte in it


def limited_protocol(limits: Limits, base: type[Any] = FastestProtocol) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits: by itself it bounds no head in time, nor, with httptools, in size."""
    return type("Limited", (LimitedProtocol, base), {"limits": limits})


class Http1Parser:
    """httptools' parser for a server that stays with HTTP/1.1.

    The bytes after a head that offers another protocol, as Java's client and `curl --http2` send it, are that
    protocol's to httptools, and the request has no body. Here such a head is read once more, without the offer.
    """

    def __init__(self, protocol: "LimitedProtocol") -> None:
        self._protocol, self._parser = protocol, protocol.parser

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parser, name)

    def feed_data(self, data: bytes) -> None:
        from httptools import HttpParserUpgrade

        while True:
            try:
                return self._parser.feed_data(data)
            except HttpParserUpgrade as offer:
                protocol = self._protocol
                if not protocol.offers_upgrade():  # but asks for a tunnel: CONNECT
                    raise
                version = self._parser.get_http_version().encode()
                lines = [self._parser.get_method() + b" " + protocol.url + b" HTTP/" + version]
                lines += [name + b": " + value for name, value in protocol.headers if name != b"upgrade"]
                data = b"\r\n".join([*lines, b"", data[offer.args[0] :]])


class LimitedProtocol(asyncio.Protocol):
    """The limits, as a mixin before one of uvicorn's protocols, whose methods and attributes it uses.

    While no request is underway, what arrives is a head, or the rest of a body that was refused: it has a time and a
    size. A request is underway from the end of its head on; its body is the application's to bound.
    """

    limits: Limits
    # uvicorn's
    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    connections: set[Any]
    cycle: Any  # the request that was read last, and its response
    headers: list[tuple[bytes, bytes]]
    pipeline: Any  # httptools' alone, and the next two
    parser: Any
    url: bytes
    # ours
    _head_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _head_bytes = 0
    _around_bytes = 0  # of what has come around the body: chunks' lines and trailers
    _refused = False
    _cycles: tuple[Any, ...] | list[Any] = ()  # of requests that are not answered yet; httptools' alone

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        too_many = len(self.connections) >= self.limits.connections
        super().connection_made(transport)
        if hasattr(self, "parser"):
            self.parser = Http1Parser(self)
        if too_many:
            message = "There are too many connections: try again in a moment."
            self._refuse(APIError("overloaded", message, headers={"retry-after": "1"}))
        else:
            self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        before = self.cycle
        super().data_received(data)
        if self._refused:  # as no HTTP: there is no head to be measured
            return
        if self.transport.is_closing() or self.cycle is not before:
            self._end_head()
            self._around_bytes = 0
        elif self.cycle is None or self.cycle.response_complete:
            self._head_bytes += len(data)
            if self._head_bytes > self.limits.head_bytes:
                message = f"The header fields have more than {self.limits.head_bytes:,} bytes."
                self._refuse(APIError("head_too_large", message))
            elif self._head_timer is None:
                self._start_head_timer()
        elif self._cycles and self.cycle.more_body:
            self._around_bytes += len(data)
            if self._around_bytes > self.limits.head_bytes:
                self._refuse(APIError("head_too_large", "There is more around the chunks of the body than in them."))

    def on_body(self, body: bytes) -> None:
        """httptools' alone: trailers and what stands beside chunks' sizes have no bound there, nor reach the body."""
        self._around_bytes -= CHUNK_BYTES * len(body)
        super().on_body(body)  # pyright: ignore[reportAttributeAccessIssue]

    def on_headers_complete(self) -> None:
        """httptools' alone: each answer lets it read on, so that a sender who never reads fills the memory."""
        if self.offers_upgrade():
            return
        if len(self.pipeline) >= MAX_PIPELINED:
            self.transport.abort()
            raise RuntimeError("too many requests were sent before their answers were read")
        if not self.url.startswith(b"/"):  # uvicorn forgets the rest of it
            self._check_target()
        super().on_headers_complete()  # pyright: ignore[reportAttributeAccessIssue]
        self._cycles = [*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle]

    def on_message_complete(self) -> None:
        """httptools' alone: a head that will be read once more is no message."""
        if not self.offers_upgrade():
            super().on_message_complete()  # pyright: ignore[reportAttributeAccessIssue]

    def offers_upgrade(self) -> bool:
        """httptools' alone: whether the head that was read last offers another protocol."""
        return self.parser.should_upgrade() and any(name == b"upgrade" for name, _ in self.headers)

    def _check_target(self) -> None:
        """Refuse a whole URL as the target that says another host than the header does."""
        hosts = [value.lower() for name, value in self.headers if name == b"host"]
        if self.url.lower().removeprefix(b"http://").partition(b"/")[0] not in hosts:
            self._refuse(APIError("bad_request", "The request's target and its Host header say different hosts."))
            raise RuntimeError("the target says another host")

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        self._stop_write_timer()
        for cycle in self._cycles:  # uvicorn tells the last one only
            _disconnect(cycle)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_write_timer()
        self._write_timer = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        self._stop_write_timer()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        self._refuse(APIError("bad_request", msg))

    def _start_head_timer(self) -> None:
        self._head_timer = self.loop.call_later(self.limits.receive_seconds, self._head_timed_out)

    def _head_timed_out(self) -> None:
        self._head_timer = None
        if self._head_bytes:
            message = f"The request did not arrive within {self.limits.receive_seconds:g} s."
            self._refuse(APIError("receive_timeout", message))
        else:
            self.transport.close()

    def _end_head(self) -> None:
        self._head_bytes = 0
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _refuse(self, error: APIError) -> None:
        """Answer below HTTP's machinery, and close once the client had a moment to read it."""
        if self._refused:
            return
        self._end_head()
        self._refused = True
        cycle = self.cycle
        if self.transport.is_closing():
            return
        if cycle is not None and not cycle.response_complete:
            if not cycle.more_body:  # the request before the bad one is whole, so it gets its answer
                cycle.keep_alive = False
                return
            _disconnect(cycle)
            if cycle.response_started:
                self.transport.close()
                return
        self.transport.write(raw_response(error))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(self.limits.linger_seconds, self.transport.close)


def _disconnect(cycle: Any) -> None:
    """Let the application know that nobody waits for this answer any more."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


def raw_response(error: APIError) -> bytes:
    """An error as the bytes of an HTTP response after which the connection ends."""
    body = error.body()
    headers = [*SECURITY_HEADERS, CONTENT_POLICY, NO_STORE]
    headers += [(b"content-type", b"application/json"), (b"connection", b"close")]
    headers += [(name.encode(), value.encode()) for name, value in error.headers.items()]
    headers.append((b"content-length", str(len(body)).encode()))
    lines = [f"HTTP/1.1 {error.status} {HTTPStatus(error.status).phrase}".encode()]
    return b"\r\n".join([*lines, *(name + b": " + value for name, value in headers), b"", body])
