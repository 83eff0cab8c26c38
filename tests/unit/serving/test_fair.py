"""Turns between peers, by the order in which things are taken."""

import asyncio
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitlab.serving.fair import FairQueue, FairThreads


def queue_of(*names: str) -> FairQueue[str]:
    """Items in the order in which they come; the first letter is the peer."""
    queue: FairQueue[str] = FairQueue()
    for name in names:
        queue.append(name[0], name)
    return queue


def test_each_peer_has_its_turn() -> None:
    queue = queue_of("a1", "a2", "a3", "a4", "b1", "b2", "c1")
    assert queue.take(3) == ["a1", "b1", "c1"]
    assert queue.take(1) == ["a2"]
    queue.append("c", "c2")  # before a, who has just had its turn
    assert queue.take(9) == ["b2", "c2", "a3", "a4"]
    assert len(queue) == 0


def test_one_who_was_served_is_behind_the_others() -> None:
    queue = queue_of("a1", "a2", "a3")
    assert queue.take(1) == ["a1"]
    queue.append("b", "b1")
    assert queue.take(1) == ["b1"]
    queue.append("b", "b2")
    assert [queue.take(1) for _ in range(3)] == [["a2"], ["b2"], ["a3"]]


def test_what_is_not_wanted_keeps_its_place() -> None:
    queue = queue_of("a1", "b2", "a2", "b1", "a3")
    assert queue.take(9, lambda name: name.endswith("2")) == ["a2", "b2"]
    assert queue.next() == "a1"
    assert queue.take(9) == ["a1", "b1", "a3"]


def test_what_was_taken_out_is_not_served() -> None:
    queue = queue_of("a1", "b1", "a2")
    queue.discard("a", "a1")
    queue.discard("b", "b1")
    queue.discard("b", "b1")
    assert "b" not in queue
    assert "a" in queue
    assert list(queue) == ["a2"]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans())))
def test_nobody_waits_for_more_than_one_of_each_other_peer(steps: list[tuple[str, bool]]) -> None:
    """In any history of coming and taking, between two turns of a peer that waits no other has two."""
    queue: FairQueue[tuple[str, int]] = FairQueue()
    since: dict[str, list[str]] = {}  # of each peer that waits: who was served since its last turn
    waiting: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    for number, (peer, takes) in enumerate(steps):
        if takes and len(queue):
            ((served, item),) = queue.take(1)
            assert item == waiting[served].pop(0)  # a peer's own are in order
            for others in since.values():
                others.append(served)
            since.pop(served)
            if waiting[served]:
                since[served] = []
            for other, seen in since.items():
                assert len(set(seen) - {other}) == len(seen)
        else:
            queue.append(peer, (peer, number))
            waiting[peer].append(number)
            since.setdefault(peer, [])


def in_threads(num: int, test: Callable[[FairThreads], "asyncio.Future[None]"]) -> None:
    async def run() -> None:
        threads = FairThreads(num, "test")
        try:
            await asyncio.wait_for(test(threads), 20)
        finally:
            threads.close()

    asyncio.run(run())


@pytest.mark.parametrize("num", [1, 2])
def test_a_backlog_does_not_hold_another_peer(num: int) -> None:
    begun: list[str] = []
    gate = threading.Event()

    def work(name: str) -> str:
        begun.append(name)
        assert gate.wait(10)
        return name

    async def test(threads: FairThreads) -> None:
        def ask(name: str) -> "asyncio.Task[str]":
            return asyncio.create_task(threads.run(name[0], lambda: work(name)))

        backlog = [ask(f"a{number}") for number in range(20)]
        await asyncio.sleep(0.05)
        assert len(begun) == num
        late = [ask("b0"), ask("b1")]
        while len(begun) == num:
            await asyncio.sleep(0.001)
        assert begun[num:] == ["b0"]  # in the thread for those who have none
        late.append(ask("c0"))
        await asyncio.sleep(0.05)
        assert len(begun) == num + 1
        gate.set()
        assert await asyncio.gather(*late, *backlog) == ["b0", "b1", "c0", *(f"a{number}" for number in range(20))]

    in_threads(num, lambda threads: asyncio.ensure_future(test(threads)))
    assert [name for name in begun if name[0] == "a"] == [f"a{number}" for number in range(20)]
    assert max(begun.index("b1"), begun.index("c0")) <= num + 5  # a turn of each before them, in threads that race


def test_errors_come_through_and_the_cancelled_is_not_begun() -> None:
    begun: list[str] = []
    gate = threading.Event()

    def hold() -> None:
        assert gate.wait(10)

    def fail() -> None:
        raise LookupError("mine")

    async def test(threads: FairThreads) -> None:
        holding = [asyncio.create_task(threads.run(peer, hold)) for peer in "xy"]
        left = asyncio.create_task(threads.run("b", lambda: begun.append("left")))
        stays = asyncio.create_task(threads.run("b", lambda: begun.append("stays")))
        failing = asyncio.create_task(threads.run("c", fail))
        await asyncio.sleep(0)
        left.cancel()
        for task in holding:
            task.cancel()  # their threads are busy on
        await asyncio.sleep(0)
        assert begun == []
        gate.set()
        await stays
        with pytest.raises(LookupError, match="mine"):
            await failing
        assert await threads.run("d", lambda: 5) == 5

    in_threads(1, lambda threads: asyncio.ensure_future(test(threads)))
    assert begun == ["stays"]
