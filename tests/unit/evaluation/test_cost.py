import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tiny_vits import SIZES, random_vit
from vitlab.core.config import from_dict
from vitlab.core.errors import Error
from vitlab.core.preprocess import Preprocess
from vitlab.evaluation import cost
from vitlab.evaluation.cost import (
    Spent,
    cost_metrics,
    device_days,
    exaflops,
    inference_speed,
    largest_batch,
    measure_cost,
    model_cost,
    spent,
    training_speed,
)
from vitlab.evaluation.protocols.cost import CostOptions
from vitlab.evaluation.subject import subject_from, subject_of
from vitlab.models.create import empty_model, family_of
from vitlab.models.vit import ViTConfig
from vitlab.models.zoo.rows import ZOO

JFT = 303e6  # images


@pytest.mark.parametrize(
    ("row", "epochs", "paper"),
    [("vit-b32-224", 7, 55), ("vit-b16-224", 7, 224), ("vit-l16-224", 7, 783), ("vit-h14-224", 14, 4262)],
)
def test_exaflops_are_the_papers_within_5_percent(row: str, epochs: int, paper: float) -> None:
    model = empty_model(from_dict(family_of("vit").config, ZOO[row].config, where=row))
    assert exaflops(model_cost(model)["flops"], JFT * epochs) == pytest.approx(paper, rel=0.05)


def test_flops_of_a_small_model_by_hand() -> None:
    """16 patches and a class token of width 8, two layers, one head after them; two FLOPs a multiply-add."""
    config = ViTConfig(**{**SIZES, "image_size": (16, 16)}, num_classes=3)
    n, d, mlp, patch = 17, 8, 16, 4
    layer = 4 * n * d * d + 2 * n * n * d + 2 * n * d * mlp  # q, k, v and out; the two products of attention; the MLP
    by_hand = 2 * (16 * 3 * patch**2 * d + 2 * layer + 3 * d)
    found = model_cost(random_vit(config))
    assert found["flops"] == by_hand
    assert exaflops(found["flops"], 1e18) == 3 * by_hand


def test_a_device_day_is_a_day_of_one_device() -> None:
    assert device_days(86400 * 250, 250) == 1
    assert Spent(images=1, seconds=3600 * 12, devices=8).device_days == 4
    with pytest.raises(Error, match="must be positive"):
        device_days(1, 0)


def test_what_a_run_did_cost_is_read_from_its_folder(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps({"images_seen": 1000, "seconds": 7.5}))
    assert spent(tmp_path) == Spent(1000, 7.5, 1)
    (tmp_path / "environment.json").write_text(json.dumps({"processes": 4}))
    assert spent(tmp_path) == Spent(1000, 7.5, 4)
    assert spent(tmp_path, devices=2).devices == 2


def test_what_an_unfinished_run_did_cost_is_read_from_its_metrics(tmp_path: Path) -> None:
    lines = [
        {"step": 20, "loss": 1.0, "seconds per step": 0.5},
        {"step": 20, "val accuracy": 0.5},
        {"step": 30, "loss": 1.0, "seconds per step": 0.1},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"step": 40, "sec'
    (tmp_path / "metrics.jsonl").write_text(text)
    (tmp_path / "recipe.json").write_text(json.dumps({"batch_size": 64}))
    used = spent(tmp_path)
    assert used.images == 30 * 64
    assert used.seconds == pytest.approx(20 * 0.5 + 10 * 0.1)


def test_a_folder_that_is_no_run_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(Error, match="is not a run's folder"):
        spent(tmp_path)


@pytest.mark.parametrize("capacity", [0, 1, 2, 3, 63, 64, 65, 127, 1000, 5000])
def test_the_largest_batch_is_found_within_2_percent(capacity: int) -> None:
    tried: list[int] = []

    def fits(batch: int) -> bool:
        tried.append(batch)
        return batch <= capacity

    found = largest_batch(fits)
    assert found <= capacity
    assert found >= capacity - max(capacity // 64, 0)
    assert len(tried) < 25
    assert largest_batch(lambda batch: batch > 0, limit=48) == 48


def test_speeds_are_measured_and_leave_the_model_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a clock that a forward pass moves by 10 ms and a backward pass by 30."""
    now = 0.0

    def takes(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now))
    model = random_vit(ViTConfig(**SIZES, num_classes=3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.register_forward_hook(lambda *_: takes(0.01))
    model.head.register_full_backward_hook(lambda *_: takes(0.03))
    model.get_parameter("norm.bias").grad = torch.ones(8)
    forward = inference_speed(subject_of(model, name="tiny"), 4, seconds=0.6, parts=3)
    both = training_speed(model, 4, device=torch.device("cpu"), seconds=0.6, parts=3)
    assert (forward.value, both.value) == pytest.approx((4 / 0.01, 4 / 0.04))
    assert (forward.spread, both.spread) == pytest.approx((0, 0), abs=1e-6)
    assert forward.parts == 3
    assert not model.training
    grads = {name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None}
    assert {name: grad.tolist() for name, grad in grads.items()} == {"norm.bias": [1] * 8}
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.parametrize(
    ("an_image", "seconds", "size", "passes"),
    [
        (0.01, 3.3, 64, 2 * 127 + 5 * 64),  # a part of 64 images takes its fifth of the time
        (0.01, 1.0, 16, 2 * 31 + 5 * 16),  # of 32 images it would not
        (1.0, 3.0, 1, 2 + 3),
        (1.0, 0.1, 1, 2),  # one pass before the one that is timed
    ],
)
def test_speeds_are_timed_in_about_the_time_that_was_given(
    an_image: float, seconds: float, size: int, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def takes(images: torch.Tensor) -> torch.Tensor:
        nonlocal now
        now += an_image * len(images)
        return images.flatten(1)

    monkeypatch.setattr(cost, "time", SimpleNamespace(perf_counter=lambda: now))
    subject = subject_from(takes, name="slow", preprocess=Preprocess(size=(2, 2)))
    found = inference_speed(subject, None, seconds=seconds)
    assert (found.batch_size, found.value) == (size, pytest.approx(1 / an_image))
    assert now == pytest.approx(an_image * passes)
    now = 0.0
    assert inference_speed(subject, 48, seconds=0.1).batch_size == 48  # what was asked for is kept
    assert now == pytest.approx(an_image * 2 * 48)


def test_the_cost_result_has_what_was_asked_for() -> None:
    model = random_vit(ViTConfig(**SIZES, num_classes=3))
    run = Spent(images=500, seconds=86400, devices=2)
    options = CostOptions(seconds=0.05)
    whole = measure_cost(model, subject_of(model, name="tiny"), options, name="tiny", batch_size=4, images=1e6, run=run)
    assert whole.cost["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert whole.cost["device_days"] == 2
    assert whole.metrics["exaFLOPs to train"].value == pytest.approx(3 * whole.cost["flops"] * 1e6 / 1e18)
    speed = whole.metrics["images per second, training"].value
    assert whole.metrics["device-days to train"].value == pytest.approx(1e6 / speed / 86400)
    small = measure_cost(model, subject_of(model, name="tiny"), CostOptions(seconds=1e-9), name="tiny", images=1e6)
    assert "peak memory (MB) at batch 1" in small.metrics
    assert small.metrics["images per second"].spread is None
    assert (small.settings["batch_size"], small.settings["training_batch_size"]) == (1, 2)
    counted = measure_cost(model, None, CostOptions(count_only=True), name="tiny", batch_size=4)
    assert list(counted.metrics) == ["GFLOPs per image", "parameters (M)"]
    assert cost_metrics(parameters=1e6, flops=1e9)["parameters (M)"].value == 1


def test_a_run_at_another_resolution_is_counted_at_its_own() -> None:
    model = random_vit(ViTConfig(**SIZES, num_classes=3))
    run = Spent(images=10**15, seconds=60, devices=1)
    found = measure_cost(model, None, CostOptions(count_only=True), name="x", batch_size=1, run=run, run_flops=5.0)
    assert found.metrics["exaFLOPs of its run"].value == found.cost["exaflops"] == pytest.approx(3 * 5 * 1e15 / 1e18)
