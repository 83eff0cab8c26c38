"""Commands of `vitlab` as forks of a process that has imported what they need, one at a time."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path

SECONDS = 600  # after which a run is taken to hang

# Imports take longer than the runs, each of which is a fork of a process that has these modules, those that there are.
PRELOADED = (
    "torch._dynamo", "torch.distributed.checkpoint.state_dict", "sklearn.datasets", "matplotlib.figure",
    "huggingface_hub", "vitlab.cli.train", "vitlab.api", "vitlab.training.session", "vitlab.reporting.make",
)  # fmt: skip
FORKING = """
import contextlib, importlib, json, os, runpy, sys

for name in sys.argv[1:]:
    with contextlib.suppress(ImportError):
        importlib.import_module(name)
for line in sys.stdin:
    module, words, said = json.loads(line)
    if child := os.fork():
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), number)
    sys.argv = ["vitlab", *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    sys.exit()
"""


class Tree:
    """A source tree, and the folder that its commands run in."""

    def __init__(self, name: str, source: Path, folder: Path, variables: Mapping[str, str] | None = None) -> None:
        self.name, self.source, self.folder, self.variables = name, source, folder, variables or {}
        self.takes_earlier = False  # names of options
        folder.mkdir()
        self.said = folder / "said.txt"
        self.server = subprocess.Popen(
            [sys.executable, "-c", FORKING, *PRELOADED],
            cwd=folder,
            env=self._environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # a group, so that runs and their workers end with it
        )

    def _environment(self) -> dict[str, str]:
        """One thread, no GPU, this tree's modules."""
        mine = {**os.environ, "PYTHONPATH": str(self.source), "CUDA_VISIBLE_DEVICES": "", "NO_COLOR": "1"}
        if mine.pop("PYTHONDONTWRITEBYTECODE", None):  # every run would compile its modules
            mine["PYTHONPYCACHEPREFIX"] = str(self.folder.parent / "bytecode")
        return {**mine, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **self.variables}

    def start(self, words: list[str], processes: int = 1) -> int:
        """The id of a process that is `python -m vitlab` with these words, or torchrun with it."""
        module = "vitlab"
        if processes > 1:
            module = "torch.distributed.run"
            words = ["--standalone", "--nproc-per-node", str(processes), "-m", "vitlab", *words]
        self.said.unlink(missing_ok=True)
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps([module, words, str(self.said)]) + "\n")
        self.server.stdin.flush()
        return int(self._line())

    def wait(self, process: int) -> int:
        """The exit status of the process that was started; negative: the signal that ended it."""
        timer = threading.Timer(SECONDS, os.kill, (process, signal.SIGTERM))
        timer.start()
        try:
            return int(self._line())
        finally:
            timer.cancel()

    def _line(self) -> str:
        assert self.server.stdout is not None
        return self.server.stdout.readline()

    def last_line(self) -> str:
        """What the last process said in the end."""
        said = self.said.read_text() if self.said.exists() else ""
        return (said.strip().splitlines() or ["nothing was said"])[-1]

    def check(self) -> None:
        """That `vitlab` is this tree's, and not one that is installed."""
        command = [sys.executable, "-c", "import vitlab; print(vitlab.__file__)"]
        found = subprocess.run(command, cwd=self.folder, env=self._environment(), stdout=subprocess.PIPE, check=True)
        assert Path(found.stdout.decode().strip()).is_relative_to(self.source), found.stdout

    def close(self) -> None:
        os.killpg(self.server.pid, signal.SIGKILL)
        self.server.wait()
