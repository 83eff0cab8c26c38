"""Requests per second and their times, beside LitServe and plain FastAPI handlers with the same model, in one run.

    python benchmarks/serving.py                        about a quarter of an hour on two idle cores
    python benchmarks/serving.py --rounds 1 --seconds 2 --loads 1 8 --services vitlab LitServe
    python benchmarks/serving.py --backlog 6 5          how long others wait beside six requests of five large pictures

Every service is a process of its own with the same weights, the same preprocessing and the same number of threads; this
process sends JPEG photos of 500 x 375 pixels as multipart forms, each of so many clients its next one as soon as it has
its answer. A round starts each service anew, in shuffled order, and measures every load; a load during which other
processes of the machine took more than `QUIET` of it is measured again, once the machine is quiet.

LitServe has our batch size and waiting time: one worker with all threads, or two with half of them each, also with a
model that torch.compile has compiled before the first request. A FastAPI handler that is `def` runs in Starlette's
threads, an `async def` one on the event loop.

"Bare" is the model alone on images that are ready, as the peers call it and as vitlab does, and decoding with
preprocessing alone, in this process.

With --backlog, requests of JPEG pictures of 40 megapixels come all at once from 127.0.0.1, and from 127.0.0.2 a photo,
again and again until all of them are answered.
"""

import argparse
import asyncio
import contextlib
import io
import math
import os
import random
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from PIL import Image

from requesting import ask, make_request, make_requests, running, until_ready
from serving_peers import BATCH, PEERS, TOP, WAIT
from timing import interleave, machine
from vitlab import api
from vitlab.core.words import count
from vitlab.serving.packing import packed

SERVICES = ["vitlab", *PEERS]
QUIET, PATIENCE = 0.05, 8  # the share of the machine that others may take, and how often a load is measured for it


def command_of(name: str, source: str, threads: int) -> list[str]:
    """What starts a service, but for its port."""
    if name == "vitlab":
        options = {"model": source, "threads": threads, "max-batch": BATCH, "max-wait-ms": 1000 * WAIT}
        given = (text for option, value in options.items() for text in (f"--{option}", str(value)))
        return [sys.executable, "-m", "vitlab", "serve", *given, "--port"]
    return [sys.executable, str(Path(__file__).with_name("serving_peers.py")), name, source, str(threads)]


@dataclass(frozen=True)
class Load:
    """What so many clients saw."""

    rate: float  # answers per second
    p50: float
    p99: float
    used: float  # processor seconds per request, of all processes of the service
    others: float  # the share of the machine's processors that neither the service nor this process used


def processor_seconds(session: int) -> float:
    """What the processes of a session have used so far, by Linux's account; 0 elsewhere."""
    used = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = status.read_text().rsplit(")", 1)[1].split()
            used += int(fields[11]) + int(fields[12]) if int(fields[3]) == session else 0  # proc(5)
    return used / os.sysconf("SC_CLK_TCK")


def machine_seconds() -> float:
    """What all processes have used so far, by Linux's account; 0 elsewhere."""
    stat = Path("/proc/stat")
    if not stat.exists():
        return 0.0
    user, nice, system, _, _, *interrupts = (int(field) for field in stat.read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


async def until_quiet(session: int) -> None:
    """Wait, for at most ten minutes, until nothing but the service works on this machine."""
    end, used = time.monotonic() + 600, math.inf
    while used > QUIET * 2 * (os.cpu_count() or 1) and time.monotonic() < end:
        used = processor_seconds(session) - machine_seconds()
        await asyncio.sleep(2)
        used -= processor_seconds(session) - machine_seconds()


async def measure(service: tuple[int, int], clients: int, seconds: float, requests: list[bytes]) -> Load:
    """Clients that each send as soon as they have their answer; the first fifth of the time is not counted."""
    port, session = service
    used, ours, everyone, began = processor_seconds(session), time.process_time(), machine_seconds(), time.monotonic()
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
    used, ours, everyone = processor_seconds(session) - used, time.process_time() - ours, machine_seconds() - everyone
    others = (everyone - used - ours) / ((time.monotonic() - began) * (os.cpu_count() or 1))
    counted = sorted(wait for when, wait in waits if end - seconds <= when <= end) or [0.0]
    p99 = counted[min(len(counted) - 1, int(0.99 * len(counted)))]
    return Load(len(counted) / seconds, statistics.median(counted), p99, used / len(waits), max(0.0, others))


async def measure_all(
    service: tuple[int, int], loads: list[int], seconds: float, requests: list[bytes]
) -> dict[int, Load]:
    await until_ready(service[0], requests[0], TOP)
    await measure(service, max(loads), min(1.0, seconds), requests)  # what is slow only once
    found: dict[int, Load] = {}
    for clients in loads:
        tries: list[Load] = []
        while not tries or (tries[-1].others > QUIET and len(tries) < PATIENCE):
            await until_quiet(service[1])
            tries.append(await measure(service, clients, seconds, requests))
        found[clients] = min(tries, key=lambda seen: seen.others)
    return found


async def beside_backlog(port: int, backlog_of: tuple[int, int], photo: bytes) -> None:
    """Print how long photos from one address wait while another's large pictures are worked off."""
    num, pictures = backlog_of
    file = io.BytesIO()
    Image.radial_gradient("L").resize((8000, 5000)).convert("RGB").save(file, "JPEG", quality=10, progressive=True)
    large = make_request(*[file.getvalue()] * pictures)

    async def send(request: bytes, address: str) -> tuple[bytes, float]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        start = time.perf_counter()
        writer.write(request)
        status = (await reader.readuntil(b"\r\n\r\n")).split()[1]
        writer.close()
        return status, time.perf_counter() - start

    await until_ready(port, photo, TOP)
    alone = statistics.median([(await send(photo, "127.0.0.2"))[1] for _ in range(9)])
    backlog = asyncio.gather(*(send(large, "127.0.0.1") for _ in range(num)))
    await asyncio.sleep(0.5)
    waits = [await send(photo, "127.0.0.2")]
    while not backlog.done():
        waits.append(await send(photo, "127.0.0.2"))
    answers, seconds = await backlog, [wait for _, wait in waits]
    for who, seen in (("large pictures", answers), ("photos", waits)):
        statuses, last = sorted({status.decode() for status, _ in seen}), max(wait for _, wait in seen)
        print(f"{count(len(seen), 'request')} of {who}: {', '.join(statuses)}; the longest took {last:.2f} s")
    middle, most = statistics.median(seconds), max(seconds)
    print(
        f"a photo: {alone:.2f} s; beside them {seconds[0]:.2f} s at first, {middle:.2f} s median, {most:.2f} s at most"
    )


@dataclass(frozen=True)
class Bare:
    """Seconds an image, without a service."""

    one: float  # the model
    several: float  # the model in full batches
    our_one: float  # the model as vitlab calls it
    our_several: float
    decoding: float  # with preprocessing


def bare(source: str, requests: list[bytes]) -> Bare:
    model = api.load(source).eval()
    ours = packed(model)
    raw = requests[0].split(b"\r\n\r\n", 2)[2]
    images = torch.randn(BATCH, 3, *model.config.image_size)
    with torch.inference_mode():
        found = interleave(
            {
                "one": lambda: model(images[:1]),
                "several": lambda: model(images),
                "our_one": lambda: ours(images[:1]),
                "our_several": lambda: ours(images),
                "decoding": lambda: model.preprocess(Image.open(io.BytesIO(raw))),
            },
            rounds=25,
        )
    seconds = {name: timing.median for name, timing in found.items()}
    return Bare(**{name: value / (BATCH if "several" in name else 1) for name, value in seconds.items()})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="vit-s32-224", help="a zoo name; its weights are fresh")
    parser.add_argument("--loads", type=int, nargs="+", default=[1, 8, 32], help="clients at once")
    parser.add_argument("--seconds", type=float, default=5.0, help="that are counted for each load")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="of each service's model")
    parser.add_argument("--services", nargs="+", choices=SERVICES, default=SERVICES)
    parser.add_argument("--backlog", type=int, nargs=2, metavar=("REQUESTS", "PICTURES"), help="measure this instead")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)

    requests, shuffle = make_requests(32), random.Random(0).shuffle
    found: dict[str, dict[int, list[Load]]] = {name: {load: [] for load in given.loads} for name in given.services}
    with tempfile.TemporaryDirectory() as folder:
        source = str(Path(folder, "model"))
        model = api.create(given.model)
        model.labels = tuple(f"class {index}" for index in range(model.config.num_classes))
        api.save(model, source)
        if given.backlog is not None:
            with running(command_of("vitlab", source, given.threads), given.threads) as (port, _):
                asyncio.run(beside_backlog(port, given.backlog, requests[0]))
            return
        asyncio.run(until_quiet(os.getsid(0)))
        alone = bare(source, requests)
        order = list(given.services)
        for _ in range(given.rounds):
            shuffle(order)
            for name in order:
                with running(command_of(name, source, given.threads), given.threads) as service:
                    for load, seen in asyncio.run(measure_all(service, given.loads, given.seconds, requests)).items():
                        found[name][load].append(seen)
                        times = f"{seen.rate:.1f}/s, p50 {1000 * seen.p50:.0f} ms, p99 {1000 * seen.p99:.0f} ms"
                        used = f"{1000 * seen.used:.1f} processor ms, others {seen.others:.0%}"
                        print(f"{name}, {load} clients: {times}, {used}", file=sys.stderr)

    report(found, given, alone)


def spread(values: list[float], digits: int = 1) -> str:
    """Their median, and the least and the most."""
    low, middle, high = min(values), statistics.median(values), max(values)
    return f"{middle:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def report(found: dict[str, dict[int, list[Load]]], given: argparse.Namespace, alone: Bare) -> None:
    print(f"{machine()}; {given.model}; {given.rounds} rounds of {given.seconds:g} s: medians (least to most)")
    for whose, one, several in (
        ("the model", alone.one, alone.several),
        ("as vitlab calls it", alone.our_one, alone.our_several),
    ):
        print(f"bare: {whose} {1000 * one:.1f} ms, in batches of {BATCH} {1000 * several:.1f} ms per image")
    print(f"bare: decoding and preprocessing {1000 * alone.decoding:.1f} ms")
    most = max(seen.others for loads in found.values() for rounds in loads.values() for seen in rounds)
    print(f"other processes took at most {most:.0%} of the machine\n")
    print("| clients | service | requests/s | p50 ms | p99 ms | processor ms |\n|-|-|-|-|-|-|")
    for load in given.loads:
        for name in given.services:
            rounds = found[name][load]
            rate = spread([seen.rate for seen in rounds])
            p50, p99 = (spread([1000 * getattr(seen, field) for seen in rounds], 0) for field in ("p50", "p99"))
            used = statistics.median(1000 * seen.used for seen in rounds)
            print(f"| {load} | {name} | {rate} | {p50} | {p99} | {used:.1f} |")
    if "vitlab" not in found:
        return
    ours = found["vitlab"]
    print("\nvitlab's requests/s over theirs, and its p99 over theirs, round by round")
    for load in given.loads:
        for name in (name for name in given.services if name != "vitlab"):
            pairs = list(zip(ours[load], found[name][load], strict=True))
            faster, waits = [a.rate / b.rate for a, b in pairs], [a.p99 / b.p99 for a, b in pairs]
            print(f"{load} clients, {name}: {spread(faster, 2)}; {spread(waits, 2)}")
    if 1 in ours:
        p50 = statistics.median(seen.p50 for seen in ours[1])
        over = [1000 * (p50 - one - alone.decoding) for one in (alone.one, alone.our_one)]
        print(
            f"\none client waits {over[0]:.1f} ms over decoding and the bare model, {over[1]:.1f} ms over its own call"
        )


if __name__ == "__main__":
    main()
