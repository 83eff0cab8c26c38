"""Run folders as training leaves them, made at once from a model with random weights, and its answers by NumPy."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitlab
from tiny_vits import random_vit
from vitlab.core.config import to_dict
from vitlab.core.record import write_json
from vitlab.data.open import open_data
from vitlab.models.vit import ViTConfig
from vitlab.reporting.make import Plan
from vitlab.training.recipe import DataChoice, Loss, Recipe
from vitlab.training.schedules import Schedule

Array = np.ndarray[Any, Any]
HOSTILE = ('<script>alert("1")</script>', "a & b", "' onload='x", "日本 $x$", "</style><b>", "plain", "a" * 90)
STEPS = 40


@dataclass(frozen=True)
class MadeRun:
    """A run's folder, what opens its data, and the model's outputs for the held-out pictures."""

    folder: Path
    plan: Callable[[], Plan]
    logits: Array
    labels: Array

    @property
    def shares(self) -> Array:
        values = np.exp(self.logits - self.logits.max(axis=1, keepdims=True))
        return values / values.sum(axis=1, keepdims=True)


def make_run(root: Path, *, several: bool = False, classes: tuple[str, ...] = HOSTILE, num: int = 60) -> MadeRun:
    """A finished run; with `several`, pictures have several labels and the held-out part is val."""
    rng = np.random.default_rng(0)
    num_classes = len(classes)
    data, folder = root / 'a "<b>set" & co.npz', root / "run"
    root.mkdir(parents=True, exist_ok=True)
    pixels = rng.integers(0, 256, (4 * num, 8, 8, 3), dtype=np.uint8)
    labels = rng.integers(0, num_classes, 4 * num)
    labels[:num_classes] = np.arange(num_classes)
    train = slice(0, 3 * num)
    if several:
        labels = (rng.random((4 * num, num_classes)) < 0.3).astype(np.int64)
        labels[:, 0] = 1
    arrays = {
        "x_train": pixels[train],
        "y_train": labels[train],
        "x_test": pixels[3 * num :],
        "y_test": labels[3 * num :],
    }
    np.savez(data, classes=np.array(classes), **arrays)

    config = ViTConfig(image_size=(8, 8), patch_size=4, width=16, depth=2, mlp_dim=16, heads=2, num_classes=num_classes)
    model = random_vit(config)
    dataset = open_data(data)
    model.labels, model.multi_label = dataset.classes, dataset.multi_label
    vitlab.save(model, folder / "model")
    recipe = Recipe(
        name="made <i>up</i>",
        data=DataChoice(source=str(data)),
        loss=Loss(kind="sigmoid" if several else "softmax"),
        schedule=Schedule(total=f"{STEPS} steps"),
        batch_size=30,
    )
    write_json(folder / "recipe.json", to_dict(recipe))
    facts = {"name": dataset.name, "fingerprint": dataset.fingerprint, "classes": list(dataset.classes)}
    write_json(folder / "data.json", facts)
    command = ["vitlab", "train", "made", "--out", str(folder), "--optimizer.lr=0.1 <b>"]
    environment = {"command": command, "gpus": [], "threads": 1, "processes": 1, "recipe": to_dict(recipe)}
    write_json(folder / "environment.json", environment)
    write_metrics(folder, STEPS)
    result = {"step": STEPS, "images_seen": STEPS * 30, "seconds": 200.0, "reason": "done", "skipped": 0}
    write_json(folder / "result.json", result)

    held = dataset.splits["test"]
    images = torch.tensor((pixels[3 * num :] - 127.5) / 127.5, dtype=torch.float32).permute(0, 3, 1, 2)
    with torch.no_grad():
        logits = model.eval()(images).double().numpy()
    return MadeRun(folder, lambda: Plan(open_data(data), STEPS), logits, held.labels)


def write_metrics(folder: Path, last: int) -> None:
    """Lines every fifth step, one of them not finite, and a look at the held-out part every tenth."""
    lines: list[Mapping[str, Any]] = []
    for step in range(5, last + 1, 5):
        loss = None if step == 15 else 2 / step
        line = {"step": step, "loss": loss, "accuracy": step / 50, "lr": 1e-3, "seconds per step": 5.0}
        lines.append(line | {"images per second": 6.0})
        if step % 10 == 0:
            score = 0.5 + step / 100
            lines.append({"step": step, "val score": score, "val accuracy": score, "val loss": 1.0, "val count": 50.0})
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / "metrics.jsonl").write_text(text, encoding="utf-8")


def without_data(run: MadeRun) -> MadeRun:
    """The same run where its data is gone."""
    return replace(run, plan=lambda: Plan(open_data(run.folder / "gone.npz"), STEPS))
