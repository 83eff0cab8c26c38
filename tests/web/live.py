"""A service that really listens, in a thread, and clients that speak HTTP badly."""

import contextlib
import json
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import torch

from vitlab.core.preprocess import Preprocess
from vitlab.models.contract import Model
from vitlab.models.vit import ViT, ViTConfig
from vitlab.serving.app import make_app
from vitlab.serving.engine import Engine
from vitlab.serving.http.middleware import LOOPBACK_NAMES
from vitlab.serving.limits import Limits
from vitlab.serving.server import Server, address_of, bind
from vitlab.serving.service import Settings
from vitlab.serving.static import File

LABELS = ("ant", "bee", "cat", "dog", "eel")


def small_model(**changes: Any) -> ViT:
    """A ViT of 6 x 4 patches whose every weight is random, so that every pixel counts in its answer."""
    sizes: dict[str, Any] = {"patch_size": 4, "width": 16, "depth": 3, "mlp_dim": 16, "heads": 2, "num_classes": 5}
    config = ViTConfig(**{"image_size": (24, 16), **sizes, **changes})
    model = ViT(config, Preprocess(size=config.image_size))
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    if config.num_classes == len(LABELS):
        model.labels = LABELS
    return model.eval()


@dataclass(frozen=True)
class Live:
    """A running service."""

    address: str
    model: Model
    server: Server
    client: httpx.Client

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def post(self, path: str, content: bytes | None = None, **more: Any) -> httpx.Response:
        return self.client.post(path, content=content, **more)

    def get(self, path: str, **more: Any) -> httpx.Response:
        return self.client.get(path, **more)

    @contextlib.contextmanager
    def connected(self, seconds: float = 10.0) -> Iterator[socket.socket]:
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as connection:
            yield connection

    def say(self, sent: bytes, *, seconds: float = 10.0) -> list[tuple[int, bytes]]:
        """Send bytes as they are; the answers' statuses and bodies until the service closes or is silent."""
        with self.connected(seconds) as connection:
            connection.sendall(sent)
            return answers(connection)

    def held(self) -> tuple[float, float]:
        """How many bytes of bodies and how many images the service holds."""
        return self.metric("vitlab_held_bytes"), self.metric("vitlab_queue_images")

    def metric(self, name: str) -> float:
        """A number of /metrics, by its name and labels as they are written there."""
        lines = self.get("/metrics").text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.rpartition(" ")[0] == name), 0.0)


@contextlib.contextmanager
def serving(
    model: Model, limits: Limits | None = None, *, picture: File | None = None, **settings: Any
) -> Iterator[Live]:
    """The model served on a free port until the block ends, and then ended in order."""
    chosen = Settings(limits=limits or Limits(), **{"hosts": LOOPBACK_NAMES, **settings})
    with bind("127.0.0.1", 0) as listener:
        up = threading.Event()
        server = Server(make_app(Engine(model, "small"), chosen, picture), chosen.limits, up.set)
        thread = threading.Thread(target=server.run, args=([listener],))
        thread.start()
        try:
            assert up.wait(30), "the service did not start"
            address, transport = address_of(listener), httpx.HTTPTransport(retries=1, verify=False)
            with httpx.Client(base_url=address, transport=transport, timeout=30) as client:
                yield Live(address, model, server, client)
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive(), "the service did not end"


def answers(connection: socket.socket) -> list[tuple[int, bytes]]:
    """Every response on a connection until it is closed, reset or silent for its timeout."""
    file, found = connection.makefile("rb"), list[tuple[int, bytes]]()
    with contextlib.suppress(OSError):
        while line := file.readline():
            status = int(line.split()[1])
            length = 0
            while (header := file.readline().strip().lower()) != b"":
                name, _, value = header.partition(b":")
                length = int(value) if name == b"content-length" else length
            if status != 100:
                found.append((status, file.read(length)))
    return found


def head(path: str, *, method: str = "POST", **headers: str | int) -> bytes:
    """A request's head; underscores in names stand for hyphens."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def error_code(response: httpx.Response) -> str:
    """The code of an error, which has its form whatever it is."""
    assert response.headers["content-type"] == "application/json"
    document = json.loads(response.content)
    assert set(document) == {"error"}
    assert set(document["error"]) <= {"code", "message", "image"}
    assert document["error"]["message"].endswith(".")
    return document["error"]["code"]


def until(condition: Any, seconds: float = 10.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
