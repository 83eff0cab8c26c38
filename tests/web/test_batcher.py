"""When a batch goes, what it holds, and what happens at the bounds; time is the event loop's own."""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Hashable, Sequence
from typing import Any

import pytest

from vitlab.serving.batcher import Batcher, QueueFull


class Model:
    """Doubles numbers, remembers its batches, and may be held up."""

    def __init__(self) -> None:
        self.batches: list[tuple[Hashable, list[int]]] = []
        self.free = threading.Event()
        self.free.set()

    def run(self, kind: Hashable, items: Sequence[int]) -> Sequence[int | Exception]:
        self.batches.append((kind, list(items)))
        assert self.free.wait(10)
        if 13 in items:
            raise ValueError("thirteen")
        return [LookupError("negative") if item < 0 else 2 * item for item in items]


def check(test: Callable[[Model, Batcher[int, int]], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run a test with a batcher that is closed afterwards."""

    async def run() -> None:
        model = Model()
        batcher: Batcher[int, int] = Batcher(
            model.run, **{"max_batch": 4, "max_wait": 0.05, "max_queue": 16, **settings}
        )
        try:
            await asyncio.wait_for(test(model, batcher), 20)
        finally:
            model.free.set()
            await batcher.close()

    asyncio.run(run())


async def put(batcher: Batcher[int, int], item: int, kind: str = "k", peer: str = "me") -> int:
    with batcher.reserve(1, peer) as places:
        return await batcher.submit(kind, item, places)


async def settle() -> None:
    """Let everything that can run do so."""
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_alone_an_item_goes_at_once() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        start = asyncio.get_running_loop().time()
        assert await put(batcher, 3) == 6
        assert asyncio.get_running_loop().time() - start < 5  # of the 10 that it might wait
        assert model.batches == [("k", [3])]

    check(test, max_wait=10)


def test_it_waits_for_what_was_announced_and_goes_when_that_is_there() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        coming = batcher.reserve(1)
        first = asyncio.ensure_future(put(batcher, 1))
        await settle()
        assert model.batches == []
        second = asyncio.ensure_future(batcher.submit("k", 2, coming))
        assert await asyncio.gather(first, second) == [2, 4]
        assert model.batches == [("k", [1, 2])]

    check(test, max_wait=10)


def test_it_goes_when_what_was_announced_does_not_come() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        with batcher.reserve(3):
            first = asyncio.ensure_future(put(batcher, 1))
            await settle()
            assert model.batches == []
        assert await first == 2

    check(test, max_wait=10)


def test_the_oldest_waits_no_longer_than_the_set_time() -> None:
    async def test(_: Model, batcher: Batcher[int, int]) -> None:
        loop = asyncio.get_running_loop()
        with batcher.reserve(1):
            start = loop.time()
            assert await put(batcher, 1) == 2
            assert 0.05 <= loop.time() - start < 2

    check(test, max_wait=0.05)


def test_a_full_batch_goes_at_once() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        with batcher.reserve(1):
            assert await asyncio.gather(*(put(batcher, item) for item in range(4))) == [0, 2, 4, 6]
        assert model.batches == [("k", [0, 1, 2, 3])]

    check(test, max_wait=10)


def test_under_load_batches_grow_and_keep_their_order() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        model.free.clear()
        tasks = [asyncio.ensure_future(put(batcher, 0))]
        await settle()
        tasks += [asyncio.ensure_future(put(batcher, item)) for item in range(1, 10)]
        await settle()
        assert batcher.depth == 9
        model.free.set()
        assert await asyncio.gather(*tasks) == [2 * item for item in range(10)]
        assert model.batches == [("k", [0]), ("k", [1, 2, 3, 4]), ("k", [5, 6, 7, 8]), ("k", [9])]
        assert batcher.depth == 0

    check(test)


def test_kinds_do_not_mix_and_the_oldest_is_first() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        model.free.clear()
        tasks = [asyncio.ensure_future(put(batcher, 0))]
        await settle()
        tasks += [asyncio.ensure_future(put(batcher, item, "ab"[item % 2])) for item in range(1, 7)]
        await settle()
        model.free.set()
        await asyncio.gather(*tasks)
        assert model.batches == [("k", [0]), ("b", [1, 3]), ("a", [2, 4, 6]), ("b", [5])]

    check(test, largest=lambda kind: 2 if kind == "b" else 100)


def test_peers_take_turns() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        model.free.clear()
        tasks = [asyncio.ensure_future(put(batcher, 0))]
        await settle()
        tasks += [asyncio.ensure_future(put(batcher, item)) for item in range(1, 7)]
        await settle()
        tasks += [asyncio.ensure_future(put(batcher, item, peer="you")) for item in (100, 101, 102)]
        await settle()
        model.free.set()
        assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8, 10, 12, 200, 202, 204]
        assert [items for _, items in model.batches] == [[0], [100, 1, 101, 2], [102, 3, 4, 5], [6]]

    check(test)


def test_a_full_queue_lets_in_who_has_nothing_there() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        model.free.clear()
        tasks = [asyncio.ensure_future(put(batcher, 0))]
        await settle()
        tasks += [asyncio.ensure_future(put(batcher, item)) for item in range(1, 5)]
        await settle()
        assert not batcher.has_room(1, "me")
        with batcher.reserve(3, "you"):
            with pytest.raises(QueueFull):
                batcher.reserve(1, "you")
            assert batcher.has_room(1, "they")
            with pytest.raises(QueueFull):  # twice the bound is the end for everybody
                batcher.reserve(2, "they")
        assert batcher.depth == 4
        model.free.set()
        assert await asyncio.gather(*tasks) == [0, 2, 4, 6, 8]
        assert batcher.has_room(4, "me")

    check(test, max_queue=4)


def test_over_the_bound_is_refused_and_room_comes_back() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        model.free.clear()
        running = asyncio.ensure_future(put(batcher, 1))
        await settle()
        batcher.seconds_per_item = 2.5
        with batcher.reserve(3, "me"):
            with pytest.raises(QueueFull) as caught:
                batcher.reserve(2, "me")
            assert caught.value.retry_after == 8  # three items of 2.5 s, rounded up
            with batcher.reserve(1, "me"), pytest.raises(QueueFull):
                batcher.reserve(1, "me")
        with batcher.reserve(4, "me"):
            pass
        model.free.set()
        assert await running == 2

    check(test, max_queue=4)


def test_a_failing_batch_fails_whole_and_a_failing_item_alone() -> None:
    async def test(_: Model, batcher: Batcher[int, int]) -> None:
        with batcher.reserve(1):
            answers = await asyncio.gather(*(put(batcher, i) for i in (1, -1, 2, 3)), return_exceptions=True)
        assert [type(answer) for answer in answers] == [int, LookupError, int, int]
        with pytest.raises(ValueError, match="thirteen"):
            await put(batcher, 13)
        assert await put(batcher, 5) == 10

    check(test)


def test_a_cancelled_item_never_reaches_the_model() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        model.free.clear()
        running = asyncio.ensure_future(put(batcher, 1))
        await settle()
        waiting = [asyncio.ensure_future(put(batcher, item)) for item in (2, 3)]
        await settle()
        waiting[0].cancel()
        await settle()
        model.free.set()
        assert await asyncio.gather(running, waiting[1]) == [2, 6]
        assert model.batches == [("k", [1]), ("k", [3])]
        assert batcher.depth == 0

    check(test)


def test_closing_finishes_what_was_handed_over() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        model.free.clear()
        tasks = [asyncio.ensure_future(put(batcher, item)) for item in range(9)]
        await settle()
        closing = asyncio.ensure_future(batcher.close())
        await settle()
        assert not closing.done()
        model.free.set()
        await closing
        assert await asyncio.gather(*tasks) == [2 * item for item in range(9)]

    check(test)


def test_every_batch_is_told_of() -> None:
    seen: list[tuple[Hashable, int]] = []

    async def test(_: Model, batcher: Batcher[int, int]) -> None:
        with batcher.reserve(1):
            await asyncio.gather(*(put(batcher, item) for item in range(4)))

    check(test, on_batch=lambda kind, size, _: seen.append((kind, size)))
    assert seen == [("k", 4)]


def test_workers_share_what_is_here() -> None:
    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        model.free.clear()
        with batcher.reserve(4) as places:
            tasks = [asyncio.ensure_future(batcher.submit("k", item, places)) for item in range(4)]
            await settle()
        assert sorted(items for _, items in model.batches) == [[0, 1], [2, 3]]  # both run, neither has ended
        tasks += [asyncio.ensure_future(put(batcher, item)) for item in range(4, 9)]
        await settle()
        assert len(model.batches) == 2
        model.free.set()
        assert await asyncio.gather(*tasks) == [2 * item for item in range(9)]

    check(test, workers=2, max_wait=10)


def test_a_lone_item_has_everything_and_one_that_had_to_wait_for_it_has_not() -> None:
    places: dict[int, int] = {}  # of each thread: one of how many it is
    seen: list[tuple[int, int]] = []

    def prepare(num: int) -> None:
        places[threading.get_ident()] = num

    async def test(model: Model, batcher: Batcher[int, int]) -> None:
        run = model.run

        def noting(kind: Hashable, items: Sequence[int]) -> Sequence[int | Exception]:
            seen.extend((item, places[threading.get_ident()]) for item in items)
            return run(kind, items)

        batcher.run = noting
        model.free.clear()
        tasks = [asyncio.ensure_future(put(batcher, 1))]
        await settle()
        tasks.append(asyncio.ensure_future(put(batcher, 2)))
        await settle()
        assert seen == [(1, 1)]  # the second waits, although a thread is idle: there is no processor for it
        model.free.set()
        await asyncio.gather(*tasks)
        assert seen == [(1, 1), (2, 2)]
        await put(batcher, 3)
        assert seen[2:] == [(3, 1)]

    check(test, workers=2, init_thread=prepare)
