"""Processes side by side for benchmarks/methods.py: which waits for which, and an end where most of them fail."""

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

FEWEST = 3  # failures that are no accident any more


@dataclass(frozen=True)
class Job:
    """A process by its words; it begins when those that it names have ended well."""

    name: str
    words: tuple[str, ...]
    after: tuple[str, ...] = ()


def run(jobs: Sequence[Job], most: int, logs: Path, say: Callable[[str], None] = print, wait: float = 0.5) -> list[str]:
    """Run jobs, at most so many at once and earlier ones first; what failed, with what was left out for it.

    Where most of those that have ended failed, the others would too: they are ended.
    """
    logs.mkdir(parents=True, exist_ok=True)
    assert {job.name for job in jobs}.issuperset(name for job in jobs for name in job.after), "one waits for none"
    left, running = list(jobs), dict[str, tuple[subprocess.Popen[bytes], float]]()
    good, bad, left_out = set[str](), list[str](), list[str]()
    try:
        while left or running:
            for job in [job for job in left if not {*bad, *left_out}.isdisjoint(job.after)]:
                left.remove(job)
                left_out.append(job.name)
            for job in [job for job in left if good.issuperset(job.after)][: most - len(running)]:
                left.remove(job)
                with (logs / f"{job.name}.log").open("wb") as log:
                    process = subprocess.Popen(job.words, stdout=log, stderr=subprocess.STDOUT)
                running[job.name] = process, time.monotonic()
            for name, (process, begun) in list(running.items()):
                if (status := process.poll()) is None:
                    continue
                del running[name]
                (bad.append if status else good.add)(name)
                how = f"failed, {logs / f'{name}.log'} says why," if status else "done"
                say(f"{name}: {how} after {time.monotonic() - begun:.0f} s; {len(running)} run, {len(left)} wait")
            if len(bad) >= FEWEST and len(bad) > len(good):
                say(f"{len(bad)} of {len(bad) + len(good)} failed: the others are ended.")
                return [*bad, *left_out, *running, *(job.name for job in left)]
            time.sleep(wait)
    finally:
        for process, _ in running.values():
            process.terminate()
            process.wait()
    return bad + left_out
