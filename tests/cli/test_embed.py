import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.cli import main
from vitlab.models.vit import ViT, ViTConfig


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    torch.manual_seed(0)
    model = ViT(ViTConfig(image_size=(16, 16), patch_size=8, width=16, depth=1, mlp_dim=16, heads=2, num_classes=7))
    model.initialize()
    path = tmp_path_factory.mktemp("a model") / "small"
    vitlab.save(model, path)
    return str(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    folder = tmp_path / "my photos"
    (folder / "inside").mkdir(parents=True)
    generator = np.random.default_rng(0)
    for name in ("b.png", "a.png", "inside/c d.png"):
        Image.fromarray(generator.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(folder / name)
    return folder


def expected(source: str, files: list[Path]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    model = vitlab.load(source)
    with torch.no_grad():
        images = model.preprocess([Image.open(file) for file in files])
        return model.pool(model.encode(model.embed(images))).numpy()


def test_features_and_names_are_written(source: str, photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "out" / "features.npz"
    assert main(["embed", str(photos), "--model", source, str(out)]) == 0
    files = [photos / "a.png", photos / "b.png", photos / "inside" / "c d.png"]
    with np.load(out) as found:
        assert found["names"].tolist() == [str(file) for file in files]
        np.testing.assert_allclose(found["features"], expected(source, files), atol=1e-5)
        assert found["features"].dtype == np.float32


def test_parquet_holds_the_same(source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out = tmp_path / "features.parquet"
    files = [photos / "b.png", photos / "a.png"]
    assert main(["embed", str(files[0]), "--json", str(files[1]), "--model", source, str(out)]) == 0
    assert json.loads(capsys.readouterr().out) == {"out": str(out), "images": 2, "width": 16, "unread": []}
    table = parquet.read_table(out)
    assert table["names"].to_pylist() == [str(file) for file in files]
    np.testing.assert_allclose(np.array(table["features"].to_pylist()), expected(source, files), atol=1e-5)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_utf8_are_written_escaped_to_parquet(source: str, photos: Path, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    odd = photos / os.fsdecode(b"caf\xe9.png")
    (photos / "a.png").rename(odd)
    assert main(["embed", str(odd), "--model", source, str(tmp_path / "features.parquet")]) == 0
    table = parquet.read_table(tmp_path / "features.parquet")
    assert table["names"].to_pylist() == [f"{photos}/caf\\udce9.png"]


def test_pictures_that_cannot_be_read_are_named_in_one_line(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "a.png").write_text("no picture")
    out = tmp_path / "features.npz"
    assert main(["embed", str(photos / "a.png"), "--model", source, str(out)]) == 2
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.endswith(f"repair or remove them. {photos / 'a.png'} is not an image that can be read.")
    assert not out.exists()


def test_parquet_without_its_package_is_one_sentence(
    source: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    assert main(["embed", str(photos), "--model", source, str(tmp_path / "features.parquet")]) == 2
    assert "needs the package pyarrow" in capsys.readouterr().err


def test_an_unreadable_image_is_named_and_left_out(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (photos / "bad.jpg").write_text("no image")
    out = tmp_path / "features.npz"
    assert main(["embed", str(photos), "--model", source, str(out)]) == 1
    assert "bad.jpg is not an image that can be read" in capsys.readouterr().err
    with np.load(out) as found:
        assert len(found["names"]) == len(found["features"]) == 3


def test_options_may_stand_anywhere(source: str, photos: Path, tmp_path: Path) -> None:
    outs = [tmp_path / f"{i}.npz" for i in range(3)]
    image = str(photos / "a.png")
    assert main(["embed", "--model", source, "--flip", image, str(outs[0])]) == 0
    assert main(["embed", image, "--flip", str(outs[1]), f"--model={source}"]) == 0
    assert main(["embed", "--flip", "--model", source, "--", image, str(outs[2])]) == 0
    first, *others = [np.load(out)["features"] for out in outs]
    for other in others:
        np.testing.assert_array_equal(first, other)


@pytest.mark.parametrize(
    ("images", "out", "words"),
    [
        ([], "out.npz", "Give images or folders, and last the file to write"),
        (["photos"], "out.csv", "ends in .npz or .parquet, not 'out.csv'"),
        (["empty"], "out.npz", "holds no images"),
        (["gone.png"], "out.npz", "cannot be read"),
    ],
)
def test_mistakes_are_one_sentence(
    source: str, tmp_path: Path, images: list[str], out: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "photos" / "a.png")
    given = [str(tmp_path / name) for name in images]
    assert main(["embed", *given, "--model", source, str(tmp_path / out)]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert r"\n" not in said
    assert not (tmp_path / out).exists()


def test_a_file_that_cannot_be_written_is_said_before_anything_is_computed(
    source: str, photos: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vitlab.api.embed", lambda *_, **__: pytest.fail("features were computed"))
    (photos / "file").write_text("x")
    assert main(["embed", str(photos), "--model", source, str(photos / "file" / "out.npz")]) == 2
    assert capsys.readouterr().err.startswith("vitlab: Cannot write ")


def test_python_takes_pictures_too(source: str, photos: Path) -> None:
    files = [photos / "a.png", photos / "b.png"]
    found = vitlab.embed(source, [Image.open(files[0]), np.asarray(Image.open(files[1]))])
    np.testing.assert_allclose(found.features, expected(source, files), atol=1e-5)
    assert found.names == ("image 0", "image 1")


def test_a_mistyped_image_is_answered_with_the_nearest(
    source: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = photos / "insde" / "c d.png"
    assert main(["embed", str(wrong), "--model", source, str(tmp_path / "out.npz")]) == 2
    said = capsys.readouterr().err
    assert f"There is no file {wrong}. Did you mean {photos / 'inside' / 'c d.png'}?" in said
