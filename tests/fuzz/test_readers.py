"""Every reader on changed files, the same each time: loaded, or refused in one sentence, in bounded time and memory."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fuzz.readers import DATA, READERS, WEIGHTS, Reader

CASES = 25


@pytest.mark.skipif(not hasattr(os, "fork"), reason="each reader is a process that is forked")
@pytest.mark.parametrize("readers", [WEIGHTS, DATA], ids=["weights", "data"])
def test_changed_files_are_loaded_or_refused_in_a_sentence(readers: tuple[Reader, ...], tmp_path: Path) -> None:
    """In a process that forks: its threads must be one, and a reader that crashes ends its own process alone."""
    names = [reader.name for reader in readers]
    command = [sys.executable, "-W", "ignore", "-m", "fuzz.run", *names, "--cases", str(CASES), "--keep", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.findall(r"^(\w+): (\d+) cases, (\d+) loaded$", done.stdout, re.MULTILINE)
    assert [name for name, _, _ in counted] == names
    for name, cases, _ in counted:
        assert int(cases) >= round(CASES * READERS[name].share) > 0
