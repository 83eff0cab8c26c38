"""What holds over hundreds of ends, half an hour of load, and kills at random moments.

    python benchmarks/soak.py ends --runs 200            runs of two processes that end by themselves
    python benchmarks/soak.py serve --minutes 30         a service at a load, one request of a hundred hostile
    python benchmarks/soak.py kills --minutes 30         training that is killed and resumed until it is done

The exit status is 1 where anything was lost. `ends` starts each process as a fork of one that has imported what it
needs; `--torchrun` starts whole commands by torchrun instead, which takes longer. Both stop the other process when one
fails, as a launcher does. A run counts when both processes end with status 0 and its report is written.

`serve` and `kills` are meant for a machine with nothing else to do.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from forking import Tree
from requesting import free_port
from soak_serving import serve
from timing import machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))
# a strategy, and the recipe and the size of model for it
KINDS = {"shard": ("digits", 1), "replicate": ("digits", 1), "experts": ("vmoe-digits", 2)}
Say = Callable[[str], None]


def end_once(trees: list[Tree], words: list[str], processes: int) -> list[int]:
    """The statuses of processes that train together; when one fails, the others are told to end."""
    started = [tree.start(words, processes) for tree in trees]
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
            recipe, depth = KINDS[kind]
            words = ["train", recipe, "--strategy", kind, "--model.set", f"depth={depth}", "--device", "cpu"]
            words += ["--schedule.total", given.total, "--out", str(run)]
            statuses = end_once(trees, words, processes=2 if given.torchrun else 1)
            reported = (run / "report.html").exists()
            found[kind]["runs"] += 1
            if reported and not any(statuses):
                found[kind]["in order"] += 1
            else:
                last = [tree.last_line() for tree in trees]
                found[kind]["failed"].append({"statuses": statuses, "report": reported, "said": last})
            shutil.rmtree(run, ignore_errors=True)
            became = f"statuses {statuses}, {'a' if reported else 'no'} report, {time.monotonic() - began:.1f} s"
            say(f"{number + 1} of {given.runs}, {kind}: {became}")
    finally:
        for tree in trees:
            tree.close()
    return found | {"lost": sum(len(kind["failed"]) for kind in found.values())}


def killed(tree: Tree, run: Path, words: list[str], after: float, *, at_a_write: bool) -> tuple[bool, int]:
    """Start a run or resume it and kill it after so many seconds: whether it was killed before its end, and its status.

    The seconds count from the start, or from the first write of a checkpoint.
    """
    if (run / "recipe.json").exists():
        words = ["train", "--resume", str(run), "--device", "cpu"]
    process = tree.start(words)
    with ThreadPoolExecutor(1) as pool:
        end = pool.submit(tree.wait, process)
        if at_a_write:
            from killing import until_written

            until_written(run, end.done)
        wait([end], timeout=after)
        if not end.done():
            os.kill(process, signal.SIGKILL)
        return end.result() == -signal.SIGKILL, end.result()


def kills(given: argparse.Namespace, folder: Path, say: Say) -> dict[str, Any]:
    """Runs that are killed again and again and resumed until they are done, against ones that were not."""
    from killing import differences

    draw, end = random.Random(given.seed), time.monotonic() + 60 * given.minutes
    tree, survived, runs, lost = Tree("runs", ROOT / "src", folder / "runs"), 0, 0, list[str]()
    how = {"in memory": ["--data.resident", "True"], "workers": ["--data.resident", "False", "--data.workers", "2"]}
    how_long = ["--schedule.total", given.total, "--checkpoint-every", "5 steps", "--log-every", "5 steps"]
    lasts: dict[str, float] = {}
    try:
        while time.monotonic() < end or not runs:
            name = list(how)[runs % len(how)]
            words = ["train", "digits", "--device", "cpu", *how_long, *how[name], "--out"]
            whole, run = folder / name, folder / "killed"
            if name not in lasts:
                tree.wait(tree.start([*words, str(whole)]))  # imports what is not imported yet
                shutil.rmtree(whole)
                began = time.monotonic()
                assert tree.wait(tree.start([*words, str(whole)])) == 0, tree.last_line()
                lasts[name] = time.monotonic() - began
            own, again, status = 0, True, 0
            while again:
                most = draw.choice([0.2, lasts[name]]) if own < given.most else 60 * given.minutes
                at_a_write = own < given.most and most < lasts[name]
                again, status = killed(tree, run, [*words, str(run)], draw.uniform(0, most), at_a_write=at_a_write)
                own += again
            survived, runs = survived + own, runs + 1
            wrong = differences(whole, run) if status == 0 else [f"status {status}: {tree.last_line()}"]
            lost += [f"run {runs}, {name}: {what}" for what in wrong[:3]]
            say(f"run {runs}, {name}: killed {own} times, {'; '.join(wrong[:3]) or 'the same to the bit'}")
            shutil.rmtree(run, ignore_errors=True)
    finally:
        tree.close()
    return {"runs": runs, "kills survived": survived, "lost": len(lost), "why": lost, "undisturbed s": lasts}


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
    mode = modes.add_parser("serve", parents=[common])
    mode.add_argument("--minutes", type=float, default=30.0)
    mode.add_argument("--rate", type=float, default=20.0, help="requests per second")
    mode.add_argument("--hostile", type=float, default=0.01, help="the share of requests that are")
    mode.add_argument("--model", default="vit-s32-224", help="a zoo name; its weights are fresh")
    mode.set_defaults(run=serve)
    mode = modes.add_parser("kills", parents=[common])
    mode.add_argument("--minutes", type=float, default=30.0)
    mode.add_argument("--most", type=int, default=10, help="kills of a run, which may end after them")
    mode.add_argument("--total", default="100 steps", help="of each run")
    mode.set_defaults(run=kills)
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
