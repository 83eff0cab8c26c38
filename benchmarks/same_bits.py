"""Whether this tree trains the same weights as an earlier commit, to the bit, on a CPU.

    python benchmarks/same_bits.py [COMMIT] [--only NAME ...] [--json]

Every case is one command line of `vitlab`, run by both trees side by side, one thread each. Compared are the tensors of
RUN/model/model.safetensors and of the last checkpoint. The exit status is 1 where any of them differ, or a run failed.
Where a case starts from trained weights or has a teacher, COMMIT made it, so that one difference is not seen twice.
"""

import argparse
import contextlib
import io
import json
import os
import shlex
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from forking import Tree
from same_bits_cases import CASES, RENAMED, TRAINED, Case, write_data

ROOT = Path(__file__).resolve().parents[1]


class FailedError(Exception):
    """A run that did not come to its end, with the last line that it said."""


def finish(tree: Tree, process: int) -> None:
    """Wait for a run's end."""
    if status := tree.wait(process):
        raise FailedError(f"status {status}, {tree.last_line()}")


def interrupt(tree: Tree, process: int, run: Path) -> None:
    """Kill a run once it has written a checkpoint."""
    with ThreadPoolExecutor(1) as pool:
        ended = pool.submit(tree.wait, process)
        while not (kept := list(run.glob("checkpoints/step-*"))) and not ended.done():
            time.sleep(0.002)
        if not ended.done():
            os.kill(process, signal.SIGKILL)
    if not kept:
        raise FailedError(f"no checkpoint was written, {tree.last_line()}")
    if ended.result() != -signal.SIGKILL:
        raise FailedError("it ended before it could be killed: give the case more steps")


def train(tree: Tree, case: Case) -> float:
    """Run a case in its tree, and return the seconds that it took."""
    begun = time.perf_counter()
    current = shlex.split(case.command)
    earlier = [RENAMED.get(word, word) for word in current]
    spellings = [earlier, current] if tree.takes_earlier else [current, earlier]
    for words in spellings if earlier != current else [current]:
        try:
            process = tree.start(words, case.processes)
            if case.resumed:
                interrupt(tree, process, tree.folder / case.run)
                process = tree.start(["train", "--resume", case.run, "--device", "cpu"], case.processes)
            finish(tree, process)
        except FailedError:
            if words is spellings[-1] or earlier == current or (tree.folder / case.run).exists():
                raise
        else:
            tree.takes_earlier = words is earlier
            break
    return time.perf_counter() - begun


def read_weights(path: Path) -> dict[str, Any]:
    from safetensors.torch import load_file

    return dict(load_file(path))


def read_checkpoint(run: Path) -> dict[str, Any] | None:
    """The values of a run's last checkpoint under flat names; None where this torch cannot read it."""
    found = sorted(run.glob("checkpoints/step-*"))
    values: dict[str, Any] = {}
    try:
        _load_state_dict(values, FileSystemReader(found[-1]), planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    except Exception:  # noqa: BLE001 # whatever a later format does
        return None
    return dict(_flat(values))


def _flat(values: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(values, Mapping):
        for key, value in values.items():
            yield from _flat(value, f"{name}.{key}" if name else str(key))
    else:
        yield name, values


def difference(before: Mapping[str, Any], now: Mapping[str, Any]) -> str | None:
    """The first value that differs, and how much; None where all are the same bits."""
    if odd := sorted(before.keys() ^ now.keys()):
        return f"{odd[0]} is in one of them only"
    for name, old in before.items():
        new = now[name]
        if not isinstance(old, torch.Tensor) or not isinstance(new, torch.Tensor):
            if old != new:
                return f"{name}: {old!r}, now {new!r}"
        elif old.shape != new.shape or old.dtype != new.dtype:
            return f"{name}: {old.dtype} {tuple(old.shape)}, now {new.dtype} {tuple(new.shape)}"
        elif not torch.equal(_bits(old), _bits(new)):
            return f"{name} by {(old.double() - new.double()).abs().max().item():.2g}"
    return None


def _bits(value: torch.Tensor) -> torch.Tensor:
    """So that 0 and -0 are two values, and NaN equals itself."""
    return value.contiguous().reshape(-1).view(torch.uint8)


def compare(before: Path, now: Path) -> tuple[bool, str, str]:
    """Whether two runs came to the same weights; a word on the model, and one on the checkpoint."""
    model = difference(*(read_weights(run / "model" / "model.safetensors") for run in (before, now)))
    kept = [read_checkpoint(run) for run in (before, now)]
    if kept[0] is None or kept[1] is None:
        return model is None, model or "equal", "not read"
    shared = kept[0].keys() & kept[1].keys()
    moved = len(kept[0].keys() ^ kept[1].keys())  # another layout of checkpoints is no other training
    state = difference(*({name: value for name, value in one.items() if name in shared} for one in kept if one))
    words = (state or "equal") + (f", {moved} of {moved + len(shared)} names in one only" if moved else "")
    return model is None and state is None, model or "equal", words


def run_case(trees: tuple[Tree, Tree], case: Case) -> dict[str, Any]:
    """Both trees at once, and what the comparison says."""
    row: dict[str, Any] = {"case": case.name, "equal": False, "model": "", "checkpoint": "", "seconds": [None, None]}
    with ThreadPoolExecutor(len(trees)) as pool:
        pending = [pool.submit(train, tree, case) for tree in trees]
    for i, (tree, one) in enumerate(zip(trees, pending, strict=True)):
        if isinstance(error := one.exception(), FailedError):
            row["model"] = f"{tree.name} failed: {error}"
        else:
            row["seconds"][i] = round(one.result(), 1)
    if not row["model"]:
        row["equal"], row["model"], row["checkpoint"] = compare(*(tree.folder / case.run for tree in trees))
    return row


def export(commit: str, folder: Path) -> Path:
    """The sources of a commit."""
    packed = subprocess.run(["git", "archive", commit, "src"], cwd=ROOT, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(folder, filter="data")
    return folder / "src"


def rows_of(commit: str, cases: list[Case]) -> Iterator[dict[str, Any]]:
    """Each case's row as soon as it is known."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        write_data(folder / "data")
        source = export(commit, folder / "tree")
        with contextlib.ExitStack() as stack:
            before = stack.enter_context(contextlib.closing(Tree(commit, source, folder / "before")))
            now = stack.enter_context(contextlib.closing(Tree("this tree", ROOT / "src", folder / "now")))
            for tree in (before, now):
                tree.check()
            for case in TRAINED:
                train(before, case)
            for case in cases:
                yield run_case((before, now), case)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="HEAD", help="what this tree, as it lies here, is compared with")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=[case.name for case in CASES], help="these cases")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the temporary folder goes
    cases = [case for case in CASES if given.only is None or case.name in given.only]
    rows: list[dict[str, Any]] = []
    if not given.json:
        print(f"| case | model | checkpoint | {given.commit} s | this tree s |\n|-|-|-|-|-|")
    for row in rows_of(given.commit, cases):
        rows.append(row)
        if not given.json:
            seconds = " | ".join("" if value is None else str(value) for value in row["seconds"])
            print(f"| {row['case']} | {row['model']} | {row['checkpoint']} | {seconds} |", flush=True)
    if given.json:
        print(json.dumps({"commit": given.commit, "cases": rows}, indent=2))
    else:
        print(f"\n{sum(row['equal'] for row in rows)} of {len(rows)} equal to the bit.")
    return 0 if all(row["equal"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
