"""Runs scripts on two processes each, forked from this one, which has imported what they need (`processes.forked`).

A line of standard input is a script with its arguments and the files for what it says; one of standard output the
status. As under torchrun, one process that fails ends the other.
"""

import json
import os
import runpy
import signal
import socket
import sys
import time

# ruff: noqa: F401
import scipy.special
import torch.distributed.checkpoint
import torch.distributed.fsdp
import torch.utils.tensorboard

import vitlab.training.session

LIMIT = 300  # seconds


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def end_of(children: list[int]) -> int:
    """The first status that is not 0; the other process is ended then."""
    status, left, until = 0, set(children), time.monotonic() + LIMIT
    while left:
        ended, code = os.waitpid(-1, os.WNOHANG)
        if not ended:
            time.sleep(0.01)
            if time.monotonic() > until:
                for child in left:
                    os.kill(child, signal.SIGKILL)
            continue
        left.discard(ended)
        if code and not status:
            status = os.waitstatus_to_exitcode(code)
            for child in left:
                os.kill(child, signal.SIGTERM)
    return status


def serve() -> list[str]:
    """Answers requests; in a forked process gives the command that it is to be."""
    for line in sys.stdin:
        request, children, port = json.loads(line), [], str(free_port())
        for rank in range(2):
            child = os.fork()
            if not child:
                own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
                os.environ |= own | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for number, file in enumerate(request["files"], start=1):
                    os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
                return request["command"]
            children.append(child)
        print(end_of(children), flush=True)
    sys.exit()


sys.argv = serve()
runpy.run_path(sys.argv[0], run_name="__main__")
