"""Evaluation on a real GPU: the figures of a CPU, and what a GPU alone can tell of cost.

Features in float32 differ from a CPU's by at most 0.5% in norm (a GPU's products may round their factors), in bf16 by
at most 2%; what follows from the same features is equal.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitlab
from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Array, DataSet, Split
from vitlab.data.open import open_data
from vitlab.evaluation.contract import Subject
from vitlab.evaluation.cost import batch_fits, largest_batch, measure_cost
from vitlab.evaluation.features import Reading, extract
from vitlab.evaluation.fewshot import fewshot, fewshot_accuracy
from vitlab.evaluation.knn import knn_accuracy
from vitlab.evaluation.linear import linear
from vitlab.evaluation.logistic import Probe
from vitlab.evaluation.protocols.cost import CostOptions
from vitlab.evaluation.protocols.fewshot import FewshotOptions
from vitlab.evaluation.request import measure
from vitlab.evaluation.subject import Precision, subject_from, subject_of
from vitlab.inference.embed import GivenImages
from vitlab.models.contract import Model

pytestmark = pytest.mark.gpu

DEVICE = "cuda"
PART = 0.04  # of the GPU's memory: so little is soon full


def digits_model() -> Model:
    """Random weights that are large enough for its layers to matter."""
    torch.manual_seed(0)
    model = vitlab.create("vit-digits")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    return model


def on(device: str, precision: Precision = "float32") -> Subject:
    return subject_of(digits_model(), name="digits", device=device, precision=precision)


@pytest.fixture(scope="module")
def data() -> DataSet:
    return open_data("digits")


@pytest.fixture(scope="module")
def kept(data: DataSet) -> dict[str, Array]:
    """A CPU's features in float32."""
    return {name: extract(on("cpu"), split, name, Reading()).values for name, split in data.splits.items()}


@pytest.fixture
def little_memory() -> Iterator[int]:
    """The bytes that this process may take of the GPU."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(PART)
    yield int(PART * torch.cuda.get_device_properties(0).total_memory)
    torch.cuda.set_per_process_memory_fraction(1.0)
    torch.cuda.empty_cache()


def far(found: Array, expected: Array) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(("precision", "limit"), [("float32", 5e-3), ("bf16", 2e-2)])
def test_features_are_a_cpus(data: DataSet, kept: dict[str, Array], precision: Precision, limit: float) -> None:
    found = extract(on(DEVICE, precision), data.splits["test"], "test", Reading(batch_size=96))
    assert found.values.dtype == np.float32
    assert far(found.values, kept["test"]) < limit
    if precision == "bf16":
        assert far(found.values, kept["test"]) > 1e-5  # it was computed in bf16


def test_what_follows_from_the_same_features_is_equal(data: DataSet, kept: dict[str, Array]) -> None:
    arrays = (kept["train"], data.splits["train"].labels, kept["test"], data.splits["test"].labels)
    shots = {d: fewshot_accuracy(*arrays, shots=(1, 10), seeds=(0, 1), device=d) for d in ("cpu", DEVICE)}
    assert np.array_equal(shots[DEVICE], shots["cpu"])
    assert (shots["cpu"][:, 1] > 0.15).all()  # ten classes
    sweep = [fewshot(*arrays, shots=(5,), seeds=(0,), l2=(0.5, 2048.0), device=d).selected for d in ("cpu", DEVICE)]
    assert sweep[0] == sweep[1]
    near = {device: knn_accuracy(*arrays, ks=(1, 20), device=device) for device in ("cpu", DEVICE)}
    np.testing.assert_allclose(near[DEVICE], near["cpu"], atol=1.01 / 400)  # similarities are in float32
    for solver in ("lbfgs", "sgd"):
        probe = Probe(solver=solver, epochs=5)
        fits = [linear(*arrays, l2s=(1e-2,), probe=probe, device=device) for device in ("cpu", DEVICE)]
        values = [fit.metrics["top-1"].value for fit in fits]
        assert values[1] == pytest.approx(values[0], abs=1.01 / 400)
        assert values[0] > 0.3


def test_a_protocol_gives_a_cpus_figures(data: DataSet) -> None:
    options = FewshotOptions(shots=(5,), seeds=(0, 1))
    found = [measure("fewshot", on(device), data, options=options) for device in ("cpu", DEVICE)]
    values = [result.metrics["5-shot"].value for result in found]
    assert values[1] == pytest.approx(values[0], abs=2.01 / 800)  # an image a draw may fall to the other side
    assert found[1].settings["device"] == DEVICE


def number(images: Tensor) -> Tensor:
    """The number that a picture's red and green tell."""
    values = images.mean(dim=(2, 3)) * 127.5 + 127.5
    for _ in range(20):  # time in which the next batch could overwrite this one
        images = images.roll(1, -1)
    return (values[:, :1] + 256 * values[:, 1:2]).round() + 0 * images.mean()


def test_pinned_batches_of_workers_are_the_right_ones(tmp_path: Path) -> None:
    files = [tmp_path / f"{index}.png" for index in range(700)]
    for index, file in enumerate(files):
        Image.new("RGB", (64, 64), (index % 256, index // 256, 0)).save(file)
    subject = subject_from(number, name="numbers", preprocess=Preprocess(size=(64, 64)), device=DEVICE)
    split = Split.labelled(GivenImages(files), np.zeros(len(files), np.int64))
    found = extract(subject, split, "numbers", Reading(batch_size=32, workers=2))
    assert found.values[:, 0].tolist() == list(range(700))


@pytest.mark.parametrize("training", [False, True])
def test_the_largest_batch_is_one_that_fits_beside_one_that_does_not(little_memory: int, training: bool) -> None:
    model = vitlab.create("vit-ti16-224", num_classes=10).to(DEVICE).eval()
    fits = batch_fits(model, torch.device(DEVICE), training=training, bf16=True)
    found = largest_batch(fits)
    assert fits(found)
    assert not fits(found + found // 8)
    image = 3 * 224 * 224 * 4
    tokens = 12 * 197 * 192 * 2 if training else 0  # an output a layer at least is kept for the way back
    assert 16 <= found < little_memory / (image + tokens)
    assert all(parameter.grad is None for parameter in model.parameters())


def test_cost_is_measured(little_memory: int) -> None:
    model = vitlab.create("vit-ti16-224", num_classes=1000)
    subject = subject_of(model, name="tiny", device=DEVICE, precision="bf16")
    result = measure_cost(model, subject, CostOptions(seconds=0.3), name="tiny", batch_size=32, bf16=True, images=1e6)
    weights = sum(parameter.numel() * parameter.element_size() for parameter in model.parameters())
    memory = result.metrics["peak memory (MB) at batch 32"].value * 2**20
    assert weights + 32 * 3 * 224 * 224 * 4 < memory < little_memory
    assert result.metrics["largest batch"].value > 32
    assert result.metrics["images per second"].value > result.metrics["images per second, training"].value > 0
    assert result.settings["device"] == torch.cuda.get_device_name()
    assert result.cost["device_days"] == pytest.approx(
        1e6 / result.metrics["images per second, training"].value / 86400
    )
    assert not model.training


def test_fine_tuning_by_the_protocol_learns(tmp_path: Path) -> None:
    vitlab.save(vitlab.create("vit-digits"), tmp_path / "model")
    fields = {"steps": 120, "lrs": (0.1,), "seeds": (0,), "own_size": True, "folder": str(tmp_path / "runs")}
    found = vitlab.evaluate("finetune", str(tmp_path / "model"), "digits", device=DEVICE, batch_size=64, **fields)
    assert found.metrics["accuracy"].value > 0.15  # ten classes
    assert found.cost["parameters"] > 0


def test_a_model_on_the_cpu_is_there_and_in_its_mode_again() -> None:
    model, picture = digits_model().train(), np.zeros((8, 8, 3), np.uint8)
    vitlab.embed(model, picture, device=DEVICE)
    vitlab.evaluate("knn", model, "digits", keep=False, device=DEVICE)
    vitlab.evaluate("cost", model, seconds=0.05, images=1e6, device=DEVICE)
    assert model.training
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
