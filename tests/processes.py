"""Scripts on several processes of this machine: as torchrun starts them, or forked from one that has imported all."""

import atexit
import functools
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# At the head of a script: runs last of all that a process does at its end, and says whether gloo is still there then.
LOOK_BEHIND = """
import atexit, os
from pathlib import Path

def look_behind():
    import torch.distributed as dist
    threads = sorted(comm.read_text().strip() for comm in Path("/proc/self/task").glob("*/comm"))
    if dist.is_initialized() or any("gloo" in name for name in threads):
        os.write(2, f"left behind: {threads}".encode())

atexit.register(look_behind)
"""


def torchrun(*command: str | Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """What became of a script with its arguments, or of '-m' and a module with its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        [*launcher, *map(str, command)], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
    return _left_in_order(run)


def forked(script: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """A script on two processes without the launcher: torch is imported once per test session, not six times a test."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, name) for name in ("stdout", "stderr")]
        request = {"command": [str(script), *map(str, arguments)], "files": list(map(str, files))}
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = int(server.stdout.readline())
        said = [file.read_text() for file in files]
    return _left_in_order(subprocess.CompletedProcess(request["command"], status, *said))


def _left_in_order(run: subprocess.CompletedProcess[str]) -> subprocess.CompletedProcess[str]:
    assert run.returncode != 0 or "left behind" not in run.stderr, run.stderr[-3000:]
    return run


@functools.cache
def _server() -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("fork_server.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    atexit.register(server.communicate)  # which ends its input, and so the server
    return server
