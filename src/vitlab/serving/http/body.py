"""A request's body, within the limits of size, time and memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any, TypeVar, final

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope

from vitlab.serving.http.errors import APIError
from vitlab.serving.limits import Limits

T = TypeVar("T")


@final
class BodyReader:
    """Reads bodies, and knows how many bytes of them are held at this moment."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.held = 0

    @contextlib.asynccontextmanager
    async def read(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body; its bytes count as held until the block ends."""
        headers: dict[bytes, bytes] = dict(scope["headers"])
        if b"content-encoding" in headers:
            raise APIError("unsupported_type", "The body must come without a Content-Encoding.")
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
                raise APIError("receive_timeout", message) from None
            yield chunks[0] if len(chunks) == 1 else b"".join(chunks)
        finally:
            self.held -= sum(map(len, chunks))

    async def _collect(self, receive: Receive, chunks: list[bytes]) -> None:
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            chunks.append(message.get("body", b""))
            more = message.get("more_body", False)
            size += len(chunks[-1])
            self.held += len(chunks[-1])
            if size > self.limits.body_bytes:
                raise self._too_large()
            if self.held > self.limits.buffered_bytes:
                reason = "Too many bodies are being received at once."
                raise APIError("overloaded", reason, headers={"retry-after": "1"})

    def _too_large(self) -> APIError:
        return APIError("body_too_large", f"The body has more than {self.limits.body_bytes:,} bytes.")


async def cancel_on_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it is cancelled, and `ClientDisconnect` raised, when the client leaves before that."""
    task = asyncio.current_task()
    assert task is not None
    disconnect = asyncio.ensure_future(_wait_for_disconnect(receive))
    disconnect.add_done_callback(lambda done: None if done.cancelled() else task.cancel())
    try:
        return await work
    except asyncio.CancelledError:
        if disconnect.done() and task.uncancel() == 0:  # not the server's wish
            raise ClientDisconnect from None
        raise
    finally:
        disconnect.cancel()


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
