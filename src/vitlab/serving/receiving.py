"""A request's body, within the limits of size, time and memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar, final

from starlette.types import Receive, Scope

from vitlab.serving.gate import Gone
from vitlab.serving.limits import Limits
from vitlab.serving.refusals import Refusal

T = TypeVar("T")


@final
class Receiver:
    """Reads bodies, and knows how many bytes of them are held at this moment."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    @contextlib.asynccontextmanager
    async def body(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body; its bytes count as held until the block ends."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if b"content-encoding" in headers:
            raise Refusal("unsupported_type", "The body must come without a Content-Encoding.")
        announced = headers.get(b"content-length", b"0")
        if not announced.isdigit() or len(announced) > 18 or int(announced) > self.limits.body_bytes:
            raise self._too_large()
        chunks: list[bytes] = []
        try:
            try:
                async with asyncio.timeout(self.limits.receive_seconds):
                    await self._collect(receive, chunks)
            except TimeoutError:
                message = f"The body did not arrive within {self.limits.receive_seconds:g} s."
                raise Refusal("receive_timeout", message) from None
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self.held -= sum(map(len, chunks))

    async def _collect(self, receive: Receive, chunks: list[bytes]) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Gone
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
            size += len(chunks[-1])
            self.held += len(chunks[-1])
            if size > self.limits.body_bytes:
                raise self._too_large()
            if self.held > self.limits.buffered_bytes:
                reason = "Too many bodies are being received at once."
                raise Refusal("overloaded", reason, headers={"retry-after": "1"})

    def _too_large(self) -> Refusal:
        return Refusal("body_too_large", f"The body has more than {self.limits.body_bytes:,} bytes.")


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it is cancelled, and `Gone` raised, when the client closes its connection before that."""
    here = asyncio.current_task()
    assert here is not None
    leaving = asyncio.ensure_future(_disconnect(receive))
    leaving.add_done_callback(lambda left: None if left.cancelled() else here.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if leaving.done() and here.uncancel() == 0:  # not the server's wish
            raise Gone from None
        raise
    finally:
        leaving.cancel()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
