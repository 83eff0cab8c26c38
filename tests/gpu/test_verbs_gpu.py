"""What users ask of a model, on a GPU: the same answers as on a CPU."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitlab
from changing import changed
from vitlab.inspection.examine import examine
from vitlab.training.recipe import Recipe

pytestmark = pytest.mark.gpu


@pytest.fixture
def pictures() -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return list(rng.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8))


def test_a_run_ends_with_its_report(short: Recipe, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ended = vitlab.train(changed(short, precision="float32"), out=tmp_path / "run", device="cuda")
    assert not caplog.records
    page = (ended.folder / "report.html").read_text()
    assert torch.cuda.get_device_name() in page
    assert page.count("<svg") + page.count("data:image") > 5


def test_predictions(pictures: list[np.ndarray]) -> None:
    model = vitlab.create("vit-ti4-32", num_classes=7)
    expected = vitlab.predict(model, pictures, top=3)
    found = vitlab.predict(model, pictures, top=3, device="cuda")
    assert next(model.parameters()).device.type == "cpu"  # it was lent
    for one, other in zip(found, expected, strict=True):
        assert [c.probability for c in one.classes] == pytest.approx([c.probability for c in other.classes], rel=1e-3)


def test_embeddings(pictures: list[np.ndarray]) -> None:
    model = vitlab.create("vit-ti4-32", num_classes=0)
    expected = vitlab.embed(model, pictures, device="cpu").features
    found = vitlab.embed(model, pictures, device="cuda").features
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()
    short = vitlab.embed(model, pictures, device="cuda", precision="bf16").features
    assert 1e-5 < np.linalg.norm(short - expected) / np.linalg.norm(expected) < 0.02


@pytest.mark.parametrize("name", ["vit-ti4-32", "sasa-digits", "cvt-13"])
def test_what_is_seen_inside(name: str, pictures: list[np.ndarray]) -> None:
    small = {"cvt-13": {"image_size": 64}, "vit-ti4-32": {}, "sasa-digits": {}}[name]
    model = vitlab.create(name, num_classes=7, **small)
    seen = [
        examine(m, "the model", [("one", pictures[0])], pictures, data="six pictures", other=(m, "the same"))
        for m in (model, model.cuda())
    ]
    on_cpu, on_gpu = seen
    for layer, heads in on_cpu.entropy.items():
        np.testing.assert_allclose(on_gpu.entropy[layer], heads, rtol=1e-3)
    assert on_cpu.similarity is not None
    assert on_gpu.similarity is not None
    np.testing.assert_allclose(on_gpu.similarity, on_cpu.similarity, atol=1e-3)
    assert on_gpu.missing == on_cpu.missing


def test_the_services_engine(pictures: list[np.ndarray]) -> None:
    from vitlab.serving.engine import Attend, AttentionMaps, Classes, Classify, Embed, Engine

    model = vitlab.create("vit-ti4-32", num_classes=7)
    answers = []
    for where in ("cpu", "cuda"):
        engine = Engine(model.to(where), "a model")
        engine.warm_up()
        asked = (Classify(), Embed(), Attend(layer=2, head=None, rollout=True, rows="output"))
        answers.append([engine.run(task, pictures[:2])[1] for task in asked])
    (classes, features, looks), (on_gpu, features_there, looks_there) = answers
    assert isinstance(classes, Classes)
    assert isinstance(on_gpu, Classes)
    np.testing.assert_allclose(on_gpu.probabilities, classes.probabilities, rtol=1e-3)
    assert isinstance(features, np.ndarray)
    assert isinstance(features_there, np.ndarray)
    np.testing.assert_allclose(features_there, features, atol=1e-3 * float(np.abs(features).max()))
    assert isinstance(looks, AttentionMaps)
    assert isinstance(looks_there, AttentionMaps)
    assert looks.rollout is not None
    assert looks_there.rollout is not None
    np.testing.assert_allclose(looks_there.rollout, looks.rollout, rtol=1e-2)
