"""`vitlab serve`: a model over HTTP."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import say
from vitlab.core.words import one_line
from vitlab.weights.box import DEFAULT

if TYPE_CHECKING:
    from vitlab.models.contract import Model
    from vitlab.serving.service import Settings
    from vitlab.serving.static import File

TOKEN = "VITLAB_TOKEN"
DESCRIPTION = """Serve a model over HTTP: /v1/predict, /v1/embed, /v1/attention; /openapi.json describes it all.

At / is the page that walks a picture through the model; `vitlab explore` opens it in the browser. Ctrl-C or SIGTERM
ends the service after the accepted requests. With the environment variable VITLAB_TOKEN, or --token-file, requests
need that bearer token.

Examples:
  vitlab serve
  vitlab serve --model runs/pets
  vitlab serve --model vit-b16-224.augreg-in21k-ft-in1k --host 0.0.0.0 --token-file token.txt
  vitlab serve --model runs/pets --trust-proxy 127.0.0.1 --max-megapixels 24
  curl -T cat.jpg -X POST http://127.0.0.1:8000/v1/predict
"""


@dataclass(frozen=True)
class Arguments:
    model: Annotated[str, arg(metavar="SOURCE")] = DEFAULT
    """Where the weights come from: a run, a folder, a file, a checkpoint's name, hf-hub:owner/name, timm:name."""
    task: str | None = None
    """The model's task, by default the one it was trained for; name a task in a file (mine.py:NAME) again."""
    host: str = "127.0.0.1"
    """The address to listen on. Anything but the loopback address lets other machines in."""
    port: int = 8000
    """The port; 0 takes a free one."""
    allow_host: tuple[str, ...] = ()
    """Host names that clients may use; by default any, or on a loopback address only that machine's own."""
    trust_proxy: tuple[str, ...] = ()
    """Addresses or networks of proxies whose X-Forwarded-For identifies clients, who take turns; else ignored."""
    token_file: Path | None = None
    """A file whose first line is the bearer token."""
    max_batch: int | None = None
    """The most images that go through the model at once; by default 8, on a GPU 32."""
    max_wait_ms: float = 5.0
    """The longest time in milliseconds that an image waits for others to form a batch."""
    queue: int = 128
    """How many images may wait; beyond that requests get 503."""
    max_connections: int = 256
    """How many connections may be open."""
    max_megabytes: float = 10.0
    """The largest request body, in megabytes."""
    max_megapixels: float = 40.0
    """The largest image, by its header before decoding; all images of a request may have five times that."""
    max_images: int = 16
    """The most images in a request."""
    timeout: float = 15.0
    """Seconds for a request to arrive."""
    decoders: int | None = None
    """Threads that decode images; by default one per processor, at most 4."""
    threads: int | None = None
    """Threads of the model on a CPU; by default torch's choice."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The precision of weights and arithmetic."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab serve", description=DESCRIPTION)
    return run(given, lambda name, address: print(f"Serving {name} at {address}", flush=True))


def run(given: Arguments, tell: Callable[[str, str], None], picture: "File | None" = None) -> int:
    """Serve until a signal; `tell` gets the model's name and the address, and `picture` is one for the page to show."""
    prepare()
    import prometheus_client

    from vitlab.serving.app import make_app
    from vitlab.serving.engine import Engine
    from vitlab.serving.server import Server, address_of, bind

    prometheus_client.disable_created_metrics()  # when each series began is a second series of it
    settings = _settings(given)
    with bind(given.host, given.port) as listener:  # a taken port is found before the weights are read
        threads = _threads(given)
        engine = Engine(_model(given), _name(given.model), threads)
        address = address_of(listener)
        app = make_app(engine, settings, picture)
        server = Server(app, settings.limits, lambda: tell(one_line(engine.name), address))
        server.run([listener])
    if server.started:
        say("vitlab: ended after the requests that were underway.")
    return 0 if server.started else 1


def prepare() -> None:
    """What is to be done before torch is there; refuses where what serves is not installed."""
    # Threads of one model that wait for each other by spinning do so for 50 us and not for GNU's 3 ms, which with
    # anything else on the machine made a request take ten times as long.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")
    from vitlab.core.errors import MissingDependencyError

    try:
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingDependencyError(f"{error.name} is not installed: pip install 'vitlab[serve]'.") from error


def _settings(given: Arguments) -> "Settings":
    from vitlab.core.errors import Error
    from vitlab.serving.http.middleware import LOOPBACK_NAMES, is_loopback
    from vitlab.serving.limits import MEGABYTE, Limits
    from vitlab.serving.service import Settings

    if not 0 <= given.port <= 65535:
        raise Error(f"--port must be between 0 and 65535, not {given.port}.")
    names = {name.lower() for name in given.allow_host}
    if is_loopback(given.host):
        names |= LOOPBACK_NAMES | {given.host}
    body = round(given.max_megabytes * MEGABYTE)
    limits = Limits(
        body_bytes=body,
        pixels=round(given.max_megapixels * 1e6),
        request_pixels=round(5e6 * given.max_megapixels),
        images=given.max_images,
        receive_seconds=given.timeout,
        connections=given.max_connections,
        buffered_bytes=max(Limits.buffered_bytes, body),
        queue=given.queue,
    )
    return Settings(
        limits=limits,
        max_batch=(32 if _device(given).startswith("cuda") else 8) if given.max_batch is None else given.max_batch,
        max_wait=given.max_wait_ms / 1000,
        decoders=given.decoders or Settings.decoders,
        token=_token(given.token_file),
        hosts=frozenset(names) or None,
        proxies=given.trust_proxy,
    )


def _name(source: str) -> str:
    """What strangers are told: of a path its last part, or the one before 'model', which every run has."""
    path = Path(source)
    if not path.exists():
        return source
    path = path.resolve()
    return path.parent.name if path.name == "model" and path.parent.name else path.name


def _token(file: Path | None) -> str | None:
    from vitlab.core.errors import Error

    if file is None:
        return os.environ.get(TOKEN) or None
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    if not lines or not lines[0].strip():
        raise Error(f"{file} holds no token: write one into its first line.")
    return lines[0].strip()


def _device(given: Arguments) -> str:
    from vitlab.core.devices import choose_device

    return choose_device(given.device)


def _threads(given: Arguments) -> int:
    """How many work for the model; from here on the calling thread works by itself (see `Engine`)."""
    import torch

    from vitlab.core.errors import Error

    if given.threads is not None and given.threads < 1:
        raise Error(f"--threads must be at least 1, not {given.threads}.")
    threads = given.threads or torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def _model(given: Arguments) -> "Model":
    import torch

    from vitlab import api
    from vitlab.core.errors import Error

    device = torch.device(_device(given))
    model = api.load(given.model)
    if given.task is not None:
        model.task = given.task
    try:
        return model.to(device, getattr(torch, given.dtype))
    except RuntimeError as error:
        raise Error(f"The model cannot be put on '{device}': {str(error).splitlines()[0]}") from error
