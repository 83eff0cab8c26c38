"""`vitlab predict` by models that are not classifiers: masks, numbers, and a task that only a user's file has."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.cli import main
from vitlab.core.errors import ConfigError
from vitlab.inference.files import png_names
from vitlab.models.vit import ViT

LABELS = ("sky", "tree", "road")
SIZES = {"width": 8, "depth": 1, "mlp_dim": 8, "heads": 2, "patch_size": 2, "image_size": 8}
VOC = [(0, 0, 0), (128, 0, 0), (0, 128, 0)]
MINE = """
from dataclasses import dataclass

from vitlab.tasks.contract import Answer, Task, TaskKind


@dataclass(frozen=True)
class Options:
    pass


class Brightness(Task):
    def __init__(self, options):
        pass

    def check(self, dataset): ...
    def fields(self, dataset): return {"num_classes": 1}
    def criterion(self, loss, dataset, train): ...
    def scorer(self, loss, dataset): ...
    def words(self, scores): return ""

    def answers(self, model, outputs, top):
        return [Answer(numbers={"brightness": value}) for value in outputs[:, 0].tolist()]


TASK = TaskKind(name="brightness", summary="how bright a picture is", build=Brightness, options=Options)
"""


def tiny(num_classes: int, head: str) -> ViT:
    model = vitlab.create("vit-ti16-224", num_classes=num_classes, head=head, **SIZES)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 2)
    assert isinstance(model, ViT)
    return model.eval()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("street")
    rng = np.random.default_rng(0)
    (folder / "inside").mkdir()
    for name in ("one.png", "inside/two.png"):
        Image.fromarray(rng.integers(0, 256, (16, 24, 3), dtype=np.uint8)).save(folder / name)
    return folder


@pytest.fixture(scope="module")
def segmenter(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = tiny(3, "patches")
    model.labels, model.task = LABELS, "segmentation"
    path = tmp_path_factory.mktemp("a segmenter") / "model"
    vitlab.save(model, path)
    return str(path)


def seen_mask(model: ViT, path: Path) -> np.ndarray:
    """The classes by another way: the model's own output, its largest by NumPy."""
    pixels = np.asarray(Image.open(path).resize((8, 8), Image.Resampling.BILINEAR), dtype=np.float64)
    images = torch.tensor((pixels - 127.5) / 127.5, dtype=torch.float32).permute(2, 0, 1)[None]
    with torch.no_grad():
        return model(images)[0].numpy().argmax(axis=0)


def test_masks_are_written_with_class_numbers_and_colours(
    segmenter: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["predict", str(photos), "--model", segmenter, "--out", str(tmp_path / "masks"), "--json"]) == 0
    answers = json.loads(capsys.readouterr().out)
    found = sorted(path.relative_to(tmp_path / "masks") for path in (tmp_path / "masks").rglob("*.png"))
    assert found == [Path("inside/two.png"), Path("one.png")]
    model = tiny(3, "patches")
    for answer in answers:
        expected = seen_mask(model, Path(answer["image"]))
        assert len(np.unique(expected)) > 1  # so that the test can fail
        written = Image.open(tmp_path / "masks" / Path(answer["image"]).relative_to(photos))
        assert written.mode == "P"
        assert written.size == (24, 16)  # as the picture
        assert np.array_equal(np.asarray(written), expected.repeat(2, axis=0).repeat(3, axis=1))
        colors = np.asarray(written.convert("RGB"))
        for k, color in enumerate(VOC):
            assert (colors[np.asarray(written) == k] == color).all()
        shares = {name: float((expected == k).mean()) for k, name in enumerate(LABELS)}
        assert answer["shares"] == {name: share for name, share in shares.items() if share}


def test_shares_are_shown_as_a_table(segmenter: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", str(photos / "one.png"), "--model", segmenter]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["image", "share", "class"]
    shares = [float(line.split()[-2].rstrip("%")) for line in lines[1:]]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(100, abs=0.2)


@pytest.mark.parametrize(
    ("head", "task", "words"),
    [
        ("pooled", "segmentation", "one answer per image, and segmentation needs one per pixel"),
        ("patches", "classification", "for every pixel, and classification is of whole images"),
    ],
)
def test_a_task_that_is_not_the_models_is_refused(
    head: str, task: str, words: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    vitlab.save(tiny(3, head), tmp_path / "model")
    assert main(["predict", str(photos), "--model", str(tmp_path / "model"), "--task", task]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert words in printed.err


def test_names_of_masks() -> None:
    assert png_names([Path("a/1.jpg"), Path("a/b/1.jpg")]) == [Path("1.png"), Path("b/1.png")]
    assert png_names([Path("a/1.jpg"), Path("a/1.png"), Path("a/2.x.jpg")]) == [
        Path("1.jpg.png"),
        Path("1.png.png"),
        Path("2.x.png"),
    ]


def test_a_task_in_a_file_is_run_only_when_it_is_given(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*__import__("sys").path])
    name = "brightness_task_of_a_test"
    Path(f"{name}.py").write_text(MINE)
    model = tiny(1, "pooled")
    model.task = f"{name}.py:TASK"
    vitlab.save(model, "model")
    arguments = ["predict", str(photos / "one.png"), "--model", "model"]
    assert main(arguments) == 2
    assert "give its name again in this call" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="not run because a saved file names it"):
        vitlab.predict("model", photos / "one.png")
    shutil.move(f"{name}.py", "elsewhere.py")  # what is given counts, also where the file was moved
    assert main([*arguments, "--task", "elsewhere.py:TASK", "--json"]) == 0
    (answer,) = json.loads(capsys.readouterr().out)
    pixels = np.asarray(Image.open(photos / "one.png").resize((8, 8), Image.Resampling.BILINEAR), dtype=np.float64)
    with torch.no_grad():
        images = torch.tensor((pixels - 127.5) / 127.5, dtype=torch.float32).permute(2, 0, 1)[None]
        assert answer["numbers"] == {"brightness": pytest.approx(model(images).item(), rel=1e-4)}
    assert main([*arguments, "--task", "elsewhere.py:TASK"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["image", "value", "number"]
    assert lines[1].split()[-1] == "brightness"
    (found,) = vitlab.predict("model", photos / "one.png", task="elsewhere.py:TASK")
    assert found.answer is not None
    assert found.answer.numbers == answer["numbers"]
