"""Dynamic batching: single requests become batches for a model that runs in a few threads.

A batch goes when it is full, when its oldest item has waited `max_wait`, or, with a thread idle, as soon as nothing
else is on its way: whoever asks announces items first (`reserve`), decodes them, and then hands them over, so it is
known whether waiting can gain anything. Under load the queue fills while the model runs: batches grow by themselves.

Several batches at once, each on its part of the processors, do more than one on all of them, whose threads wait for
each other many times per layer; none takes more than its share of what is here. An item that comes when nothing else is
here has all processors for itself.

Items of several peers are taken in turn. When the queue is full, a peer that has nothing in it is still let in, up to
twice its size: else one peer could shut all others out.
"""

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar, final

from vitlab.serving.fair import FairQueue

Item = TypeVar("Item")
Answer = TypeVar("Answer")


class QueueFull(Exception):  # noqa: N818  not a fault: the caller is told when to come back
    """The queue has no room; `retry_after` is how many seconds it will take to work it off."""

    def __init__(self, retry_after: int) -> None:
        super().__init__(f"The queue is full; try again in {retry_after} s.")
        self.retry_after = retry_after


@dataclass(eq=False)
class _Job(Generic[Item, Answer]):
    kind: Hashable
    item: Item
    since: float
    answer: asyncio.Future[Answer]


@final
@dataclass(eq=False)
class Reservation:
    """Room in the queue for items that are on their way; a context manager that gives back what was not used."""

    left: int
    release: Callable[[int], None] = field(repr=False)
    peer: Hashable = None

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *_: object) -> None:
        left, self.left = self.left, 0
        if left:
            self.release(left)

    def take(self) -> None:
        assert self.left > 0, "more items were handed over than were announced"
        self.left -= 1
        self.release(1)


@final
class Batcher(Generic[Item, Answer]):
    """Collects items of one kind into batches for `run(kind, items) -> answers`, which is called in a thread.

    An answer that is an exception is raised for its item alone; what `run` raises, for the whole batch. `largest` says
    how many items of a kind may go together, at most `max_batch`; `on_batch(kind, size, seconds)` hears of each batch.
    `workers` batches run at once; `init_thread(num)` is called once in each thread that will be one of `num` at work.
    All methods belong to the event loop's thread.
    """

    def __init__(
        self,
        run: Callable[[Hashable, Sequence[Item]], Sequence[Answer | Exception]],
        *,
        max_batch: int,
        max_wait: float,
        max_queue: int,
        largest: Callable[[Hashable], int] | None = None,
        on_batch: Callable[[Hashable, int, float], None] | None = None,
        workers: int = 1,
        init_thread: Callable[[int], None] | None = None,
    ) -> None:
        assert max_batch >= 1, max_batch
        assert workers >= 1, workers
        assert max_wait >= 0, max_wait
        self.run, self.max_batch, self.max_wait, self.max_queue = run, max_batch, max_wait, max_queue
        self.largest = largest or (lambda _: max_batch)
        self.on_batch = on_batch
        self.seconds_per_item = 0.0  # a moving average, for Retry-After
        self._coming: Counter[Hashable] = Counter()  # of each peer: announced and not yet handed over
        self._waiting: FairQueue[_Job[Item, Answer]] = FairQueue()
        self._running = 0  # items in the model
        self._free = workers  # threads that may take one; none while a lone item has all processors
        self._ended = 0.0  # when the last batch did
        self._closed = False
        self._timer: asyncio.Handle | None = None
        self._due = 0.0  # when it rings; uvloop's handle of a moment that is already past does not know
        self._idle = asyncio.Event()
        self._idle.set()
        self.workers = workers
        ready = init_thread or (lambda _: None)
        self.alone = ThreadPoolExecutor(1, "vitlab-model", ready, (1,))
        self.together = self.alone if workers == 1 else ThreadPoolExecutor(workers, "vitlab-model", ready, (workers,))

    @property
    def depth(self) -> int:
        """Items on their way or waiting, those in the model not counted."""
        return self._coming.total() + len(self._waiting)

    @property
    def retry_after(self) -> int:
        """In how many whole seconds what is here now will have been worked off."""
        return max(1, math.ceil(self.depth * self.seconds_per_item))

    def has_room(self, num: int, peer: Hashable = None) -> bool:
        """Whether the peer may announce so many items."""
        is_here = peer in self._coming or peer in self._waiting
        return self.depth + num <= (self.max_queue if is_here else 2 * self.max_queue)

    def reserve(self, num: int, peer: Hashable = None) -> Reservation:
        """Announce `num` items, or raise `QueueFull`."""
        if not self.has_room(num, peer):
            raise QueueFull(self.retry_after)
        self._coming[peer] += num
        return Reservation(num, lambda used: self._release(used, peer), peer)

    async def submit(self, kind: Hashable, item: Item, reservation: Reservation) -> Answer:
        """The item's answer, or what `run` raised; an item whose caller was cancelled is left out."""
        loop = asyncio.get_running_loop()
        job = _Job[Item, Answer](kind, item, loop.time(), loop.create_future())
        self._waiting.append(reservation.peer, job)  # before its place is given back, so that whoever looks sees it
        reservation.take()
        self._dispatch()
        try:
            return await job.answer
        except asyncio.CancelledError:
            self._waiting.discard(reservation.peer, job)
            raise

    async def close(self) -> None:
        """Finish what was handed over, then end the threads."""
        self._closed = True
        self._dispatch()
        await self._idle.wait()
        self.alone.shutdown()
        self.together.shutdown()

    def _release(self, num: int, peer: Hashable) -> None:
        self._coming[peer] -= num
        if not self._coming[peer]:
            del self._coming[peer]
        self._dispatch()

    def _dispatch(self) -> None:
        """Start batches while there is a thread and the moment is right; else see to it that it is asked again."""
        if not self._waiting and not self._running:
            self._idle.set()
        while self._waiting and self._free:
            self._idle.clear()
            loop, kind = asyncio.get_running_loop(), self._waiting.next().kind
            here = self._running + self.depth
            most = min(self.max_batch, self.largest(kind), math.ceil(here / self.workers))
            ready = sum(job.kind == kind for job in self._waiting)
            due = min(job.since for job in self._waiting) + self.max_wait
            if ready < most and self._coming and not self._closed and loop.time() < due:
                if self._timer is None or self._timer.cancelled() or self._due != due:
                    self._stop_timer()
                    self._due, self._timer = due, loop.call_at(due, self._dispatch)
                return
            self._start(kind, most)

    def _start(self, kind: Hashable, most: int) -> None:
        self._stop_timer()
        batch = self._waiting.take(most, lambda job: job.kind == kind)
        # one that had to wait for a batch has others behind it soon
        others = self._running or self._waiting or self._coming
        alone = not others and len(batch) == 1 and batch[0].since >= self._ended
        threads, taken = (self.alone, self.workers) if alone else (self.together, 1)
        self._running += len(batch)
        self._free -= taken
        loop = asyncio.get_running_loop()
        started = loop.time()
        future = loop.run_in_executor(threads, self.run, kind, [job.item for job in batch])
        future.add_done_callback(lambda done: self._deliver(done, batch, started, taken))

    def _deliver(
        self,
        done: "asyncio.Future[Sequence[Answer | Exception]]",
        batch: list[_Job[Item, Answer]],
        started: float,
        taken: int,
    ) -> None:
        self._ended = asyncio.get_running_loop().time()
        kind, seconds = batch[0].kind, self._ended - started
        an_item = seconds / self._running  # with those of other threads
        self.seconds_per_item = 0.8 * self.seconds_per_item + 0.2 * an_item if self.seconds_per_item else an_item
        self._running -= len(batch)
        self._free += taken
        self._dispatch()  # the model goes on before its last answers are written
        if self.on_batch is not None:
            self.on_batch(kind, len(batch), seconds)
        error = done.exception()
        if error is not None:
            for job in batch:
                if not job.answer.done():
                    job.answer.set_exception(error)
            return
        for job, answer in zip(batch, done.result(), strict=True):
            if job.answer.done():
                continue
            if isinstance(answer, Exception):
                job.answer.set_exception(answer)
            else:
                job.answer.set_result(answer)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
