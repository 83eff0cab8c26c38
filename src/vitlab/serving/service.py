"""The service itself: its state, and what each route does."""

import asyncio
import base64
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from vitlab.core.config import to_dict
from vitlab.core.errors import ConfigError
from vitlab.core.pictures import palette_image
from vitlab.data.contract import Array
from vitlab.models.create import family_name
from vitlab.serving import metrics, questions, version
from vitlab.serving.batcher import Batcher, Full
from vitlab.serving.engine import Alike, Answer, Classes, Classify, Embed, Engine, Looks, Said, Task
from vitlab.serving.intake import TAKEN, parse_content_type, read_images, unsupported_type
from vitlab.serving.learned import learned, patch_of
from vitlab.serving.limits import Limits
from vitlab.serving.pictures import to_pixels
from vitlab.serving.receiving import Receiver, unless_gone
from vitlab.serving.refusals import Refusal

T = TypeVar("T")
SMALL_BYTES = 300_000  # taking such a body apart costs less than a change of threads
DECIMALS = 7  # of attention's shares
DECIMALS_ALIKE = 5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the service runs, beside its limits."""

    limits: Limits = field(default_factory=Limits)
    max_batch: int = 8
    max_wait: float = 0.005  # seconds
    decoders: int = min(4, os.cpu_count() or 1)  # decoding and resizing let go of Python's lock
    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] | None = None  # the names by which it may be called; None: any

    def __post_init__(self) -> None:
        if self.max_batch < 1 or self.decoders < 1:
            raise ConfigError("The largest batch and the number of decoding threads must be at least 1.")
        if not 0 <= self.max_wait <= 10:
            raise ConfigError(f"The longest wait for a batch must be between 0 and 10 s, not {self.max_wait:g} s.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ConfigError("The token must be printable ASCII and not empty.")


@final
class Service:
    """An engine behind a batcher, with the threads that decode for it."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings, self.limits = engine, settings, settings.limits
        self.ready = False
        self.receiver = Receiver(self.limits)
        self.batcher: Batcher[Array, Answer] = Batcher(
            engine.run,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait,
            bound=self.limits.queue,
            largest=engine.largest,
            watch=self._watch,
            workers=engine.workers,
            prepare=engine.share,
        )
        self._pool = ThreadPoolExecutor(settings.decoders, thread_name_prefix="vitlab-decode")
        self._model = _json(describe(engine, settings))
        self._learned: bytes | None = None  # made when it is first asked for
        self._paths: frozenset[str] = frozenset()
        self.requests = metrics.Counter("vitlab_requests_total", "Requests by path and status; gone: the client left.")
        self.seconds = metrics.Histogram("vitlab_request_seconds", "From the head to the end.", metrics.SECONDS)
        self.batch_sizes = metrics.Histogram("vitlab_batch_images", "Images a batch.", metrics.SIZES)
        self.batch_seconds = metrics.Histogram("vitlab_batch_seconds", "The model's time a batch.", metrics.SECONDS)
        begun = time.time()
        name = (("model", engine.name), ("version", version()))
        self._families = (
            self.requests,
            self.seconds,
            self.batch_sizes,
            self.batch_seconds,
            metrics.Gauge("vitlab_queue_images", "Being decoded or waiting.", lambda: self.batcher.depth),
            metrics.Gauge("vitlab_held_bytes", "Of bodies.", lambda: self.receiver.held),
            metrics.Gauge("vitlab_info", "The model that is served.", lambda: 1, name),
            metrics.Gauge("process_resident_memory_bytes", "Resident memory.", _resident),
            metrics.Gauge("process_start_time_seconds", "Since the epoch.", lambda: begun),
        )

    async def start(self) -> None:
        """Warm the model up in its own threads, so that what threads keep for themselves is there too."""
        loop, batcher = asyncio.get_running_loop(), self.batcher
        await loop.run_in_executor(batcher.alone, self.engine.warm_up)
        ways = [batcher.together] * batcher.workers
        await asyncio.gather(*(loop.run_in_executor(way, self.engine.warm_up) for way in ways))
        self.ready = True

    async def stop(self) -> None:
        """Finish what was accepted."""
        self.ready = False
        await self.batcher.close()
        self._pool.shutdown()

    def know(self, paths: frozenset[str]) -> None:
        """The paths that are counted under their own names; a stranger's inventions are not."""
        self._paths = paths

    def count(self, path: str, status: int, seconds: float) -> None:
        known = path if path in self._paths else "other"
        self.requests.add(path=known, status=str(status) if status else "gone")
        self.seconds.observe(seconds, path=known)

    async def predict(self, request: Request) -> Response:
        top = questions.read_top(request.query_params)
        questions.check_classify(self.engine)
        answers = await self._answers(request, lambda _: Classify())
        if not self.engine.task.tells_classes:
            said = await self._in_pool(lambda: _json({"predictions": [_said(answer, top) for answer in answers]}))
            return Response(said, media_type="application/json")
        labels = self.engine.model.labels
        predictions: list[Any] = []
        for answer in answers:
            assert isinstance(answer, Classes)
            pairs = zip(answer.indices[:top].tolist(), answer.probabilities[:top].tolist(), strict=True)
            classes = [
                {"label": labels[index] if labels else f"class {index}", "index": index, "probability": probability}
                for index, probability in pairs
            ]
            predictions.append({"classes": classes})
        return _answer({"predictions": predictions})

    async def embed(self, request: Request) -> Response:
        questions.read_nothing(request.query_params)
        answers = await self._answers(request, lambda _: Embed())
        return _answer({"embeddings": [np.asarray(answer).tolist() for answer in answers]})

    async def attention(self, request: Request) -> Response:
        asked = questions.read_attend(request.query_params)
        task = questions.check_attend(asked, self.engine, self.limits, 1)

        def once_counted(num: int) -> Task:
            return questions.check_attend(asked, self.engine, self.limits, num)

        answers = await self._answers(request, once_counted)
        document = {
            "grid": list(self.engine.layout.grid),
            "num_prefix": self.engine.layout.num_prefix,
            "rows": task.rows,
            "layer": None if task.layer is None else task.layer + 1,
            "head": None if task.head is None else task.head + 1,
        }
        body = await self._in_pool(lambda: _json(document | {"images": [_looks(answer) for answer in answers]}))
        return Response(body, media_type="application/json")

    async def tokens(self, request: Request) -> Response:
        layer = questions.read_layer(request.query_params)
        task = questions.check_compare(layer, self.engine, self.limits, 1)

        def once_counted(num: int) -> Task:
            return questions.check_compare(layer, self.engine, self.limits, num)

        answers = await self._answers(request, once_counted)
        document = {"layer": task.layer, "grid": list(self.engine.grids[task.layer])}
        body = await self._in_pool(lambda: _json(document | {"images": [_alike(answer) for answer in answers]}))
        return Response(body, media_type="application/json")

    async def learned(self, request: Request) -> Response:
        questions.read_nothing(request.query_params)
        engine = self.engine
        if self._learned is None:
            found = await self._in_pool(lambda: _json(learned(engine.model, engine.layout.grid, self.limits)))
            self._learned = found
        return Response(self._learned, media_type="application/json")

    async def model(self, request: Request) -> Response:
        questions.read_nothing(request.query_params)
        return Response(self._model, media_type="application/json")

    async def healthz(self, _: Request) -> Response:
        return _answer({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        if not self.ready:
            raise _not_ready()
        return _answer({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        return Response(metrics.render(self._families), headers={"content-type": metrics.CONTENT_TYPE})

    async def _answers(self, request: Request, task_for: Callable[[int], Task]) -> Sequence[Answer]:
        """The answers for the request's images; `task_for` is told how many they are."""
        if not self.ready:
            raise _not_ready()
        content_type = request.headers.get("content-type", "")
        kind, _ = parse_content_type(content_type)
        if kind not in ("", "application/octet-stream", "application/json", "multipart/form-data") and not (
            kind.startswith("image/")
        ):
            raise unsupported_type(kind)
        if self.batcher.depth >= self.limits.queue:  # before the body is read
            raise _overloaded(self.batcher.retry_after)
        async with self.receiver.body(request.scope, request.receive) as body:
            if not body:
                raise Refusal("bad_request", f"The body is empty: send {TAKEN}.")
            if len(body) <= SMALL_BYTES:
                images = read_images(body, content_type, self.limits)
            else:
                images = await self._in_pool(lambda: read_images(body, content_type, self.limits))
            return await unless_gone(request.receive, self._run(images, task_for(len(images))))

    async def _run(self, images: list[bytes], task: Task) -> Sequence[Answer]:
        limits, preprocess = self.limits, self.engine.model.preprocess
        try:
            places = self.batcher.reserve(len(images))
        except Full as full:
            raise _overloaded(full.retry_after) from None

        async def one(place: int) -> Answer:
            pixels = await self._in_pool(lambda: to_pixels(images[place], preprocess, limits, place))
            return await self.batcher.submit(task, pixels, places)

        with places:
            if len(images) == 1:
                return [await one(0)]
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(place)) for place in range(len(images))]
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None
            return [done.result() for done in tasks]

    async def _in_pool(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    def _watch(self, kind: object, size: int, seconds: float) -> None:
        task = type(kind).__name__.lower()
        self.batch_sizes.observe(size, task=task)
        self.batch_seconds.observe(seconds, task=task)


def describe(engine: Engine, settings: Settings) -> dict[str, Any]:
    """What GET /v1/model says."""
    model, limits = engine.model, settings.limits
    return {
        "name": engine.name,
        "version": version(),
        "family": family_name(model.config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_classes": engine.num_classes,
        "labels": list(model.labels) if model.labels else None,
        "num_features": model.num_features,
        "grid": list(engine.layout.grid),
        "num_prefix": engine.layout.num_prefix,
        "patch": patch_of(model, engine.layout.grid),
        "token_grids": engine.grids,
        "answers": engine.answers,
        "reads": engine.reads(),
        "attention": {"layers": engine.num_layers, "heads": list(engine.num_heads)} if engine.num_layers else None,
        "config": to_dict(model.config),
        "preprocess": to_dict(model.preprocess),
        "limits": {
            "body_bytes": limits.body_bytes,
            "images": limits.images,
            "pixels": limits.pixels,
            "formats": list(limits.formats),
            "values": limits.attention_values,
        },
    }


def _said(answer: Answer, top: int) -> dict[str, Any]:
    """As `vitlab predict` has it; a mask also as the PNG that it writes, at the size that the model saw."""
    assert isinstance(answer, Said)
    document = answer.plain()
    if answer.mask is None:
        return {name: value[:top] if name == "classes" else value for name, value in document.items()}
    stream = io.BytesIO()
    palette_image(answer.mask).save(stream, format="PNG")
    return document | {"mask": base64.b64encode(stream.getvalue()).decode()}


def _looks(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, Looks)
    return {
        name: None if values is None else values.astype(np.float64).round(DECIMALS).tolist()
        for name, values in (("rollout", answer.rollout), ("heads", answer.heads))
    }


def _alike(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, Alike)
    return {
        name: values.astype(np.float64).round(DECIMALS_ALIKE).tolist()
        for name, values in (("norms", answer.norms), ("similarity", answer.similarity))
    }


def _json(document: Any) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _answer(document: Any) -> Response:
    return Response(_json(document), media_type="application/json")


def _overloaded(retry_after: int) -> Refusal:
    message = f"The queue is full: try again in {retry_after} s."
    return Refusal("overloaded", message, headers={"retry-after": str(retry_after)})


def _not_ready() -> Refusal:
    return Refusal("not_ready", "The service is starting or ending.", headers={"retry-after": "1"})


def _resident() -> float:
    statm = Path("/proc/self/statm")
    return int(statm.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if statm.exists() else 0
