"""Requests a second and their times, beside LitServe and plain FastAPI handlers with the same model, in one run.

    python benchmarks/serving.py                        about five minutes on two idle cores
    python benchmarks/serving.py --rounds 1 --seconds 2 --loads 1 8

Every service is a process of its own with the same weights, the same preprocessing and the same number of threads; this
process sends JPEG photos of 500 x 375 pixels as multipart forms, each of so many clients its next one as soon as it has
its answer. A round starts each service anew, in shuffled order, and measures every load. LitServe has our batch size
and waiting time. A FastAPI handler that is `def` runs in Starlette's threads, an `async def` one on the event loop.

"Bare" is the model alone on images that are ready, and decoding with preprocessing alone, in this process.
"""

import argparse
import asyncio
import contextlib
import io
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from PIL import Image

from serving_peers import BATCH, SERVICES, TOP
from timing import machine
from vitlab import api


@contextlib.contextmanager
def running(name: str, source: str, threads: int) -> Iterator[tuple[int, int]]:
    """The service in a session of its own: its port, and the session's number."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = Path(__file__).with_name("serving_peers.py")
    command = [sys.executable, script, name, source, str(port), str(threads)]
    environment = os.environ | {"OMP_NUM_THREADS": str(threads)}
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        yield port, process.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def make_requests(num: int) -> list[bytes]:
    """Whole HTTP requests, each with a photo as a form's file."""
    from loading import make_photos

    requests: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        for path in make_photos(Path(folder), num):
            part = b'--xyz\r\nContent-Disposition: form-data; name="images"; filename="a.jpg"\r\n'
            body = part + b"Content-Type: image/jpeg\r\n\r\n" + path.read_bytes() + b"\r\n--xyz--\r\n"
            head = "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=xyz\r\n"
            requests.append(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return requests


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes) -> bytes:
    """One request and the body of its answer."""
    writer.write(request)
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    assert head.startswith(b"http/1.1 200"), head
    length = int(head.split(b"content-length:", 1)[1].split(b"\r\n", 1)[0])
    return await reader.readexactly(length)


async def until_ready(port: int, request: bytes) -> None:
    end = time.monotonic() + 60
    while True:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answer = json.loads(await ask(reader, writer, request))
            writer.close()
            assert len(answer.get("classes") or answer["predictions"][0]["classes"]) == TOP
            return
        except (OSError, AssertionError, asyncio.IncompleteReadError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


@dataclass(frozen=True)
class Load:
    """What so many clients saw."""

    rate: float  # answers a second
    p50: float
    p99: float
    used: float  # processor seconds a request, of all processes of the service


def processor_seconds(session: int) -> float:
    """What the processes of a session have used so far, by Linux's account; 0 elsewhere."""
    used = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rsplit(")", 1)[1].split()
            used += int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0  # proc(5)
    return used / os.sysconf("SC_CLK_TCK")


async def measure(service: tuple[int, int], clients: int, seconds: float, requests: list[bytes]) -> Load:
    """Clients that each send as soon as they have their answer; the first fifth of the time is not counted."""
    port, session = service
    used = processor_seconds(session)
    waits: list[tuple[float, float]] = []  # when it ended, how long it took
    end = time.perf_counter() + 1.25 * seconds

    async def client(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (start := time.perf_counter()) < end:
            number = (number + 7) % len(requests)
            await ask(reader, writer, requests[number])
            now = time.perf_counter()
            waits.append((now, now - start))
        writer.close()

    await asyncio.gather(*(client(number) for number in range(clients)))
    used = (processor_seconds(session) - used) / len(waits)
    counted = sorted(wait for when, wait in waits if end - seconds <= when <= end) or [0.0]
    p99 = counted[min(len(counted) - 1, int(0.99 * len(counted)))]
    return Load(len(counted) / seconds, statistics.median(counted), p99, used)


async def measure_all(
    service: tuple[int, int], loads: list[int], seconds: float, requests: list[bytes]
) -> dict[int, Load]:
    await until_ready(service[0], requests[0])
    await measure(service, max(loads), min(1.0, seconds), requests)  # what is slow only once
    return {clients: await measure(service, clients, seconds, requests) for clients in loads}


def bare(source: str, requests: list[bytes]) -> tuple[float, float, float]:
    """Seconds an image: the model alone, the model in full batches, decoding and preprocessing."""
    model = api.load(source).eval()
    raw = requests[0].split(b"\r\n\r\n", 2)[2]
    images = torch.randn(BATCH, 3, *model.config.image_size)

    def best(run: Callable[[], object]) -> float:
        run()
        seconds: list[float] = []
        for _ in range(15):
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        return statistics.median(seconds)

    with torch.inference_mode():
        one, several = best(lambda: model(images[:1])), best(lambda: model(images)) / BATCH
    return one, several, best(lambda: model.preprocess(Image.open(io.BytesIO(raw))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit-s32-224", help="a zoo name; its weights are fresh")
    parser.add_argument("--loads", type=int, nargs="+", default=[1, 4, 16, 32], help="clients at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="that are counted for each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each service's model")
    parser.add_argument("--services", nargs="+", choices=list(SERVICES), default=list(SERVICES))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    requests, shuffle = make_requests(32), random.Random(0).shuffle
    found: dict[str, dict[int, list[Load]]] = {name: {load: [] for load in given.loads} for name in given.services}
    with tempfile.TemporaryDirectory() as folder:
        source = str(Path(folder, "model"))
        model = api.create(given.model)
        model.labels = tuple(f"class {index}" for index in range(model.config.num_classes))
        api.save(model, source)
        one, several, decoding = bare(source, requests)
        order = list(given.services)
        for _ in range(given.rounds):
            shuffle(order)
            for name in order:
                with running(name, source, given.threads) as service:
                    for load, seen in asyncio.run(measure_all(service, given.loads, given.seconds, requests)).items():
                        found[name][load].append(seen)
                        print(
                            f"{name}, {load} clients: {seen.rate:.1f}/s, p99 {1000 * seen.p99:.0f} ms", file=sys.stderr
                        )

    report(found, given, one, several, decoding)


def report(
    found: dict[str, dict[int, list[Load]]], given: argparse.Namespace, one: float, several: float, decoding: float
) -> None:
    print(f"{machine()}; {given.model}; {given.rounds} rounds of {given.seconds:g} s, medians")
    batches = f"in batches of {BATCH} {1000 * several:.1f} ms an image"
    print(f"bare: model {1000 * one:.1f} ms, {batches}; decoding and preprocessing {1000 * decoding:.1f} ms\n")
    print("| clients | service | requests/s | of the bare batches | p50 ms | p99 ms | processor ms |\n|-|-|-|-|-|-|-|")
    for load in given.loads:
        for name in given.services:
            rate, p50, p99, used = (
                statistics.median(getattr(seen, field) for seen in found[name][load])
                for field in ("rate", "p50", "p99", "used")
            )
            times = " | ".join(f"{1000 * value:.1f}" for value in (p50, p99, used))
            print(f"| {load} | {name} | {rate:.1f} | {rate * several:.0%} | {times} |")
    if "vitlab" in found and 1 in given.loads:
        over = statistics.median(seen.p50 for seen in found["vitlab"][1]) - one - decoding
        print(f"\nvitlab's overhead for one client over decoding and the bare model: {1000 * over:.1f} ms")


if __name__ == "__main__":
    main()
