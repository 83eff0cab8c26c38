"""Scripts on several processes of this machine, as torchrun starts them."""

import os
import subprocess
import sys
from pathlib import Path


def torchrun(*command: str | Path, processes: int = 2) -> subprocess.CompletedProcess[str]:
    """What became of a script with its arguments, or of '-m' and a module with its own."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*launcher, *map(str, command)], capture_output=True, text=True, check=False, timeout=300, env=environment
    )
