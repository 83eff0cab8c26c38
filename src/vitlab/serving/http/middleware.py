"""What every request passes: who may ask, security headers, errors as JSON, unread bodies, and the count of it all."""

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import final

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitlab.core.words import one_line
from vitlab.serving.http.errors import APIError
from vitlab.serving.limits import Limits

logger = logging.getLogger("vitlab.serving")

SECURITY_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
)
CONTENT_POLICY = (
    b"content-security-policy",
    b"default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
)
NO_STORE = (b"cache-control", b"no-store")
ONCE = (b"host", b"content-length", b"transfer-encoding", b"content-type", b"authorization")  # who reads which differs
HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[0-9A-Za-z._-]*)(?::[0-9]*)?")
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


@final
@dataclass(frozen=True)
class RequestMiddleware:
    """The outermost ASGI application.

    `token` guards /v1 and /metrics; `hosts` are the names by which the service may be called (None: any): without them
    a web page could reach a service on the loopback address through a name of its own. `count` is told the path, the
    status (0: the client was gone) and the seconds of every request.
    """

    app: ASGIApp
    limits: Limits
    token: str | None
    hosts: frozenset[str] | None
    count: Callable[[str, int, float], None]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start = time.perf_counter()
        exchange = Exchange(scope, receive, send, self.limits.linger_seconds)
        try:
            try:
                self._check(scope)
                scope["app"] = self  # Starlette's router then raises what it would else answer in plain text
                await self.app(scope, exchange.receive, exchange.send)
            except APIError as error:
                await exchange.send_error(error)
            except HTTPException as error:
                await exchange.send_error(_as_api_error(error))
            except ClientDisconnect:
                exchange.status = 0
            except Exception as error:
                logger.exception(one_line(f"A request failed: {type(error).__name__}: {error}"))  # noqa: TRY401
                if exchange.status:
                    raise  # half of an answer was sent: the connection has to end
                await exchange.send_error(APIError("internal", "The service failed; its log says why."))
        finally:
            self.count(scope["path"], exchange.status, time.perf_counter() - start)

    def _check(self, scope: Scope) -> None:
        size = sum(len(name) + len(value) + 4 for name, value in scope["headers"])
        if size + len(scope["raw_path"]) + len(scope["query_string"]) > self.limits.head_bytes:
            raise APIError("head_too_large", f"The header fields have more than {self.limits.head_bytes:,} bytes.")
        headers = _headers(scope)
        if self.hosts is not None and _host_name(headers.get(b"host", b"")) not in self.hosts:
            raise APIError("wrong_host", "The Host header is not a name of this service (see --allow-host).")
        path: str = scope["path"]
        if not (path.startswith("/v1/") or path == "/metrics"):
            return
        site = headers.get(b"sec-fetch-site", b"none")
        if scope["method"] == "POST" and site not in (b"none", b"same-origin"):
            raise APIError("cross_site", "A page of another site may not use this service.")
        if self.token is not None:
            scheme, _, given = headers.get(b"authorization", b"").partition(b" ")
            if scheme.lower() != b"bearer" or not hmac.compare_digest(given.strip(), self.token.encode()):
                message = "Send the token of this service: 'Authorization: Bearer <token>'."
                raise APIError("unauthorized", message, headers={"www-authenticate": "Bearer"})


@final
class Exchange:
    """A request and its response: adds headers, and drains a body that was answered before its end."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, linger: float) -> None:
        self._receive, self._send, self._linger = receive, send, linger
        self.status = 0
        names = {name: value for name, value in scope["headers"] if name in (b"content-length", b"transfer-encoding")}
        self._unread = b"transfer-encoding" in names or names.get(b"content-length", b"0").strip(b"0") != b""

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._unread = False
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = list(message.get("headers", ()))
            given = {name for name, _ in headers}
            headers += SECURITY_HEADERS
            headers += [header for header in (CONTENT_POLICY, NO_STORE) if header[0] not in given]
            if self._unread:
                headers.append((b"connection", b"close"))
            await self._send({**message, "headers": headers})
        elif message["type"] == "http.response.body" and self._unread and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._drain()
            await self._send({"type": "http.response.body", "body": b""})
        else:
            await self._send(message)

    async def send_error(self, error: APIError) -> None:
        if error.code == "receive_timeout":
            self._linger = 0.0
        body = error.body()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **error.headers}
        encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
        await self.send({"type": "http.response.start", "status": error.status, "headers": encoded})
        await self.send({"type": "http.response.body", "body": body})

    async def _drain(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._linger):
                while self._unread:
                    await self.receive()


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _headers(scope: Scope) -> dict[bytes, bytes]:
    """The header fields, if they and the target can be read in one way only (RFC 9112, sections 3.2 and 6.3)."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    if len(headers) < len(scope["headers"]):
        names = [name for name, _ in scope["headers"]]
        for name in ONCE:
            if names.count(name) > 1:
                raise APIError("bad_request", f"The header {name.decode()} comes twice.")
    if b"content-length" in headers and b"transfer-encoding" in headers:
        raise APIError("bad_request", "Either content-length or transfer-encoding may come, not both.")
    if b"host" not in headers and scope["http_version"] == "1.1":
        raise APIError("bad_request", "The Host header is missing.")
    if b"host" in headers and not HOST.fullmatch(headers[b"host"]):
        raise APIError("bad_request", "The Host header is not a name or an address, with or without a port.")
    if not scope["raw_path"].startswith(b"/"):
        raise APIError("bad_request", "The request's target is no path.")
    return headers


def _host_name(header: bytes) -> str:
    """'[::1]:8000' as '::1', 'Example.org:80' as 'example.org'."""
    text = header.decode("latin-1").lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _as_api_error(error: HTTPException) -> APIError:
    code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "bad_request")
    messages = {"not_found": "There is nothing here: /openapi.json lists what there is."}
    return APIError(code, messages.get(code, f"{error.detail}."), headers=error.headers)
