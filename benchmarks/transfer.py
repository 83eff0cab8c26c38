"""Fine-tuning from a model beside the same architecture from scratch, on any sets: the table of docs/results/box.md.

    python benchmarks/transfer.py pets.npz flowers102.npz --out runs/transfer
    python benchmarks/transfer.py pets.npz --classes Abyssinian Persian beagle pug samoyed --per-class 60 --seeds 0 1 2

Both get the same steps and the same grid of lr and augmentation; the setting is chosen on the part of train that is
held out, and the test part is shown for that setting alone. `--per-class` takes so many training images of each of
`--classes`, others for each seed. Results go to results.jsonl, and what is there already is not run again. `--jobs`
runs several at once, which pays for sets so small that a GPU is mostly idle.
"""

import argparse
import dataclasses
import itertools
import json
import math
import statistics
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from vitlab.core.devices import choose_device
from vitlab.data.augmentation import Augmentation
from vitlab.data.open import open_data
from vitlab.training import session
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, Loss, ModelChoice, Recipe
from vitlab.training.schedules import Schedule
from vitlab.weights.load import read_configuration

LIGHT = Augmentation(crop="paper", crop_area=(0.35, 1.0), flip=0.5)
STRONG = dataclasses.replace(LIGHT, policy="randaugment", erase=0.25, mixup=0.8, cutmix=1.0, mix_until="85%")
AUGMENTATIONS = {"light": LIGHT, "strong": STRONG}
Job = dict[str, Any]


def model_of(source: str, arm: str) -> ModelChoice:
    """The trained model, or a fresh one of its sizes whose blocks start as the identity."""
    if arm == "trained":
        return ModelChoice(source=source, pretrained=True)
    config = read_configuration(source)
    fields = ("patch_size", "width", "depth", "heads", "mlp_dim", "class_token", "pool", "rotary")
    own = (*(f"{name}={getattr(config, name)}".lower() for name in fields), "residual_scale=0")
    return ModelChoice(source="vit-ti16-224", image_size=config.image_size[0], set=own)


def recipe_of(job: Job) -> Recipe:
    steps = max(round(job["epochs"] * job["images"] * 0.9 / job["batch_size"]), 1)
    decay = 0.05 if job["optimizer"] != "sgd" else 0.0
    return Recipe(
        name="transfer",
        model=model_of(job["model"], job["arm"]),
        data=DataChoice(source=job["data"], val_fraction=0.1),
        augmentation=AUGMENTATIONS[job["augment"]],
        loss=Loss(label_smoothing=0.1),
        optimizer=Optimizer(
            name=job["optimizer"],
            lr=job["lr"],
            momentum=0.95 if job["optimizer"] == "muon" else 0.9,
            weight_decay=decay,
            clip=1.0,
            ema=1 - 1 / max(steps * 0.08, 2),
        ),
        schedule=Schedule(kind="cosine", total=f"{steps} steps", warmup="5%"),
        batch_size=job["batch_size"],
        compile=job["compile"],
        seed=job["seed"],
        evaluate_every="50%",
        checkpoint_every="100%",
        log_every="50%",
        keep="last",
    )


def run(job: Job, folder: str) -> Job:
    """A run's scores; its folder has what else is worth knowing."""
    start = time.perf_counter()
    outcome = session.train(recipe_of(job), Path(folder), device=job["device"])
    scores = {"val": outcome.scores["val score"], "test": outcome.scores["test accuracy"]}
    return {**job, **scores, "steps": outcome.step, "seconds": round(time.perf_counter() - start, 1)}


def few_of(data: str, classes: list[str], per_class: int, seed: int, out: Path) -> str:
    """A set of so many training images of each class, drawn by the seed, and of all test images of these classes."""
    path = out / f"{Path(data).stem}-{len(classes)}x{per_class}-{seed}.npz"
    if path.exists():
        return str(path)
    dataset = open_data(data)
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {"classes": np.array(classes)}
    numbers = [dataset.classes.index(name) for name in classes]
    for part, most in (("train", per_class), ("test", None)):
        split = dataset.splits[part]
        labels = np.asarray(split.label.values)
        chosen = [rng.permutation(np.flatnonzero(labels == number))[:most] for number in numbers]
        arrays[f"x_{part}"] = np.stack([split.images.read(int(i)) for i in np.concatenate(chosen)])
        arrays[f"y_{part}"] = np.repeat(np.arange(len(classes)), [len(own) for own in chosen])
    np.savez(path, **arrays)
    return str(path)


def interval(share: float, number: int) -> str:
    """Wilson's 95% interval in %."""
    z = 1.96
    middle, half = share + z * z / 2 / number, z * math.sqrt(share * (1 - share) / number + (z / 2 / number) ** 2)
    return f"{100 * (middle - half) / (1 + z * z / number):.1f} to {100 * (middle + half) / (1 + z * z / number):.1f}"


def table(results: list[Job]) -> list[str]:
    """For each set and arm the test accuracy of the setting that its held-out part chose, seed by seed."""
    lines = ["| set | arm | chosen lr, augmentation | test accuracy | held-out |", "|-|-|-|-|-|"]
    for (name, arm), own in itertools.groupby(
        sorted(results, key=lambda job: (job["name"], job["arm"], job["seed"])), lambda job: (job["name"], job["arm"])
    ):
        best = [
            max(of_seed, key=lambda job: job["val"])
            for of_seed in (list(group) for _, group in itertools.groupby(own, lambda job: job["seed"]))
        ]
        tests = [job["test"] for job in best]
        said = ", ".join(f"{100 * value:.1f}" for value in tests)
        spread = said if len(tests) > 1 else interval(tests[0], best[0]["tested"])
        settings = "; ".join(f"{job['lr']:g} {job['augment']}" for job in best)
        held_out = ", ".join(f"{100 * job['val']:.1f}" for job in best)
        lines.append(f"| {name} | {arm} | {settings} | {100 * statistics.mean(tests):.1f} ({spread}) | {held_out} |")
    return lines


def jobs_of(given: argparse.Namespace, data: str) -> list[Job]:
    """The grid for a set, for both arms."""
    jobs: list[Job] = []
    for seed in given.seeds:
        source = few_of(data, given.classes, given.per_class, seed, given.out) if given.classes else data
        dataset = open_data(source)
        sizes = {"images": len(dataset.splits["train"]), "tested": len(dataset.splits.get("test", ()))}
        for arm, lr, augment in itertools.product(("trained", "scratch"), given.lrs, given.augment):
            chosen = {"arm": arm, "lr": lr, "augment": augment, "seed": seed}
            fields = ("model", "optimizer", "epochs", "batch_size", "compile")
            fixed = {"device": choose_device(given.device), **{name: getattr(given, name) for name in fields}}
            jobs.append({"name": Path(data).stem, "data": source, **sizes, **chosen, **fixed})
    return jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+")
    parser.add_argument("--model", default="vitlab/tiny", help="a plain ViT")
    parser.add_argument("--classes", nargs="+", default=[])
    parser.add_argument("--per-class", type=int, default=60)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--lrs", type=float, nargs="+", default=[2e-4, 6e-4, 2e-3])
    parser.add_argument("--augment", nargs="+", choices=list(AUGMENTATIONS), default=list(AUGMENTATIONS))
    parser.add_argument("--optimizer", default="muon")
    parser.add_argument("--epochs", type=float, default=40)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--compile", action="store_true", help="for sets large enough to be worth a minute of it")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--device")
    parser.add_argument("--out", type=Path, default=Path("runs/transfer"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    kept = given.out / "results.jsonl"
    results: list[Job] = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = [{name: old[name] for name in old if name not in ("val", "test", "steps", "seconds")} for old in results]
    wanted = [job for data in given.data for job in jobs_of(given, data)]
    left = [job for job in wanted if job not in done]
    print(f"{len(wanted)} runs, {len(wanted) - len(left)} of them made already")
    with ProcessPoolExecutor(given.jobs, mp_context=get_context("spawn")) as pool, kept.open("a") as stream:
        first = len(results)
        for result in pool.map(run, left, [str(given.out / f"run-{first + i}") for i in range(len(left))]):
            results.append(result)
            stream.write(json.dumps(result) + "\n")
            stream.flush()
    print("\n".join(table([result for result in results if result["model"] == given.model])))


if __name__ == "__main__":
    main()
