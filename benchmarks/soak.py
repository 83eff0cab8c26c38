"""What holds over hundreds of ends, half an hour of load, and kills at random moments.

    python benchmarks/soak.py ends --runs 200            runs of two processes that end by themselves
    python benchmarks/soak.py serve --minutes 30         a service at a load, one request of a hundred hostile
    python benchmarks/soak.py kills --minutes 30         training that is killed and resumed until it is done

The exit status is 1 where anything was lost. `ends` starts each process as a fork of one that has imported what it needs;
`--torchrun` starts whole commands by torchrun instead, which takes several times as long. Both stop the other process
when one fails, as a launcher does. A run counts when both processes end with status 0 and its report is written.

`serve` and `kills` are meant for a machine with nothing else to do.
"""

import argparse
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "tests")]

from forking import Tree
from timing import machine

KINDS = {"shard": "digits", "replicate": "digits", "experts": "vmoe-digits"}  # a strategy and the recipe for it
Say = Callable[[str], None]


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def end_once(trees: list[Tree], words: list[str]) -> list[int]:
    """The statuses of processes that train together; when one fails, the others are told to end."""
    started = [tree.start(words) for tree in trees]
    with ThreadPoolExecutor(len(trees)) as pool:
        ends = [pool.submit(tree.wait, process) for tree, process in zip(trees, started, strict=True)]
        waiting = set(ends)
        while waiting:
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            if any(end.result() for end in done):
                for end, process in zip(ends, started, strict=True):
                    if not end.done():
                        os.kill(process, signal.SIGTERM)
    return [end.result() for end in ends]


def ends(given: argparse.Namespace, folder: Path, say: Say) -> dict[str, Any]:
    """So many runs of two processes, by turns sharded, copied and with experts: their statuses and their reports."""
    if given.torchrun:
        trees = [Tree("torchrun", ROOT / "src", folder / "torchrun")]
    else:
        together = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        trees = [
            Tree(rank, ROOT / "src", folder / rank, {**together, "RANK": rank, "LOCAL_RANK": rank}) for rank in "01"
        ]
    found: dict[str, Any] = {kind: {"runs": 0, "in order": 0, "failed": []} for kind in given.kinds}
    try:
        for number in range(given.runs):
            kind = given.kinds[number % len(given.kinds)]
            run, began = folder / "run", time.monotonic()
            words = ["train", KINDS[kind], "--strategy", kind, "--schedule.total", given.total, "--device", "cpu"]
            words += ["--out", str(run)]
            if given.torchrun:
                statuses = [trees[0].wait(trees[0].start(words, processes=2))]
            else:
                statuses = end_once(trees, words)
            reported = (run / "report.html").exists()
            found[kind]["runs"] += 1
            if reported and not any(statuses):
                found[kind]["in order"] += 1
            else:
                last = [tree.last_line() for tree in trees]
                found[kind]["failed"].append({"statuses": statuses, "report": reported, "said": last})
            shutil.rmtree(run, ignore_errors=True)
            words = f"{kind}: statuses {statuses}, {'a' if reported else 'no'} report"
            say(f"{number + 1} of {given.runs}, {words}, {time.monotonic() - began:.1f} s")
    finally:
        for tree in trees:
            tree.close()
    return found | {"lost": sum(len(kind["failed"]) for kind in found.values())}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--seed", type=int, default=0)
    common.add_argument("--json", action="store_true", help="print one JSON document")
    modes = parser.add_subparsers(dest="mode", required=True)
    mode = modes.add_parser("ends", parents=[common])
    mode.add_argument("--runs", type=int, default=200)
    mode.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    mode.add_argument("--total", default="4 steps", help="of each run")
    mode.add_argument("--torchrun", action="store_true", help="start whole commands by torchrun")
    mode.set_defaults(run=ends)
    given = parser.parse_args()

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory() as folder:
        found = given.run(given, Path(folder), say)
    options = {name: value for name, value in vars(given).items() if name not in ("run", "json", "mode")}
    print(json.dumps({"mode": given.mode, "machine": machine(), **options, **found}, indent=2))
    return int(bool(found["lost"]))


if __name__ == "__main__":
    sys.exit(main())
