"""Pictures from noise: the same for a seed, whole in their folder, and side by side in the grid."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.core.errors import Error
from vitlab.inference import sample as sampling
from vitlab.inference.sample import grid, sample, write_samples
from vitlab.models.generator import Generator


@pytest.fixture(scope="module")
def model() -> Generator:
    torch.manual_seed(0)
    made = vitlab.create("transgan-digits", depths=(1, 1), width=32)
    assert isinstance(made, Generator)
    return made


def test_a_seed_gives_the_same_pictures_however_many(model: Generator) -> None:
    some = sample(model, 5, 3)
    assert (some.shape, some.dtype) == ((5, 8, 8, 3), np.uint8)
    assert np.array_equal(sample(model, 70, 3)[:5], some)
    assert not np.array_equal(sample(model, 5, 4), some)
    assert len({picture.tobytes() for picture in some}) == 5
    with torch.no_grad():
        expected = model.eval().pixels(model(model.latents(3, torch.arange(5)))).permute(0, 2, 3, 1).numpy()
    assert np.abs(some.astype(int) - expected).max() <= 1  # another batch size may round otherwise


def test_the_grid_holds_every_picture(model: Generator) -> None:
    pictures = sample(model, 5, 0)
    page = grid(pictures)
    assert page.shape == (2 + 2 * 66, 2 + 3 * 66, 3)  # 8 times as large, three to a row, white between them
    for i, picture in enumerate(pictures):
        top, left = 2 + i // 3 * 66, 2 + i % 3 * 66
        assert np.array_equal(page[top : top + 64 : 8, left : left + 64 : 8], picture)
    assert (page[70:, 2 + 2 * 66 :] == 255).all()
    assert (page[:2] == 255).all()


def test_files_are_there_whole_or_not_at_all(model: Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, pictures = tmp_path / "out", sample(model, 12, 0)
    files = write_samples(pictures, out)
    assert [file.name for file in files] == ["grid.png", *(f"{i:03}.png" for i in range(12))]
    assert sorted(out.iterdir()) == sorted(files)
    assert np.array_equal(np.asarray(Image.open(out / "007.png")), pictures[7])
    write_samples(pictures[:2], out)  # those of an earlier call are replaced
    assert len(list(out.iterdir())) == 3

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(sampling.Image, "fromarray", full)
    with pytest.raises(Error, match="No space left"):
        write_samples(pictures, out)
    assert len(list(out.iterdir())) == 3


def test_what_is_there_is_not_written_over(model: Generator, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("x")
    for out, words in (("mine", "holds other things"), ("mine/thesis.txt", "is a file")):
        with pytest.raises(Error, match=words):
            vitlab.sample(model, tmp_path / out)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "x"


def test_damaged_weights_are_one_sentence(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = vitlab.create("transgan-digits", depths=(1, 1), width=32)
    torch.nn.init.constant_(model.get_parameter("to_rgb.bias"), torch.nan)
    with pytest.raises(Error, match="not finite"):
        vitlab.sample(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()
