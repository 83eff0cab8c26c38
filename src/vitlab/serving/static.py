"""The explorer page: the files of a folder, held in memory and served by their names alone."""

import hashlib
import mimetypes
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

FOLDER = Path(__file__).parent / "page"
# Scripts, styles and pictures of its own only; pictures that a visitor gave are blobs. Nothing inline, nothing outside.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; font-src 'self'; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".svg": "image/svg+xml", ".webp": "image/webp"}


def page_routes(folder: Path = FOLDER) -> list[Route]:
    """A route a file, index.html at /; none where there is no index.html. What is not listed cannot be asked for."""
    if not (folder / "index.html").is_file():
        return []
    routes: list[Route] = []
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        if file.is_file() and not any(part.startswith((".", "_")) for part in name.split("/")):
            path = "/" if name == "index.html" else f"/{name}"
            routes.append(Route(path, File(file.read_bytes(), file.name).answer, methods=["GET"]))
    return routes


class File:
    """A file in memory, whose name's ending says what it is."""

    def __init__(self, content: bytes, name: str) -> None:
        self.content = content
        kind = TYPES.get(Path(name).suffix) or mimetypes.guess_type(name)[0] or "application/octet-stream"
        text = kind.startswith("text/") or kind == "application/json"
        self.headers = {
            "content-type": f"{kind}; charset=utf-8" if text else kind,
            "content-security-policy": POLICY,
            "cache-control": "no-cache",  # ask again, and be told that it is the same
            "etag": f'"{hashlib.sha256(self.content).hexdigest()[:32]}"',
        }

    async def answer(self, request: Request) -> Response:
        if self.headers["etag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=self.headers)
        return Response(self.content, headers=self.headers)
