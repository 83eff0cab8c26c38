import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from vitlab.core.preprocess import Preprocess
from vitlab.data.contract import Split
from vitlab.evaluation.contract import EvaluationError, Subject
from vitlab.evaluation.features import Features, Reading, Share, default_cache, extract, outputs
from vitlab.evaluation.subject import subject_from
from vitlab.inference.embed import GivenImages

NUM = 23
PREPROCESS = Preprocess(size=(6, 8))


class Counting:
    """Three features that a test can compute by itself, and how many images went through."""

    def __init__(self) -> None:
        self.images = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.images += len(images)
        return torch.stack([images[:, 0].mean((1, 2)), images.amax((1, 2, 3)), images[:, 2, 0, 0]], dim=1)


def subject(
    function: Callable[[Tensor], Tensor], fingerprint: str | None = "weights", preprocess: Preprocess = PREPROCESS
) -> Subject:
    return subject_from(function, name="a function", preprocess=preprocess, fingerprint=fingerprint)


def pictures(num: int = NUM) -> list[np.ndarray[Any, Any]]:
    generator = np.random.default_rng(3)
    return [generator.integers(0, 256, (9 + i % 4, 11, 3), dtype=np.uint8) for i in range(num)]


def split_of(items: list[Any]) -> Split:
    return Split.labelled(GivenImages(items), np.arange(len(items)) % 4)


def expected(items: list[np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    rows = []
    for array in items:
        resized = np.asarray(Image.fromarray(array).resize((8, 6), Image.Resampling.BILINEAR), dtype=np.float64)
        pixels = (resized - 127.5) / 127.5
        rows.append([pixels[..., 0].mean(), pixels.max(), pixels[0, 0, 2]])
    return np.array(rows)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("cached", [True, False])
def test_features_are_those_of_each_image_in_order(tmp_path: Path, workers: int, cached: bool) -> None:
    items = pictures()
    reading = Reading(batch_size=5, workers=workers, cache=tmp_path if cached else None)
    found = extract(subject(Counting()), split_of(items), "data", reading)
    np.testing.assert_allclose(found.values, expected(items), atol=1e-6)
    np.testing.assert_array_equal(found.labels, np.arange(NUM) % 4)
    assert found.values.dtype == np.float32
    assert isinstance(found.values, np.memmap) == cached
    assert len(list(tmp_path.iterdir())) == 2 * cached


def test_images_without_labels_have_outputs() -> None:
    items, told = pictures(), subject(Counting())
    found = list(outputs(told.features, told, Split(GivenImages(items)), Reading(batch_size=5)))
    np.testing.assert_allclose(np.concatenate([batch.values.numpy() for batch in found]), expected(items), atol=1e-6)
    with pytest.raises(EvaluationError, match="These images have no labels, and this measures against them"):
        _ = found[0].labels


def test_kept_features_are_used_again(tmp_path: Path) -> None:
    function, split, reading = Counting(), split_of(pictures()), Reading(batch_size=8, cache=tmp_path)
    first = extract(subject(function), split, "data", reading)
    seen, told = function.images, []
    again = extract(subject(function), split, "data", reading, lambda done, total: told.append((done, total)))
    assert function.images == seen
    assert (first.kept, again.kept) == (False, True)
    assert isinstance(again.values, np.memmap)
    np.testing.assert_array_equal(first.values, again.values)
    assert told == [(NUM, NUM)]


@pytest.mark.parametrize("other", ["weights", "data", "split", "resolution", "interpolation", "labels"])
def test_what_changes_the_features_is_computed_again(tmp_path: Path, other: str) -> None:
    items, reading = pictures(), Reading(cache=tmp_path)
    extract(subject(Counting()), split_of(items), "data train", reading)
    function = Counting()
    fingerprint = "others" if other == "weights" else "weights"
    data = {"data": "more train", "split": "data test"}.get(other, "data train")
    preprocess = {
        "resolution": Preprocess(size=(8, 8)),
        "interpolation": Preprocess(size=(6, 8), interpolation="nearest"),
    }.get(other, PREPROCESS)
    split = split_of(items)
    if other == "labels":
        split = Split.labelled(split.images, split.labels[::-1].copy())
    assert not extract(subject(function, fingerprint, preprocess), split, data, reading).kept
    assert function.images >= NUM


def test_without_a_fingerprint_nothing_is_kept(tmp_path: Path) -> None:
    extract(subject(Counting(), None), split_of(pictures()), "data", Reading(cache=tmp_path))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("damage", ["empty", "short", "bytes", "json", "other rows"])
def test_a_damaged_entry_is_made_again_with_a_warning(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    items, reading = pictures(), Reading(cache=tmp_path)
    extract(subject(Counting()), split_of(items), "data", reading)
    (file,) = tmp_path.glob("*.npy")
    whole = file.read_bytes()
    if damage == "empty":
        file.write_bytes(b"")
    elif damage == "short":
        file.write_bytes(whole[:-7])
    elif damage == "bytes":
        file.write_bytes(whole[:-8] + b"\x00" * 8)
    elif damage == "json":
        file.with_suffix(".json").write_text("{")
    else:
        np.save(file, np.zeros((NUM + 1, 3), np.float32))
    with caplog.at_level(logging.WARNING, "vitlab"):
        found = extract(subject(Counting()), split_of(items), "data", reading)
    assert "are damaged: they are computed again" in caplog.text
    np.testing.assert_allclose(found.values, expected(items), atol=1e-6)
    assert file.read_bytes() == whole
    assert extract(subject(Counting()), split_of(items), "data", reading).kept


def test_a_killed_extraction_leaves_no_entry(tmp_path: Path) -> None:
    items, reading = pictures(), Reading(batch_size=5, cache=tmp_path)

    def killed(images: Tensor) -> Tensor:
        if killed_at.is_set():
            raise KeyboardInterrupt
        if len(images) > 1:
            killed_at.set()
        return images.mean((2, 3))

    killed_at = threading.Event()
    with pytest.raises(KeyboardInterrupt):
        extract(subject(killed), split_of(items), "data", reading)
    assert not list(tmp_path.iterdir())


def test_an_unwritable_cache_is_told_and_done_without(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("")
    with caplog.at_level(logging.WARNING, "vitlab"):
        found = extract(subject(Counting()), split_of(pictures()), "data", Reading(cache=tmp_path / "file" / "cache"))
    assert "it cannot be written to" in caplog.text
    assert len(found.values) == NUM


def test_an_unreadable_image_is_left_out_with_its_label(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    items: list[Any] = pictures()
    good = [items[i] for i in range(NUM) if i != 7]
    items[7] = tmp_path / "gone.png"
    reading = Reading(batch_size=5, cache=tmp_path / "cache")
    for kept in (False, True):
        found = extract(subject(Counting()), split_of(items), "data", reading)
        assert found.damaged == (7,)
        assert found.kept == kept
        np.testing.assert_allclose(found.values, expected(good), atol=1e-6)
        np.testing.assert_array_equal(found.labels, np.delete(np.arange(NUM) % 4, 7))
        assert str(items[7]) in caplog.text  # kept or not, what is left out is said
        caplog.clear()


def test_features_that_are_not_finite_name_the_image() -> None:
    def broken(images: Tensor) -> Tensor:
        return torch.full((len(images), 3), float("nan"))

    with pytest.raises(EvaluationError, match="not finite for image 0"):
        extract(subject(broken), split_of(pictures()), "data", Reading())


@pytest.mark.parametrize(
    ("function", "sentence"),
    [(lambda x: x, "one row per image"), (lambda x: x.mean((1, 2, 3)), "one row per image")],
)
def test_outputs_of_another_shape_are_refused(function: Callable[[Tensor], Tensor], sentence: str) -> None:
    with pytest.raises(EvaluationError, match=sentence):
        list(outputs(function, subject(function), split_of(pictures()), Reading()))


def test_an_empty_split_is_refused() -> None:
    with pytest.raises(EvaluationError, match="the split is empty"):
        list(outputs(Counting(), subject(Counting()), split_of([]), Reading()))


@pytest.mark.parametrize(("num", "batch_size", "world"), [(NUM, 5, 2), (NUM, 6, 3), (4, 64, 4), (3, 2, 4)])
def test_several_processes_give_what_one_gives(tmp_path: Path, num: int, batch_size: int, world: int) -> None:
    """Ranks as threads that meet in `gather`: every image once, in order, the same on all, and one writes."""
    items, parts, meet = pictures(num), [torch.empty(0)] * world, threading.Barrier(world)
    found: dict[int, Features] = {}
    functions = [Counting() for _ in range(world)]

    def gather(rank: int) -> Callable[[Tensor], list[Tensor]]:
        def call(part: Tensor) -> list[Tensor]:
            parts[rank] = part
            meet.wait()
            gathered = list(parts)
            meet.wait()
            return gathered

        return call

    def work(rank: int) -> None:
        reading = Reading(batch_size=batch_size, workers=0, cache=tmp_path, share=Share(rank, world, gather(rank)))
        found[rank] = extract(subject(functions[rank]), split_of(items), "data", reading)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(world)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert sorted(found) == list(range(world))
    for features in found.values():
        np.testing.assert_allclose(features.values, expected(items), atol=1e-6)
    assert len(list(tmp_path.glob("*.npy"))) == 1
    if num >= world * 4:
        assert max(function.images for function in functions) < num  # each computed its part


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "vitlab" / "features"
