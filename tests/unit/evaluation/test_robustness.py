"""Robustness figures: against plain loops, and through the protocol on stand-ins of the public sets."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

import vitlab
from tiny_vits import SIZES, random_vit
from vitlab.core.imagenet import imagenet_classes
from vitlab.core.preprocess import Preprocess
from vitlab.data.conditions import COMMON
from vitlab.data.corruptions import corrupt
from vitlab.data.open import open_data
from vitlab.evaluation.contract import EvaluationError, Result, Subject
from vitlab.evaluation.protocols.robustness import RobustnessOptions
from vitlab.evaluation.request import measure
from vitlab.evaluation.robustness import aurra, rms_calibration_error
from vitlab.evaluation.subject import subject_from
from vitlab.models.vit import ViTConfig

THOUSAND = tuple(wordnet for wordnet, _ in imagenet_classes())
SPEC = Preprocess(size=(4, 4), mean=(0, 0, 0), std=(1, 1, 1), interpolation="nearest")


def by_colour(images: Tensor) -> Tensor:
    """The class that red and green say, 4 * red + green, first; then the one that blue says."""
    first = (images[:, 0, 2, 2] * 255).round().long() * 4 + (images[:, 1, 2, 2] * 255).round().long()
    second = (images[:, 2, 2, 2] * 255).round().long()
    logits = torch.zeros(len(images), 1000)
    logits.scatter_(1, second[:, None], 3.0)
    logits.scatter_(1, first[:, None], 5.0)
    return logits


def answering(labels: tuple[str, ...] | None = THOUSAND) -> Subject:
    features = torch.nn.Flatten()
    return subject_from(features, logits=by_colour, name="colours", preprocess=SPEC, labels=labels)


def save(path: Path, first: int, second: int = 0, size: int = 4) -> None:
    """A picture to which the subject answers with one class, and another after it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (size, size), (first // 4, first % 4, second)).save(path.with_suffix(".png"))


def found(data: Path, subject: Subject | None = None, **options: Any) -> Result:
    return measure("robustness", subject or answering(), open_data(data), options=RobustnessOptions(**options))


def values(result: Result) -> dict[str, float]:
    return {name: metric.value for name, metric in result.metrics.items()}


def test_rms_calibration_error_is_a_loops() -> None:
    rng = np.random.default_rng(0)
    for num in (7, 100, 199, 1234):
        confidences = rng.random(num)
        right = rng.random(num) < confidences**2
        rows = sorted(range(num), key=lambda i: confidences[i])
        bins = [rows[i * 100 : (i + 1) * 100] for i in range(max(num // 100, 1))]
        bins[-1] = rows[(len(bins) - 1) * 100 :]
        squares = [len(b) / num * (confidences[b].mean() - right[b].mean()) ** 2 for b in bins]
        assert rms_calibration_error(confidences, right) == pytest.approx(np.sqrt(sum(squares)))
    assert rms_calibration_error(np.full(300, 0.25), np.arange(300) % 4 == 0) == pytest.approx(0)


def test_aurra_by_hand() -> None:
    """The surest is right, the next wrong, the last right: 1, 1/2, 2/3."""
    assert aurra(np.array([0.5, 0.9, 0.7]), np.array([True, True, False])) == pytest.approx((1 + 1 / 2 + 2 / 3) / 3)


@pytest.mark.parametrize("labels", [THOUSAND, None])
def test_a_subset_of_classes_has_its_logits_alone(labels: tuple[str, ...] | None, tmp_path: Path) -> None:
    """Class 7 is not of the set: where it is the first answer, the second counts."""
    data = tmp_path / "imagenet-a"
    save(data / THOUSAND[6] / "right", 6, 11)
    save(data / THOUSAND[6] / "second", 7, 6)
    save(data / THOUSAND[11] / "wrong", 6, 11)
    save(data / THOUSAND[11] / "other", 7, 6)
    result = found(data, answering(labels))
    assert result.metrics["top-1"].value == 0.5
    assert result.metrics["top-1"].count == 4
    assert result.settings["classes_matched"] == "by name, 2 of the model's 1000"
    confidences = torch.tensor([[5.0, 3.0], [3.0, 0.0], [5.0, 3.0], [3.0, 0.0]]).softmax(dim=1)[:, 0].numpy()
    error = np.sqrt((confidences.mean() - 0.5) ** 2)
    assert result.metrics["RMS calibration error"].value == pytest.approx(error, rel=1e-5)
    assert result.metrics["AURRA"].value == pytest.approx(np.mean([1, 1 / 2, 2 / 3, 2 / 4]))
    assert all(metric.spread is not None for metric in result.metrics.values())


def test_v2_with_the_clean_set_of_its_classes(tmp_path: Path) -> None:
    data, clean = tmp_path / "imagenetv2-matched-frequency-format-val", tmp_path / "imagenet"
    for number in (2, 10):
        save(data / str(number) / "a", number)
        save(data / str(number) / "b", 12 - number)
        for i in range(4):
            save(clean / "val" / THOUSAND[number] / f"ILSVRC2012_val_{number}{i}", number if i else 12 - number)
        save(clean / "train" / THOUSAND[number] / "t", 0)
    save(clean / "train" / THOUSAND[5] / "t", 0)
    save(clean / "val" / THOUSAND[5] / "ILSVRC2012_val_1", 0)  # wrong, but of a class that the data does not have
    result = found(data, clean=str(clean))
    assert values(result)["top-1"] == 0.5
    assert values(result)["clean top-1"] == 0.75
    assert result.metrics["clean top-1"].count == 8
    assert values(result)["drop, points"] == pytest.approx(25)
    for part in ("train", "val"):
        for number in (100, 101):
            save(tmp_path / "other" / part / THOUSAND[number] / "x", 0)
    with pytest.raises(EvaluationError, match="no images of the classes of imagenet-v2"):
        found(data, clean=str(tmp_path / "other"))


def test_objectnet_is_scored_as_its_authors_do(tmp_path: Path) -> None:
    """Any of a class's several is right; a class of ImageNet's that ObjectNet lacks is wrong, unless left out."""
    root = tmp_path / "objectnet-1.0"
    (root / "mappings").mkdir(parents=True)
    names = {"clock": "Alarm clock", "banana": "Banana"}
    (root / "mappings" / "folder_to_objectnet_label.json").write_text(json.dumps(names))
    lemmas = {"Alarm clock": "analog clock; digital clock", "Banana": "banana"}
    (root / "mappings" / "objectnet_to_imagenet_1k.json").write_text(json.dumps(lemmas))
    analog, digital, banana, tench = 409, 530, 954, 0

    def picture(path: Path, first: int, second: int) -> None:
        save(root / "images" / path, first, second, size=8)  # of which the border goes

    picture(Path("clock/1"), analog, 1)
    picture(Path("clock/2"), digital, 1)
    picture(Path("clock/3"), banana, 1)  # wrong at once; neither of the next is its
    picture(Path("banana/1"), tench, 1)  # not ObjectNet's; among its classes all others are equal, so first
    result = found(root)
    assert values(result) == {"top-1": 0.5, "top-5": 1.0, "top-1 of 2 classes": 0.75}
    with pytest.raises(EvaluationError, match="does not tell the classes of ImageNet"):
        found(root, answering(tuple(f"class {i}" for i in range(1000))))


def test_imagenet_c(tmp_path: Path) -> None:
    """Every image right but at severity 5 of fog and noise: errors of a fifth, as parts of AlexNet's."""
    root = tmp_path / "imagenet-c"
    for corruption in ("gaussian_noise", "fog", "spatter"):
        for severity in range(1, 6):
            for number in (2, 10):
                wrong = severity == 5 or corruption == "spatter"
                for i in range(3):
                    save(
                        root / corruption / str(severity) / THOUSAND[number] / str(i), 12 - number if wrong else number
                    )
    result = found(root)
    assert list(result.metrics)[:2] == ["mCE of 2 corruptions, %", "mean corruption error"]
    assert values(result)["mCE of 2 corruptions, %"] == pytest.approx(100 * (0.2 / 0.886428 + 0.2 / 0.819324) / 2)
    assert values(result)["mean corruption error"] == pytest.approx(0.2)
    assert values(result)["spatter error"] == 1
    assert result.counts == {"test": 90, "conditions": 15, "images per condition": 6}
    assert result.details["errors"]["fog"] == {"1": 0, "2": 0, "3": 0, "4": 0, "5": 1}
    some = found(root, severities=(4, 5), corruptions=("fog",), images=2)
    assert values(some) == {"mean corruption error": 0.5, "fog error": 0.5}  # no AlexNet's at two severities
    assert some.counts["test"] == 4
    with pytest.raises(EvaluationError, match="corrupted already"):
        found(root, corrupt=True)
    with pytest.raises(EvaluationError, match="none of the corruptions"):
        found(root, corruptions=("snow",))


def test_pictures_of_imagenet_c_are_not_cropped_again(tmp_path: Path) -> None:
    """The edge, which a crop from a larger picture would cut off, tells the class; of the clean set it is cut off."""
    spec = Preprocess(size=(8, 8), resize="shortest", shortest_edge=16, mean=(0, 0, 0), std=(1, 1, 1))

    def by_corner(images: Tensor) -> Tensor:
        return torch.nn.functional.one_hot((images[:, 0, 0, 0] * 255).round().long(), 1000).float()

    subject = subject_from(torch.nn.Flatten(), logits=by_corner, name="corner", preprocess=spec, labels=THOUSAND)
    pixels = np.zeros((8, 8, 3), np.uint8)
    for number in (2, 10):
        pixels[[0, -1]] = pixels[:, [0, -1]] = number
        for part in (*(f"imagenet-c/fog/{i}" for i in range(1, 6)), "clean/train", "clean/val"):
            path = tmp_path / part / THOUSAND[number] / "ILSVRC2012_val_00000001.png"
            path.parent.mkdir(parents=True)
            Image.fromarray(pixels).save(path)
    result = found(tmp_path / "imagenet-c", subject, clean=str(tmp_path / "clean"))
    assert values(result)["fog error"] == 0
    assert values(result)["clean error"] == 0.5  # where it is cut off, both get the same answer
    assert "relative mCE of 1 corruption, %" in result.metrics


def test_corrupted_here_is_what_one_corrupts_oneself(tmp_path: Path) -> None:
    """Against a loop: each picture preprocessed, corrupted, normalised and shown to the model by hand."""
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    for name in "ab":
        for i in range(3):
            path = tmp_path / "data" / "test" / name / f"{i}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(rng.integers(0, 256, (10, 12, 3), dtype=np.uint8)).save(path)
    model = random_vit(ViTConfig(**SIZES, num_classes=2))
    vitlab.save(model, tmp_path / "model")
    result = vitlab.evaluate(
        "robustness",
        tmp_path / "model",
        str(tmp_path / "data"),
        corrupt=True,
        severities=(2, 5),
        seed=4,
        workers=0,
        device="cpu",
    )
    model.eval()
    test = open_data(tmp_path / "data").splits["test"]
    seen = [np.asarray(model.preprocess.picture(Image.open(test.images.where(i)))) for i in range(6)]

    def wrong(pictures: list[Any]) -> float:
        with torch.inference_mode():
            return float((model(model.preprocess(pictures)).argmax(dim=1).numpy() != test.labels).mean())

    assert values(result)["clean error"] == pytest.approx(wrong(seen))
    table = result.details["errors"]
    assert list(table) == list(COMMON)
    for name in COMMON:
        for severity in (2, 5):
            made = [corrupt(picture, name, severity, seed=4, number=i) for i, picture in enumerate(seen)]
            assert table[name][str(severity)] == pytest.approx(wrong(made)), (name, severity)
    mean = np.mean([list(row.values()) for row in table.values()])
    assert values(result)["mean corruption error"] == pytest.approx(mean)
    assert values(result)["beyond clean, points"] == pytest.approx(100 * (mean - wrong(seen)))
    assert any("not those of published sets" in note for note in result.settings["notes"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"corrupt": True, "clean": "imagenet"}, "leave --clean away"),
        ({"corruptions": ("fog",)}, "add --corrupt"),
        ({"severities": ()}, "some of 1 to 5"),
        ({"severities": (1, 1)}, "each once"),
        ({"images": 0}, "at least 1, not 0"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], words: str, tmp_path: Path) -> None:
    for number in (2, 10):
        save(tmp_path / "set" / "test" / THOUSAND[number] / "a", number)
    with pytest.raises(EvaluationError, match=words):
        found(tmp_path / "set", **options)
