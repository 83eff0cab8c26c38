"""The hub's HTTP interface as far as an upload and a download need it, on a port of this machine."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

TOKEN = "hf_of_the_owner"  # may write to owner/...
READER = "hf_of_a_reader"  # may write nowhere
LFS_FROM = 1000  # bytes; larger files go to the large file storage


@dataclass
class Repository:
    """Files of the last commit, and the commits' messages."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    @property
    def sha(self) -> str:
        return hashlib.sha1("\n".join(self.messages).encode()).hexdigest()


class HubStandIn(ThreadingHTTPServer):
    """Repositories by owner/name, and the large files that were sent."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, Repository] = {}
        self.storage: dict[str, bytes] = {}
        self.broken = ""  # a part of a path that is answered with status 500

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> HubStandIn:
        assert isinstance(self.server, HubStandIn)
        return self.server

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_GET(self) -> None:
        self.look()

    def do_HEAD(self) -> None:
        self.look()

    def do_PUT(self) -> None:
        oid = self.path.rpartition("/")[2]
        content = self.body()
        if hashlib.sha256(content).hexdigest() != oid:
            return self.fail(400, "content is not what its name says")
        self.hub.storage[oid] = content
        return self.send(b"")

    def do_POST(self) -> None:
        content, path = self.body(), self.path.partition("?")[0]
        token = self.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.hub.broken and self.hub.broken in path:
            return self.fail(500, "the stand-in was told to break")
        if token not in (TOKEN, READER):
            return self.fail(401, "Invalid username or password.")
        if path == "/api/validate-yaml":
            return self.answer({"errors": [], "warnings": []})
        if path == "/api/repos/create":
            return self.create(json.loads(content), token)
        if token == READER:
            return self.fail(403, "You do not have the right to write here")
        match = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+?)(?:\.git)?/(preupload|commit|info)/(.+)", path)
        repository = self.hub.repositories.get(match[1]) if match else None
        if match is None or repository is None:
            return self.fail(404, "Repository not found", "RepoNotFound")
        if match[2] == "preupload":
            return self.preupload(json.loads(content), repository)
        if match[2] == "info":
            return self.batch(json.loads(content))
        return self.commit(content, match[1], repository)

    def create(self, wanted: dict[str, Any], token: str) -> None:
        name = f"{wanted['organization']}/{wanted['name']}"
        if name in self.hub.repositories:
            return self.fail(409, "You already created this model repo", url=f"{self.hub.endpoint}/{name}")
        if token != TOKEN or wanted["organization"] != "owner":
            return self.fail(403, "You don't have the rights to create a model under this namespace")
        self.hub.repositories[name] = Repository(wanted.get("visibility") == "private", messages=["initial commit"])
        return self.answer({"url": f"{self.hub.endpoint}/{name}"})

    def preupload(self, wanted: dict[str, Any], repository: Repository) -> None:
        del repository
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if file["size"] > LFS_FROM else "regular",
                "shouldIgnore": False,
            }
            for file in wanted["files"]
        ]
        return self.answer({"files": modes})

    def batch(self, wanted: dict[str, Any]) -> None:
        objects: list[dict[str, Any]] = []
        for item in wanted["objects"]:
            there = item["oid"] in self.hub.storage
            upload = {"upload": {"href": f"{self.hub.endpoint}/storage/{item['oid']}"}}
            objects.append(item if there else item | {"actions": upload})
        return self.answer({"transfer": "basic", "objects": objects})

    def commit(self, content: bytes, name: str, repository: Repository) -> None:
        files, message = dict(repository.files), ""
        for line in map(json.loads, content.splitlines()):
            value = line["value"]
            if line["key"] == "header":
                message = value["summary"]
            elif line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.storage[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        repository.files = files
        repository.messages.append(message)
        oid = repository.sha
        return self.answer({"commitUrl": f"{self.hub.endpoint}/{name}/commit/{oid}", "commitOid": oid, "success": True})

    def look(self) -> None:
        """A repository's facts, its list of files, or one of them."""
        path = self.path.partition("?")[0].strip("/").split("/")
        api = path[:2] == ["api", "models"]
        owner, name, verb, _, *rest = (path[2:] if api else path) + [""] * 4
        repository = self.hub.repositories.get(f"{owner}/{name}")
        if repository is None:
            return self.fail(404, "Repository not found", "RepoNotFound")
        if api and verb == "tree":
            listing = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in repository.files.items()
            ]
            return self.answer(listing)
        if api:
            facts = {"id": f"{owner}/{name}", "sha": repository.sha, "private": repository.private, "siblings": []}
            return self.answer(facts)
        file = "/".join(part for part in rest if part)
        if file not in repository.files:
            return self.fail(404, "Entry not found", "EntryNotFound")
        return self.send(repository.files[file], sha=repository.sha)

    def body(self) -> bytes:
        length = self.headers.get("Content-Length")
        if length is not None:
            return self.rfile.read(int(length))
        parts: list[bytes] = []
        while size := int(self.rfile.readline(), 16):  # chunked
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, content: Any) -> None:
        self.send(json.dumps(content).encode())

    def send(self, content: bytes, sha: str = "") -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        if sha:
            self.send_header("X-Repo-Commit", sha)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def fail(self, status: int, words: str, code: str = "", **more: str) -> None:
        content = json.dumps({"error": words, **more}).encode()
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", words)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def standing_in() -> Iterator[HubStandIn]:
    """A stand-in that listens while the block runs."""
    server = HubStandIn()
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
