"""Made images beside real ones and noise: what a perfect generator, a constant one and noise come to."""

from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float
from torch import Tensor

import vitlab
from vitlab.core.errors import Error
from vitlab.data.open import open_data
from vitlab.evaluation.features import Share
from vitlab.evaluation.frechet import feature_subject, frechet_distance
from vitlab.evaluation.generated import Looking
from vitlab.models.transgan import TransGAN, TransGANConfig

CPU = torch.device("cpu")


class Copying(TransGAN):  # pyright: ignore[reportGeneralTypeIssues]
    """Gives training images in the place of made ones."""

    real: Tensor

    def generate(self, latents: Float[Tensor, "b z"]) -> Float[Tensor, "b c h w"]:
        return self.real[: len(latents)]


def looking(model: TransGAN, **fields: object) -> Looking:
    settings = {"subject": feature_subject("pixels", CPU), "batch_size": 400, "workers": 0, "share": Share()}
    return Looking(model=model, **settings | fields)  # pyright: ignore[reportArgumentType]


def test_images_of_the_set_are_near_and_noise_is_far() -> None:
    dataset, config = open_data("digits"), TransGANConfig(image_size=(8, 8), depths=(1,), width=8, heads=2)
    torch.manual_seed(0)
    copying = Copying(config)
    copying.initialize()
    train = dataset.splits["train"]
    pixels = np.stack([np.asarray(train.images.read(i)) for i in range(400)])
    copying.real = copying.preprocess(list(pixels))
    seen = looking(copying)
    real = seen.real(dataset.splits["test"])
    assert real.count == len(dataset.splits["test"])
    near, floor = frechet_distance(seen.made(400, 0), real), frechet_distance(seen.real(train, 400), real)
    fresh = TransGAN(config)
    fresh.initialize()
    far, noise = frechet_distance(looking(fresh).made(400, 0), real), frechet_distance(seen.noise(400), real)
    assert near < 2 * floor
    assert 10 * floor < min(far, noise)


def test_parts_of_processes_are_the_whole() -> None:
    """Two processes, one after the other here: the first keeps its sums, the second adds them."""
    torch.manual_seed(0)
    model = TransGAN(TransGANConfig(image_size=(8, 8), depths=(1,), width=8, heads=2, latent_dim=3))
    model.initialize()
    split, kept = open_data("digits").splits["test"], list[Tensor]()

    def keep(part: Tensor) -> list[Tensor]:
        kept.append(part)
        return [part]

    whole = [looking(model, batch_size=50).real(split), looking(model, batch_size=50).made(70, 3)]
    first = looking(model, batch_size=25, share=Share(0, 2, keep))
    first.real(split)
    first.made(70, 3)
    mine = iter(kept[:])
    second = looking(model, batch_size=25, share=Share(1, 2, lambda part: [next(mine), part]))
    for found, expected in zip((second.real(split), second.made(70, 3)), whole, strict=True):
        assert found.count == expected.count
        torch.testing.assert_close(found.covariance, expected.covariance, rtol=1e-5, atol=1e-6)


def test_the_protocol_tells_the_distance_beside_its_bounds(tmp_path: Path) -> None:
    torch.manual_seed(0)
    vitlab.save(vitlab.create("transgan-digits"), tmp_path / "made")
    result = vitlab.evaluate("frechet", tmp_path / "made", "digits", features="pixels", num=100, device="cpu")
    values = {name: metric.value for name, metric in result.metrics.items()}
    assert next(iter(values)) == "Frechet distance of 8 x 8 pixels"
    assert values["the same of training images"] < 0.2 * values["Frechet distance of 8 x 8 pixels"]
    assert values["the same of training images"] < 0.2 * values["the same of noise"]
    assert result.counts == {"test": len(open_data("digits").splits["test"]), "made": 100}
    fresh = vitlab.evaluate("frechet", "transgan-digits", "digits", features="pixels", num=20, device="cpu")
    assert fresh.counts["made"] == 20  # of the zoo, without training


def test_a_model_that_makes_nothing_is_refused(tmp_path: Path) -> None:
    vitlab.save(vitlab.create("vit-digits", depth=1), tmp_path / "vit")
    with pytest.raises(Error, match="makes no images: the Frechet distance is of those of a generator"):
        vitlab.evaluate("frechet", tmp_path / "vit", "digits", features="pixels", device="cpu")
    with pytest.raises(Error, match="num must be at least 2, not 1"):
        vitlab.evaluate("frechet", tmp_path / "vit", "digits", num=1, device="cpu")
