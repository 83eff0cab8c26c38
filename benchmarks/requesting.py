"""A service in a process of its own, and requests to it."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


def free_port() -> int:
    """One at which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def running(command: list[str], threads: int) -> Iterator[tuple[int, int]]:
    """The service that a command and a port start, in a session of its own: its port, and the session's number."""
    port = free_port()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(
        [*command, str(port)], env=environment, start_new_session=True, stdout=subprocess.DEVNULL
    )
    try:
        yield port, process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def make_requests(num: int) -> list[bytes]:
    """Whole HTTP requests, each with a photo as a form's file."""
    from loading import make_photos

    with tempfile.TemporaryDirectory() as folder:
        return [make_request(path.read_bytes()) for path in make_photos(Path(folder), num)]


def make_request(*images: bytes) -> bytes:
    part = (
        b'--xyz\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\nContent-Type: image/jpeg\r\n\r\n'
    )
    body = b"".join(part + image + b"\r\n" for image in images) + b"--xyz--\r\n"
    head = "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """One request and the body of its answer."""
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200"), head
    length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
    return await reader.readexactly(length)


async def until_ready(port: int, request: bytes, top: int) -> None:
    end = time.monotonic() + 600  # compilation
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answer = json.loads(await ask(reader, writer, request))
            writer.close()
            assert len(answer.get("classes") or answer["predictions"][0]["classes"]) == top
            return
        except (OSError, AssertionError, asyncio.IncompleteReadError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)
