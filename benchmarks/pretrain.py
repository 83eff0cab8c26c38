"""What `vitlab pretrain` is worth by each method: the tables of docs/results/pretrain.md.

    python benchmarks/pretrain.py eurosat/ --images 1000 --tested 1000 --minutes 2 --device cpu
    python benchmarks/pretrain.py eurosat.npz --images 21600 --tested 5400 --steps 422 --labels 0.01 0.1 --draws 3 \\
        --finetune-steps 240 --jobs 7
    python benchmarks/pretrain.py --table

Of each set some training images are the photos that a method learns from without their labels, and some test images
measure. A method starts from the model in the package (`none`: it stays as it is) and has so many steps, or so many
minutes: these are counted in steps whose time was measured before, on a CPU of its own processor time, so that what
others do on the machine does not matter, on a GPU by the clock. Then, all with labels: a linear probe on frozen
features, from all the photos; and for each part of the labels, drawn `--draws` times, the 20 nearest neighbours and
fine-tuning, the same for all methods. Results go to results.jsonl, one line for each cell, and what is there already is
not computed again. `--jobs` runs several cells side by side, so that their seconds say nothing; `--steps` goes with it.

A difference to `none` has a standard error: for k-NN over the test images, which both answer; for fine-tuned accuracy
over the draws, whose labelled photos and seeds are the same for both.
"""

import argparse
import dataclasses
import itertools
import json
import math
import shutil
import statistics
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
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
MEASURED = ("made", "seconds", "right", "linear", "finetuned")  # of a cell; the rest says which it is


def chosen(labels: Array, num: int, rng: np.random.Generator) -> Array:
    """So many images, of each class as many as of the others as far as there are."""
    order = rng.permutation(len(labels))
    rank = np.empty(len(labels), np.int64)
    for number in np.unique(labels):
        own = order[labels[order] == number]
        rank[own] = np.arange(len(own))
    return order[np.argsort(rank[order], kind="stable")[:num]]


def labelled_rows(labels: Array, fraction: float, seed: int, draw: int) -> Array:
    """About that part of each class, one image at least; another one for each draw."""
    rng = np.random.default_rng((seed, draw))
    by_class = [rng.permutation(np.flatnonzero(labels == number)) for number in np.unique(labels)]
    return np.sort(np.concatenate([own[: max(round(len(own) * fraction), 1)] for own in by_class]))


def prepared(data: str, cell: Cell, out: Path) -> Path:
    """The photos with the test part, as the model sees them; beside them each labelled part that is fine-tuned on."""
    every = out / f"{cell['set']}-{cell['side']}-{cell['images']}-{cell['tested']}-{cell['seed']}.npz"
    if not every.exists():
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
    missing = [(fraction, draw) for fraction, draw in parts(cell) if not labelled(every, fraction, draw).exists()]
    if missing and cell["finetune_steps"]:
        with np.load(every) as kept:
            arrays = dict(kept)
        for fraction, draw in missing:
            rows = labelled_rows(arrays["y_train"], fraction, cell["seed"], draw)
            some = arrays | {name: arrays[name][rows] for name in ("x_train", "y_train")}
            np.savez(labelled(every, fraction, draw), **some)
    return every


def parts(cell: Cell) -> list[tuple[float, int]]:
    return list(itertools.product(cell["labels"], range(cell["draws"])))


def labelled(every: Path, fraction: float, draw: int) -> Path:
    return every.with_name(f"{every.stem}-{fraction:g}-{draw}.npz")


def timed(device: str, work: Callable[[], object]) -> float:
    """Seconds of this process's processor, or on a GPU of the clock."""
    clock = time.perf_counter if device.startswith("cuda") else time.process_time
    start = clock()
    work()
    return clock() - start


def trained(recipe: Recipe, cell: Cell, folder: Path, device: str, seed: int) -> session.RunOutcome:
    shutil.rmtree(folder, ignore_errors=True)
    recipe = dataclasses.replace(
        recipe,
        data=dataclasses.replace(recipe.data, workers=0),
        seed=seed,
        compile=cell["compile"],
        evaluate_every="100%",
        checkpoint_every="100%",
        log_every="10%",
        keep="last",
    )
    return session.train(recipe, folder, device=device, show=False)


def pretrained(cell: Cell, photos: Path, run: Path, device: str) -> tuple[int, float]:
    """A run of the steps that are asked for, or of as many as fit; how many they were, and what they took."""
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
        return timed(device, lambda: trained(recipe, cell, folder, device, cell["seed"]))

    if cell["steps"] is not None:
        return cell["steps"], made(cell["steps"], run)
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


def nearest(own: dict[str, Array], rows: Array) -> Array:
    """Which test images the nearest of some photos name rightly."""
    queries = F.normalize(torch.from_numpy(own["x_test"]), dim=1)
    known, num = own["y_train"][rows], int(own["y_train"].max()) + 1
    bank = Examples.of(own["x_train"][rows], known, "train")
    near, places = neighbours(bank, queries, NEIGHBOURS)
    [said] = vote(near, torch.from_numpy(known)[places], num, [NEIGHBOURS], "similarity", TEMPERATURE)
    return said.numpy() == own["y_test"]


def finetuned(cell: Cell, source: str, part: Path, run: Path, device: str, seed: int) -> float:
    """Test accuracy of the last weights: nothing is held out, and nothing chosen."""
    with np.load(part) as arrays:
        num_images = len(arrays["y_train"])
    recipe = transfer_recipe(
        str(part),
        source,
        read_configuration(source, image_size=cell["side"]),
        num_images=num_images,
        picture=(cell["side"], cell["side"]),
        on_gpu=device.startswith("cuda"),
        held_out=0,
        steps=cell["finetune_steps"],
        image_size=cell["side"],
    )
    return trained(recipe, cell, run.with_name(f"{run.name}-finetuned"), device, seed).scores["test accuracy"]


def measured(cell: Cell, photos: Path, run: Path, device: str) -> Cell:
    source = cell["model"] if cell["method"] == NONE else str(run)
    own = features(source, cell["side"], photos, device)
    probe = linear(own["x_train"], own["y_train"], own["x_test"], own["y_test"], l2s=L2S, device=device)
    right: dict[str, list[str]] = {f"{fraction:g}": [] for fraction in cell["labels"]}
    tuned: dict[str, list[float]] = {f"{fraction:g}": [] for fraction in cell["labels"]}
    for fraction, draw in parts(cell):
        rows = labelled_rows(own["y_train"], fraction, cell["seed"], draw)
        right[f"{fraction:g}"].append(np.packbits(nearest(own, rows)).tobytes().hex())
        if cell["finetune_steps"]:
            seed = cell["seed"] * cell["draws"] + draw
            tuned[f"{fraction:g}"].append(finetuned(cell, source, labelled(photos, fraction, draw), run, device, seed))
    return {"right": right, "linear": probe.metrics["top-1"].value, "finetuned": tuned}


def made(cell: Cell, photos: Path, run: Path, device: str) -> Cell:
    """A cell with what was measured."""
    steps, seconds = (0, 0.0) if cell["method"] == NONE else pretrained(cell, photos, run, device)
    return {**cell, "made": steps, "seconds": round(seconds, 1), **measured(cell, photos, run, device)}


def answers(cell: Cell, fraction: str) -> Array:
    """1.0 for each test image that k-NN names rightly, [draw, image]."""
    packed = [np.frombuffer(bytes.fromhex(text), np.uint8) for text in cell["right"][fraction]]
    return np.stack([np.unpackbits(bits)[: cell["tested"]] for bits in packed]).astype(float)


def by_neighbours(cell: Cell, base: Cell | None, fraction: str) -> str:
    """k-NN in %, and the difference to another cell in points, with its standard error over the same images."""
    own = answers(cell, fraction).mean(axis=0)
    if base is None:
        return f"{100 * own.mean():.1f} |"
    gap = own - answers(base, fraction).mean(axis=0)
    return f"{100 * own.mean():.1f} | {100 * gap.mean():+.1f} ± {100 * gap.std() / math.sqrt(len(gap)):.1f}"


def by_finetuning(cell: Cell, base: Cell | None, fraction: str) -> str:
    """Fine-tuned accuracy in %, and the difference to another cell, with its standard error over the draws."""
    own = cell["finetuned"][fraction]
    if not own:
        return "|"
    if base is None:
        return f"{100 * statistics.mean(own):.1f} |"
    gaps = [100 * (one - other) for one, other in zip(own, base["finetuned"][fraction], strict=True)]
    error = f" ± {statistics.stdev(gaps) / math.sqrt(len(gaps)):.1f}" if len(gaps) > 1 else ""
    return f"{100 * statistics.mean(own):.1f} | {statistics.mean(gaps):+.1f}{error}"


def table(cells: list[Cell]) -> list[str]:
    """A line per cell; the cells of a table have the same parts of the labels."""
    lines: list[str] = []
    same = ("set", "model", "side", "images", "tested", "labels", "draws", "finetune_steps", "seed")
    for labels, some in itertools.groupby(sorted(cells, key=lambda cell: cell["labels"]), lambda cell: cell["labels"]):
        group, fractions = list(some), [f"{fraction:g}" for fraction in labels]
        heads = [f"{how}, {fraction:.0%} | gain" for how in ("k-NN", "fine-tuned") for fraction in labels]
        lines.append(f"| set | seed | photos | method | lr | seconds | steps | linear | {' | '.join(heads)} |")
        lines.append("|-" * (8 + 2 * len(heads)) + "|")
        for cell in group:
            bases = [
                each for each in group if each["method"] == NONE and all(each[name] == cell[name] for name in same)
            ]
            base = bases[0] if bases and cell is not bases[0] else None
            lr = "" if cell["method"] == NONE else "own" if cell["lr"] is None else f"{cell['lr']:g}"
            shown = [how(cell, base, fraction) for how in (by_neighbours, by_finetuning) for fraction in fractions]
            lines.append(
                f"| {cell['set']} | {cell['seed']} | {cell['images']:,} | {cell['method']} | {lr} |"
                f" {cell['seconds']:.0f} | {cell['made']:,} | {100 * cell['linear']:.1f} | {' | '.join(shown)} |"
            )
    return lines


def cells_of(given: argparse.Namespace) -> list[tuple[str, Cell]]:
    found: list[tuple[str, Cell]] = []
    for data, seed, method in itertools.product(given.data, given.seeds, given.methods):
        for lr in given.lrs if method != NONE else [None]:
            own = {"set": Path(data).stem, "method": method, "lr": lr, "seed": seed}
            fields = ("model", "side", "images", "tested", "labels", "draws", "finetune_steps", "compile")
            fixed = {name: getattr(given, name) for name in fields}
            spent = {
                name: None if method == NONE else getattr(given, name) for name in ("minutes", "steps", "batch_size")
            }
            found.append((data, {**own, **fixed, **spent}))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="*", help="folders with train and test")
    parser.add_argument("--methods", nargs="+", default=[NONE, *METHODS], choices=[NONE, *METHODS])
    spent = parser.add_mutually_exclusive_group(required=True)
    spent.add_argument("--minutes", type=float)
    spent.add_argument("--steps", type=int)
    spent.add_argument("--table", action="store_true", help="show what there is, and compute nothing")
    parser.add_argument("--lrs", type=float, nargs="+", default=[None], help="by default each method's own")
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--images", type=int, default=1000, help="photos to learn from without labels")
    parser.add_argument("--tested", type=int, default=1000)
    parser.add_argument("--labels", type=float, nargs="+", default=[1.0], help="parts of each class with labels")
    parser.add_argument("--draws", type=int, default=1, help="times that such a part is drawn")
    parser.add_argument("--finetune-steps", type=int, default=0, help="0: it is not fine-tuned")
    parser.add_argument("--model", default="vitlab/tiny")
    parser.add_argument("--side", type=int, default=96, help="px")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--jobs", type=int, default=1, help="cells side by side")
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("runs/pretrain-benchmark"))
    given = parser.parse_args()
    if given.jobs > 1 and given.steps is None:
        parser.error("--jobs goes with --steps: what runs side by side has no time of its own")
    given.out.mkdir(parents=True, exist_ok=True)
    kept, device = given.out / "results.jsonl", choose_device(given.device)
    results: list[Cell] = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = [{name: value for name, value in old.items() if name not in MEASURED} for old in results]
    left = [] if given.table else [(data, cell) for data, cell in cells_of(given) if cell not in done]
    jobs = [(cell, prepared(data, cell, given.out)) for data, cell in left]
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool, kept.open("a") as stream:
        runs = [given.out / f"run-{len(results) + place}" for place in range(len(jobs))]
        begun = [pool.submit(made, *job, run, device) for job, run in zip(jobs, runs, strict=True)]
        failed: list[BaseException] = []
        for future in as_completed(begun):
            if (error := future.exception()) is not None:  # the others may do
                failed.append(error)
                continue
            cell = future.result()
            results.append(cell)
            stream.write(json.dumps(cell) + "\n")
            stream.flush()
            print(f"{cell['set']} {cell['method']} {cell['lr']}: linear {cell['linear']:.1%}", flush=True)
    print("\n".join(table(results)))
    for error in failed:
        traceback.print_exception(error)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
