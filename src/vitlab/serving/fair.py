"""Turns between peers: whoever asks for much waits behind whoever asks for little."""

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")
Item = TypeVar("Item")


@final
class FairQueue(Generic[Item]):
    """A line per peer, served in turn: an item waits for at most one of each other peer, and for its own peer's."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, deque[Item]] = OrderedDict()  # none is empty; the next to be served first
        self._served: Hashable = None  # the last one

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def __contains__(self, peer: Hashable) -> bool:
        """Whether the peer has a line."""
        return peer in self._lines

    def __iter__(self) -> Iterator[Item]:
        """All of them, line by line."""
        for line in self._lines.values():
            yield from line

    def append(self, peer: Hashable, item: Item) -> None:
        self._lines.setdefault(peer, deque()).append(item)
        if self._served in self._lines:  # behind who comes after its turn
            self._lines.move_to_end(self._served)

    def next(self) -> Item:
        """Whose turn it is; it stays."""
        return next(iter(self._lines.values()))[0]

    def take(self, most: int, wanted: Callable[[Item], bool] = lambda _: True) -> list[Item]:
        """Up to so many that are wanted, one of each peer in turn; who was served goes behind the others."""
        taken: list[Item] = []
        found = True
        while found:
            found = False
            for peer, line in list(self._lines.items()):
                item = next((item for item in line if wanted(item)), None) if len(taken) < most else None
                if item is not None:
                    found = True
                    taken.append(item)
                    line.remove(item)
                    self._lines.move_to_end(peer)
                    self._served = peer
                    if not line:
                        del self._lines[peer]
        return taken

    def discard(self, peer: Hashable, item: Item) -> None:
        """Take one out that will not be waited for any more, if it is still here."""
        line = self._lines.get(peer, deque())
        if item in line:
            line.remove(item)
            if not line:
                del self._lines[peer]


@dataclass(eq=False)
class _Call:
    peer: Hashable
    work: Callable[[], Any]
    done: asyncio.Future[Any]


@final
class FairThreads:
    """Threads that take work of each peer in turn; all methods belong to the event loop's thread.

    There is one more than `num`, for a peer that has none at work for it: work may be long, and cannot be interrupted.
    """

    def __init__(self, num: int, name: str) -> None:
        self.num = num
        self._threads = ThreadPoolExecutor(num + 1, thread_name_prefix=name)
        self._running: Counter[Hashable] = Counter()  # threads at work for each peer
        self._waiting: FairQueue[_Call] = FairQueue()

    async def run(self, peer: Hashable, work: Callable[[], T]) -> T:
        """What the work gives; if the caller is cancelled before its turn, it is never begun."""
        call = _Call(peer, work, asyncio.get_running_loop().create_future())
        self._waiting.append(peer, call)
        self._start()
        try:
            return await call.done
        except asyncio.CancelledError:
            self._waiting.discard(peer, call)
            raise

    def close(self) -> None:
        """Wait for what was begun."""
        self._threads.shutdown()

    def _start(self) -> None:
        while (call := self._next()) is not None:
            self._running[call.peer] += 1
            running = asyncio.get_running_loop().run_in_executor(self._threads, call.work)
            running.add_done_callback(lambda ended, call=call: self._deliver(ended, call))

    def _next(self) -> _Call | None:
        running = self._running.total()
        if running > self.num:
            return None
        taken = self._waiting.take(1, lambda call: running < self.num or call.peer not in self._running)
        return taken[0] if taken else None

    def _deliver(self, ended: asyncio.Future[Any], call: _Call) -> None:
        self._running[call.peer] -= 1
        if not self._running[call.peer]:
            del self._running[call.peer]
        self._start()
        error = ended.exception()
        if call.done.done():  # nobody waits for it
            return
        if error is not None:
            call.done.set_exception(error)
        else:
            call.done.set_result(ended.result())
