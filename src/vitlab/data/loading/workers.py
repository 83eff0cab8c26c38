"""Processes that fill rows of shared batches.

They are started by multiprocessing's fork server, a process without threads that has imported what they need: a fork of
the training process itself would copy locks that torch's, CUDA's or a progress bar's threads may hold at that moment,
and a fresh interpreter each would import torch anew. They take tasks from one pipe, so that a slow one takes fewer,
leave images in shared memory, and ignore Ctrl-C and SIGTERM, which are for the process that trains; they end with it.
"""

import contextlib
import multiprocessing
import os
import signal
import struct
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection, resource_tracker, util
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from types import ModuleType
from typing import Any, NamedTuple, Protocol, TypeAlias

import torch

from vitlab.core.errors import DataError, Error
from vitlab.data.contract import Array
from vitlab.data.loading.shared_memory import SharedArray, SharedObject
from vitlab.data.targets import Slot

SERVER = "vitlab.data.loading.fork_server"
SIGNALS = (signal.SIGINT, signal.SIGTERM)

Pipe: TypeAlias = Any  # a Connection
Job: TypeAlias = tuple[int, int, int]  # slot, first row, last row + 1
TASK = struct.Struct("=3q")


class Damaged(NamedTuple):
    """An image that could not be read."""

    number: int
    sentence: str  # which image it is, and what is wrong with it


class Reader(Protocol):
    """Reads images into rows; picklable."""

    def slots(self) -> Mapping[str, Slot]:
        """What it fills for each image: arrays by name."""
        ...

    def fill(self, rows: Mapping[str, Array], indices: Array, places: Array) -> list[Damaged]:
        """Fill `rows`, arrays [n, ...] by name, with the images `indices` [n] as their `places` [n] have it.

        What was damaged is returned; `indices` then says what was read in its stead.
        """
        ...


@dataclass(frozen=True)
class Slots:
    """Batches that are filled and handed out in turn."""

    rows: Mapping[str, SharedArray]  # [slots, rows, ...], by the names that the reader gives them
    indices: SharedArray  # int64 [slots, rows]
    places: SharedArray  # int64 [slots, rows]


class Failure(NamedTuple):
    """What went wrong in a worker."""

    error: Exception
    details: str


class Done(NamedTuple):
    """A task that was done."""

    slot: int
    damaged: list[Damaged]


class Workers:
    """`num` processes that fill slots with a reader."""

    def __init__(self, num: int, reader: SharedObject, slots: Slots) -> None:
        self.num = self._starting = num
        context = worker_context()
        tasks, self._tasks = connection.Pipe(duplex=False)
        self._done: list[Pipe] = []
        self._processes: list[BaseProcess] = []
        # Not `weakref.finalize`: at the interpreter's end multiprocessing joins its processes, so this has to be first.
        self._end = util.Finalize(self, _end, (self._processes, self._tasks), exitpriority=10)
        try:
            with _signals_put_off(), contextlib.nullcontext() if reader.needs_script else _script_left_alone():
                for number in range(num):
                    heard, done = connection.Pipe(duplex=False)
                    arguments = (reader, slots, tasks, done)
                    process = context.Process(target=work, args=arguments, name=f"vitlab-data-{number}", daemon=True)
                    process.start()
                    done.close()
                    self._done.append(heard)
                    self._processes.append(process)
        except (EOFError, OSError) as error:
            self.close()
            raise DataError(
                f"The {num} data-loading workers could not be started ({error or type(error).__name__}):"
                " use fewer, or 0 to load in this process."
            ) from error
        except BaseException:
            self.close()
            raise
        tasks.close()

    def give(self, task: Job) -> None:
        """Have a task done by whichever worker is free first."""
        with contextlib.suppress(BrokenPipeError):  # no worker is left, which `take` explains
            _send(self._tasks, TASK.pack(*task))

    def take(self) -> list[Done]:
        """Wait for tasks that were done; an error where one failed or a worker ended, which ends them all."""
        found: list[Done] = []
        while not found or self._starting:  # until all have begun, signals may yet end them
            pipes: list[Pipe] = connection.wait(self._done)
            for pipe in pipes:
                message = self._hear(pipe)
                if message is None:
                    self._starting -= 1
                else:
                    found.append(message)
        return found

    def _hear(self, pipe: Pipe) -> Done | None:
        try:
            message: Done | Failure | None = pipe.recv()
        except (EOFError, OSError):  # only its worker could write to it, and has gone, perhaps in the middle of a word
            dead = self._processes[self._done.index(pipe)]
            dead.join()
            sentence = _obituary(dead)
            self.close()
            raise DataError(sentence) from None
        if isinstance(message, Failure):
            self.close()
            message.error.add_note(f"In a data-loading worker:\n{message.details}")
            raise message.error
        return message

    def close(self) -> None:
        """End all workers at once, and wait until they have ended."""
        self._end()


def worker_context() -> ForkServerContext:
    """Where workers are started from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([SERVER])  # without effect once the server runs
    return context


def work(reader: SharedObject, slots: Slots, tasks: Pipe, done: Pipe) -> None:
    """The life of a worker: fill rows until there are no more tasks."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)
    with contextlib.suppress(BrokenPipeError):  # the parent has gone
        try:
            done.send(None)
            images: Reader = reader.load()
            arrays = {name: shared.array() for name, shared in slots.rows.items()}
            indices, places = slots.indices.array(), slots.places.array()
            while task := _receive(tasks):
                slot, start, stop = TASK.unpack(task)
                rows = slice(start, stop)
                here = {name: array[slot, rows] for name, array in arrays.items()}
                done.send(Done(slot, images.fill(here, indices[slot, rows], places[slot, rows])))
        except BrokenPipeError:
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, the parent has to hear of it
            done.send(Failure(_portable(error), traceback.format_exc()))


# Several processes read one pipe, without a lock that one of them might be killed with: messages are of one length and
# shorter than PIPE_BUF, so they are written and read whole.
def _send(pipe: Pipe, message: bytes) -> None:
    os.write(pipe.fileno(), message)


def _receive(pipe: Pipe) -> bytes:
    return os.read(pipe.fileno(), TASK.size)


def _portable(error: Exception) -> Exception:
    """The error as the parent shall raise it: what a user did stays, anything else becomes one sentence."""
    if isinstance(error, Error):
        return error
    return DataError(f"A data-loading worker failed with {type(error).__name__}: {error}.")


def _obituary(process: BaseProcess) -> str:
    code = process.exitcode
    assert code is not None
    what = f"A data-loading worker (process {process.pid})"
    if code >= 0:
        return f"{what} ended unexpectedly with status {code}: what it printed above says why."
    name = next((known.name for known in signal.Signals if known == -code), str(-code))
    advice = "memory has probably run out, so use fewer workers or smaller batches"
    return f"{what} was killed by signal {name}" + (f": {advice}." if name in ("SIGKILL", "SIGBUS") else ".")


def _end(processes: Sequence[BaseProcess], tasks: Pipe) -> None:
    for process in processes:
        process.kill()  # they own nothing that killing could harm
    for process in processes:
        process.join()
    tasks.close()


@contextlib.contextmanager
def _signals_put_off() -> Iterator[None]:
    """Signals come after this, also to what is started inside until it asks for them: the server ignores them then."""
    resource_tracker.ensure_running()  # it would let them in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_starting = threading.Lock()


@contextlib.contextmanager
def _script_left_alone() -> Iterator[None]:
    """Processes started inside do not import the main script: it need not say `if __name__ == "__main__"`."""
    with _starting:
        script = sys.modules["__main__"]
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            yield
        finally:
            sys.modules["__main__"] = script
