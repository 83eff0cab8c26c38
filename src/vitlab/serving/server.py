"""Listening: the socket, uvicorn with its limits, and an orderly end."""

import contextlib
import errno
import signal
import socket
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import final

import uvicorn
from starlette.types import ASGIApp

from vitlab.core.errors import Error
from vitlab.serving.http.protocol import limited_protocol
from vitlab.serving.limits import Limits

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def bind(host: str, port: int) -> socket.socket:
    """A socket at this address, before anything slow is done; it does not listen yet. Port 0 takes a free one."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise Error(f"There is no address '{host}' to listen at: {_said(error)}.") from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a restart has to wait a minute
        listener.bind(address)
    except (OSError, OverflowError) as error:
        listener.close()
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        why = "the port is taken; choose another with --port, or 0 for any" if taken else _said(error)
        raise Error(f"Cannot listen at {host}, port {port}: {why}.") from error
    return listener


def address_of(listener: socket.socket) -> str:
    """The socket's address as a URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


@final
class Server(uvicorn.Server):
    """uvicorn, ending with status 0 after a signal that it obeyed, and telling when it listens."""

    def __init__(self, app: ASGIApp, limits: Limits, started: Callable[[], None] | None = None) -> None:
        config = uvicorn.Config(
            app,
            http=limited_protocol(limits),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",  # what strangers send is no news
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=limits.idle_seconds,  # pyright: ignore[reportArgumentType]
            timeout_graceful_shutdown=round(limits.drain_seconds),
        )
        super().__init__(config)
        self._tell = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._tell is not None:
            self._tell()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends in order, the second at once."""
        del sig, frame
        self.force_exit = self.should_exit
        self.should_exit = True


def _said(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error)).rstrip(".")
