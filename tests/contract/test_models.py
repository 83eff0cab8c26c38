"""What every family promises, on a small model of each."""

from pathlib import Path
from typing import Any

import pytest
import torch

from shown import shown
from vitlab.core.config import from_dict, to_dict
from vitlab.core.errors import CannotHoldError, ConfigError, Error
from vitlab.models import FAMILIES
from vitlab.models.contract import Model, Tokens
from vitlab.models.counts import count_flops, count_parameters
from vitlab.models.create import empty_model
from vitlab.models.generator import Generator
from vitlab.models.resnet import to_map, to_tokens
from vitlab.models.units import UnitNet
from vitlab.weights.load import load, save

GENERATORS = [family.name for family in FAMILIES if family.generates]
OF_IMAGES = [name for name in FAMILIES.names() if name not in GENERATORS]


def finished(model: Model, last: Tokens) -> torch.Tensor:
    """What `encode` does to the tokens that leave the last layer: the final norm, unless `pool` applies it."""
    if isinstance(model, UnitNet):
        return to_tokens(model.finish(to_map(last.values, last.grid)))
    if getattr(model.config, "norm_pooled", False):
        return last.values
    owner: Any = getattr(model, "net", model)
    return owner.norm(last.values)


def build(family: str, **changes: Any) -> Model:
    described = FAMILIES.find(family)
    config = from_dict(described.config, {**described.example, **changes}, where=family)
    model = empty_model(config).to_empty(device="cpu")
    model.initialize()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    for name, buffer in model.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            torch.nn.init.uniform_(buffer, 0.5, 1.5)
    return model.eval()


@pytest.mark.parametrize("family", OF_IMAGES)
class TestFamily:
    def test_shapes(self, family: str) -> None:
        model, images = build(family), torch.randn(2, 3, 32, 48)
        tokens = model.embed(images)
        assert isinstance(tokens, Tokens)
        features = model.pool(model.encode(tokens))
        assert features.shape == (2, model.num_features)
        assert model.head(features).shape == model(images).shape == (2, 5)

    def test_shows_itself_in_a_notebook(self, family: str) -> None:
        page = shown(build(family))
        assert page.row("answers") == ["5 classes"]
        assert page.row("takes")[0].startswith("pictures of ")

    def test_images_do_not_mix(self, family: str) -> None:
        model, images = build(family), torch.randn(3, 3, 32, 48)
        alone = torch.cat([model(images[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(model(images), alone, rtol=1e-4, atol=1e-5)

    def test_features_end_where_encode_ends(self, family: str) -> None:
        model, images = build(family), torch.randn(1, 3, 32, 48)
        layers, embedded = model.features(images), model.embed(images)
        encoded = model.encode(embedded)
        assert len(layers) == 1 + model.num_layers
        assert torch.equal(layers[0].values, embedded.values)
        assert layers[-1].layout == encoded.layout
        torch.testing.assert_close(finished(model, layers[-1]), encoded.values, rtol=1e-4, atol=1e-5)

    def test_subset_of_tokens(self, family: str) -> None:
        model, images = build(family), torch.randn(2, 3, 32, 48)
        if not type(model).takes_subsets:
            with pytest.raises(Error, match="takes all tokens of an image, not a subset of them"):
                model.encode(model.embed(images).keep(torch.tensor([[0, 3, 5], [7, 1, 2]])))
            return
        tokens, whole = model.embed(images), model.pool(model.encode(model.embed(images)))
        shuffled = torch.stack([torch.randperm(24), torch.randperm(24)])
        torch.testing.assert_close(model.pool(model.encode(tokens.keep(shuffled))), whole, rtol=1e-4, atol=1e-5)
        places = torch.tensor([[0, 3, 5], [7, 1, 2]])
        few = model.pool(model.encode(tokens.keep(places)))
        alone = [model.pool(model.encode(model.embed(images[i : i + 1]).keep(places[i : i + 1]))) for i in range(2)]
        torch.testing.assert_close(few, torch.cat(alone), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(few, whole, atol=1e-2)
        before_positions = model.place(model.patchify(images).keep(places))
        torch.testing.assert_close(before_positions.values, tokens.keep(places).values, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(model.pool(model.encode(before_positions)), few, rtol=1e-4, atol=1e-5)

    def test_embed_is_patchify_then_place(self, family: str) -> None:
        model, images = build(family), torch.randn(2, 3, 32, 48)
        if not model.has_patches:
            for step in (model.patches, model.patchify):
                with pytest.raises(ConfigError, match="does not cut images into patches"):
                    step(images)
            return
        tokens, embedded = model.patchify(images), model.embed(images)
        assert (tokens.num_prefix, tokens.grid, tokens.values.shape[:2]) == (0, (4, 6), (2, 24))
        assert torch.equal(model.place(tokens).values, embedded.values)
        pixels, grid = model.patches(images)
        assert grid == (4, 6)
        for row, column in ((0, 0), (2, 5)):
            patch = images[:, :, 8 * row : 8 * row + 8, 8 * column : 8 * column + 8]
            assert torch.equal(pixels[:, 6 * row + column], patch.flatten(1))
        other = tokens.values.clone()
        other[:, 7] = 1.0  # in the place of a patch
        changed = (model.place(tokens.with_values(other)).patches - embedded.patches).abs().amax(dim=(0, 2))
        assert changed.nonzero().flatten().tolist() == [7]

    def test_the_head_reads_what_is_pooled(self, family: str) -> None:
        model, images = build(family), torch.randn(2, 3, 32, 48)
        torch.testing.assert_close(
            model.pooled(images), model.pool(model.encode(model.embed(images))), rtol=1e-4, atol=1e-5
        )
        assert torch.equal(model.head(model.pooled(images)), model(images))

    def test_dense_head(self, family: str, tmp_path: Path) -> None:
        model, images = build(family, head="patches"), torch.randn(2, 3, 32, 48)
        logits = model(images)
        assert logits.shape == (2, 5, 32, 48)
        torch.testing.assert_close(model.probabilities(logits).sum(dim=1), torch.ones(2, 32, 48))
        logits[:, :, 20:, 30:].square().sum().backward()
        without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
        assert without == []
        assert all(parameter.grad.abs().sum() > 0 for name, parameter in model.named_parameters() if "weight" in name)  # pyright: ignore[reportOptionalMemberAccess]
        save(model, tmp_path / "dense")
        again = load(tmp_path / "dense")
        assert torch.equal(again(images), model(images))
        other = load(tmp_path / "dense", num_classes=3)
        assert other(images).shape == (2, 3, 32, 48)
        assert load(tmp_path / "dense", head="pooled")(images).shape == (2, 5)
        with pytest.raises(CannotHoldError, match="no place for a head on patches"):
            save(model, tmp_path / "x", "timm")

    def test_save_and_load_to_the_bit(self, family: str, tmp_path: Path) -> None:
        model, images = build(family), torch.randn(2, 3, 32, 48)
        model.labels = tuple("abcde")
        save(model, tmp_path / "a model")
        again = load(tmp_path / "a model")
        assert to_dict(again.config) == to_dict(model.config)
        assert again.labels == model.labels
        assert again.preprocess == model.preprocess
        assert torch.equal(again(images), model(images))
        assert again.load_report.lines() == []

    def test_cost_is_counted(self, family: str) -> None:
        model = build(family)
        empty = empty_model(model.config)
        statistics = dict(model.named_buffers())
        stored = {name: value.numel() for name, value in model.state_dict().items() if name not in statistics}
        assert count_parameters(empty) == sum(stored.values())
        assert count_flops(empty) == count_flops(model) > 0

    def test_preprocess_makes_its_batch(self, family: str) -> None:
        import numpy as np

        model = build(family)
        pictures = [np.full((50, 40, 3), value, dtype=np.uint8) for value in (0, 255)]
        batch = model.preprocess(pictures)
        assert batch.shape == (2, 3, 32, 48)
        assert batch[0].unique().tolist() == [-1]
        assert batch[1].unique().tolist() == [1]


@pytest.mark.parametrize("family", GENERATORS)
class TestGenerator:
    """What a family that makes images promises in the place of the steps from images to answers."""

    def test_latents_to_images_that_do_not_mix(self, family: str) -> None:
        model = generator(family)
        latents = model.latents(3, torch.arange(3))
        images = model(latents)
        assert images.shape == (3, 3, *model.config.image_size)
        assert not torch.allclose(images[0], images[1])
        alone = torch.cat([model(latents[i : i + 1]) for i in range(3)])
        torch.testing.assert_close(images, alone, rtol=1e-4, atol=1e-4)

    def test_noise_is_counted(self, family: str) -> None:
        model = generator(family)
        some, more = model.latents(7, torch.tensor([5, 2])), model.latents(7, torch.arange(8))
        assert torch.equal(some, more[[5, 2]])
        assert not torch.equal(some, model.latents(8, torch.tensor([5, 2])))

    def test_every_parameter_makes_a_difference_and_is_initialized(self, family: str) -> None:
        model = generator(family)
        model(model.latents(0, torch.arange(4))).square().sum().backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.any()] == []
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.fill_(torch.nan)
        model.initialize()
        assert all(parameter.isfinite().all() for parameter in model.parameters())

    def test_save_and_load_to_the_bit(self, family: str, tmp_path: Path) -> None:
        model = generator(family)
        save(model, tmp_path / "a model")
        again, latents = load(tmp_path / "a model"), model.latents(0, torch.arange(2))
        assert to_dict(again.config) == to_dict(model.config)
        assert (again.task, again.preprocess) == ("generation", model.preprocess)
        assert torch.equal(again(latents), model(latents))

    def test_images_are_refused_in_one_sentence(self, family: str) -> None:
        model, images = generator(family), torch.randn(1, 3, 32, 48)
        for step in (model, model.embed, model.features, model.pooled):
            with pytest.raises(ConfigError, match=r"^\w+ makes images and takes none: `vitlab sample` shows .*\.$"):
                step(images)
        for step in (model.patches, model.patchify):
            with pytest.raises(ConfigError, match="does not cut images into patches"):
                step(images)
        with pytest.raises(ConfigError, match="tells no classes apart"):
            build(family, num_classes=3)

    def test_cost_is_counted_and_it_shows_itself(self, family: str) -> None:
        model = generator(family)
        assert count_parameters(empty_model(model.config)) == count_parameters(model)
        assert count_flops(empty_model(model.config)) == count_flops(model) > 0
        page = shown(model)
        assert page.row("takes") == [f"noise of {model.config.latent_dim} values"]
        assert page.row("answers") == ["pictures of 24 x 16 px"]


def generator(family: str) -> Generator:
    model = build(family)
    assert isinstance(model, Generator)
    return model


# Each takes some ten seconds: a transformer by default, the others under `slow`.
TRACED = [pytest.param(name, marks=() if name == "vit" else pytest.mark.slow) for name in OF_IMAGES]


@pytest.mark.compiled
@pytest.mark.parametrize("family", TRACED)
def test_compiled_is_the_same(family: str) -> None:
    model, images = build(family), torch.randn(2, 3, 32, 48)
    expected = model(images)
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(images), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.inductor
@pytest.mark.parametrize("family", OF_IMAGES)
def test_compiled_by_inductor_trains_the_same(family: str) -> None:
    model, images = build(family).train(), torch.randn(2, 3, 32, 48)
    model(images).square().sum().backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    torch.compile(model, fullgraph=True)(images).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-4)


@pytest.mark.compiled
@pytest.mark.parametrize("family", TRACED)
def test_exported_program_takes_any_batch(family: str) -> None:
    model, images = build(family), torch.randn(2, 3, 32, 48)
    program = torch.export.export(model, (images,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    more = torch.randn(5, 3, 32, 48)
    torch.testing.assert_close(program.module()(more), model(more), rtol=1e-4, atol=1e-5)
