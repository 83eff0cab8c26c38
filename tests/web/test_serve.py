"""`vitlab serve` as a process: its first line, its mistakes, its end."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import vitlab
from vitlab.cli import main
from web.hostile import FILES
from web.live import answers, head, small_model

pytestmark = pytest.mark.web


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("a run") / "pets" / "model"
    vitlab.save(small_model(), path)
    return str(path)


@contextlib.contextmanager
def started(*arguments: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The process and its address, once it says that it serves."""
    command = [sys.executable, "-m", "vitlab", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(
        command, text=True, env=os.environ | environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("Serving pets at http://127.0.0.1:"), line + (process.communicate(timeout=30)[1])
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.communicate(timeout=30)


def test_a_service_from_its_first_line_to_its_end(source: str, tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text("a b c\nnot this\n")
    with started("--model", source, "--token-file", str(secret), "--threads", "1") as (process, address):
        allowed = {"authorization": "Bearer a b c"}
        assert httpx.get(f"{address}/v1/model").status_code == 401
        assert httpx.get(f"{address}/v1/model", headers=allowed).json()["name"] == "pets"
        answer = httpx.post(f"{address}/v1/predict?top=1", content=FILES["jpeg"], headers=allowed).json()
        (expected,) = vitlab.predict(small_model(), _file(tmp_path, FILES["jpeg"]), top=1)
        assert answer["predictions"][0]["classes"][0]["label"] == expected.classes[0].label

        port, raw = int(address.rpartition(":")[2]), FILES["jpeg"]
        with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
            connection.sendall(head("/v1/predict", Content_Length=len(raw), Authorization="Bearer a b c") + raw[:500])
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            connection.sendall(raw[500:])  # what had begun is finished
            assert [status for status, _ in answers(connection)] == [200]
        assert process.wait(timeout=30) == 0
        assert process.stderr is not None
        assert process.stderr.read() == "vitlab: ended after the requests that were underway.\n"


def _file(folder: Path, raw: bytes) -> Path:
    path = folder / "image.jpg"
    path.write_bytes(raw)
    return path


@pytest.mark.slow
def test_ctrl_c_ends_in_order_and_the_token_may_come_from_the_environment(source: str) -> None:
    with started("--model", source, VITLAB_TOKEN="secret") as (process, address):
        assert httpx.get(f"{address}/v1/model").status_code == 401
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=30) == 0


def test_a_port_that_is_taken(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert main(["serve", "--model", source, "--port", str(port)]) == 2
    sentence = (
        f"vitlab: Cannot listen at 127.0.0.1, port {port}: the port is taken; choose another with --port, or 0 for any."
    )
    assert capsys.readouterr() == ("", sentence + "\n")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "70000"], "--port must be between 0 and 65535, not 70000."),
        (["--max-batch", "0"], "must be at least 1"),
        (["--max-wait-ms", "-1"], "between 0 and 10 s"),
        (["--queue", "2"], "raise queue"),
        (["--max-megapixels", "0"], "pixels must be above 0"),
        (["--trust-proxy", "a\nb"], "A proxy is given by its address or network, as 10.0.0.2 or 10.0.0.0/8: 'a\\nb'"),
        (["--host", "a\nvitlab: b", "--port", "0"], "There is no address 'a\\nvitlab: b' to listen at"),
        (["--token-file", "gone"], "gone: No such file or directory."),
        (["--host", "no.such.host.invalid", "--port", "0"], "There is no address 'no.such.host.invalid'"),
        (["--threads", "0", "--port", "0"], "--threads must be at least 1"),
        (["--device", "abacus", "--port", "0"], "This machine has no device 'abacus'"),
        (["--port", "0", "--model", "gone"], "gone"),
    ],
)
def test_mistakes_are_one_sentence(
    source: str, arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["serve", "--model", source, *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert len(printed.err.splitlines()) == 1
    assert "Traceback" not in printed.err


def test_a_file_without_a_token(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = tmp_path / "token"
    empty.write_text("\n")
    assert main(["serve", "--model", source, "--token-file", str(empty)]) == 2
    assert capsys.readouterr().err == f"vitlab: {empty} holds no token: write one into its first line.\n"
