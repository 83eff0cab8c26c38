"""Several processes that compute together, of which the first does some things alone."""

import contextlib
import itertools
import time
from collections.abc import Iterator

import torch.distributed as dist

LOOK_EVERY = 0.1  # seconds between looks at whether the first process is done
_turns = itertools.count()  # of the first process alone; all processes count the same


@contextlib.contextmanager
def first_alone() -> Iterator[bool]:
    """Whether this process is the first, which does what follows while the others wait, however long it takes.

    They look into the store where all processes met: a collective would end with the group's timeout, and could not be
    interrupted.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        yield True
        return
    first, find = dist.get_rank() == 0, getattr(dist.distributed_c10d, "_get_default_store", None)
    if find is None:  # without it nobody waits
        yield first
        return
    store, key = find(), f"vitlab/alone/{next(_turns)}"
    try:
        yield first
    finally:
        if first:
            store.set(key, "done")
    with contextlib.suppress(dist.DistError):  # the first process is gone, and the store with it
        while not store.check([key]):
            time.sleep(LOOK_EVERY)
