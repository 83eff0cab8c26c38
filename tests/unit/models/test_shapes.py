"""The shapes that are shown against sizes worked out by hand, and against what a model with weights gives."""

from typing import Any

import pytest
import torch

from vitlab.core.config import from_dict
from vitlab.models import FAMILIES
from vitlab.models.create import configured, empty_model, fresh_model
from vitlab.models.shapes import Step, shapes_of

OURS = [family.name for family in FAMILIES if family.name != "timm" and not family.generates]


def of(name: str, **changes: Any) -> list[Step]:
    return shapes_of(empty_model(configured(name, **changes)).eval())


def test_the_cifar_model_by_hand() -> None:
    """32 px in patches of 4: 8 x 8 = 64 of 4 x 4 x 3 = 48 numbers; 4 heads of 128 / 4 = 32; MLP 512."""
    inside = [
        ("queries", (4, 65, 32)),
        ("keys", (4, 65, 32)),
        ("values", (4, 65, 32)),
        ("attention weights", (4, 65, 65)),
        ("attention", (65, 128)),
        ("MLP, hidden", (65, 512)),
        ("MLP", (65, 128)),
        ("layer", (65, 128)),
    ]
    assert of("vit-cifar-d128") == [
        Step("image", (3, 32, 32)),
        Step("patches", (64, 48)),
        Step("projected patches", (64, 128)),
        Step("class token", (1, 128)),
        Step("positions", (65, 128)),
        Step("tokens", (65, 128)),
        *(Step(name, shape, layer) for layer in range(1, 7) for name, shape in inside),
        Step("encoded", (65, 128)),
        Step("pooled", (128,)),
        Step("logits", (10,)),
    ]


def test_a_hybrid_cuts_patches_from_its_map() -> None:
    """R+Ti/16 at 224 px: a map of 56 x 56 with 64 channels, in patches of 8: 49 of 8 x 8 x 64."""
    steps = {step.name: step.shape for step in of("r-vit-ti16-224")}
    assert (steps["image"], steps["patches"], steps["tokens"]) == ((3, 224, 224), (49, 4096), (50, 192))


def test_experts_have_an_axis_of_their_own() -> None:
    """In every second of the four layers: four experts."""
    hidden = {step.layer: step.shape for step in of("vmoe-digits") if step.name == "MLP, hidden"}
    assert [len(shape) for shape in hidden.values()] == [2, 3, 2, 3]
    assert hidden[1] == (17, 128)
    assert (hidden[2][0], hidden[2][-1]) == (4, 128)


def test_positions_of_other_kinds() -> None:
    steps = of("vit-cifar-d128", positions="none", class_token=False, pool="mean", distill_token=False)
    assert not {"positions", "class token", "prefix tokens"} & {step.name for step in steps}
    relative = [step for step in of("vit-cifar-d128", positions="relative") if step.name.startswith("positions, ")]
    assert relative
    assert all(step.shape[-1] == 32 for step in relative)  # as wide as a head
    assert Step("prefix tokens", (5, 128)) in of("vit-cifar-d128", num_registers=4)


@pytest.mark.parametrize("name", OURS)
def test_every_family_shows_what_its_weights_give(name: str) -> None:
    family = FAMILIES.find(name)
    config = from_dict(family.config, family.example, where=name)
    steps = shapes_of(empty_model(config).eval())
    model = fresh_model(config).eval()
    images = torch.rand(1, config.channels, *config.image_size)
    with torch.inference_mode():
        _, *layers = model.features(images)
        encoded = model.encode(model.embed(images))
        logits = model(images)
    outputs = [step.shape for step in steps if step.name == "layer"]
    assert len(outputs) == len(layers)
    elements = [tokens.values[0].numel() for tokens in layers]
    assert [torch.Size(shape).numel() for shape in outputs] == elements  # a map is a layer's tokens in two dimensions
    ends = {step.name: step.shape for step in steps[-3:]}
    assert ends == {
        "encoded": tuple(encoded.values.shape[1:]),
        "pooled": tuple(model.pool(encoded).shape[1:]),
        "logits": tuple(logits.shape[1:]),
    }


@pytest.mark.slow
def test_the_largest_need_no_memory() -> None:
    """15 billion parameters: 48 layers, 257 tokens of 1408."""
    steps = of("vmoe-15b")
    assert Step("layer", (257, 1408), 48) in steps
    assert steps[-1].shape == (29_593,)
