"""What generators share: bytes of what they make, and what is refused where images are to go in."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitlab
from vitlab.core.errors import Error
from vitlab.core.preprocess import Preprocess
from vitlab.models.generator import Generator, is_generator
from vitlab.models.transgan import TransGAN, TransGANConfig
from vitlab.models.vit import ViT, ViTConfig
from vitlab.serving.engine import Engine


def tiny(preprocess: Preprocess | None = None) -> Generator:
    torch.manual_seed(0)
    model = TransGAN(TransGANConfig(image_size=(8, 8), depths=(1,), width=8, heads=2, latent_dim=3), preprocess)
    model.initialize()
    return model


def test_bytes_are_what_preprocessing_made_of_them() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (2, 8, 8, 3), dtype=np.uint8)
    for spec in (Preprocess(size=(8, 8)), Preprocess(size=(8, 8), mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.1))):
        found = tiny(spec).pixels(spec(list(pixels)))
        assert np.array_equal(found.permute(0, 2, 3, 1).numpy(), pixels)
    far = torch.tensor([-9.0, 9.0]).view(2, 1, 1, 1).expand(2, 3, 8, 8)
    assert tiny().pixels(far).flatten(1).unique(dim=1).tolist() == [[0], [255]]


def test_verbs_for_images_refuse_it_in_one_sentence(tmp_path: Path) -> None:
    model, photo = tiny(), tmp_path / "photo.png"
    Image.new("RGB", (9, 9)).save(photo)
    vitlab.save(model, tmp_path / "generator")
    source = str(tmp_path / "generator")
    calls = {
        "predict": lambda: vitlab.predict(source, photo),
        "a model in memory": lambda: vitlab.predict(model, photo),
        "embed": lambda: vitlab.embed(source, photo, device="cpu"),
        "inspect": lambda: vitlab.inspect(source, photo),
        "export": lambda: vitlab.export(source, tmp_path / "model.onnx"),
        "knn": lambda: vitlab.evaluate("knn", source, "digits", device="cpu"),
        "serve": lambda: Engine(model, "generator"),
    }
    for name, call in calls.items():
        with pytest.raises(
            Error, match=r"makes images and takes none: `vitlab sample` shows what it makes\.$"
        ) as caught:
            call()
        assert "\n" not in str(caught.value), name
    with pytest.raises(Error, match="tells no classes apart"):
        vitlab.finetune("digits", model=source, out=tmp_path / "run", device="cpu")


def test_which_is_one() -> None:
    assert is_generator(tiny())
    vit = ViT(ViTConfig(image_size=(8, 8), patch_size=4, width=8, depth=1, mlp_dim=8, heads=2))
    assert not is_generator(vit)
    assert vit.example("cpu").shape == (1, 3, 8, 8)
    assert tiny().example("cpu").shape == (1, 3)
