"""Fuzzing: changed files for every reader, for some cases or some minutes, each reader in a process with limits.

    PYTHONPATH=tests python -m fuzz.run [READER ...] [--cases 25] [--seed 0] [--minutes 60] [--keep build/fuzz]

Each case is loaded or refused in one sentence, in bounded time and memory. What fails is kept in a folder with the
files of the case and why.txt; the exit status is 1 then. A reader that crashes ends its process alone.
"""

import argparse
import faulthandler
import logging
import os
import resource
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

os.environ.setdefault("OMP_NUM_THREADS", "1")  # a pool of threads would not be there after a fork
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

from fuzz.mutations import changed
from fuzz.readers import READERS, Reader, tried

SECONDS = 10.0  # of CPU that a case may take
HANGS = 120  # seconds after which a case is taken to hang, also on a machine that is busy
MEMORY = 1 << 30  # bytes that a case may take at once
ROOM = 4 << 30  # bytes beyond which an allocation fails
BATCH = 200  # cases between two looks at the clock


@dataclass(frozen=True)
class Outcome:
    """What came of a reader's cases; `kept` is where the files of one that failed are."""

    cases: int
    taken: int  # of them, those that loaded
    why: str = ""
    kept: Path | None = None


@final
class Case:
    """A case's files, shown by their sizes."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def __repr__(self) -> str:
        return ", ".join(f"{name} of {len(data):,} bytes" for name, data in self.files.items())


def fuzz(reader: Reader, root: Path, *, cases: int, start: int, keep: Path) -> Outcome:
    """A reader's cases in a process of their own; `root` holds its valid files."""
    with tempfile.TemporaryDirectory() as folder:
        case, tally, said = Path(folder, "case"), Path(folder, "tally"), Path(folder, "why.txt")
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            _child(reader, root, case, tally, said, cases, start)
        _, status = os.waitpid(child, 0)
        done = tally.read_text().split("\n") if tally.exists() else []
        done = [line for line in done if line]
        counted = Outcome(len(done), sum(line == "taken" for line in done))
        if status == 0:
            return counted
        why = said.read_text() if said.exists() else ""
        if os.WIFSIGNALED(status):
            why += f"The process was ended by signal {os.WTERMSIG(status)}.\n"
        kept = _free(keep / f"{reader.name}-{start}")
        shutil.copytree(case, kept, symlinks=True)
        (kept / "why.txt").write_text(why)
        return Outcome(counted.cases, counted.taken, why, kept)


def write_seeds(readers: Sequence[Reader], root: Path) -> None:
    """The valid files, which have to be taken as they are."""
    for reader in readers:
        reader.write(root / reader.name)
        for folder in sorted((root / reader.name).iterdir()):
            copy = root / "copy"
            shutil.copytree(folder, copy)
            if not tried(reader, copy):
                raise AssertionError(f"{reader.name} refuses {folder.name}, which is valid")
            shutil.rmtree(copy)


def _child(reader: Reader, root: Path, case: Path, tally: Path, said: Path, cases: int, start: int) -> None:
    """Runs the cases, and never returns."""
    status = 1
    with said.open("w") as log, tally.open("w") as counted:
        os.dup2(log.fileno(), 2)  # also what a crash prints
        faulthandler.enable(log)
        try:
            _limit_memory()
            valid = [_files(folder) for folder in sorted((root / reader.name).iterdir())]

            @seed(start)
            @settings(
                max_examples=max(1, round(cases * reader.share)),
                database=None,
                deadline=None,
                phases=(Phase.generate, Phase.shrink),
                suppress_health_check=[
                    HealthCheck.too_slow,
                    HealthCheck.data_too_large,
                    HealthCheck.large_base_example,
                ],
            )
            @given(st.sampled_from(valid).flatmap(changed).map(Case))
            def each(drawn: Case) -> None:
                taken = _limited(reader, drawn.files, case, log.fileno())
                counted.write("\ntaken" if taken else "\nrefused")

            each()
            status = 0
        except BaseException:  # noqa: BLE001  it is reported
            traceback.print_exc(file=log)
        faulthandler.cancel_dump_traceback_later()
        counted.flush()
        log.flush()
    os._exit(status)


def _limited(reader: Reader, files: Mapping[str, bytes], case: Path, log: int) -> bool:
    shutil.rmtree(case, ignore_errors=True)
    for name, data in files.items():
        (case / name).parent.mkdir(parents=True, exist_ok=True)
        (case / name).write_bytes(data)
    case.mkdir(parents=True, exist_ok=True)
    faulthandler.dump_traceback_later(HANGS, exit=True, file=log)
    before, began = _peak(), time.process_time()
    taken = tried(reader, case)
    seconds, memory = time.process_time() - began, _peak(anew=False) - before
    assert seconds < SECONDS, f"it took {seconds:.1f} s"
    assert memory < MEMORY, f"it took {memory >> 20} MiB"
    return taken


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def _limit_memory() -> None:
    if sys.platform == "linux":
        used = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmData"))
        resource.setrlimit(resource.RLIMIT_DATA, (int(used.split()[1]) * 1024 + ROOM, resource.RLIM_INFINITY))


def _peak(*, anew: bool = True) -> int:
    """The most memory that was resident, in bytes; `anew` lets it count from what is resident now."""
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    peak = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(peak.split()[1]) * 1024


def _free(path: Path) -> Path:
    number = 1
    while path.exists():
        number += 1
        path = path.with_name(f"{path.name.split('.')[0]}.{number}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("readers", nargs="*", metavar="READER", help=f"of {', '.join(READERS)}; all by default")
    parser.add_argument("--cases", type=int, default=25, help="per reader, where there are no minutes")
    parser.add_argument("--minutes", type=float, default=0.0, help="how long, with fresh cases")
    parser.add_argument("--seed", type=int, default=None, help="of the cases; by default 0, and with minutes the time")
    parser.add_argument("--keep", type=Path, default=Path("build/fuzz"), help="where files that fail are kept")
    arguments = parser.parse_args()
    logging.getLogger("vitlab").setLevel(logging.ERROR)  # what loading adapted or assumed
    readers = [READERS[name] for name in arguments.readers or READERS]
    start = arguments.seed if arguments.seed is not None else int(time.time()) if arguments.minutes else 0
    until = time.monotonic() + 60 * arguments.minutes
    totals: dict[str, tuple[int, int]] = dict.fromkeys(READERS, (0, 0))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        write_seeds(readers, Path(folder))
        again = True
        while again:
            for reader in readers:
                number = BATCH if arguments.minutes else arguments.cases
                found = fuzz(reader, Path(folder), cases=number, start=start, keep=arguments.keep)
                cases, taken = totals[reader.name]
                totals[reader.name] = cases + found.cases, taken + found.taken
                if found.kept is not None:
                    failed += 1
                    print(
                        f"{reader.name} (seed {start}): the files that failed are in {found.kept}\n{found.why}",
                        flush=True,
                    )
            start += 1
            again = time.monotonic() < until
    for reader in readers:
        cases, taken = totals[reader.name]
        print(f"{reader.name}: {cases:,} cases, {taken:,} loaded")
    print(f"{sum(cases for cases, _ in totals.values()):,} cases, {failed} failures", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
