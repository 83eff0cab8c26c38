"""What `vitlab pretrain` is worth by each method, for the same time: the table of docs/results/pretrain.md.

    python benchmarks/pretrain.py eurosat/ --images 1000 --tested 1000 --minutes 2 --device cpu
    python benchmarks/pretrain.py eurosat/ flowers102/ --images 20000 --tested 5000 --minutes 4 --finetune-steps 500
    python benchmarks/pretrain.py --table

Of each set some training images are the photos that a method learns from without their labels, and some test images
measure. A method starts from the model in the package (`none`: it stays as it is) and has so many minutes, counted in
steps whose time was measured before: on a CPU of its own processor time, so that what others do on the machine does not
matter, on a GPU by the clock. Then, all with labels: the 20 nearest neighbours and a linear probe on frozen features,
both from all the photos, and fine-tuning on `--labels` of each class. Results go to results.jsonl, one line for each
cell, and what is there already is not computed again. A difference to `none` has the standard error of paired answers.
"""

import argparse
import dataclasses
import itertools
import json
import math
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitlab.core.devices import choose_device
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Array
from vitlab.data.loading.resident import load_inputs
from vitlab.data.open import open_data
from vitlab.data.sources.holdout import divide_by_class
from vitlab.evaluation.knn import TEMPERATURE, neighbours, vote
from vitlab.evaluation.labeled_features import Examples
from vitlab.evaluation.linear import linear
from vitlab.recipes.transfer import transfer_recipe
from vitlab.recipes.unlabelled import METHODS, pretrain_recipe
from vitlab.training import session
from vitlab.training.recipe import Recipe
from vitlab.weights.load import load, read_configuration

NONE, NEIGHBOURS = "none", 20
TESTED = 0.2  # of each class, of a set without parts
L2S = (1e-3, 1e-2, 1e-1, 1.0)
Cell = dict[str, Any]
MEASURED = ("steps", "seconds", "knn", "right", "linear", "finetuned")  # of a cell; the rest says which it is


def chosen(labels: Array, num: int, rng: np.random.Generator) -> Array:
    """So many images, of each class as many as of the others as far as there are."""
    order = rng.permutation(len(labels))
    rank = np.empty(len(labels), np.int64)
    for number in np.unique(labels):
        own = order[labels[order] == number]
        rank[own] = np.arange(len(own))
    return order[np.argsort(rank[order], kind="stable")[:num]]


def prepared(data: str, cell: Cell, out: Path) -> tuple[Path, Path]:
    """The photos with the test part, and of them the labelled few with the same, as the model sees them."""
    name = f"{cell['set']}-{cell['side']}-{cell['images']}-{cell['tested']}-{cell['seed']}"
    every, few = out / f"{name}.npz", out / f"{name}-{cell['labels']}.npz"
    if few.exists():
        return every, few
    dataset = open_data(data, val_fraction=0)
    if set(dataset.splits) == {"train"}:
        dataset = divide_by_class(dataset, TESTED)
    rng, arrays = np.random.default_rng(cell["seed"]), dict[str, Any]()
    preprocess = Preprocess(size=(cell["side"], cell["side"]))
    for part, num in (("train", cell["images"]), ("test", cell["tested"])):
        split = dataset.splits[part]
        some = split.take(np.sort(chosen(np.asarray(split.labels), num, rng)))
        pixels = load_inputs(some, preprocess, 0.0).values
        arrays |= {f"x_{part}": pixels.permute(0, 2, 3, 1).contiguous().numpy(), f"y_{part}": some.labels}
    np.savez(every, classes=np.array(dataset.classes), **arrays)
    labels = arrays["y_train"]
    own = [rng.permutation(np.flatnonzero(labels == number))[: cell["labels"]] for number in np.unique(labels)]
    rows = np.sort(np.concatenate(own))
    arrays |= {"x_train": arrays["x_train"][rows], "y_train": labels[rows]}
    np.savez(few, classes=np.array(dataset.classes), **arrays)
    return every, few


def timed(device: str, work: Callable[[], object]) -> float:
    """Seconds of this process's processor, or on a GPU of the clock."""
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    start = clock()
    work()
    return clock() - start


def trained(recipe: Recipe, folder: Path, device: str) -> session.RunOutcome:
    shutil.rmtree(folder, ignore_errors=True)
    never = {"evaluate_every": "100%", "checkpoint_every": "100%", "log_every": "10%"}
    workers = dataclasses.replace(recipe.data, workers=0)
    return session.train(dataclasses.replace(recipe, data=workers, **never), folder, device=device, show=False)


def pretrained(cell: Cell, photos: Path, run: Path, device: str) -> tuple[int, float]:
    """A run of as many steps as fit; how many they were, and what they took."""
    on_gpu = device.startswith("cuda")

    def made(steps: int, folder: Path) -> float:
        recipe = pretrain_recipe(
            str(photos),
            cell["model"],
            cell["method"],
            trained=True,
            num_images=cell["images"],
            on_gpu=on_gpu,
            held_out=0,
            steps=steps,
            lr=cell["lr"],
            batch_size=cell["batch_size"],
            image_size=cell["side"],
        )
        return timed(device, lambda: trained(dataclasses.replace(recipe, seed=cell["seed"]), folder, device))

    few = 100 if on_gpu else 4
    trial = run.with_name(f"{run.name}-trial")
    pace = (made(2 * few, trial) - made(few, trial)) / few
    shutil.rmtree(trial)
    steps = max(round(60 * cell["minutes"] / pace), 1)
    return steps, made(steps, run)


def features(source: str, side: int, path: Path, device: str) -> dict[str, Array]:
    model, found = load(source, num_classes=0, image_size=side).to(device).eval(), dict[str, Any]()
    with np.load(path) as arrays, torch.inference_mode():
        for part in ("train", "test"):
            pixels = torch.from_numpy(arrays[f"x_{part}"]).permute(0, 3, 1, 2)
            parts = [model(model.preprocess.normalize(few.to(device))).float().cpu() for few in pixels.split(100)]
            found |= {f"x_{part}": torch.cat(parts).numpy(), f"y_{part}": arrays[f"y_{part}"]}
    return found


def measured(cell: Cell, photos: Path, labelled: Path, run: Path, device: str) -> Cell:
    source = cell["model"] if cell["method"] == NONE else str(run)
    own = features(source, cell["side"], photos, device)
    num = int(own["y_train"].max()) + 1
    queries = F.normalize(torch.from_numpy(own["x_test"]), dim=1)
    near, rows = neighbours(Examples.of(own["x_train"], own["y_train"], "train"), queries, NEIGHBOURS)
    [said] = vote(near, torch.from_numpy(own["y_train"])[rows], num, [NEIGHBOURS], "similarity", TEMPERATURE)
    right = said.numpy() == own["y_test"]
    probe = linear(own["x_train"], own["y_train"], own["x_test"], own["y_test"], l2s=L2S)
    finetuned = None
    if cell["finetune_steps"]:
        with np.load(labelled) as arrays:
            num_labelled = len(arrays["y_train"])
        recipe = transfer_recipe(
            str(labelled),
            source,
            read_configuration(source, image_size=cell["side"]),
            num_images=num_labelled,
            picture=(cell["side"], cell["side"]),
            on_gpu=device.startswith("cuda"),
            held_out=0,
            steps=cell["finetune_steps"],
            image_size=cell["side"],
        )
        recipe = dataclasses.replace(recipe, seed=cell["seed"], keep="last")
        finetuned = trained(recipe, run.with_name(f"{run.name}-finetuned"), device).scores["test accuracy"]
    found = {"knn": float(right.mean()), "right": np.packbits(right).tobytes().hex()}
    return {**found, "linear": probe.metrics["top-1"].value, "finetuned": finetuned}


def answers(cell: Cell) -> Array:
    return np.unpackbits(np.frombuffer(bytes.fromhex(cell["right"]), np.uint8))[: cell["tested"]].astype(float)


def paired(cell: Cell, base: Cell) -> str:
    """The difference of k-NN in points, with its standard error over the same images."""
    gap = answers(cell) - answers(base)
    return f"{100 * gap.mean():+.1f} ± {100 * gap.std() / math.sqrt(len(gap)):.1f}"


def table(cells: list[Cell]) -> list[str]:
    lines = [
        "| set | seed | photos | method | lr | seconds | steps | k-NN | to none | linear | fine-tuned |",
        "|-|-|-|-|-|-|-|-|-|-|-|",
    ]
    same = ("set", "model", "side", "images", "tested", "labels", "finetune_steps", "seed")
    for cell in cells:
        bases = [each for each in cells if each["method"] == NONE and all(each[name] == cell[name] for name in same)]
        finetuned = "" if cell["finetuned"] is None else f"{100 * cell['finetuned']:.1f}"
        against = paired(cell, bases[0]) if bases and cell is not bases[0] else ""
        lr = "" if cell["method"] == NONE else "own" if cell["lr"] is None else f"{cell['lr']:g}"
        lines.append(
            f"| {cell['set']} | {cell['seed']} | {cell['images']:,} | {cell['method']} | {lr} | {cell['seconds']:.0f} |"
            f" {cell['steps']:,} | {100 * cell['knn']:.1f} | {against} | {100 * cell['linear']:.1f} | {finetuned} |"
        )
    return lines


def cells_of(given: argparse.Namespace) -> list[tuple[str, Cell]]:
    found: list[tuple[str, Cell]] = []
    for data, seed, method in itertools.product(given.data, given.seeds, given.methods):
        for lr in given.lrs if method != NONE else [None]:
            own = {"set": Path(data).stem, "method": method, "lr": lr, "seed": seed}
            fields = ("model", "side", "images", "tested", "labels", "finetune_steps", "minutes", "batch_size")
            fixed = {name: getattr(given, name) for name in fields}
            fixed |= {"minutes": 0.0, "batch_size": None} if method == NONE else {}
            found.append((data, {**own, **fixed}))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="folders with train and test")
    parser.add_argument("--methods", nargs="+", default=[NONE, *METHODS], choices=[NONE, *METHODS])
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--lrs", type=float, nargs="+", default=[None], help="by default each method's own")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--images", type=int, default=1000, help="photos to learn from without labels")
    parser.add_argument("--tested", type=int, default=1000)
    parser.add_argument("--labels", type=int, default=10, help="photos of each class to fine-tune on")
    parser.add_argument("--finetune-steps", type=int, default=0, help="0: it is not fine-tuned")
    parser.add_argument("--model", default="vitlab/tiny")
    parser.add_argument("--side", type=int, default=96, help="px")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrain-benchmark"))
    parser.add_argument("--table", action="store_true", help="show what there is, and compute nothing")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kept, device = given.out / "results.jsonl", choose_device(given.device)
    results: list[Cell] = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = [{name: value for name, value in old.items() if name not in MEASURED} for old in results]
    for data, cell in [] if given.table else [(data, cell) for data, cell in cells_of(given) if cell not in done]:
        photos, labelled = prepared(data, cell, given.out)
        run, steps, seconds = given.out / f"run-{len(results)}", 0, 0.0
        if cell["method"] != NONE:
            steps, seconds = pretrained(cell, photos, run, device)
        found = {"steps": steps, "seconds": round(seconds, 1), **measured(cell, photos, labelled, run, device)}
        results.append({**cell, **found})
        with kept.open("a") as stream:
            stream.write(json.dumps(results[-1]) + "\n")
        print(f"{cell['set']} {cell['method']} {cell['lr']}: k-NN {found['knn']:.1%}", flush=True)
    print("\n".join(table(results)))


if __name__ == "__main__":
    main()
