"""The service itself: its state, and what each route does."""

import asyncio
import base64
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from vitlab.core.config import to_dict
from vitlab.core.errors import ConfigError
from vitlab.core.pictures import palette_image
from vitlab.core.record import VERSION
from vitlab.data.contract import Array
from vitlab.models.create import family_name
from vitlab.serving import query
from vitlab.serving.batcher import Batcher, QueueFull
from vitlab.serving.decoding import check_sizes, to_pixels
from vitlab.serving.engine import (
    Answer,
    AttentionMaps,
    Classes,
    Classify,
    Embed,
    Engine,
    Task,
    TaskAnswer,
    TokenSimilarity,
)
from vitlab.serving.fair import FairThreads
from vitlab.serving.http.body import BodyReader, cancel_on_disconnect
from vitlab.serving.http.errors import APIError
from vitlab.serving.http.images import ACCEPTED, check_content_type, read_images
from vitlab.serving.http.peers import peer_of, read_networks
from vitlab.serving.limits import Limits
from vitlab.serving.metrics import CONTENT_TYPE as METRICS_TYPE
from vitlab.serving.metrics import Metrics
from vitlab.serving.patch_embedding import describe_embedding, patch_size

T = TypeVar("T")
SMALL_BYTES = 300_000  # parsing such a body costs less than a change of threads
DECIMALS = 7  # of attention's shares
SIMILARITY_DECIMALS = 5


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How the service runs, beside its limits."""

    limits: Limits = field(default_factory=Limits)
    max_batch: int = 8
    max_wait: float = 0.005  # seconds
    decoders: int = min(4, os.cpu_count() or 1)  # decoding and resizing let go of Python's lock
    token: str | None = field(default=None, repr=False)
    hosts: frozenset[str] | None = None  # the names by which it may be called; None: any
    proxies: tuple[str, ...] = ()  # addresses and networks whose X-Forwarded-For is believed

    def __post_init__(self) -> None:
        if self.max_batch < 1 or self.decoders < 1:
            raise ConfigError("The largest batch and the number of decoding threads must be at least 1.")
        if not 0 <= self.max_wait <= 10:
            raise ConfigError(f"The longest wait for a batch must be between 0 and 10 s, not {self.max_wait:g} s.")
        if self.token is not None and not (self.token.isascii() and self.token.isprintable() and self.token.strip()):
            raise ConfigError("The token must be printable ASCII and not empty.")
        read_networks(self.proxies)


@final
class Service:
    """An engine behind a batcher, with the threads that decode for it."""

    def __init__(self, engine: Engine, settings: Settings) -> None:
        self.engine, self.settings, self.limits = engine, settings, settings.limits
        self.ready = False
        self.body_reader = BodyReader(self.limits)
        self._metrics = Metrics(engine.name, queued=lambda: self.batcher.depth, held=lambda: self.body_reader.held)
        self.batcher: Batcher[Array, Answer] = Batcher(
            engine.run,
            max_batch=settings.max_batch,
            max_wait=settings.max_wait,
            max_queue=self.limits.queue,
            largest=engine.largest,
            on_batch=self._metrics.count_batch,
            workers=engine.workers,
            init_thread=engine.share,
        )
        self._decoders = FairThreads(settings.decoders, "vitlab-decode")
        self._proxies = read_networks(settings.proxies)
        self._model = _json(describe(engine, settings))
        self._embedding: bytes | None = None  # made when it is first asked for
        self._paths: frozenset[str] = frozenset()

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
        self._decoders.close()

    def set_paths(self, paths: frozenset[str]) -> None:
        """The paths that are counted under their own names; a stranger's inventions are not."""
        self._paths = paths

    def count(self, path: str, status: int, seconds: float) -> None:
        self._metrics.count_request(path if path in self._paths else "other", status, seconds)

    async def predict(self, request: Request) -> Response:
        top = query.read_top(request.query_params)
        query.check_predict(self.engine)
        answers = await self._answers(request, lambda _: Classify())
        if not self.engine.task.tells_classes:
            said = await self._in_thread(
                request, lambda: _json({"predictions": [_task_answer(answer, top) for answer in answers]})
            )
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
        query.check_no_parameters(request.query_params)
        answers = await self._answers(request, lambda _: Embed())
        return _answer({"embeddings": [np.asarray(answer).tolist() for answer in answers]})

    async def attention(self, request: Request) -> Response:
        asked = query.read_attention(request.query_params)
        task = query.check_attention(asked, self.engine, self.limits, 1)

        def once_counted(num: int) -> Task:
            return query.check_attention(asked, self.engine, self.limits, num)

        answers = await self._answers(request, once_counted)
        document = {
            "grid": list(self.engine.layout.grid),
            "num_prefix": self.engine.layout.num_prefix,
            "rows": task.rows,
            "layer": None if task.layer is None else task.layer + 1,
            "head": None if task.head is None else task.head + 1,
        }
        body = await self._in_thread(
            request, lambda: _json(document | {"images": [_attention_maps(answer) for answer in answers]})
        )
        return Response(body, media_type="application/json")

    async def tokens(self, request: Request) -> Response:
        layer = query.read_tokens(request.query_params)
        task = query.check_tokens(layer, self.engine, self.limits, 1)

        def once_counted(num: int) -> Task:
            return query.check_tokens(layer, self.engine, self.limits, num)

        answers = await self._answers(request, once_counted)
        document = {"layer": task.layer, "grid": list(self.engine.grids[task.layer])}
        body = await self._in_thread(
            request, lambda: _json(document | {"images": [_token_similarity(answer) for answer in answers]})
        )
        return Response(body, media_type="application/json")

    async def learned(self, request: Request) -> Response:
        query.check_no_parameters(request.query_params)
        engine = self.engine
        if self._embedding is None:
            found = await self._in_thread(
                request, lambda: _json(describe_embedding(engine.model, engine.layout.grid, self.limits))
            )
            self._embedding = found
        return Response(self._embedding, media_type="application/json")

    async def model(self, request: Request) -> Response:
        query.check_no_parameters(request.query_params)
        return Response(self._model, media_type="application/json")

    async def healthz(self, _: Request) -> Response:
        return _answer({"status": "ok"})

    async def readyz(self, _: Request) -> Response:
        if not self.ready:
            raise _not_ready()
        return _answer({"status": "ready"})

    async def metrics(self, _: Request) -> Response:
        return Response(self._metrics.text(), headers={"content-type": METRICS_TYPE})

    async def _answers(self, request: Request, task_for: Callable[[int], Task]) -> Sequence[Answer]:
        """The answers for the request's images; `task_for` is told how many they are."""
        if not self.ready:
            raise _not_ready()
        content_type = request.headers.get("content-type", "")
        check_content_type(content_type)
        if not self.batcher.has_room(1, self._peer(request)):  # before the body is read
            raise _overloaded(self.batcher.retry_after)
        async with self.body_reader.read(request.scope, request.receive) as body:
            if not body:
                raise APIError("bad_request", f"The body is empty: send {ACCEPTED}.")
            if len(body) <= SMALL_BYTES:
                images = read_images(body, content_type, self.limits)
            else:
                images = await self._in_thread(request, lambda: read_images(body, content_type, self.limits))
            return await cancel_on_disconnect(request.receive, self._run(request, images, task_for(len(images))))

    async def _run(self, request: Request, images: list[bytes], task: Task) -> Sequence[Answer]:
        limits, preprocess, peer = self.limits, self.engine.model.preprocess, self._peer(request)
        try:
            reservation = self.batcher.reserve(len(images), peer)
        except QueueFull as full:
            raise _overloaded(full.retry_after) from None

        async def one(place: int) -> Answer:
            number = place if len(images) > 1 else None
            pixels = await self._in_thread(request, lambda: to_pixels(images[place], preprocess, limits, number))
            return await self.batcher.submit(task, pixels, reservation)

        with reservation:
            if len(images) == 1:
                return [await one(0)]
            await self._in_thread(request, lambda: check_sizes(images, limits))
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(one(place)) for place in range(len(images))]
            except BaseExceptionGroup as several:
                raise several.exceptions[0] from None
            return [done.result() for done in tasks]

    def _peer(self, request: Request) -> str:
        return peer_of(request.scope, self._proxies)

    async def _in_thread(self, request: Request, work: Callable[[], T]) -> T:
        """What the work gives, in a thread that serves those who ask in turn."""
        return await self._decoders.run(self._peer(request), work)


def describe(engine: Engine, settings: Settings) -> dict[str, Any]:
    """What GET /v1/model says."""
    model, limits = engine.model, settings.limits
    return {
        "name": engine.name,
        "version": VERSION,
        "family": family_name(model.config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "num_classes": engine.num_classes,
        "labels": list(model.labels) if model.labels else None,
        "num_features": model.num_features,
        "grid": list(engine.layout.grid),
        "num_prefix": engine.layout.num_prefix,
        "patch": patch_size(model, engine.layout.grid),
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
            "request_pixels": limits.request_pixels,
            "formats": list(limits.formats),
            "values": limits.attention_values,
        },
    }


def _task_answer(answer: Answer, top: int) -> dict[str, Any]:
    """As `vitlab predict` has it; a mask also as the PNG that it writes, at the size that the model saw."""
    assert isinstance(answer, TaskAnswer)
    document = answer.plain()
    if answer.mask is None:
        return {name: value[:top] if name == "classes" else value for name, value in document.items()}
    stream = io.BytesIO()
    palette_image(answer.mask).save(stream, format="PNG")
    return document | {"mask": base64.b64encode(stream.getvalue()).decode()}


def _attention_maps(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, AttentionMaps)
    return {
        name: None if values is None else values.astype(np.float64).round(DECIMALS).tolist()
        for name, values in (("rollout", answer.rollout), ("heads", answer.heads))
    }


def _token_similarity(answer: Answer) -> dict[str, Any]:
    assert isinstance(answer, TokenSimilarity)
    return {
        name: values.astype(np.float64).round(SIMILARITY_DECIMALS).tolist()
        for name, values in (("norms", answer.norms), ("similarity", answer.similarity))
    }


def _json(document: Any) -> bytes:
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def _answer(document: Any) -> Response:
    return Response(_json(document), media_type="application/json")


def _overloaded(retry_after: int) -> APIError:
    message = f"The queue is full: try again in {retry_after} s."
    return APIError("overloaded", message, headers={"retry-after": str(retry_after)})


def _not_ready() -> APIError:
    return APIError("not_ready", "The service is starting or ending.", headers={"retry-after": "1"})
