"""`vitlab sample`: pictures that a generator makes."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from vitlab.cli.parsing import parse
from vitlab.cli.terminal import print_json, progress_bar
from vitlab.core.words import count, one_line

DESCRIPTION = """Generate pictures from noise with a run's generator: grid.png with all of them, and each as a PNG file.

The same seed gives the same pictures, and the first ones do not depend on how many are made.

Examples:
  vitlab sample runs/transgan-digits samples
  vitlab sample runs/transgan-cifar10 samples --num 100 --seed 7
"""


@dataclass(frozen=True)
class Arguments:
    run: Annotated[Positional[str], arg(metavar="RUN")]
    """The run's folder, or the folder of a saved generator."""
    out: Annotated[Positional[Path], arg(metavar="OUT")]
    """The folder to write to; pictures of an earlier call are replaced."""
    num: int = 64
    """How many pictures."""
    seed: int = 0
    """The seed of the noise."""
    device: str | None = None
    """cpu, cuda, ...; by default a GPU if there is one."""
    json: bool = False
    """Print what was written as one JSON document."""


def main(arguments: Sequence[str]) -> int:
    given = parse(Arguments, arguments, prog="vitlab sample", description=DESCRIPTION)
    from vitlab import api
    from vitlab.inference.sample import BATCH, GRID

    with progress_bar("Pictures", given.num, at_least=BATCH + 1) as progress:
        made = api.sample(given.run, given.out, num=given.num, seed=given.seed, device=given.device, progress=progress)
    num, height, width, _ = made.shape
    if given.json:
        told = {"out": str(given.out), "grid": str(given.out / GRID), "pictures": num, "size": [height, width]}
        print_json({**told, "seed": given.seed})
    else:
        print(one_line(f"{count(num, 'picture')} of {width} x {height} px: see {given.out / GRID}"))
    return 0
