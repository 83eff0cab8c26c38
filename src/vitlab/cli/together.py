"""Processes that torchrun started: what all of them would say is said once."""

import functools
import hashlib
import os
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import TCPStore

WAIT = timedelta(seconds=10)


def first_to_say(sentence: str) -> bool:
    """Whether no other process has said this; a process alone always is the first."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return True
    key = f"vitlab/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{hashlib.sha256(sentence.encode()).hexdigest()}"
    try:
        return _store().add(key, 1) == 1
    except Exception:  # noqa: BLE001  said twice is better than not at all
        return True


@functools.cache
def _store() -> "TCPStore":
    """The launcher's, which outlives each of its processes."""
    from torch.distributed import TCPStore

    return TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=WAIT)
