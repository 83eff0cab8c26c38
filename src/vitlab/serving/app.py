"""The ASGI application: the routes of a service behind the middleware."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router
from starlette.types import ASGIApp

from vitlab.serving.engine import Engine
from vitlab.serving.http.middleware import RequestMiddleware
from vitlab.serving.openapi import document
from vitlab.serving.service import Service, Settings
from vitlab.serving.static import File, page_routes


def make_app(engine: Engine, settings: Settings, picture: File | None = None) -> ASGIApp:
    """An application for any ASGI server; `vitlab.serving.server` adds what only the server can hold.

    The page shows the `picture` first where it is asked for as /?picture.
    """
    service = Service(engine, settings)
    described = json.dumps(document(engine, settings.limits, needs_token=settings.token is not None)).encode()

    async def openapi(_: Request) -> Response:
        return Response(described, media_type="application/json")

    routes: list[Route] = [
        Route("/v1/predict", service.predict, methods=["POST"]),
        Route("/v1/embed", service.embed, methods=["POST"]),
        Route("/v1/attention", service.attention, methods=["POST"]),
        Route("/v1/tokens", service.tokens, methods=["POST"]),
        Route("/v1/model", service.model),
        Route("/v1/learned", service.learned),
        Route("/healthz", service.healthz),
        Route("/readyz", service.readyz),
        Route("/metrics", service.metrics),
        Route("/openapi.json", openapi),
        *page_routes(),
        *([] if picture is None else [Route("/picture", picture.answer, methods=["GET"])]),
    ]
    service.set_paths(frozenset(route.path for route in routes))

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        await service.start()
        try:
            yield
        finally:
            await service.stop()

    listed: list[BaseRoute] = [*routes]
    router = Router(listed, redirect_slashes=False, lifespan=lifespan)
    return RequestMiddleware(router, settings.limits, settings.token, settings.hosts, service.count)
