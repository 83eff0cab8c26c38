"""Streams, views and the two feeds: what is in a batch, and that both make the same one."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitlab.core.errors import ConfigError, DataError
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, augment, erase, mix
from vitlab.data.batch import Batch
from vitlab.data.contract import IGNORED, Masks, Split, ValueKind
from vitlab.data.loading.loader_feed import LoaderFeed
from vitlab.data.loading.order import Order
from vitlab.data.loading.resident import Pixels as Stored
from vitlab.data.loading.resident import load_pixels
from vitlab.data.loading.resident_feed import ResidentFeed
from vitlab.data.sources.files import Files
from vitlab.data.sources.pixels import Pixels
from vitlab.data.streams import StreamPlan, View, view_keys
from vitlab.data.targets import as_target

NUM, SIDE, K = 20, 12, 3
PREPROCESS = Preprocess(size=(SIDE, SIDE), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
PLAIN = Augmentation(crop="resize", flip=0.0)
# Pictures are of the size that is asked for: nothing is resized, which workers and devices do alike but for a level.
VARIED = Augmentation(crop="pad", policy="randaugment", jitter=0.2, erase=0.5)
MIXED = Augmentation(crop="pad", erase=0.3, mixup=0.8, cutmix=1.0)


def pixels(seed: int = 0) -> Pixels:
    values = np.random.default_rng(seed).integers(0, 256, (NUM, SIDE, SIDE, 3), dtype=np.uint8)
    return Pixels(values, "them")


def split_of(kind: ValueKind = "class", seed: int = 0) -> Split:
    draw = np.random.default_rng(seed)
    values: dict[ValueKind, Any] = {
        "class": np.arange(NUM) % K,
        "soft": draw.dirichlet([1.0] * K, NUM).astype(np.float32),
        "several": (draw.random((NUM, K)) < 0.5).astype(np.uint8),
        "number": draw.random(NUM),
    }
    return Split.labelled(pixels(seed), values[kind], kind)


def plan(split: Split, *views: View, name: str = "train", batch_size: int = 6, **options: Any) -> StreamPlan:
    views = views or (View(PLAIN, (SIDE, SIDE)),)
    return StreamPlan(name, split, Order(5, len(split)), batch_size, views, num_classes=K, **options)


def load(*plans: StreamPlan, **options: Any) -> LoaderFeed:
    settings: dict[str, Any] = {"num_workers": 0, "device": torch.device("cpu")}
    return LoaderFeed(plans, preprocess=PREPROCESS, seed=5, **(settings | options))


def resident(*plans: StreamPlan, **options: Any) -> ResidentFeed:
    stored = {plan.name: load_pixels(plan.split, (SIDE, SIDE)) for plan in plans}
    found = {name: kept for name, kept in stored.items() if kept is not None}
    return ResidentFeed(plans, found, preprocess=PREPROCESS, seed=5, **options)


def copies(batch: Batch) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in batch.tensors()]


def test_labels_of_many_images_and_classes_take_no_memory() -> None:
    """Rows of a unit matrix for all of them would take 4 TB."""
    num, num_classes = 100_000, 10_000_000
    split = Split.labelled(Pixels(np.zeros((num, 1, 1, 3), np.uint8), "them"), np.arange(num))
    stream = dataclasses.replace(plan(split, View(PLAIN, (1, 1)), batch_size=2), num_classes=num_classes)
    stored = Stored(torch.zeros(num, 3, 1, 1, dtype=torch.uint8))
    batch = ResidentFeed([stream], {"train": stored}, preprocess=PREPROCESS, seed=5).batch(3)
    labels = Order(5, num).device_batch(3, 2)[0]
    assert torch.equal(batch.targets["label"].nonzero(), torch.stack([torch.arange(2), labels], dim=1))


def test_the_first_view_of_all_keeps_its_counters() -> None:
    one, two = View(PLAIN, (8, 8)), View(VARIED, (4, 4))
    first, second = plan(split_of(), one, two, name="labelled"), plan(split_of(), one, two, name="unlabelled")
    assert view_keys([first, second], 5) == [
        (key(5, "augment"), key(5, "augment", "labelled", 1)),
        (key(5, "augment", "unlabelled", 0), key(5, "augment", "unlabelled", 1)),
    ]


@pytest.mark.parametrize("aug", [VARIED, MIXED])
def test_a_batch_by_its_parts(aug: Augmentation) -> None:
    """Bytes augmented, normalised, erased and mixed one after the other, by the functions that do that alone."""
    split, own = split_of(), key(5, "augment")
    feed = load(plan(split, View(aug, (SIDE, SIDE))), start=2)
    for step in (2, 3):
        batch = feed.batch(step)
        indices, places = Order(5, NUM).device_batch(step, 6)
        images = torch.from_numpy(pixels().values)[indices].permute(0, 3, 1, 2)
        images = torch.cat([augment(aug, images[i : i + 1].contiguous(), places[i : i + 1], own) for i in range(6)])
        images = erase(aug, PREPROCESS.normalize(images), places, own)
        images, targets = mix(aug, images, torch.eye(K)[torch.from_numpy(split.labels)[indices]], places, own)
        assert torch.equal(batch.images, images)
        assert torch.equal(batch.targets["label"], targets)
        assert torch.equal(batch.places, places)
    feed.close()


@pytest.mark.parametrize("kind", ["class", "soft", "several", "number"])
def test_both_feeds_make_the_same_batches(kind: Any) -> None:
    """Two streams of other sizes, one of them in two views, over the end of an epoch, in one process and in two."""
    varied, small = View(VARIED, (SIDE, SIDE)), View(PLAIN, (SIDE, SIDE))
    main = plan(split_of(kind), View(VARIED if kind == "number" else MIXED, (SIDE, SIDE)), batch_size=4)
    other = plan(split_of(seed=1), varied, small, name="unlabelled", batch_size=8, targets=())
    loaded, held = load(main, other), resident(main, other)
    whole: list[list[torch.Tensor]] = []
    for step in range(6):
        batch = loaded.batch(step)
        assert list(batch.streams) == ["train", "unlabelled"]
        assert [len(stream.views) for stream in batch.streams.values()] == [1, 2]
        assert batch.streams["unlabelled"].targets == {}
        assert len(batch) == 4
        assert len(batch.streams["unlabelled"]) == 8
        whole.append(copies(batch))
        for one, two in zip(whole[-1], held.batch(step).tensors(), strict=True):
            assert one.dtype == two.dtype
            assert torch.equal(one, two)
    ranks = [(load(main, other, rank=rank, world=2), resident(main, other, rank=rank, world=2)) for rank in (0, 1)]
    for step in range(6):
        for feeds in zip(*ranks, strict=True):
            parts = [copies(feed.batch(step)) for feed in feeds]
            for one, two, three in zip(whole[step], *parts, strict=True):
                assert torch.equal(one, torch.cat([two, three]))


def test_workers_change_nothing() -> None:
    main = plan(split_of(), View(MIXED, (SIDE, SIDE)))
    other = plan(split_of(seed=1), View(VARIED, (SIDE, SIDE)), View(PLAIN, (8, 8)), name="unlabelled", targets=())
    alone, helped = load(main, other), load(main, other, num_workers=3)
    for step in range(4):
        for one, two in zip(copies(alone.batch(step)), helped.batch(step).tensors(), strict=True):
            assert torch.equal(one, two)
    helped.close()


def test_a_resident_batch_is_made_of_tensors_alone() -> None:
    feed = resident(plan(split_of(), View(MIXED, (SIDE, SIDE))))
    feed.prepare(3)
    made = feed.made()
    assert [tuple(tensor.shape) for tensor in made] == [(6, 3, SIDE, SIDE), (6, K), (6,)]
    for one, two in zip(feed.wrap(made).tensors(), feed.batch(3).tensors(), strict=True):
        assert torch.equal(one, two)


def test_views_differ_and_have_their_sizes() -> None:
    crops = Augmentation(crop_area=(0.2, 0.6))
    feed = load(plan(split_of(), View(crops, (SIDE, SIDE)), View(crops, (SIDE, SIDE)), View(crops, (6, 8))))
    first, second, third = feed.batch(0).first.views
    assert third.shape == (6, 3, 6, 8)
    assert (first - second).abs().mean() > 0.1


def test_masks_as_losses_take_them(tmp_path: Path) -> None:
    mask = np.zeros((SIDE, SIDE), np.uint8)
    mask[:, 4:] = 1
    mask[0] = IGNORED
    for i in range(NUM):
        Image.fromarray(mask).save(tmp_path / f"{i}.png")
    masks = Masks(Files(tmp_path, [f"{i}.png" for i in range(NUM)], [1] * NUM), ("left", "right"))
    split = Split(pixels(), {"mask": masks})
    batch = load(plan(split, targets=("mask",))).batch(0)
    assert batch.targets["mask"].dtype == torch.int64
    assert torch.equal(batch.targets["mask"], torch.from_numpy(mask).long().expand(6, -1, -1))
    with pytest.raises(ConfigError, match="'mask' is read from files"):
        resident(plan(split, targets=("mask",)))


def test_targets_as_losses_take_them() -> None:
    assert as_target(torch.tensor([2, 0]), "class", 3).tolist() == [[0, 0, 1], [1, 0, 0]]
    several = as_target(torch.tensor([[1, 0, 1]], dtype=torch.uint8), "several", 3)
    assert (several.dtype, several.tolist()) == (torch.float32, [[1, 0, 1]])
    number = as_target(torch.tensor([0.5], dtype=torch.float64), "number", 0)
    assert (number.dtype, number.tolist()) == (torch.float32, [0.5])


def test_damage_is_that_of_the_first_stream(tmp_path: Path) -> None:
    for i in range(12):
        Image.new("RGB", (SIDE, SIDE), (i, 0, 0)).save(tmp_path / f"{i}.png")
    (tmp_path / "3.png").write_bytes(b"nothing")
    split = Split.labelled(Files(tmp_path, [f"{i}.png" for i in range(12)], [1] * 12), np.arange(12) % K)
    feed = load(plan(split_of()), plan(split, name="other"), max_damaged=0.4)
    for step in range(2):
        feed.batch(step)
    assert feed.damaged == {}
    feed = load(plan(split), max_damaged=0.4)
    for step in range(2):
        feed.batch(step)
    assert list(feed.damaged) == [3]
    feed.check(6)
    with pytest.raises(DataError, match=r"7 of 12 images cannot be read, and 6 are allowed"):
        feed.check(7)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: plan(split_of(), View(MIXED, (8, 8)), View(PLAIN, (8, 8))), "the stream 'train' has 2 views: leave"),
        (lambda: plan(split_of("number"), View(MIXED, (8, 8))), r"has the targets label \(number\): leave"),
        (lambda: plan(split_of(), View(MIXED, (8, 8)), targets=()), "has no targets: leave"),
        (lambda: StreamPlan("a", split_of(), Order(0, NUM), 2, ()), "The stream 'a' has no view"),
        (lambda: load(plan(split_of()), plan(split_of())), "each has a name of its own"),
        (lambda: load(), "at least one stream"),
        (lambda: load(plan(split_of(), View(MIXED, (8, 8))), world=2), "3 is odd, choose an even batch"),
        (lambda: resident(plan(split_of(), View(MIXED, (8, 8)), batch_size=5)), "5 is odd, choose an even batch"),
        (lambda: load(plan(split_of()), world=4), "cannot be divided among 4 processes"),
    ],
)
def test_what_cannot_be_is_a_sentence(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as raised:
        make()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("num", [2, 3, 4, 8])
def test_a_batch_is_cut_in_the_proportions_of_its_first_stream(num: int) -> None:
    """Also where neither is a multiple of the number of parts: 6 in 4 parts are three, and so are 6 times 7."""
    other = plan(split_of(seed=1), name="unlabelled", batch_size=42, targets=())
    batch = resident(plan(split_of()), other).batch(0)
    parts = batch.parts(num)
    assert [len(part) for part in parts] == [len(chunk) for chunk in torch.arange(6).chunk(num)]
    assert all(len(part.streams["unlabelled"]) == 7 * len(part) for part in parts)
    for name, stream in batch.streams.items():
        for i, tensor in enumerate((*stream.views, *stream.targets.values(), stream.places)):
            own = [part.streams[name] for part in parts]
            found = [(*each.views, *each.targets.values(), each.places)[i] for each in own]
            assert torch.equal(torch.cat(found), tensor)
