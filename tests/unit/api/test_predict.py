import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.api import predict
from vitlab.core.errors import Error
from vitlab.models.vit import ViT, ViTConfig


@pytest.fixture
def model() -> ViT:
    torch.manual_seed(0)
    small = ViT(ViTConfig(image_size=(16, 16), patch_size=8, width=16, depth=1, mlp_dim=16, heads=2, num_classes=7))
    small.initialize()
    torch.nn.init.normal_(small.head.weight, std=1.0)  # pyright: ignore[reportArgumentType]
    return small


def noise(seed: int, size: tuple[int, int] = (20, 30)) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), dtype=np.uint8)


def expected(model: ViT, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Probabilities by another way: Pillow's resize, the paper's normalisation, NumPy's softmax."""
    resized = np.asarray(Image.fromarray(array).resize((16, 16), Image.Resampling.BILINEAR), dtype=np.float64)
    images = torch.tensor((resized - 127.5) / 127.5, dtype=torch.float32).permute(2, 0, 1)[None]
    with torch.no_grad():
        logits = model.eval()(images)[0].double().numpy()
    return np.exp(logits) / np.exp(logits).sum()


def test_probabilities_are_those_of_the_model(model: ViT) -> None:
    arrays = [noise(seed) for seed in range(5)]
    answers = predict(model, arrays, top=7, batch_size=2)
    assert len(answers) == 5
    for array, answer in zip(arrays, answers, strict=True):
        probabilities = expected(model, array)
        assert [c.index for c in answer.classes] == np.argsort(-probabilities).tolist()
        np.testing.assert_allclose([c.probability for c in answer.classes], np.sort(probabilities)[::-1], rtol=1e-4)
        assert answer.error is None
        assert answer.source is None


@pytest.mark.parametrize("batch_size", [1, 2, 3, 100])
def test_answers_stay_in_order_among_unreadable_ones(model: ViT, batch_size: int, tmp_path: Path) -> None:
    inputs: list[Any] = []
    for seed in range(6):
        Image.fromarray(noise(seed)).save(tmp_path / f"{seed}.png")
        inputs += [tmp_path / f"{seed}.png", str(tmp_path / "missing.png")]
    answers = predict(model, inputs, top=1, batch_size=batch_size)
    assert [answer.source for answer in answers] == [str(path) for path in inputs]
    for seed in range(6):
        good, bad = answers[2 * seed : 2 * seed + 2]
        assert good.classes[0].index == int(expected(model, noise(seed)).argmax())
        assert bad.classes == ()
        assert bad.error == f"There is no file {tmp_path / 'missing.png'}."


def test_one_image_of_any_kind(model: ViT, tmp_path: Path) -> None:
    array = noise(3)
    Image.fromarray(array).save(tmp_path / "a.png")
    kinds: list[Any] = [array, Image.fromarray(array), tmp_path / "a.png", str(tmp_path / "a.png"), [array]]
    kinds += [array[None], tmp_path, iter([array]), (array,)]
    index = int(expected(model, array).argmax())
    for kind in kinds:
        (answer,) = predict(model, kind, top=1)
        assert answer.classes[0].index == index


def test_labels_are_names_where_there_are_names(model: ViT) -> None:
    assert {c.label for c in predict(model, noise(0), top=7)[0].classes} == {f"class {i}" for i in range(7)}
    model.labels = tuple("abcdefg")
    assert all(c.label == "abcdefg"[c.index] for c in predict(model, noise(0), top=7)[0].classes)


def test_more_classes_than_there_are_is_all_of_them(model: ViT) -> None:
    assert len(predict(model, noise(0), top=100)[0].classes) == 7


def test_equal_probabilities_come_in_the_order_of_their_indices(model: ViT) -> None:
    model.initialize()
    answer = predict(model, noise(0), top=4)[0]
    assert [c.index for c in answer.classes] == [0, 1, 2, 3]
    assert answer.classes[0].probability == pytest.approx(1 / 7)


def test_no_images_are_no_answers(model: ViT) -> None:
    assert predict(model, []) == []


def test_the_model_is_left_as_it_was(model: ViT) -> None:
    model.train()
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    seen: list[bool] = []
    model.register_forward_pre_hook(lambda module, _: seen.append(module.training or torch.is_grad_enabled()))
    predict(model, noise(0))
    assert seen == [False]
    assert [module.training for module in model.modules()] == before
    model.register_forward_pre_hook(_stop)
    with pytest.raises(RuntimeError, match="stop"):
        predict(model, noise(0))
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize(
    "measure",
    [
        lambda model: vitlab.embed(model, noise(0)),
        lambda model: vitlab.evaluate("knn", model, "digits", keep=False, ks=(5,)),
        lambda model: vitlab.evaluate("cost", model, seconds=0.01, images=1e6),
    ],
)
def test_measuring_leaves_the_model_in_its_mode(model: ViT, measure: Callable[[ViT], object]) -> None:
    model.train()
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    seen: list[bool] = []
    assert model.norm is not None
    model.norm.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    measure(model)
    assert seen
    assert not seen[0]
    assert [module.training for module in model.modules()] == before
    model.blocks[0].register_forward_pre_hook(_stop)
    with pytest.raises(RuntimeError, match="stop"):
        measure(model)
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize(
    ("verb", "options", "sentence"),
    [
        ("embed", {"crops": 2}, "crops must be 1 | 5, not 2."),
        ("embed", {"precision": "foo"}, "precision must be float32 | bf16, not 'foo'."),
        ("embed", {"batch_size": "a"}, "batch_size must be a whole number, not 'a'."),
        ("embed", {"model": None}, "`model` must be a model of vitlab's, a path or a name, not NoneType."),
        ("evaluate", {"crops": 3}, "crops must be 1 | 5, not 3."),
        ("evaluate", {"precision": "fp8"}, "precision must be auto | float32 | bf16, not 'fp8'."),
        ("evaluate", {"batch_size": "a"}, "batch_size must be a whole number or null, not 'a'."),
        (
            "evaluate",
            {"protocol": None},
            "There is no protocol named 'None'. There are accuracy, real, robustness, semantic, fewshot, linear, knn,"
            " frechet, cost, score, finetune, vtab, or FILE.py:NAME of your own.",
        ),
        (
            "evaluate",
            {"protocol": "accuracy", "foo": 1},
            "The protocol accuracy has no option 'foo'. Its options are split, name, image_size, batch_size, workers,"
            " cache, keep, device, precision, crops, flip, resize.",
        ),
        ("evaluate", {"batchsize": 8}, "The protocol knn has no option 'batchsize'. Did you mean batch_size?"),
        ("export", {"sizes": "zz"}, "sizes must be auto | any | own, not 'zz'."),
        ("export", {"precision": "half"}, "precision must be float32 | float16, not 'half'."),
    ],
)
def test_values_that_are_not_known_are_refused(
    model: ViT, verb: str, options: dict[str, Any], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given: dict[str, dict[str, Any]] = {
        "embed": {"images": noise(0)},
        "evaluate": {"protocol": "knn", "data": "digits"},
        "export": {"path": "a.onnx"},
    }
    with pytest.raises(Error) as caught:
        getattr(vitlab, verb)(**{"model": model, **given[verb], **options})
    assert str(caught.value) == sentence
    assert not list(tmp_path.iterdir())


def _stop(*_: object) -> None:
    raise RuntimeError("stop")


def test_decoding_threads_end_when_the_model_fails(model: ViT) -> None:
    before = threading.active_count()
    model.register_forward_pre_hook(_stop)
    with pytest.raises(RuntimeError, match="stop"):
        predict(model, [noise(seed) for seed in range(200)], batch_size=2)
    for thread in threading.enumerate():
        if thread.name.startswith("ThreadPoolExecutor"):
            thread.join(10)
    assert threading.active_count() == before


def test_progress_counts_every_image(model: ViT) -> None:
    calls: list[tuple[int, int]] = []
    inputs: list[Any] = [noise(0), "missing.png", noise(1), noise(2), "missing.png"]
    predict(model, inputs, batch_size=2, progress=lambda done, total: calls.append((done, total)))
    assert calls == [(3, 5), (5, 5)]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"top": 0}, "top must be at least 1, not 0."), ({"batch_size": 0}, "The batch size must be at least 1, not 0.")],
)
def test_impossible_options_are_refused(model: ViT, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(Error) as caught:
        predict(model, noise(0), **options)
    assert str(caught.value) == sentence


def test_a_model_without_a_classifier_is_refused() -> None:
    headless = ViT(ViTConfig(image_size=(16, 16), patch_size=8, width=16, depth=1, mlp_dim=16, heads=2, num_classes=0))
    headless.initialize()
    with pytest.raises(Error, match="no classifier"):
        predict(headless, noise(0))


def test_an_output_that_is_not_finite_is_refused(model: ViT) -> None:
    torch.nn.init.constant_(model.head.weight, float("nan"))  # pyright: ignore[reportArgumentType]
    with pytest.raises(Error, match="not finite"):
        predict(model, noise(0))


def test_a_model_in_half_precision_answers(model: ViT) -> None:
    answer = predict(model.to(torch.bfloat16), noise(0), top=7)[0]
    assert sum(c.probability for c in answer.classes) == pytest.approx(1, abs=1e-3)


def test_a_source_is_loaded(model: ViT, tmp_path: Path) -> None:
    vitlab.save(model, tmp_path / "a model")
    assert predict(tmp_path / "a model", noise(0)) == predict(model, noise(0))
    assert predict(str(tmp_path / "a model"), noise(0)) == predict(model, noise(0))


def test_the_package_is_lazy_and_says_what_it_has() -> None:
    code = (
        "import sys, vitlab; assert 'torch' not in sys.modules and 'numpy' not in sys.modules;"
        "print(sorted(set(vitlab.__all__) - set(dir(vitlab))), vitlab.__version__ != '', hasattr(vitlab, 'nothing'));"
        "assert 'torch' not in sys.modules; vitlab.Error; assert 'torch' not in sys.modules; vitlab.list_models()"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout.strip()) == (0, "[] True False"), run.stderr


@pytest.mark.parametrize("name", vitlab.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(vitlab, name) is not None
