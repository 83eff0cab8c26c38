"""Many at once: batches, the bounded queue, memory, the event loop, and an end that finishes what was accepted."""

import gc
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from PIL import Image

from vitlab.serving import service
from vitlab.serving.engine import Engine
from vitlab.serving.limits import Limits
from web.hostile import FILES, picture, png, saved
from web.live import Live, error_code, head, serving, small_model, until

pytestmark = pytest.mark.web

JPEG = FILES["jpeg"]


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event without which no model runs, once it is cleared."""
    free, run = threading.Event(), Engine.run
    free.set()

    def held(self: Engine, task: Any, pixels: Any) -> Any:
        assert free.wait(20)
        return run(self, task, pixels)

    monkeypatch.setattr(Engine, "run", held)
    yield free
    free.set()


def resident() -> int:
    """Bytes of memory that are in use now, not the most that ever were."""
    gc.collect()
    statm = Path("/proc/self/statm")
    if statm.exists():
        return int(statm.read_text().split()[1]) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def many(live: Live, num: int, send: Callable[[httpx.Client, int], httpx.Response]) -> list[httpx.Response]:
    """The answers to so many requests, each on its own connection and all at once."""
    limits = httpx.Limits(max_connections=num)
    with httpx.Client(base_url=live.address, timeout=30, limits=limits) as client, ThreadPoolExecutor(num) as pool:
        return list(pool.map(lambda number: send(client, number), range(num)))


def test_requests_share_batches_and_get_their_own_answers(gate: threading.Event) -> None:
    pictures = [saved(Image.new("RGB", (9, 9), (20 * i, 255 - 20 * i, 7 * i)), "PNG") for i in range(12)]
    with serving(small_model(), max_batch=8) as live:
        alone = [live.post("/v1/embed", raw).json()["embeddings"][0] for raw in pictures]
        gate.clear()
        releasing = threading.Timer(0.3, gate.set)
        releasing.start()
        answers = many(live, 12, lambda client, i: client.post("/v1/embed", content=pictures[i]))
        releasing.join()
        batches = live.metric('vitlab_batch_images_count{task="embed"}') - 12
        largest = live.metric('vitlab_batch_images_bucket{le="8.0",task="embed"}')
    for answer, expected in zip(answers, alone, strict=True):
        np.testing.assert_allclose(answer.json()["embeddings"][0], expected, rtol=1e-4, atol=1e-5)
    assert batches <= 4
    assert largest == batches + 12  # none was larger


def test_over_the_bound_there_is_a_503_with_a_time(gate: threading.Event) -> None:
    with serving(small_model(), Limits(queue=4, images=4), max_batch=2) as live:
        gate.clear()
        with ThreadPoolExecutor(12) as pool, httpx.Client(base_url=live.address, timeout=30) as client:
            sent: list[Future[httpx.Response]] = []
            for _ in range(12):
                held = live.metric("vitlab_held_bytes")
                sent.append(pool.submit(client.post, "/v1/predict", content=JPEG))
                until(lambda held=held: sent[-1].done() or live.metric("vitlab_held_bytes") > held)
            until(lambda: live.metric("vitlab_queue_images") == 4)  # beside at most two batches of two that run
            assert live.get("/healthz").status_code == 200
            gate.set()
            answers = [done.result() for done in sent]
        refused = [answer for answer in answers if answer.status_code != 200]
        assert {answer.status_code for answer in refused} == {503}
        assert 4 <= len(refused) <= 12 - 4
        for answer in refused:
            assert error_code(answer) == "overloaded"
            assert int(answer.headers["retry-after"]) >= 1
        assert live.post("/v1/predict", JPEG).status_code == 200


def test_one_who_leaves_makes_no_work(gate: threading.Event) -> None:
    with serving(small_model()) as live:
        gate.clear()
        first = threading.Thread(target=live.post, args=("/v1/predict", JPEG))
        first.start()
        until(lambda: live.metric("vitlab_held_bytes") == len(JPEG))
        time.sleep(0.5)
        for _ in range(5):
            with live.connected() as connection:
                connection.sendall(head("/v1/predict", Content_Length=len(JPEG)) + JPEG)
                until(lambda: live.metric("vitlab_queue_images") == 1)
            until(lambda: live.metric("vitlab_queue_images") == 0)
        gate.set()
        first.join()
        assert live.metric('vitlab_batch_images_sum{task="classify"}') == 1
        assert live.metric('vitlab_requests_total{path="/v1/predict",status="gone"}') == 5


def refuses(address: str) -> bool:
    try:
        httpx.get(address + "/healthz")
    except httpx.TransportError as error:
        return isinstance(error, httpx.ConnectError)
    return False


def test_an_end_finishes_what_was_accepted(gate: threading.Event) -> None:
    with serving(small_model(), max_batch=2) as live, ThreadPoolExecutor(6) as pool:
        gate.clear()
        sent = [pool.submit(httpx.post, live.address + "/v1/predict", content=JPEG, timeout=30) for _ in range(6)]
        until(lambda: live.metric("vitlab_held_bytes") == 6 * len(JPEG))
        live.server.should_exit = True
        until(lambda: refuses(live.address))
        assert not any(done.done() for done in sent)
        gate.set()
        assert [done.result().status_code for done in sent] == [200] * 6


def test_a_failure_of_the_model_is_a_500_and_the_service_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(small_model()) as live:
        with monkeypatch.context() as broken:
            broken.setattr(type(live.model), "forward", lambda *_: 1 / 0)
            response = live.post("/v1/predict", JPEG)
        assert error_code(response) == "internal"
        assert response.status_code == 500
        assert "division" not in response.text
        assert "ZeroDivisionError" in caplog.text
        assert live.post("/v1/predict", JPEG).status_code == 200


def test_bodies_together_have_a_bound(gate: threading.Event) -> None:
    limits = Limits(body_bytes=60_000, buffered_bytes=100_000, images=1, linger_seconds=0.2)
    with serving(small_model(), limits) as live:
        gate.clear()
        padded = JPEG + bytes(50_000)
        with ThreadPoolExecutor(4) as pool, httpx.Client(base_url=live.address, timeout=30) as client:
            first = pool.submit(client.post, "/v1/predict", content=padded)
            until(lambda: live.metric("vitlab_held_bytes") == len(padded))
            assert error_code(live.post("/v1/predict", padded)) == "overloaded"
            gate.set()
            assert first.result().status_code == 200
        assert live.metric("vitlab_held_bytes") == 0


def flood(live: Live, num: int) -> None:
    """Bombs, damaged files and good ones, eight at a time."""
    import zlib

    bomb = png(1000, 1000, zlib.compress(bytes(1000 * 3001), 9))  # at the limit: 3 MB of pixels from 3 kB
    files = [
        bomb,
        FILES["truncated JPEG"],
        FILES["bomb of zeros"],
        JPEG,
        saved(picture(900, 900), "PNG"),
        bytes(900_000),
    ]
    allowed = {200, 413, 415, 422, 503}

    def send(client: httpx.Client, number: int) -> None:
        assert client.post("/v1/predict", content=files[number % len(files)]).status_code in allowed

    with httpx.Client(base_url=live.address, timeout=30) as client, ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: send(client, number), range(num)))


@pytest.mark.parametrize("num", [90, pytest.param(6000, marks=pytest.mark.slow)])
def test_memory_stays_in_a_flood(live: Live, num: int) -> None:
    flood(live, 30)
    before = resident()
    flood(live, num)
    assert resident() - before < 60_000_000
    assert live.held() == (0, 0)
    assert live.post("/v1/predict", JPEG).status_code == 200


@pytest.mark.parametrize("trusted", [True, False])
def test_a_backlog_of_one_client_does_not_hold_another(monkeypatch: pytest.MonkeyPatch, trusted: bool) -> None:
    """By X-Forwarded-For, which tells clients apart only where the proxy is trusted."""
    held, order, decode = threading.Semaphore(0), list[bytes](), service.to_pixels
    red, blue = (saved(Image.new("RGB", (9, 9), color), "PNG") for color in ("red", "blue"))

    def noting(raw: bytes, *arguments: Any) -> Any:
        order.append(raw)
        assert held.acquire(timeout=20)
        return decode(raw, *arguments)

    monkeypatch.setattr(service, "to_pixels", noting)
    proxies = ("127.0.0.1",) if trusted else ()
    with serving(small_model(), decoders=1, proxies=proxies) as live, ThreadPoolExecutor(2) as pool:

        def post(client: str, images: list[bytes]) -> httpx.Response:
            files, headers = [("images", raw) for raw in images], {"x-forwarded-for": f"6.6.6.6, {client}"}
            return httpx.post(live.address + "/v1/predict", files=files, headers=headers, timeout=30)

        backlog = pool.submit(post, "198.51.100.7", [red] * 6)
        until(lambda: live.metric("vitlab_queue_images") == 6)
        other = pool.submit(post, "198.51.100.8", [blue])
        until(lambda: live.metric("vitlab_queue_images") == 7)
        if trusted:
            until(lambda: blue in order)  # in a thread of its own, while the backlog's first picture holds the other
        for _ in range(7):
            held.release()
        assert {backlog.result().status_code, other.result().status_code} == {200}
    assert order.count(blue) == 1
    assert order.index(blue) == (1 if trusted else 6)


def test_what_strangers_call_things_forges_no_line_of_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a\nvitlab: all is well\x1b[31m")

    with serving(small_model()) as live:
        monkeypatch.setattr(service, "to_pixels", broken)
        part = b'--xx\r\nContent-Disposition: form-data; name="a"; filename="a\nvitlab: forged.jpg"\r\n\r\n'
        body, kind = part + JPEG + b"\r\n--xx--\r\n", {"content-type": "multipart/form-data; boundary=xx"}
        assert live.post("/v1/predict", body, headers=kind).status_code in (400, 500)
        assert live.post("/v1/predict", JPEG).status_code == 500
        assert live.get("/a%0Avitlab: forged").status_code == 404
    (*_, failed) = caplog.records
    assert failed.getMessage() == r"A request failed: RuntimeError: a\nvitlab: all is well\x1b[31m"
    assert "forged" not in caplog.text


def test_the_loop_is_free_while_images_are_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A large picture takes its time; who asks for health meanwhile does not wait for its turn."""
    decoded, decode = threading.Event(), service.to_pixels

    def slowly(*arguments: Any) -> Any:
        assert decoded.wait(20)
        return decode(*arguments)

    monkeypatch.setattr(service, "to_pixels", slowly)
    with serving(small_model(), decoders=1) as live, ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(httpx.post, live.address + "/v1/predict", content=JPEG, timeout=30) for _ in range(4)]
        try:
            until(lambda: live.metric("vitlab_queue_images") == 4)
            assert live.get("/healthz").status_code == 200
            assert not any(done.done() for done in sent)
        finally:
            decoded.set()
        assert {done.result().status_code for done in sent} == {200}
