"""Loading a ViT-L/16 beside timm, and what the checksums cost of writing 1 GB.

    python benchmarks/checkpoints.py [--rounds 5] [--only loading|writing]

Loading is from Google's .npz and from .safetensors: seconds and extra memory. Each load is a process of its own: the
packages are imported first, then the clock starts and the peak of the resident memory is reset. The files are random
weights of the right shapes, written once into a temporary folder.

Writing is of a checkpoint of a ViT-B/16 with AdamW's moments, and of a ViT-L/16 in the native format, to the disk of
the working directory: seconds of the write, seconds in which checksums are taken, and seconds that they add. A native
folder's are taken while its file is synced, so that they add only what the disk does not need anyway.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHILD = """
import json, sys, time
from pathlib import Path
import vitlab.weights.load
from vitlab.core.peers import import_timm
timm = import_timm()

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(key))

library, path = sys.argv[1:]
vitlab.weights.load.formats()
before = status("VmRSS")
Path("/proc/self/clear_refs").write_text("5")  # start the peak anew
start = time.perf_counter()
if library == "vitlab":
    model = vitlab.weights.load.load(path)
elif path.endswith(".npz"):
    model = timm.create_model("vit_large_patch16_224")
    model.load_pretrained(path)
else:
    model = timm.create_model("vit_large_patch16_224", checkpoint_path=path)
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "extra": status("VmHWM") - before}))
"""


def measure(library: str, path: Path) -> dict[str, float]:
    child = [sys.executable, "-W", "ignore", "-c", CHILD, library, str(path)]
    result = subprocess.run(child, capture_output=True, text=True, check=True)
    return json.loads(result.stdout.splitlines()[-1])


def timed(call: Callable[[Path], Any], times: list[tuple[float, float]]) -> Callable[[Path], Any]:
    """The call, which notes when it began and ended."""

    def noting(path: Path) -> Any:
        start = time.perf_counter()
        try:
            return call(path)
        finally:
            times.append((start, time.perf_counter()))

    return noting


def writing(rounds: int) -> None:
    """Seconds of writes, and of their checksums: medians of the rounds."""
    import torch

    import vitlab
    from vitlab.objectives.cross_entropy import CrossEntropy
    from vitlab.objectives.supervised import Supervised
    from vitlab.training import checkpoints
    from vitlab.training.learner import Learner
    from vitlab.training.optimizers import Optimizer, build
    from vitlab.training.state import State
    from vitlab.weights import native

    taken: list[tuple[float, float]] = []
    synced: list[tuple[float, float]] = []  # beside the checksums, in a thread
    checkpoints.checksum = native.checksum = timed(checkpoints.checksum, taken)
    native.sync = timed(native.sync, synced)
    model = vitlab.create("vit-b16-224")
    learner = Learner(model, Supervised(CrossEntropy()))
    optimizers = build(model, [], Optimizer(name="adamw"))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
        parameter.grad = torch.randn_like(parameter)
    for optimizer in optimizers:
        optimizer.step()
    state = State(learner, {"train": optimizers})
    large = vitlab.create("vit-l16-224")
    print("| written | size | s | s of checksums | s that they add | share |")
    print("|-|-|-|-|-|-|")
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        writes = {
            "a run's checkpoint": lambda: checkpoints.write(Path(folder), state),
            "a native folder": lambda: vitlab.save(large, Path(folder, "native")),
        }
        for name, write in writes.items():
            found: list[tuple[float, float, float]] = []
            for _ in range(rounds):
                taken.clear()
                synced.clear()
                start = time.perf_counter()
                write()
                seconds, summing = time.perf_counter() - start, sum(end - begin for begin, end in taken)
                beside = sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in taken for b in synced)
                found.append((seconds, summing, summing - beside))
            size = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
            for file in Path(folder).iterdir():
                shutil.rmtree(file)
            whole, sums, added = (statistics.median(values) for values in zip(*found, strict=True))
            share = statistics.median(part / seconds for seconds, _, part in found)
            print(
                f"| {name} | {size / 1e9:.2f} GB | {whole:.2f} | {sums:.2f} | {added:.2f} | {share:.1%} |", flush=True
            )


def loading(rounds: int) -> None:
    """Seconds and extra memory of loading, ours and timm's."""
    import torch

    import vitlab

    print("| file | size | vitlab s | timm s | vitlab's speed | vitlab extra memory | timm extra memory |")
    print("|-|-|-|-|-|-|-|")
    with tempfile.TemporaryDirectory() as folder:
        model = vitlab.create("vit-l16-224")
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.02)
        files = {"google .npz": Path(folder, "l16.npz"), "timm .safetensors": Path(folder, "l16.safetensors")}
        vitlab.save(model, files["google .npz"], format="google")
        exact = vitlab.load(files["google .npz"], gelu="exact")
        del model
        vitlab.save(exact, files["timm .safetensors"], format="timm")
        del exact
        for name, path in files.items():
            size = path.stat().st_size
            measured = [{lib: measure(lib, path) for lib in ("vitlab", "timm")} for _ in range(rounds)]
            seconds = {lib: statistics.median(r[lib]["seconds"] for r in measured) for lib in ("vitlab", "timm")}
            extra = {lib: max(r[lib]["extra"] for r in measured) / size for lib in ("vitlab", "timm")}
            ratio = statistics.median(r["timm"]["seconds"] / r["vitlab"]["seconds"] for r in measured)
            print(
                f"| {name} | {size / 1e9:.2f} GB | {seconds['vitlab']:.2f} | {seconds['timm']:.2f} | {ratio:.2f} x |"
                f" {extra['vitlab']:.2f} x file | {extra['timm']:.2f} x file |"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", choices=("loading", "writing"))
    arguments = parser.parse_args()
    if arguments.only != "writing":
        loading(arguments.rounds)
    if arguments.only != "loading":
        writing(arguments.rounds)


if __name__ == "__main__":
    main()
