"""hf-hub: sources, against the hub's cache layout on disk and a local stand-in of its HTTP interface."""

import hashlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from PIL import Image
from safetensors.torch import save_file

from box_stand_in import boxed
from vitlab.core import hub as core_hub
from vitlab.core.errors import CheckpointError
from vitlab.weights import hub
from vitlab.weights.load import load

__all__ = ["boxed"]  # a fixture

SHA = "0123456789abcdef0123456789abcdef01234567"
OTHER = "89abcdef0123456789abcdef0123456789abcdef"


def tensor_bytes(folder: Path) -> bytes:
    save_file({"x": torch.arange(4.0)}, folder / "x.safetensors")
    return (folder / "x.safetensors").read_bytes()


class CacheOnDisk:
    """The hub's cache as its documentation draws it: blobs, refs, and snapshots of links to the blobs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, name: str, files: dict[str, bytes], *, sha: str = SHA, ref: str | None = "main") -> Path:
        home = self.root / f"models--{name.replace('/', '--')}"
        snapshot = home / "snapshots" / sha
        for folder in (home / "blobs", home / "refs", snapshot):
            folder.mkdir(parents=True, exist_ok=True)
        if ref is not None:
            (home / "refs" / ref).write_text(sha)
        for path, content in files.items():
            blob = home / "blobs" / hashlib.sha256(content).hexdigest()
            blob.write_bytes(content)
            (snapshot / path).symlink_to(os.path.relpath(blob, snapshot))
        return snapshot


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheOnDisk:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return CacheOnDisk(tmp_path / "hub")


@pytest.mark.parametrize("weights", ["model.safetensors", "pytorch_model.bin", "weights.npz"])
def test_cached_repository_is_found_offline(cache: CacheOnDisk, weights: str) -> None:
    snapshot = cache.add("owner/name", {"config.json": b"{}", weights: b"weights"})
    assert hub.download("hf-hub:owner/name") == snapshot
    assert (hub.download("hf-hub:owner/name") / weights).read_bytes() == b"weights"


def test_revisions_are_told_apart(cache: CacheOnDisk) -> None:
    main = cache.add("owner/name", {"model.safetensors": b"1"})
    tagged = cache.add("owner/name", {"model.safetensors": b"2"}, sha=OTHER, ref="v2")
    assert hub.download("hf-hub:owner/name") == main
    assert hub.download("hf-hub:owner/name@v2") == tagged
    assert hub.download(f"hf-hub:owner/name@{OTHER}") == tagged


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("hf-hub:owner/absent", "hf-hub:owner/absent is not, or not whole, in the local cache"),
        ("hf-hub:owner/name@v9", "HF_HUB_OFFLINE"),
        ("hf-hub:owner/bare", "in the local cache without its weights, and HF_HUB_OFFLINE is set"),
        ("hf-hub:", "write hf-hub:owner/name"),
        ("hf-hub:a/b/c", "write hf-hub:owner/name"),
        ("hf-hub:owner/na me", "write hf-hub:owner/name"),
        ("hf-hub:../etc", "write hf-hub:owner/name"),
    ],
)
def test_errors_offline_are_one_sentence(cache: CacheOnDisk, source: str, says: str) -> None:
    cache.add("owner/name", {"model.safetensors": b"1"})
    cache.add("owner/bare", {"config.json": b"{}"})
    with pytest.raises(CheckpointError, match=says) as caught:
        hub.download(source)
    assert "\n" not in str(caught.value)


class Repository:
    """A repository of the stand-in; `gate` closes its files as the hub closes those of a gated one."""

    def __init__(self, files: dict[str, bytes], *, gate: bool = False) -> None:
        self.files, self.gate = files, gate


class StandIn(ThreadingHTTPServer):
    """The hub's interface as far as a download needs it; `asked` keeps the files that were sent."""

    def __init__(self, repositories: dict[str, Repository]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories = repositories
        self.asked: list[str] = []
        self.status = 200

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    @property
    def hub(self) -> StandIn:
        assert isinstance(self.server, StandIn)
        return self.server

    def log_message(self, format: str, *args: Any) -> None:
        del format, args

    def do_GET(self) -> None:
        self.answer(body=True)

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def answer(self, *, body: bool) -> None:
        if self.hub.status != 200:
            return self.fail(self.hub.status, "Unavailable")
        path = self.path.partition("?")[0].strip("/").split("/")
        api = path[:2] == ["api", "models"]
        owner, name, verb, revision, *rest = (path[2:] if api else path) + [""] * 4
        repository = self.hub.repositories.get(f"{owner}/{name}")
        if repository is None:
            return self.fail(404, "RepoNotFound")
        if revision not in ("main", SHA):
            return self.fail(404, "RevisionNotFound")
        if api and verb == "revision":
            return self.send(json.dumps({"id": f"{owner}/{name}", "sha": SHA, "siblings": []}).encode(), body)
        if repository.gate:
            return self.fail(403, "GatedRepo")
        if api and verb == "tree":
            listing = [
                {"type": "file", "path": file, "size": len(content), "oid": hashlib.sha1(content).hexdigest()}
                for file, content in repository.files.items()
            ]
            return self.send(json.dumps(listing).encode(), body)
        file = "/".join(part for part in rest if part)
        if body:
            self.hub.asked.append(file)
        return self.send(repository.files[file], body)

    def send(self, content: bytes, body: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Type", "application/json")
        self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", SHA)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def fail(self, status: int, code: str) -> None:
        self.send_response(status)
        self.send_header("X-Error-Code", code)
        self.send_header("X-Error-Message", f"{code} (of the stand-in)")
        self.send_header("Content-Length", "0")
        self.end_headers()


@pytest.fixture
def stand_in(tmp_path: Path) -> Iterator[StandIn]:
    weights = tensor_bytes(tmp_path)
    shard = "model-00001-of-00001.safetensors"
    index = json.dumps({"weight_map": {"x": shard}}).encode()
    server = StandIn(
        {
            "owner/both": Repository(
                {
                    "config.json": b"{}",
                    "preprocessor_config.json": b"{}",
                    "tokenizer.json": b"{}",
                    "model.safetensors": weights,
                    "pytorch_model.bin": b"pickle",
                    "tf_model.h5": b"h5",
                    "onnx/model.onnx": b"onnx",
                }
            ),
            "owner/shards": Repository({"config.json": b"{}", shard: weights, "model.safetensors.index.json": index}),
            "owner/pickle": Repository({"config.json": b"{}", "pytorch_model.bin": b"pickle", "tf_model.h5": b"h5"}),
            "owner/empty": Repository({"config.json": b"{}", "README.md": b"nothing"}),
            "owner/gated": Repository({"config.json": b"{}", "model.safetensors": weights}, gate=True),
        }
    )
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


SCRIPT = """
import json, sys
from vitlab.core.errors import CheckpointError
from vitlab.weights import hub

for source in sys.argv[1:]:
    try:
        folder = hub.download(source)
        print(json.dumps(sorted(str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file())))
    except CheckpointError as error:
        print(json.dumps(str(error)))
"""


def downloads(sources: list[str], home: Path, endpoint: str, **environment: str) -> tuple[list[Any], str]:
    """What each source gave, in a process of its own (the client reads its environment when it is imported)."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    root = Path(hub.__file__).parents[2]
    settings = {"HF_HOME": str(home), "HF_ENDPOINT": endpoint, "PYTHONPATH": str(root), **environment}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, *sources], env=kept | settings, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()], run.stderr


def test_download_over_http(stand_in: StandIn, tmp_path: Path) -> None:
    sources = [f"hf-hub:owner/{name}" for name in ("both", "shards", "pickle", "empty", "gated", "absent")]
    home = tmp_path / "home"
    answers, printed = downloads([*sources, "hf-hub:owner/both@v9"], home, stand_in.endpoint)
    both, shards, pickle, empty, gated, absent, revision = answers

    assert both == ["config.json", "model.safetensors", "preprocessor_config.json"]
    assert shards == ["config.json", "model-00001-of-00001.safetensors", "model.safetensors.index.json"]
    assert pickle == ["config.json", "pytorch_model.bin"]
    assert stand_in.asked.count("pytorch_model.bin") == 1  # of owner/pickle; that of owner/both stayed where it is
    assert "holds no weights that vitlab reads" in empty
    assert "accepted its terms" in gated
    assert "hf auth login" in gated
    assert "no repository owner/absent, or it is private" in absent
    assert "no revision 'v9'" in revision
    assert not any("\n" in error for error in (empty, gated, absent, revision))
    assert printed == ""  # no progress bars, for this is no terminal

    asked = len(stand_in.asked)
    again, _ = downloads(sources[:1], home, stand_in.endpoint)
    assert again == [both]
    assert len(stand_in.asked) == asked
    offline, _ = downloads([*sources[:1], sources[4]], home, stand_in.endpoint, HF_HUB_OFFLINE="1")
    assert offline[0] == both
    assert "HF_HUB_OFFLINE is set" in offline[1]


@contextmanager
def silent(kind: str) -> Iterator[str]:
    """An address that refuses connections, takes them and never answers, or answers as a proxy without a network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        if kind == "hangs":
            yield address
            return
    if kind == "refuses":
        yield address
        return
    proxy = StandIn({})
    proxy.status = 503
    thread = threading.Thread(target=proxy.serve_forever, daemon=True)
    thread.start()
    yield proxy.endpoint
    proxy.shutdown()
    proxy.server_close()
    thread.join()


@pytest.mark.parametrize("kind", ["refuses", "hangs", "is a proxy's"])
def test_a_hub_that_cannot_be_reached_is_one_sentence_soon(
    kind: str, boxed: object, cache: CacheOnDisk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is cached is had all the same; for what is not, the sentence names what there is."""
    del boxed
    (tmp_path / "runs" / "mine" / "model").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "model" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    there = cache.add("owner/there", {"config.json": b"{}", "model.safetensors": b"weights"})
    cache.add("owner/bare", {"config.json": b"{}"})
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(core_hub, "PATIENCE", 0.5)
    with silent(kind) as address:
        monkeypatch.setattr(constants, "ENDPOINT", address)
        assert hub.download("hf-hub:owner/there") == there
        start = time.monotonic()
        with pytest.raises(CheckpointError) as caught:
            load("vit-b16-224.mae")
        assert time.monotonic() - start < 10  # PATIENCE, and some work
        with pytest.raises(CheckpointError, match=f"without its weights, and {address} does not answer"):
            hub.download("hf-hub:owner/bare")
    assert str(caught.value) == (
        "vit-b16-224.mae (hf-hub:timm/vit_base_patch16_224.mae) is not, or not whole, in the local cache, and the hub"
        f" cannot be reached ({address} does not answer). Here there are vitlab/tiny (in the package);"
        " hf-hub:owner/there (in the cache); runs/mine; and any file or folder of weights."
    )
    assert constants.HF_HUB_OFFLINE is False


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["refuses", "hangs"])
@pytest.mark.parametrize("source", ["hf-hub:owner/name", "vit-b16-224.mae", "timm:vit_tiny_patch16_224"])
def test_the_command_line_says_so_without_retries(kind: str, source: str, tmp_path: Path) -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    root = str(Path(hub.__file__).parents[2])
    Image.new("RGB", (8, 8)).save(tmp_path / "photo.png")
    with silent(kind) as address:
        settings = {"HF_HOME": str(tmp_path), "HF_ENDPOINT": address, "PYTHONPATH": root}
        run = subprocess.run(
            [sys.executable, "-m", "vitlab", "predict", str(tmp_path / "photo.png"), "--model", source],
            env=kept | settings, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
    assert run.returncode == 2
    assert run.stdout == ""
    assert len(run.stderr.splitlines()) == 1
    assert f"{address} does not answer" in run.stderr
