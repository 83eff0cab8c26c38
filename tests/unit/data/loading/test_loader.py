"""Loading: the same bytes however it is done, and no way of ending it that hangs or leaves something behind."""

import gc
import itertools
import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitlab.core.errors import ConfigError, DataError
from vitlab.core.preprocess import Preprocess
from vitlab.core.random import key
from vitlab.data.augmentation import Augmentation, augment, crop_box
from vitlab.data.contract import Split, Subset
from vitlab.data.loading.loader import EvaluationBatch, Loaded, Loader, evaluation_batches
from vitlab.data.loading.order import Order
from vitlab.data.loading.ring_buffer import Damage
from vitlab.data.loading.workers import Damaged
from vitlab.data.sources.files import Files
from vitlab.data.sources.pixels import Pixels
from vitlab.data.streams import StreamPlan, View

NUM, SIZE = 22, (24, 32)
STRONG = Augmentation(policy="randaugment", jitter=0.3)


def write_photos(folder: Path, num: int) -> list[str]:
    draw = np.random.default_rng(0)
    names: list[str] = []
    for i in range(num):
        height, width = 40 + 3 * i, 90 - 2 * i
        coarse = Image.fromarray(draw.integers(0, 256, (5, 7, 3), dtype=np.uint8))
        names.append(f"{i:02}.png" if i % 5 == 3 else f"{i:02}.jpg")
        coarse.resize((width, height), Image.Resampling.BICUBIC).save(folder / names[-1])
    return names


def split_of(folder: Path, names: list[str]) -> Split:
    return Split.labelled(Files(folder, names, [1] * len(names)), np.arange(len(names)) * 10)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Split:
    folder = tmp_path_factory.mktemp("photos with spaces")
    return split_of(folder, write_photos(folder, NUM))


@pytest.fixture
def some_damaged(tmp_path: Path) -> Split:
    """Three damaged photos: empty, cut off, and gone."""
    names = write_photos(tmp_path, NUM)
    (tmp_path / names[4]).write_bytes(b"")
    (tmp_path / names[7]).write_bytes((tmp_path / names[7]).read_bytes()[:300])
    (tmp_path / names[8]).unlink()
    return split_of(tmp_path, names)


def load(split: Split, num_workers: int = 0, **options: Any) -> Loader:
    view = View(options.pop("augmentation", STRONG), SIZE)
    plan = StreamPlan("train", split, Order(3, len(split)), options.pop("batch_size", 8), (view,))
    return Loader(plan, num_workers=num_workers, seed=3, **options)


def kept(batch: Loaded) -> Loaded:
    return batch._replace(views=tuple(view.clone() for view in batch.views))


def batches(num: int, split: Split, num_workers: int = 0, **options: Any) -> list[Loaded]:
    with load(split, num_workers, **options) as loader:
        return [kept(batch) for batch in itertools.islice(loader, num)]


def assert_same(first: list[Any], second: list[Any]) -> None:
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=0)


def workers() -> list[Any]:
    return [child for child in multiprocessing.active_children() if child.name.startswith("vitlab-data")]


@pytest.mark.parametrize("num_workers", [1, 2, 3])
def test_the_number_of_workers_changes_nothing(num_workers: int, photos: Split) -> None:
    assert_same(batches(5, photos, num_workers, batch_size=10), batches(5, photos, 0, batch_size=10))


def joined(parts: Sequence[Loaded]) -> Loaded:
    views = tuple(torch.cat(views) for views in zip(*(part.views for part in parts), strict=True))
    targets = {name: torch.cat([part.targets[name] for part in parts]) for name in parts[0].targets}
    indices, places = torch.cat([part.indices for part in parts]), torch.cat([part.places for part in parts])
    return Loaded(views, targets, indices, places)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_share_the_batches_of_one_process(num_workers: int, photos: Split) -> None:
    alone = batches(4, photos)
    ranks = [batches(4, photos, num_workers, rank=rank, world=2) for rank in range(2)]
    together = [joined(parts) for parts in zip(*ranks, strict=True)]
    assert_same(together, alone)


def test_a_later_start_goes_on_where_an_earlier_one_was(photos: Split) -> None:
    assert_same(batches(3, photos, 2, start_step=4), batches(7, photos)[4:])


def test_batches_are_what_they_say(photos: Split) -> None:
    """Against Pillow's decoding and resizing of the box that was drawn; every image once an epoch."""
    plain = Augmentation(crop_area=(0.3, 1.0), flip=0.5)
    seen: list[int] = []
    for (images,), targets, indices, places in batches(NUM // 2, photos, augmentation=plain, batch_size=2):
        assert images.dtype == torch.uint8
        torch.testing.assert_close(targets["label"], indices * 10)
        seen += indices.tolist()
        for image, index, place in zip(images, indices, places, strict=True):
            picture = Image.open(photos.images.where(int(index))).convert("RGB")
            top, left, height, width = crop_box(plain, key(3, "augment"), int(place), picture.height, picture.width)
            part = picture.crop((left, top, left + width, top + height))
            resized = np.asarray(part.resize((SIZE[1], SIZE[0]), Image.Resampling.BILINEAR))
            expected = augment(
                plain, torch.from_numpy(resized.copy()).permute(2, 0, 1)[None], place[None], key(3, "augment")
            )
            difference = (image.int() - expected[0].int()).abs().float()
            assert difference.mean() < 1.5  # a large crop is decoded at half its size: single pixels may differ more
            assert (difference <= 4).float().mean() > 0.97
    assert sorted(seen) == list(range(NUM))


def test_without_augmentation_whole_pictures_are_resized() -> None:
    values = np.random.default_rng(0).integers(0, 256, (6, *SIZE, 3), dtype=np.uint8)
    split = Split.labelled(Pixels(values, "them"), np.eye(6, 4, dtype=np.int64), "several")
    plain = Augmentation(crop="resize", flip=0.0)
    for num_workers in (0, 1):
        (batch,) = batches(1, split, num_workers, augmentation=plain, batch_size=6)
        np.testing.assert_array_equal(batch.views[0].permute(0, 2, 3, 1).numpy(), values[batch.indices])
        assert batch.targets["label"].dtype == torch.float32
        np.testing.assert_array_equal(batch.targets["label"].numpy(), np.eye(6, 4)[batch.indices])


def test_a_batch_is_normalised_into_memory_that_is_kept(photos: Split) -> None:
    preprocess = Preprocess(size=SIZE, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    kept_memory = torch.empty(8, 3, *SIZE)
    for batch in batches(2, photos):
        found = preprocess.normalize(batch.views[0], kept_memory)
        assert found.data_ptr() == kept_memory.data_ptr()
        torch.testing.assert_close(found, preprocess.normalize(batch.views[0]), rtol=0, atol=0)
        values = (batch.views[0].double() / 255 - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor(
            [0.2, 0.3, 0.4]
        ).view(3, 1, 1)
        torch.testing.assert_close(found.double(), values, rtol=1e-5, atol=1e-5)


def test_the_next_batch_takes_the_place_of_an_earlier_one(photos: Split) -> None:
    with load(photos, 1, ahead=1) as loader:
        first, second = next(loader), next(loader)
        assert first.views[0].data_ptr() != second.views[0].data_ptr()
        assert next(loader).views[0].data_ptr() == first.views[0].data_ptr()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_damaged_images_are_replaced_named_and_counted(
    num_workers: int, some_damaged: Split, caplog: pytest.LogCaptureFixture
) -> None:
    with load(some_damaged, num_workers) as loader:
        found = [kept(batch) for batch in itertools.islice(loader, 6)]
        damaged = loader.damaged
    assert sorted(damaged) == [4, 7, 8]
    for index, sentence in damaged.items():
        assert some_damaged.images.where(index) in sentence
        assert sum(sentence in message for message in caplog.messages) == 1
    order = Order(3, NUM)
    for step, batch in enumerate(found):
        wanted, places = order.batch(step, 8)
        np.testing.assert_array_equal(batch.places, places)
        taken, same = batch.indices.numpy(), ~np.isin(wanted, [4, 7, 8])
        np.testing.assert_array_equal(taken[same], wanted[same])
        assert not np.isin(taken, [4, 7, 8]).any()
        torch.testing.assert_close(batch.targets["label"], batch.indices * 10)
    with load(some_damaged, 3 - num_workers, start_step=2) as loader:
        assert_same(found[2:], [kept(batch) for batch in itertools.islice(loader, 4)])


def test_too_many_damaged_images_are_an_error_that_lists_them(tmp_path: Path) -> None:
    names = write_photos(tmp_path, 40)
    for name in names[:15]:
        (tmp_path / name).write_bytes(b"nothing")
    split = split_of(tmp_path, names)
    messages: set[str] = set()
    for num_workers in (0, 1, 2):
        with pytest.raises(DataError, match=r"(?s)1\d of 40 images .* 10 are allowed.*jpg is not an image") as caught:
            batches(10, split, num_workers)
        messages.add(str(caught.value))
    assert len(messages) == 1
    assert not workers()
    batches(10, split, max_damaged=0.5)


def test_no_readable_image_at_all_is_an_error(tmp_path: Path) -> None:
    for name in (names := ["a.jpg", "b.jpg", "c.png"]):
        (tmp_path / name).write_bytes(b"nothing")
    with pytest.raises(DataError, match="of 3 images cannot be read|images in a row cannot be read"):
        batches(1, split_of(tmp_path, names), batch_size=2)


def test_no_damaged_image_where_none_is_allowed() -> None:
    with pytest.raises(DataError, match=r"1 of 10,000 .* 0 are allowed"):
        Damage(10_000, 0.0).add([Damaged(3, "no 3")])


def test_the_list_of_damaged_images_ends() -> None:
    damage = Damage(10_000, 0.01)
    damage.add(Damaged(number, f"no {number}") for number in range(100))
    damage.add([Damaged(3, "no 3")])
    with pytest.raises(DataError, match=r"(?s)101 of 10,000 .* 100 are allowed.*no 19 And 81 more\.$"):
        damage.add([Damaged(9_999, "no 9999")])


@pytest.mark.parametrize("resize", ["squash", "shortest"])
@pytest.mark.parametrize(("num_workers", "world"), [(0, 1), (2, 1), (1, 2), (0, 3)])
def test_evaluation_takes_every_image_once(num_workers: int, world: int, resize: Any, photos: Split) -> None:
    preprocess = Preprocess(size=SIZE, resize=resize)
    seen: dict[int, torch.Tensor] = {}
    shapes: set[tuple[int, ...]] = set()
    for rank in range(world):
        options: dict[str, Any] = {"num_workers": num_workers, "rank": rank, "world": world}
        found = list(map(_kept, evaluation_batches(photos, preprocess, targets=("label",), batch_size=6, **options)))
        assert len(found) == 4
        for images, targets, indices, counts in found:
            shapes.add(tuple(images.shape))
            torch.testing.assert_close(targets["label"], indices * 10)
            for image, index in zip(images[counts], indices[counts].tolist(), strict=True):
                assert index not in seen
                seen[index] = image
    assert shapes == {(6 // world, 3, *SIZE)}
    assert sorted(seen) == list(range(NUM))
    for index, image in seen.items():
        reference = np.asarray(preprocess.picture(Image.open(photos.images.where(index))))
        np.testing.assert_array_equal(image.permute(1, 2, 0), reference)
    assert not workers()


def _kept(batch: EvaluationBatch) -> EvaluationBatch:
    return batch._replace(images=batch.images.clone())


def test_an_evaluation_in_between_changes_nothing() -> None:
    """What workers read from stays theirs when other loaders come and go."""
    values = np.random.default_rng(0).integers(0, 256, (40, *SIZE, 3), dtype=np.uint8)
    split = Split.labelled(Pixels(values, "them"), np.arange(40) % 3)
    expected = batches(8, split, 0, batch_size=8)
    seen: list[Loaded] = []
    with load(split, 2, batch_size=8) as loader:
        for _ in range(8):
            seen.append(kept(next(loader)))
            list(evaluation_batches(split, Preprocess(size=SIZE), batch_size=10, num_workers=2))
    assert_same(seen, expected)


def test_evaluation_leaves_damaged_images_out(some_damaged: Split) -> None:
    counted: list[int] = []
    for _, _, indices, counts in evaluation_batches(some_damaged, Preprocess(size=SIZE), batch_size=5, num_workers=1):
        counted += indices[counts].tolist()
    assert counted == [index for index in range(NUM) if index not in (4, 7, 8)]


def test_evaluations_name_a_damaged_image_once(some_damaged: Split, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(2):
        found = list(evaluation_batches(some_damaged, Preprocess(size=SIZE), batch_size=5, num_workers=0))
        assert sum(int(batch.counts.sum()) for batch in found) == NUM - 3
        assert len(caplog.records) == 3
    with pytest.raises(DataError, match="0 are allowed"):
        list(evaluation_batches(some_damaged, Preprocess(size=SIZE), batch_size=5, num_workers=0, max_damaged=0))


def test_an_abandoned_loader_ends_its_workers(photos: Split) -> None:
    loader = load(photos, 2)
    next(loader)
    assert len(workers()) == 2
    del loader
    gc.collect()
    assert not workers()
    evaluation = evaluation_batches(photos, Preprocess(size=SIZE), batch_size=2, num_workers=2)
    next(evaluation)
    assert len(workers()) == 2
    del evaluation
    gc.collect()
    assert not workers()


def test_a_killed_worker_is_an_error_at_once(photos: Split) -> None:
    with load(photos, 2) as loader:
        next(loader)
        os.kill(workers()[0].pid, signal.SIGKILL)
        with pytest.raises(DataError, match=r"worker \(process \d+\) was killed by signal SIGKILL.*memory"):
            for _ in loader:
                pass
        assert not workers()
        with pytest.raises(StopIteration):
            next(loader)


def test_an_exception_in_a_worker_is_an_error_here(photos: Split) -> None:
    broken = Split.labelled(Subset(photos.images, np.arange(NUM) + NUM), photos.labels)
    with pytest.raises(DataError, match="worker failed with IndexError: .* out of range") as caught:
        batches(1, broken, 2)
    assert "Traceback" in "".join(caught.value.__notes__)
    assert not workers()


@pytest.mark.parametrize("options", [{"num_workers": -1}, {"num_workers": 2, "ahead": 0}, {"world": 3}])
def test_what_cannot_be_is_a_sentence(options: dict[str, Any], photos: Split) -> None:
    with pytest.raises(ConfigError):
        batches(1, photos, **options)


def test_memory_does_not_grow(photos: Split) -> None:
    with load(photos, 1, batch_size=4) as loader:
        (worker,) = workers()
        for _ in itertools.islice(loader, 30):
            pass
        before = _resident(os.getpid()), _resident(worker.pid)
        for _ in itertools.islice(loader, 150):
            pass
        grown = [now - then for now, then in zip((_resident(os.getpid()), _resident(worker.pid)), before, strict=True)]
    assert max(grown) < 8e6  # 150 batches are 1.4 MB, but 600 decoded photos are 8 MB and their files more


def _resident(process: int) -> int:
    return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


HEAD = """
import multiprocessing, os, signal, sys, time
from pathlib import Path
import numpy as np
from vitlab.data.augmentation import Augmentation
from vitlab.data.contract import Split, Subset
from vitlab.data.loading.loader import Loader
from vitlab.data.loading.order import Order
from vitlab.data.sources.files import Files
from vitlab.data.streams import StreamPlan, View

os.write(1, b"imported\\n")  # in one piece, unlike print
"""
BODY = """
told = []
signal.signal(signal.SIGINT, lambda *_: told.append("SIGINT"))
signal.signal(signal.SIGTERM, lambda *_: told.append("SIGTERM"))
folder = Path(sys.argv[1])
names = sorted(path.name for path in folder.iterdir())
images = Subset(Files(folder, names, [1] * len(names)), np.arange(len(names)))
split = Split.labelled(images, np.arange(len(names)))
plan = StreamPlan("train", split, Order(0, len(names)), 8, (View(Augmentation(), (24, 32)),))
loader = Loader(plan, num_workers=2, seed=0)
next(loader)
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
while len(told) < 2:
    time.sleep(0.05)
for _ in range(12):
    next(loader)
print(*sorted(told), flush=True)
if sys.argv[2] == "killed":
    time.sleep(60)
"""
# A script of few words, which workers must not run again; and one whose own classes they have to import it for.
SCRIPTS = {
    "killed": HEAD + BODY,
    "forgotten": HEAD
    + "class Subset(Subset):\n    pass\n"
    + 'if __name__ == "__main__":\n'
    + textwrap.indent(BODY, "    "),
}


@pytest.mark.parametrize("ending", ["killed", "forgotten"])
def test_signals_are_for_the_trainer_and_nothing_survives_it(ending: str, photos: Split, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPTS[ending])
    folder = Path(photos.images.where(0)).parent
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, script, folder, ending],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "imported\n"
        if ending == "forgotten":  # once more by each worker
            assert [process.stdout.readline(), process.stdout.readline()] == ["imported\n"] * 2
        children = [int(pid) for pid in process.stdout.readline().split()]
        assert len(children) == 2
        os.killpg(process.pid, signal.SIGINT)
        os.killpg(process.pid, signal.SIGTERM)
        assert process.stdout.readline().split() == ["SIGINT", "SIGTERM"]
        if ending == "killed":
            process.kill()
        _, errors = process.communicate(timeout=20)
        assert process.returncode == (-signal.SIGKILL if ending == "killed" else 0)
    assert errors == ""
    while any(_alive(child) for child in children):
        time.sleep(0.05)


def _alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.gpu
def test_pinned_batches_are_not_overwritten_while_they_are_copied(photos: Split) -> None:
    expected = batches(12, photos, 2)
    with load(photos, 2, pin_memory=True) as loader:
        copies = []
        for batch in itertools.islice(loader, 12):
            (images,) = batch.views
            assert images.is_pinned()
            torch.cuda._sleep(20_000_000)  # the copy waits, the loop goes on
            copies.append(batch._replace(views=(images.to("cuda", non_blocking=True),)))
        found = [batch._replace(views=(batch.views[0].cpu(),)) for batch in copies]
    assert_same(found, expected)
