"""A service under a steady load of good requests with some hostile ones among them: what is lost, waits, memory."""

import argparse
import asyncio
import contextlib
import os
import random
import resource
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from requesting import ask, make_requests, running, until_ready

PATIENCE = 60.0  # seconds after which an answer is taken to be lost
SAMPLE = 5.0  # seconds between two looks at the memory
WARM = 1 / 6  # of the time, before the slope of the memory counts
SLOW = 20.0  # seconds over which a slow body comes, more than the service waits
HEAD = "POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\n\r\n"
HELD = "held on to"
HOSTILE = ("noise", "file", "head", "truncated", "slow")
REUSED = 3.0  # seconds for which a connection is kept; the service closes one after 5
Connection = tuple[float, asyncio.StreamReader, asyncio.StreamWriter]  # and when it was last used


@dataclass
class Seen:
    """What became of the requests, and how much memory the service had when."""

    waits: list[float] = field(default_factory=list)
    lost: Counter[str] = field(default_factory=Counter)
    hostile: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[float, float]] = field(default_factory=list)  # seconds, MB


def memory_of(session: int) -> float:
    """MB that the processes of a session have resident, by Linux's account."""
    pages = 0
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if int((process / "stat").read_text().rsplit(")", 1)[1].split()[3]) == session:  # proc(5)
                pages += int((process / "statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


async def good(port: int, request: bytes, free: list[Connection], seen: Seen) -> None:
    """A request on a connection that was used just now, or on a new one."""
    start = time.perf_counter()
    try:
        async with asyncio.timeout(PATIENCE):
            while free and free[0][0] < start - REUSED:
                free.pop(0)[2].close()
            reader, writer = free.pop()[1:] if free else await asyncio.open_connection("127.0.0.1", port)
            await ask(reader, writer, request)
        end = time.perf_counter()
        seen.waits.append(end - start)
        free.append((end, reader, writer))
    except (OSError, AssertionError, asyncio.IncompleteReadError) as error:  # TimeoutError is an OSError
        seen.lost[str(error).split("\\r\\n")[0][:80] or type(error).__name__] += 1


def hostile_parts(kind: str, file: bytes, draw: random.Random) -> list[bytes]:
    """What a hostile client sends, two parts per second."""
    if kind == "noise":
        return [draw.randbytes(draw.randrange(1, 20_000)) + b"\r\n\r\n"]
    if kind == "file":
        return [HEAD.format(len(file)).encode() + file]
    if kind == "head":
        return [b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"x" * 100_000 + b"\r\n\r\n"]
    if kind == "truncated":
        return [HEAD.format(len(file) + 1000).encode() + file]
    return [HEAD.format(1000).encode(), *[b"x"] * int(2 * SLOW)]


async def hostile(port: int, kind: str, file: bytes, draw: random.Random, seen: Seen) -> None:
    """One request that nobody in their right mind sends, which is to be answered or cut off, not held on to."""
    became = "cut off"
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            answer = asyncio.create_task(reader.read(65_536))
            try:
                for part in hostile_parts(kind, file, draw):
                    writer.write(part)
                    await asyncio.wait([answer], timeout=0.5)
                    if answer.done():
                        break
                if kind == "truncated":
                    writer.write_eof()
                became = (await answer)[9:12].decode("ascii", "replace") or became
            finally:
                answer.cancel()
                writer.close()
    except TimeoutError:
        became = HELD
    except OSError:
        pass
    seen.hostile[f"{kind}: {became}"] += 1


async def load(service: tuple[int, int], given: argparse.Namespace, say: Callable[[str], None]) -> Seen:
    """Requests that arrive at random moments, so many per second on average, answered or not."""
    from web.hostile import FILES  # of the tests

    port, session = service
    requests, files, draw, seen = make_requests(32), list(FILES.values()), random.Random(given.seed), Seen()
    await until_ready(port, requests[0], 5)
    free: list[Connection] = []
    under_way: set[asyncio.Task[None]] = set()
    began, next_look, arrival = time.monotonic(), 0.0, 0.0
    while (now := time.monotonic() - began) < 60 * given.minutes:
        if now >= next_look:
            seen.memory.append((now, memory_of(session)))
            if len(seen.memory) % 12 == 1:
                counts = f"{len(seen.waits)} answered, {seen.lost.total()} lost, {seen.hostile.total()} hostile"
                say(f"{now / 60:.0f} min: {counts}, {seen.memory[-1][1]:.0f} MB")
            next_look += SAMPLE
        if now < arrival:
            await asyncio.sleep(min(arrival, next_look) - now if min(arrival, next_look) > now else 0)
            continue
        arrival += draw.expovariate(given.rate)
        if draw.random() < given.hostile:
            sent = hostile(port, draw.choice(HOSTILE), draw.choice(files), random.Random(draw.random()), seen)
        else:
            sent = good(port, draw.choice(requests), free, seen)
        task = asyncio.create_task(sent)
        under_way.add(task)
        task.add_done_callback(under_way.discard)
    await asyncio.gather(*under_way)
    await until_ready(port, requests[0], 5)
    return seen


def slope(memory: list[tuple[float, float]]) -> float:
    """MB per hour, by least squares over all but the beginning."""
    counted = memory[int(WARM * len(memory)) :]
    line = statistics.linear_regression([seconds / 3600 for seconds, _ in counted], [size for _, size in counted])
    return line.slope


def serve(given: argparse.Namespace, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """`vitlab serve` at a load with some hostile requests."""
    from vitlab import api

    model = api.create(given.model)
    model.labels = tuple(f"class {index}" for index in range(model.config.num_classes))
    api.save(model, folder / "model")
    threads = len(os.sched_getaffinity(0))
    command = [sys.executable, "-m", "vitlab", "serve", "--model", str(folder / "model"), "--threads", str(threads)]
    with running([*command, "--port"], threads) as service:
        seen = asyncio.run(load(service, given, say))
    waits = sorted(seen.waits)
    return {
        "answered": len(waits),
        "lost": seen.lost.total() + sum(num for name, num in seen.hostile.items() if name.endswith(HELD)),
        "why": dict(seen.lost),
        "answers to hostile": dict(sorted(seen.hostile.items())),
        "p50 ms": round(1000 * statistics.median(waits), 1),
        "p99 ms": round(1000 * waits[int(0.99 * len(waits))], 1),
        "longest ms": round(1000 * waits[-1], 1),
        "memory at first MB": round(seen.memory[0][1], 1),
        "memory at last MB": round(seen.memory[-1][1], 1),
        "memory at most MB": round(max(size for _, size in seen.memory), 1),
        "slope MB per hour": round(slope(seen.memory), 2),
    }
