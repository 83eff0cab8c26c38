"""ImageNet's reassessed labels: hand-worked cases, and timm's evaluator over the public file that it carries."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.core.imagenet import imagenet_classes
from vitlab.core.preprocess import Preprocess
from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.protocols.real import RealOptions
from vitlab.evaluation.real import RealAccuracy, RealLabels, open_validation_images
from vitlab.evaluation.request import measure
from vitlab.evaluation.subject import subject_from

LABELS = [[0, 5], [], [999], [1], [2, 3, 4]]


def name(number: int) -> str:
    return f"ILSVRC2012_val_{number:08d}.JPEG"


def logits(*classes: int) -> Tensor:
    return torch.nn.functional.one_hot(torch.tensor(classes), 1000).float()


@pytest.fixture
def real(tmp_path: Path) -> RealLabels:
    path = tmp_path / "real.json"
    path.write_text(json.dumps(LABELS))
    return RealLabels.read(path)


def test_right_is_among_the_labels_and_unlabelled_images_do_not_count(real: RealLabels) -> None:
    accuracy = RealAccuracy(real)
    accuracy.add(logits(5, 0, 998), [name(1), name(2), name(3)])
    accuracy.add(logits(2), [name(5)])
    outcome = accuracy.outcome()
    assert outcome.metrics["ReaL"].value == pytest.approx(2 / 3)
    assert outcome.metrics["ReaL"].count == 3
    assert outcome.counts == {"images": 4, "with labels": 3, "without labels": 1}


@pytest.mark.parametrize(
    "path",
    [
        "ILSVRC2012_val_00000003.JPEG",
        "/data/imagenet/val/n15075141/ILSVRC2012_val_00000003.JPEG",
        "val/999/ilsvrc2012_val_00000003.jpg",
        "ILSVRC2012_val_00000003_n15075141.jpeg",
        "ILSVRC2012_val_00000001/ILSVRC2012_val_00000003.png",
        r"C:\val\ILSVRC2012_val_00000003.JPEG",
        "val_00000003.jpg",
    ],
)
def test_usual_namings_are_understood(real: RealLabels, path: str) -> None:
    assert real.number(path) == 2


@pytest.mark.parametrize("path", ["n01440764_10026.JPEG", "ILSVRC2012_val_0000003.JPEG", "interval_00000003.jpg"])
def test_other_names_are_refused(real: RealLabels, path: str) -> None:
    with pytest.raises(EvaluationError, match="not named as ImageNet's validation images"):
        real.number(path)


@pytest.mark.parametrize("number", [0, 6])
def test_numbers_beyond_the_file_are_refused(real: RealLabels, number: int) -> None:
    with pytest.raises(EvaluationError, match="labels of 5 images"):
        real.number(name(number))


def test_parts_merge_and_copies_are_found(real: RealLabels) -> None:
    left, right = RealAccuracy(real), RealAccuracy(real)
    left.add(logits(0, 1), [name(1), name(4)])
    right.add(logits(0), [name(5)])
    left.merge(right)
    assert left.outcome().metrics["ReaL"].value == pytest.approx(2 / 3)
    left.merge(right)
    with pytest.raises(EvaluationError, match="val_00000005 is there 2 times"):
        left.outcome()


@pytest.mark.parametrize("num", [10, 1001, 21843])
def test_another_number_of_classes_is_refused(real: RealLabels, num: int) -> None:
    with pytest.raises(EvaluationError, match=f"1000 classes in their usual order, but the model has {num}"):
        RealAccuracy(real).add(torch.zeros(1, num), [name(1)])


def test_outputs_that_are_not_finite_are_refused(real: RealLabels) -> None:
    with pytest.raises(EvaluationError, match="not finite"):
        RealAccuracy(real).add(torch.full((1, 1000), torch.nan), [name(1)])


def test_nothing_with_labels_is_nothing_to_measure(real: RealLabels) -> None:
    accuracy = RealAccuracy(real)
    accuracy.add(logits(0), [name(2)])
    with pytest.raises(EvaluationError, match="None of the 1 images"):
        accuracy.outcome()


@pytest.mark.parametrize("text", ["{}", "[]", "[1, 2]", "[[1000]]", "[[-1]]", '[["a"]]', "[[true]]", "[[", "\x00"])
def test_another_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "real.json"
    path.write_text(text)
    with pytest.raises(EvaluationError, match="real.json is not"):
        RealLabels.read(path)


def test_a_missing_file_says_where_it_is_from(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="reassessed-imagenet"):
        RealLabels.read(tmp_path / "real.json")


def test_the_public_labels_give_what_timm_gives() -> None:
    from timm.data import real_labels

    path = Path(real_labels.__file__).parent / "_info" / "imagenet_real_labels.json"
    real, names = RealLabels.read(path), [name(i + 1) for i in range(50_000)]
    assert sum(not labels for labels in real.labels) == 3163
    theirs, ours = real_labels.RealLabelsImagenet(names, topk=(1,)), RealAccuracy(real)
    first = torch.tensor([min(labels, default=0) for labels in real.labels])
    generator = torch.Generator().manual_seed(0)
    guesses = torch.where(torch.rand(50_000, generator=generator) < 0.7, first, torch.randint(0, 1000, (50_000,)))
    for start in range(0, 2_000, 500):
        batch = torch.nn.functional.one_hot(guesses[start : start + 500], 1000).float()
        theirs.add_result(batch)
        ours.add(batch, names[start : start + 500])
    outcome = ours.outcome()
    assert 100 * outcome.metrics["ReaL"].value == pytest.approx(theirs.get_accuracy(1))
    assert outcome.counts["images"] == 2_000
    assert 0.6 < outcome.metrics["ReaL"].value < 0.8


def pictures(root: Path, *files: str) -> str:
    """Pictures whose red is the number at the end of their name."""
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        number = int(Path(file).stem.split("_")[2])
        Image.new("RGB", (4, 4), (number, 0, 0)).save(root / file, "PNG")  # whatever the ending says
    return str(root)


LAYOUTS = {
    "flat": [name(1), name(3), name(5)],
    "in class folders": [f"0/{name(1)}", f"999/{name(3)}", f"4/{name(5)}"],
    "in a val folder without labels": [f"val/{name(1)}", f"val/{name(3)}", f"val/{name(5)}"],
    "beside train": [f"val/n1/{name(1)}", f"val/n2/{name(3)}", f"val/n2/{name(5)}", "train/n1/n_a_7.JPEG"],
    "Kaggle's": [f"ILSVRC/Data/CLS-LOC/val/{name(i)}" for i in (1, 3, 5)],
    "among other files": [name(1), name(3), name(5), "other_picture_9.png"],
}


@pytest.mark.parametrize("files", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_any_folder_of_validation_images_is_measured_whole(
    tmp_path: Path, files: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The answers are known: 5 is a label of the first image, 999 that of the third, 0 none of the fifth's."""
    labels = tmp_path / "real.json"
    labels.write_text(json.dumps(LABELS))
    answers = torch.tensor([0, 5, 0, 999, 0, 0])

    def told(images: Tensor) -> Tensor:
        numbers = (images[:, 0].mean(dim=(1, 2)) * 127.5 + 127.5).round().long()
        return torch.nn.functional.one_hot(answers[numbers], 1000).float()

    data = open_validation_images(pictures(tmp_path / "images", *files))
    assert (data.name, list(data.splits)) == ("imagenet", ["val"])
    subject = subject_from(told, logits=told, name="known answers", preprocess=Preprocess(size=(4, 4)))
    found = measure("real", subject, data, options=RealOptions(labels=str(labels)))
    assert found.metrics["ReaL"].value == pytest.approx(2 / 3)
    assert found.counts == {"images": 3, "with labels": 3, "without labels": 0}
    assert found.settings["images in all"] == 5
    assert "3 of 5 validation images" in caplog.text


def test_a_model_with_the_classes_in_another_order_is_understood(tmp_path: Path) -> None:
    labels = tmp_path / "real.json"
    labels.write_text(json.dumps(LABELS))
    data = open_validation_images(pictures(tmp_path / "images", name(3)))  # whose label is 999
    answer = torch.zeros(1, 1000)
    answer[0, 0] = 1
    wordnet = tuple(wnid for wnid, _ in imagenet_classes())
    for classes, value in ((wordnet, 0.0), (wordnet[::-1], 1.0)):
        subject = subject_from(
            lambda images: images.flatten(1),
            logits=lambda images: answer.expand(len(images), -1),
            name="ordered",
            preprocess=Preprocess(size=(4, 4)),
            labels=classes,
        )
        found = measure("real", subject, data, options=RealOptions(labels=str(labels)))
        assert (found.metrics["ReaL"].value, found.settings["classes_matched"]) == (value, "by name")


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ([f"a/{name(1)}", f"b/{name(1)}"], "val_00000001 is there twice, as .*a/ILSVRC.* and .*b/ILSVRC"),
        ([name(1), name(6)], "holds the labels of 5 images"),
    ],
)
def test_names_are_checked_before_anything_is_computed(
    real: RealLabels, tmp_path: Path, files: list[str], sentence: str
) -> None:
    data = open_validation_images(pictures(tmp_path / "images", *files))

    def never(images: Tensor) -> Tensor:
        raise AssertionError(len(images))

    subject = subject_from(never, logits=never, name="never", preprocess=Preprocess(size=(4, 4)))
    with pytest.raises(EvaluationError, match=sentence):
        measure("real", subject, data, options=RealOptions(labels=real.source))


def test_a_folder_without_validation_images_opens_as_any_data(tmp_path: Path) -> None:
    folder = pictures(tmp_path / "photos", "a/x_y_1.png", "a/x_y_2.png", "b/x_y_3.png", "b/x_y_4.png")
    assert open_validation_images(folder).classes == ("a", "b")
    flat = open_validation_images(pictures(tmp_path / "flat", "x_y_1.png"))  # images without labels
    assert (flat.name, flat.classes) == ("flat", ())
    assert [dict(split.targets) for split in flat.splits.values()] == [{}]
    (tmp_path / "empty").mkdir()
    with pytest.raises(Error, match="empty holds no images"):
        open_validation_images(str(tmp_path / "empty"))
