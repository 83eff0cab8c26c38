"""What only the server sees: connections past their number, heads that do not end, readers that do not read."""

import asyncio
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from vitlab.serving.gate import HEADERS, NOT_KEPT, POLICY
from vitlab.serving.limits import Limits
from vitlab.serving.refusals import Refusal

try:
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Fastest
except ImportError:  # httptools has no wheel for some platforms
    Fastest = H11Protocol


PIPELINED = 16  # requests of a connection that wait for the one before them


def guarded_protocol(limits: Limits, base: type[Any] = Fastest) -> type[asyncio.Protocol]:
    """uvicorn's protocol with these limits: by itself it bounds no head in time, nor, with httptools, in size.

    While no request is underway, what arrives is a head, or the rest of a body that was refused: it has a time and a
    size. A request is underway from the end of its head on; its body is the application's to bound.
    """

    class Guarded(base):
        _timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None
        _head_bytes = 0
        _refused = False
        _cycles: tuple[Any, ...] | list[Any] = ()  # of requests that are not answered yet; httptools' alone

        def connection_made(self, transport: asyncio.Transport) -> None:
            too_many = len(self.connections) >= limits.connections
            super().connection_made(transport)
            if too_many:
                message = "There are too many connections: try again in a moment."
                self._refuse(Refusal("overloaded", message, headers={"retry-after": "1"}))
            else:
                self._expect_head()

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            before = self.cycle
            super().data_received(data)
            if self.transport.is_closing() or self.cycle is not before:
                self._forget_head()
            elif self.cycle is None or self.cycle.response_complete:
                self._head_bytes += len(data)
                if self._head_bytes > limits.head_bytes:
                    message = f"The header fields have more than {limits.head_bytes:,} bytes."
                    self._refuse(Refusal("head_too_large", message))
                elif self._timer is None:
                    self._expect_head()

        def on_headers_complete(self) -> None:
            """httptools' alone: each answer lets it read on, so that a sender who never reads fills the memory."""
            if len(self.pipeline) >= PIPELINED:
                self.transport.abort()
                raise RuntimeError("too many requests were sent before their answers were read")
            super().on_headers_complete()
            self._cycles = [*(cycle for cycle in self._cycles if not cycle.response_complete), self.cycle]

        def connection_lost(self, exc: Exception | None) -> None:
            self._forget_head()
            self._forget_writing()
            for cycle in self._cycles:  # uvicorn tells the last one only
                _end(cycle)
            super().connection_lost(exc)

        def pause_writing(self) -> None:
            super().pause_writing()
            self._forget_writing()
            self._write_timer = self.loop.call_later(limits.write_seconds, self.transport.abort)

        def resume_writing(self) -> None:
            self._forget_writing()
            super().resume_writing()

        def send_400_response(self, msg: str) -> None:
            self._refuse(Refusal("bad_request", msg))

        def _expect_head(self) -> None:
            self._timer = self.loop.call_later(limits.receive_seconds, self._too_slow)

        def _too_slow(self) -> None:
            self._timer = None
            if self._head_bytes:
                message = f"The request did not arrive within {limits.receive_seconds:g} s."
                self._refuse(Refusal("receive_timeout", message))
            else:
                self.transport.close()

        def _forget_head(self) -> None:
            self._head_bytes = 0
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None

        def _forget_writing(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _refuse(self, refusal: Refusal) -> None:
            """Answer below HTTP's machinery, and close once the client had a moment to read it."""
            self._forget_head()
            self._refused = True
            cycle = self.cycle
            if self.transport.is_closing():
                return
            if cycle is not None and not cycle.response_complete:
                if not cycle.more_body:  # the request before the bad one is whole, so it gets its answer
                    cycle.keep_alive = False
                    return
                _end(cycle)
                if cycle.response_started:
                    self.transport.close()
                    return
            self.transport.write(raw_answer(refusal))
            if self.transport.can_write_eof():
                self.transport.write_eof()
            self.loop.call_later(limits.linger_seconds, self.transport.close)

    return Guarded


def _end(cycle: Any) -> None:
    """Let the application know that nobody waits for this answer any more."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


def raw_answer(refusal: Refusal) -> bytes:
    """A refusal as the bytes of an HTTP response after which the connection ends."""
    body = refusal.body()
    headers = [*HEADERS, POLICY, NOT_KEPT, (b"content-type", b"application/json"), (b"connection", b"close")]
    headers += [(name.encode(), value.encode()) for name, value in refusal.headers.items()]
    headers.append((b"content-length", str(len(body)).encode()))
    lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}".encode()]
    return b"\r\n".join([*lines, *(name + b": " + value for name, value in headers), b"", body])
