"""Whole runs: what they leave behind, how they go on, and how they refuse."""

import dataclasses
import errno
import functools
import io
import json
import os
import shutil
import signal
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, fx, nn

from changing import changed, lose_at, signal_at, spoil_at
from short_runs import write_damaged_folder
from vitlab import api
from vitlab.core.config import to_dict
from vitlab.core.errors import ConfigError, Error
from vitlab.data.loading.resident_feed import ResidentFeed
from vitlab.models.contract import Model
from vitlab.models.create import create
from vitlab.recipes import find_recipe, transfer
from vitlab.training import assembly, hooks, log, session
from vitlab.training.checkpoints import DiskFullError
from vitlab.training.execution import decide
from vitlab.training.hooks import DivergedError
from vitlab.training.log import JsonLines
from vitlab.training.model import build_model
from vitlab.training.plan import Given, make_plan, open_parts
from vitlab.training.recipe import Recipe
from vitlab.training.run import RunError, locked
from vitlab.training.step import Stepper
from vitlab.weights.load import save


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    """A finished run's weights, and its metrics without the times."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timeless = [{k: v for k, v in line.items() if "second" not in k} for line in lines]
    return load_file(folder / "model" / "model.safetensors"), timeless


def same_run(a: Path, b: Path) -> None:
    (weights_a, lines_a), (weights_b, lines_b) = outcome(a), outcome(b)
    assert lines_a == lines_b
    assert weights_a.keys() == weights_b.keys()
    assert all(torch.equal(weights_a[name], weights_b[name]) for name in weights_a)


@pytest.mark.parametrize("resident", [True, False])
def test_a_lost_run_goes_on_to_the_bit(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resident: bool
) -> None:
    recipe = changed(short, **{"data.resident": resident, "data.workers": 0})
    session.train(recipe, tmp_path / "whole", device="cpu", show=False)
    start = functools.partial(session.train, recipe)
    for step in (2, 9, 18):
        with monkeypatch.context() as patch:
            lose_at(step, patch)
            with pytest.raises(KeyboardInterrupt):
                start(tmp_path / "lost often", device="cpu", show=False)
        start = session.resume
    ended = session.resume(tmp_path / "lost often", device="cpu", show=False)
    assert ended.step == 24
    same_run(tmp_path / "whole", tmp_path / "lost often")


def test_both_paths_make_the_same_run(short: Recipe, tmp_path: Path) -> None:
    """Resident batches and workers' batches, with the same augmentation counted the same way."""
    for name, resident in (("a", True), ("b", False)):
        recipe = changed(short, **{"data.resident": resident, "data.workers": 0})
        session.train(recipe, tmp_path / name, device="cpu", show=False)
    same_run(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("resident", [True, False])
def test_damaged_pictures_are_named_counted_and_replaced(
    short: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture, resident: bool
) -> None:
    write_damaged_folder(tmp_path / "data", {"train": [0, 31], "val": [5]})
    recipe = changed(short, **{"data.source": str(tmp_path / "data"), "data.workers": 0})
    session.train(changed(recipe, **{"data.resident": resident}), tmp_path / "run", device="cpu", show=False)
    for path in ("train/a/00.png", "train/b/31.png", "val/b/05.png"):
        assert any(str(tmp_path / "data" / path) in message for message in caplog.messages)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["unreadable"] == 2
    assert {line["val count"] for line in outcome(tmp_path / "run")[1] if "val count" in line} == {11}
    if resident:  # the same pictures took their places as in workers' batches
        other = changed(recipe, **{"data.resident": False})
        session.train(other, tmp_path / "other", device="cpu", show=False)
        same_run(tmp_path / "run", tmp_path / "other")


@pytest.mark.parametrize("resident", [True, False])
def test_too_many_damaged_pictures_stop_a_run_with_a_list(short: Recipe, tmp_path: Path, resident: bool) -> None:
    write_damaged_folder(tmp_path / "data", {"train": list(range(0, 60, 5))})
    recipe = changed(short, **{"data.source": str(tmp_path / "data"), "data.resident": resident, "data.workers": 0})
    with pytest.raises(
        Error, match=r"(?s)1[12] of 60 .* 10 are allowed \(data\.max_unreadable of a recipe\).*train/a/00\.png"
    ):
        session.train(recipe, tmp_path / "run", device="cpu", show=False)


def test_a_set_of_several_sizes_is_not_resident(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("vitlab.data.loading.resident.LOOK_AT", 4)  # so that it comes out while they are read
    write_damaged_folder(tmp_path / "data", {})
    first, *_, last = sorted((tmp_path / "data" / "train" / "b").iterdir())
    Image.open(first).resize((8, 9)).save(last)
    recipe = changed(short, **{"data.source": str(tmp_path / "data"), "schedule.total": "4 steps", "data.workers": 0})
    with pytest.raises(Error, match="images of one size"):
        session.train(changed(recipe, **{"data.resident": True}), tmp_path / "run", device="cpu", show=False)
    session.train(recipe, tmp_path / "run", device="cpu")
    assert "There are images of other sizes" in capsys.readouterr().err


def test_a_run_leaves_what_the_design_says(short: Recipe, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    ended = session.train(short, folder, device="cpu", show=False)
    assert ended.status == 0
    names = {path.name for path in folder.iterdir()}
    assert {"recipe.json", "environment.json", "metrics.jsonl", "checkpoints", "model"} <= names
    assert any(name.startswith("events.") for name in names)
    model = api.load(folder)
    assert model.labels == ("0", "1", "2")
    saved = json.loads((folder / "recipe.json").read_text())
    assert saved["optimizer"]["lr"] == 3e-3
    assert len([p for p in (folder / "checkpoints").iterdir() if p.name.startswith("step-")]) in (1, 2)


def test_it_learns(short: Recipe, small_set: Path, tmp_path: Path) -> None:
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "augmentation.erase": 0.0}
    recipe = changed(short, **plain, **{"schedule.total": "120 steps", "evaluate_every": "40 steps"})
    session.train(recipe, tmp_path / "run", device="cpu", show=False)
    with np.load(small_set) as arrays:
        answers = api.predict(api.load(tmp_path / "run"), list(arrays["images"]), top=1)
        right = [a.classes[0].index == label for a, label in zip(answers, arrays["labels"], strict=True)]
    assert np.mean(right) > 0.9


def test_a_second_start_is_refused(short: Recipe, tmp_path: Path) -> None:
    with locked(tmp_path / "run"), pytest.raises(RunError, match="under way"):
        session.train(short, tmp_path / "run", device="cpu", show=False)


def test_a_folder_with_a_run_is_not_trained_into(short: Recipe, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").write_text("{}")
    with pytest.raises(RunError, match="--resume"):
        session.train(short, tmp_path / "run", device="cpu", show=False)
    with pytest.raises(RunError, match="not a run's folder"):
        session.resume(tmp_path / "nothing here", device="cpu", show=False)


def test_a_changed_recipe_or_set_is_refused(short: Recipe, small_set: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    session.train(changed(short, **{"schedule.total": "4 steps"}), folder, device="cpu", show=False)
    other = changed(short, **{"schedule.total": "4 steps", "optimizer.lr": 1.0})
    with pytest.raises(RunError, match=r"optimizer\.lr: 0\.003, now 1\.0"):
        session.resume(folder, recipe=other, device="cpu", show=False)
    with np.load(small_set) as arrays:
        np.savez(small_set, images=arrays["images"], labels=arrays["labels"][::-1])
    with pytest.raises(RunError, match="changed since"):
        session.resume(folder, device="cpu", show=False)


def test_divergence_stops_with_the_batch_saved(short: Recipe, tmp_path: Path) -> None:
    recipe = changed(short, **{"optimizer.lr": 1e30, "optimizer.clip": None, "max_skipped": 3})
    with pytest.raises(DivergedError, match="3 steps in a row"):
        session.train(recipe, tmp_path / "run", device="cpu", show=False)
    saved = torch.load(tmp_path / "run" / "bad_batch_rank0.pt", weights_only=True)
    assert saved["images"].shape == (16, 3, 8, 8)


def test_early_stopping(short: Recipe, tmp_path: Path) -> None:
    recipe = changed(short, **{"optimizer.lr": 1e-12, "patience": 2, "optimizer.ema": None})
    ended = session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert ended.reason == "early"
    assert ended.step == 18  # the first evaluation, and two that are no better
    before = outcome(tmp_path / "run")[1]
    assert session.resume(tmp_path / "run", device="cpu", show=False) == ended
    assert outcome(tmp_path / "run")[1] == before


@pytest.mark.parametrize("step", [5, 23])  # an evaluation is due after them; the second is the run's last
def test_an_evaluation_that_a_signal_put_off_is_made_up_for(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    session.train(short, tmp_path / "whole", device="cpu", show=False)
    with monkeypatch.context() as patch:
        signal_at(step, signal.SIGINT, patch)
        ended = session.train(short, tmp_path / "stopped", device="cpu", show=False)
    assert (ended.reason, ended.status, ended.step) == ("signal", 130, step + 1)
    session.resume(tmp_path / "stopped", device="cpu", show=False)
    same_run(tmp_path / "whole", tmp_path / "stopped")


def test_while_steps_are_skipped_the_last_good_checkpoint_stays(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spoil_at(9, monkeypatch)
    with pytest.raises(DivergedError, match=r"7 steps in a row.*step-000000008"):
        session.train(changed(short, max_skipped=7), tmp_path / "run", device="cpu", show=False)


def test_a_full_disk_is_said_with_what_is_kept(short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write, full = assembly.save, []

    def save(model: Model, path: Path) -> None:
        if full:
            raise SafetensorError("I/O error: No space left on device (os error 28)")
        full.append(path)
        write(model, path)

    monkeypatch.setattr(assembly, "save", save)
    with pytest.raises(DiskFullError, match=r"(?s)is full: make room and resume.*--resume.*step-0000000"):
        session.train(short, tmp_path / "run", device="cpu", show=False)
    monkeypatch.undo()
    session.train(short, tmp_path / "whole", device="cpu", show=False)
    session.resume(tmp_path / "run", device="cpu", show=False)
    same_run(tmp_path / "whole", tmp_path / "run")


def test_a_refused_recipe_does_not_take_the_folder(short: Recipe, tmp_path: Path) -> None:
    with pytest.raises(Error, match="exceed the run"):
        session.train(changed(short, **{"schedule.warmup": "90 steps"}), tmp_path / "run", device="cpu", show=False)
    session.train(changed(short, **{"schedule.total": "4 steps"}), tmp_path / "run", device="cpu", show=False)


def test_a_recipe_that_was_edited_is_refused(short: Recipe, tmp_path: Path) -> None:
    path = tmp_path / "run" / "recipe.json"
    session.train(changed(short, **{"schedule.total": "4 steps"}), path.parent, device="cpu", show=False)
    path.write_text(path.read_text().replace('"4 steps"', '"8 steps"'))
    with pytest.raises(RunError, match=r"schedule\.total: '4 steps', now '8 steps'"):
        session.resume(path.parent, device="cpu", show=False)


@pytest.mark.parametrize("fields", [{}, {"model.lora": 2}, {"model.train_only": "head"}])
def test_a_run_goes_on_where_its_data_moved_and_its_first_weights_are_gone(
    short: Recipe, small_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fields: dict[str, object]
) -> None:
    first = api.create("vit-digits", depth=1, width=16, mlp_dim=32, num_classes=7, image_size=16)
    first.preprocess = dataclasses.replace(first.preprocess, mean=(0.1, 0.2, 0.3))  # which no field of a recipe says
    api.save(first, tmp_path / "first")
    chosen = {"model.source": str(tmp_path / "first"), "model.pretrained": True, "model.set": (), **fields}
    recipe = changed(short, **chosen)
    session.train(recipe, tmp_path / "whole", device="cpu", show=False)
    with monkeypatch.context() as patch:
        lose_at(9, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, tmp_path / "lost", device="cpu", show=False)
    shutil.rmtree(tmp_path / "first")
    moved = small_set.rename(tmp_path / "moved.npz")
    with pytest.raises(RunError, match=r"elsewhere now\? vitlab train --resume .*lost --data\.source"):
        session.resume(tmp_path / "lost", device="cpu", show=False)
    there = changed(recipe, **{"data.source": str(moved)})
    session.resume(tmp_path / "lost", recipe=there, device="cpu", show=False)
    same_run(tmp_path / "whole", tmp_path / "lost")
    assert api.load(tmp_path / "lost").preprocess == api.load(tmp_path / "whole").preprocess
    assert session.recipe_of(tmp_path / "lost") == there
    with np.load(moved) as arrays:
        np.savez(tmp_path / "other.npz", images=arrays["images"], labels=arrays["labels"][::-1])
    other = changed(recipe, **{"data.source": str(tmp_path / "other.npz")})
    with pytest.raises(RunError, match="changed since"):
        session.resume(tmp_path / "lost", recipe=other, device="cpu", show=False)


def test_where_the_photos_of_a_run_without_labels_are_is_asked_by_their_kind(short: Recipe, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "data.json").write_text("{}")
    moved = changed(short, **{"data.source": f"photos:{tmp_path / 'gone'}"})
    (run / "environment.json").write_text(json.dumps({"recipe": to_dict(moved)}))
    with pytest.raises(RunError, match=r"elsewhere now\? vitlab train --resume .*run --data\.source photos:WHERE"):
        session.resume(run, recipe=moved, device="cpu", show=False)
    (tmp_path / "gone").mkdir()  # what is wrong with it is another thing
    with pytest.raises(Error, match=r"gone holds no images\.$"):
        session.resume(run, recipe=moved, device="cpu", show=False)


@pytest.mark.parametrize("fields", [{"model.train_only": "head"}, {"model.lora": 2}])
def test_what_is_frozen_keeps_its_statistics(short: Recipe, tmp_path: Path, fields: dict[str, object]) -> None:
    """Batch norms in a backbone that is not trained."""
    small = ("stem=[4,8]", "widths=[8,8,16,16]", "depths=[1,1,1,1]", "head_width=8")
    model = {"model.source": "coatnet-0", "model.set": small, "model.image_size": 32, "model.dropout": 0.0}
    recipe = changed(short, **model, **fields, **{"schedule.total": "3 steps", "schedule.warmup": "0 steps"})
    session.train(recipe, tmp_path / "run", device="cpu", show=False)
    norms = {name: value for name, value in api.load(tmp_path / "run").named_buffers() if "running" in name}
    assert norms
    for name, value in norms.items():
        assert (value == (1.0 if name.endswith("var") else 0.0)).all(), name


@pytest.mark.parametrize(
    "fields",
    [
        {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0},
        {"optimizer.name": "lion", "optimizer.lr": 1e-4},
        {"optimizer.name": "lamb"},
        {"optimizer.name": "muon"},
        {"optimizer.sam": 0.05},
        {"optimizer.sam": 0.5, "optimizer.sam_kind": "asam"},
        {"accumulate": 2},
        {"loss.kind": "sigmoid", "loss.head_bias": -3.0},
        {"loss.class_weights": True},
        {"data.balanced": True},
        {"loss.kind": "sigmoid", "loss.class_mean": True},
        {"data.repeats": 3},
        {"model.lora": 2},
        {"model.train_only": "head"},
        {"model.checkpoint_blocks": True},
        {"optimizer.layer_decay": 0.7, "optimizer.head_lr_scale": 5.0},
        {"schedule.kind": "rsqrt", "schedule.cooldown": "4 steps"},
        {"precision": "bf16"},
    ],
    ids=lambda fields: "-".join(fields),
)
def test_every_option_trains(short: Recipe, tmp_path: Path, fields: dict[str, object]) -> None:
    recipe = changed(short, **{"schedule.total": "6 steps", "schedule.warmup": "1 step", **fields})
    ended = session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert ended.step == 6
    assert api.load(tmp_path / "run").load_report.lines() == []


def test_images_with_several_labels_are_learned_each_label_for_itself(short: Recipe, tmp_path: Path) -> None:
    """Red, green and blue, each of them on or off: no softmax can say that all are, or none is."""
    rng = np.random.default_rng(0)
    labels = (np.arange(160)[:, None] >> np.arange(3)) & 1
    images = (labels[:, None, None, :] * 150 + rng.integers(0, 100, (160, 8, 8, 3))).astype(np.uint8)
    np.savez(tmp_path / "lamps.npz", images=images, labels=labels)
    plain = {
        "augmentation.mixup": 0.0,
        "augmentation.cutmix": 0.0,
        "augmentation.erase": 0.0,
        "optimizer.ema": None,
    }
    total = {"schedule.total": "150 steps", "evaluate_every": "50 steps", "data.source": str(tmp_path / "lamps.npz")}
    recipe = changed(short, **plain, **total)
    ended = session.train(recipe, tmp_path / "run", device="cpu", show=False)
    assert ended.scores["best val score"] > 0.95
    model = api.load(tmp_path / "run")
    assert model.multi_label
    for answer, row in zip(api.predict(model, list(images[:8]), top=3), labels, strict=False):
        assert {found.index for found in answer.classes if found.probability > 0.5} == set(np.flatnonzero(row))
    with pytest.raises(Error, match=r"loss\.kind softmax"):
        session.train(changed(recipe, **{"loss.kind": "softmax"}), tmp_path / "other", device="cpu", show=False)


@pytest.mark.parametrize("resident", [True, False])
def test_a_run_scores_its_model_as_users_will_see_it(short: Recipe, tmp_path: Path, resident: bool) -> None:
    """Wide pictures whose classes differ at their ends alone, which a model that crops the centre does not see."""
    rng = np.random.default_rng(0)
    labels = np.arange(160) % 2
    images = rng.integers(0, 60, (160, 8, 24, 3)).astype(np.uint8)
    images[:, :, :6] += (labels * 180).astype(np.uint8)[:, None, None, None]
    parts = {"x_train": images[:120], "y_train": labels[:120], "x_test": images[120:], "y_test": labels[120:]}
    np.savez(tmp_path / "wide.npz", **parts)
    model = api.create("vit-digits", depth=1, num_classes=2)
    model.preprocess = dataclasses.replace(model.preprocess, resize="shortest")
    api.save(model, tmp_path / "cropping")
    fields = {"data.source": str(tmp_path / "wide.npz"), "model.source": str(tmp_path / "cropping"), "model.set": ()}
    squashed = {"augmentation.crop": "resize", "augmentation.mixup": 0.0, "augmentation.cutmix": 0.0}
    recipe = changed(short, **fields, **squashed, **{"model.pretrained": True, "data.workers": 0})
    ended = session.train(changed(recipe, **{"data.resident": resident}), tmp_path / "run", device="cpu", show=False)
    answers = api.predict(api.load(tmp_path / "run"), list(images[120:]), top=1)
    right = np.mean([answer.classes[0].index for answer in answers] == labels[120:])
    assert ended.scores["test accuracy"] == right < 0.8


def test_adapters_are_folded_in_at_every_save(short: Recipe, tmp_path: Path) -> None:
    """Saved in the middle of the run and at its end; the frozen weights move only by the adapters' low rank."""
    recipe = changed(short, **{"model.lora": 2, "optimizer.ema": None, "keep": "last", "optimizer.lr": 0.01})
    first = changed(recipe, **{"schedule.total": "1 step", "schedule.warmup": "0 steps", "optimizer.lr": 1e-12})
    session.train(first, tmp_path / "start", device="cpu", show=False)
    session.train(changed(recipe, keep="best"), tmp_path / "best", device="cpu", show=False)
    session.train(recipe, tmp_path / "end", device="cpu", show=False)
    before, after = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("start", "end"))
    moved = after["blocks.0.mlp.up.weight"] - before["blocks.0.mlp.up.weight"]
    assert moved.abs().max() > 1e-4
    assert torch.linalg.matrix_rank(moved.double(), rtol=1e-4) == 2
    assert torch.equal(before["projection.weight"], after["projection.weight"])


def test_fine_tuning_replaces_the_head_and_resizes(short: Recipe, small_set: Path, tmp_path: Path) -> None:
    session.train(changed(short, **{"schedule.total": "6 steps"}), tmp_path / "first", device="cpu", show=False)
    ended = api.finetune(
        str(small_set),
        str(tmp_path / "first"),
        out=tmp_path / "second",
        steps=30,
        image_size=16,
        lr=0.03,
        device="cpu",
    )
    model = api.load(ended.folder)
    assert model.config.image_size == (16, 16)
    assert model.labels == ("0", "1", "2")
    frozen = api.finetune(
        str(small_set), str(tmp_path / "first"), out=tmp_path / "third", steps=4, freeze="backbone", device="cpu"
    )
    before = load_file(tmp_path / "first" / "model" / "model.safetensors")
    after = load_file(frozen.folder / "model" / "model.safetensors")
    assert all(torch.equal(after[name], value) for name, value in before.items() if not name.startswith("head."))
    assert not torch.equal(after["head.weight"], before["head.weight"])


def test_fine_tuning_starts_from_a_zero_head_also_for_as_many_classes(short: Recipe, tmp_path: Path) -> None:
    session.train(changed(short, **{"schedule.total": "6 steps"}), tmp_path / "first", device="cpu", show=False)
    recipe = changed(short, **{"model.source": str(tmp_path / "first"), "model.pretrained": True})
    model = build_model(make_plan(recipe, tmp_path, open_parts(recipe), Given()))
    first = load_file(tmp_path / "first" / "model" / "model.safetensors")
    assert first["head.weight"].any()
    assert not any(parameter.any() for parameter in model.head.parameters())
    assert torch.equal(model.state_dict()["projection.weight"], first["projection.weight"])


def test_a_bit_is_fine_tuned_by_its_own_rule(small_set: Path, tmp_path: Path) -> None:
    bit = api.create("bit-r50x1", image_size=32, layers=(1, 1), width=32, num_classes=7)
    api.save(bit, tmp_path / "bit")
    ended = api.finetune(str(small_set), str(tmp_path / "bit"), out=tmp_path / "run", steps=4, device="cpu")
    recipe = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert ended.step == 4
    assert recipe["schedule"]["kind"] == "staircase"
    assert recipe["augmentation"]["crop_part"] == 0.8  # 128 of 160 px for small pictures
    with pytest.raises(Error, match="Low-rank adapters need"):
        api.finetune(str(small_set), str(tmp_path / "bit"), out=tmp_path / "lora", steps=1, lora=2, device="cpu")


def test_a_class_with_one_image_is_refused(short: Recipe, tmp_path: Path) -> None:
    lonely = tmp_path / "lonely.npz"
    np.savez(lonely, images=np.zeros((9, 8, 8, 3), np.uint8), labels=np.array([0, 0, 0, 0, 1, 1, 1, 1, 2]))
    with pytest.raises(Error, match="class '2' has fewer than two images"):
        session.train(changed(short, **{"data.source": str(lonely)}), tmp_path / "run", device="cpu", show=False)


def test_one_class_and_no_images_are_refused(short: Recipe, tmp_path: Path) -> None:
    one = tmp_path / "one.npz"
    np.savez(one, images=np.zeros((9, 8, 8, 3), np.uint8), labels=np.zeros(9, np.int64))
    with pytest.raises(Error, match="class"):
        session.train(changed(short, **{"data.source": str(one)}), tmp_path / "run", device="cpu", show=False)
    (tmp_path / "empty").mkdir()
    with pytest.raises(Error):
        session.train(
            changed(short, **{"data.source": str(tmp_path / "empty")}), tmp_path / "run2", device="cpu", show=False
        )


@pytest.mark.slow
@pytest.mark.compiled
def test_each_run_of_a_process_is_compiled_for_its_own_sizes(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's compiler takes sizes that changed for variable ones, which it compiles worse, or on a GPU not at all."""
    sizes: list[torch.Size] = []
    compile_by = nn.Module.compile

    def noting(graph: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
        del inputs
        given = [node for node in graph.graph.nodes if node.op == "placeholder" and "batch" in node.name]
        shapes = [node.meta["example_value"].shape for node in given]
        sizes.extend(shape for shape in shapes if len(shape) == 4)
        return graph

    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compile_by(self, backend=noting))
    monkeypatch.setattr(ResidentFeed, "compile", lambda _: None)
    for size in (8, 16):
        fields = {"compile": True, "model.image_size": size, "schedule.total": "2 steps", "schedule.warmup": "1 step"}
        session.train(changed(short, **fields), tmp_path / f"{size}", device="cpu", show=False)
    trained = [size for size in sizes if size[0] == short.batch_size]
    assert {tuple(size) for size in trained} == {(16, 3, 8, 8), (16, 3, 16, 16)}
    assert all(isinstance(number, int) for size in trained for number in size)


PLAIN = {"model.dropout": None, "model.drop_path": None, "model.set": ()}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model.set": ("depht=3",)}, "no field 'depht'. Did you mean depth"),
        ({"model.set": ("depth",)}, "takes FIELD=VALUE"),
        ({"model.source": "vit-digit"}, "Did you mean vit-digits"),
        ({"model.source": "no/such/model", "model.pretrained": True}, "is no file, folder"),
        ({"model.image_size": 15}, "do not divide an image of 15 x 15 px"),
        ({**PLAIN, "model.source": "bit-r50x1", "model.representation": True}, "has no such head"),
        ({"tracker": "wandb"}, "needs the package wandb"),
    ],
)
def test_what_needs_no_data_is_checked_before_they_are_read(
    fields: dict[str, Any], says: str, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    nowhere = {"data.source": str(tmp_path / "nowhere")}
    with pytest.raises(Error, match=says):
        session.train(changed(short, **nowhere, **fields), tmp_path / "run", device="cpu", show=False)
    assert not (tmp_path / "run").exists()
    with pytest.raises(Error, match="nowhere"):
        session.train(changed(short, **nowhere), tmp_path / "run", device="cpu", show=False)


def test_a_fine_tuning_checks_its_model_before_its_data(tmp_path: Path) -> None:
    save(create("vit-digits", num_classes=3), tmp_path / "trained")
    with pytest.raises(Error, match="is no file, folder"):
        api.finetune(tmp_path / "nowhere", "no/such/model", device="cpu")
    with pytest.raises(Error, match="do not divide an image of 15 x 15"):
        api.finetune(tmp_path / "nowhere", tmp_path / "trained", image_size=15, device="cpu")
    with pytest.raises(Error, match="nowhere"):
        api.finetune(tmp_path / "nowhere", tmp_path / "trained", device="cpu")


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("captured", [False, True])
def test_evaluations_beside_captured_steps_are_not_compiled(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, captured: bool
) -> None:
    """Such a set is small, so that a second program is not worth its seconds; the scores stay the same."""
    modes: list[bool] = []
    compile_by = nn.Module.compile

    class Launched(Stepper):
        """What would be captured on a GPU."""

        def compile(self) -> None: ...

    def noting(graph: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
        del inputs
        modes.append(torch.is_grad_enabled())
        return graph

    monkeypatch.setattr(nn.Module, "compile", lambda self, **_: compile_by(self, backend=noting))
    monkeypatch.setattr(ResidentFeed, "compile", lambda _: None)
    monkeypatch.setattr(session, "decide", lambda *args: dataclasses.replace(decide(*args), capture=captured))
    monkeypatch.setattr(assembly, "CapturedStepper", Launched)
    fields = {"compile": True, "schedule.total": "2 steps", "schedule.warmup": "1 step"}
    found = session.train(changed(short, **fields), tmp_path / "run", device="cpu", show=False)
    plain = session.train(changed(short, **fields | {"compile": False}), tmp_path / "plain", device="cpu", show=False)
    assert any(modes)
    assert all(modes) == captured
    assert found.scores["best val score"] == plain.scores["best val score"]


def test_a_model_that_cannot_take_pictures_does_not_take_the_folder(short: Recipe, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="takes images of 1 channels, and training gives it 3"):
        session.train(changed(short, **{"model.set": ("channels=1",)}), tmp_path / "run", device="cpu", show=False)
    assert not (tmp_path / "run" / "recipe.json").exists()


def test_where_results_are_reported_on_val_it_chooses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for split, num in (("train", 20), ("val", 3)):
        for wnid in ("n00000001", "n00000002"):
            (tmp_path / "imagenet" / split / wnid).mkdir(parents=True)
            for i in range(num):
                Image.new("RGB", (4, 4)).save(tmp_path / "imagenet" / split / wnid / f"{wnid}_{i}.JPEG")
    monkeypatch.setenv("VITLAB_DATA", str(tmp_path))
    parts = open_parts(changed(find_recipe("finetune-imagenet"), **{"data.val_fraction": 0.1})).splits
    assert len(parts["train"]) + len(parts["val"]) == 40
    assert len(parts["val"]) >= 1
    assert len(parts["test"]) == 6
    whole = open_parts(changed(find_recipe("finetune-imagenet"), **{"data.val_fraction": 0.0})).splits
    assert {name: len(part) for name, part in whole.items()} == {"train": 40, "val": 6}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_between_checkpoints(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    class Full(io.StringIO):
        def flush(self) -> None:
            raise OSError(number, os.strerror(number))

        def close(self) -> None:  # as a file does that still holds what could not be written
            self.flush()

    begin = JsonLines.__init__

    def full(self: JsonLines, *args: Any, **kwargs: Any) -> None:
        begin(self, *args, **kwargs)
        self._stream.close()
        self._stream = Full()  # pyright: ignore[reportAttributeAccessIssue]

    monkeypatch.setattr(JsonLines, "__init__", full)
    with pytest.raises(DiskFullError, match=r"is full: make room and resume .*--resume.* checkpoints there is none"):
        session.train(short, tmp_path / "run", device="cpu", show=False)


def test_one_odd_picture_does_not_decide_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(20):
            size = (8, 8) if (name, i) == ("a", 0) else (50, 40)
            Image.new("RGB", size).save(tmp_path / "data" / name / f"{i:02d}.png")
    found: list[tuple[int, int]] = []

    def told(*args: Any, **options: Any) -> None:
        del args
        found.append(options["picture"])
        raise ConfigError("enough")

    monkeypatch.setattr(transfer, "transfer_recipe", told)
    api.save(api.create("vit-digits"), tmp_path / "model")
    with pytest.raises(ConfigError, match="enough"):
        api.finetune(tmp_path / "data", tmp_path / "model", out=tmp_path / "run", val_fraction=0.0)
    assert found == [(40, 50)]


def test_the_time_left_does_not_count_the_compilation(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = [0.0]
    make = Stepper.__call__

    def slow_at_first(self: Stepper, step: int, factor: float) -> bool:
        clock[0] += 1000.0 if step == 0 else 2.0
        return make(self, step, factor)

    monkeypatch.setattr(Stepper, "__call__", slow_at_first)
    for module in (hooks, log):  # which print a line every ten seconds
        monkeypatch.setattr(module, "time", types.SimpleNamespace(monotonic=lambda: clock[0]))
    session.train(changed(short, log_every="6 steps"), tmp_path / "run", device="cpu")
    told = next(line for line in capsys.readouterr().err.splitlines() if line.startswith("step 6/24"))
    assert f"  {short.batch_size // 2} images/s" in told
    assert told.endswith("0:36 left")  # 18 steps of 2 s
    first = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[0])
    assert first["seconds per step"] == pytest.approx(1010 / 6)  # what the run took is kept as it was
