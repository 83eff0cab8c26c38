"""Loading a ViT-L/16 from Google's .npz and from .safetensors, beside timm: seconds and extra memory.

    python benchmarks/checkpoints.py [--rounds 5]

Each load is a process of its own: the packages are imported first, then the clock starts and the peak of the resident
memory is reset. The files are random weights of the right shapes, written once into a temporary folder.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
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
            rounds = [{lib: measure(lib, path) for lib in ("vitlab", "timm")} for _ in range(arguments.rounds)]
            seconds = {lib: statistics.median(r[lib]["seconds"] for r in rounds) for lib in ("vitlab", "timm")}
            extra = {lib: max(r[lib]["extra"] for r in rounds) / size for lib in ("vitlab", "timm")}
            ratio = statistics.median(r["timm"]["seconds"] / r["vitlab"]["seconds"] for r in rounds)
            print(
                f"| {name} | {size / 1e9:.2f} GB | {seconds['vitlab']:.2f} | {seconds['timm']:.2f} | {ratio:.2f} x |"
                f" {extra['vitlab']:.2f} x file | {extra['timm']:.2f} x file |"
            )


if __name__ == "__main__":
    main()
