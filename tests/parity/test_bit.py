"""The same numbers as timm's and transformers' BiT, in both directions."""

import functools
import importlib
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from peers import timm
from vitlab.core.config import from_dict
from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.models.bit import BiT, BiTConfig
from vitlab.models.counts import count_parameters
from vitlab.models.create import empty_model, family_of
from vitlab.models.zoo.rows import ZOO
from vitlab.weights.load import load, save

hf: Any = importlib.import_module("transformers")  # whose configs take fields that its types do not know
hf.logging.set_verbosity_error()
hf.logging.disable_progress_bar()

SIZES = [(32, 32), (33, 46)]
each_size = pytest.mark.parametrize("size", SIZES)


def of_timm(classes: int = 5) -> Any:
    """timm's class with few units and narrow stages, as its BiT entry points build it."""
    conv = functools.partial(timm.layers.StdConv2d, eps=1e-8)
    kind = timm.models.resnetv2.ResNetV2
    small = kind((2, 1), (128, 256), classes, stem_chs=32, stem_type="fixed", conv_layer=conv)
    return randomise(small).eval()


def of_transformers(**changes: Any) -> Any:
    small = {"embedding_size": 32, "hidden_sizes": [128, 256], "depths": [2, 1], "num_labels": 5, **changes}
    return randomise(hf.BitForImageClassification(hf.BitConfig(**small))).eval()


def randomise(module: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim == 1:
            value.data = 0.3 * noise + ("norm" in name and name.endswith("weight"))
        else:
            value.data = noise / value[0].numel() ** 0.5 + 0.01
    return module


def pictures(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.1
    assert (theirs[0] - theirs[1]).abs().max() > 1e-3 * theirs.abs().max(), "the images make no difference"
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


@each_size
@torch.no_grad()
def test_a_file_of_timms_gives_its_numbers(size: tuple[int, int], tmp_path: Path) -> None:
    theirs = of_timm()
    save_file(theirs.state_dict(), tmp_path / "bit.safetensors")
    ours = load(tmp_path / "bit.safetensors", image_size=size)
    assert isinstance(ours, BiT)
    assert ours.load_report.unused == ours.load_report.fresh == []
    assert_same(ours(pictures(size)), theirs(pictures(size)))
    assert_same(
        ours.encode(ours.embed(pictures(size))).values.mean(1), theirs.forward_features(pictures(size)).mean((2, 3))
    )


@torch.no_grad()
def test_stages_are_timms(tmp_path: Path) -> None:
    theirs = of_timm()
    save_file(theirs.state_dict(), tmp_path / "bit.safetensors")
    ours = load(tmp_path / "bit.safetensors", image_size=32)
    layers, images = ours.features(pictures((32, 32))), pictures((32, 32))
    assert [layer.grid for layer in layers] == [(8, 8), (8, 8), (8, 8), (4, 4)]
    _, first, second = theirs.forward_intermediates(images, indices=[0, 1, 2], intermediates_only=True)
    assert_same(layers[2].values, first.flatten(2).transpose(1, 2))
    assert_same(layers[3].values, second.flatten(2).transpose(1, 2))


@torch.no_grad()
def test_our_file_fits_timms_own_model(tmp_path: Path) -> None:
    theirs = of_timm()
    save_file(theirs.state_dict(), tmp_path / "bit.safetensors")
    ours = randomise(load(tmp_path / "bit.safetensors", image_size=32), seed=5)
    save(ours, tmp_path / "out.safetensors", format="timm")
    theirs.load_state_dict(load_file(tmp_path / "out.safetensors"), strict=True)
    assert_same(ours(pictures((32, 32))), theirs(pictures((32, 32))))
    again = load(tmp_path / "out.safetensors")
    assert (again.config, again.preprocess) == (ours.config, ours.preprocess)
    assert again.load_report.lines() == []


@pytest.mark.parametrize("layers", [(3, 4, 6, 3), pytest.param((3, 8, 36, 3), marks=pytest.mark.slow)])
@torch.no_grad()
def test_timm_builds_our_folder(layers: tuple[int, ...], tmp_path: Path) -> None:
    """A width that no entry point has, through an entry point's arguments."""
    ours = randomise(BiT(BiTConfig(layers=layers, width=32, num_classes=3, image_size=(32, 32), weight_eps=1e-8)))
    ours.labels = ("one", "two", "three")
    save(ours.eval(), tmp_path / "out", format="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    answer, expected = ours(pictures((32, 32))), theirs(pictures((32, 32)))
    assert (answer - expected).abs().max() <= 1e-4 * expected.abs().max()  # through 16 or 50 units
    again = load(tmp_path / "out")
    assert (again.config, again.preprocess, again.labels) == (ours.config, ours.preprocess, ours.labels)
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    assert settings["pretrained_cfg"]["input_size"] == [3, 32, 32]


def test_what_timm_cannot_be_is_refused(tmp_path: Path) -> None:
    odd = BiT(BiTConfig(layers=(1, 1), width=32, weight_eps=1e-8))
    with pytest.raises(CannotHoldError, match="no entry point for a BiT of layers"):
        save(odd, tmp_path / "out", format="timm")
    post = BiT(BiTConfig(layers=(1, 1), width=32, activation="post"))
    with pytest.raises(CannotHoldError, match="pre-activation BiT only"):
        save(post, tmp_path / "out.safetensors", format="timm")


@pytest.mark.parametrize("name", ["resnetv2_50", "resnetv2_50d_gn"])
def test_other_models_of_timm_are_refused(name: str, tmp_path: Path) -> None:
    with torch.device("meta"):
        model = timm.create_model(name)
    shapes = {key: torch.zeros(value.shape) for key, value in model.state_dict().items() if "stages.1" not in key}
    shapes = {key: value for key, value in shapes.items() if "stages.2" not in key and "stages.3" not in key}
    save_file(shapes, tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="not one of BiT's|no checkpoint format"):
        load(tmp_path / "other.safetensors")


TRANSFORMERS: dict[str, dict[str, Any]] = {
    "BiT": {},
    "same padding": {"global_padding": "same", "embedding_dynamic_padding": True},
    "a hybrid's": {"layer_type": "bottleneck", "global_padding": "same", "embedding_dynamic_padding": True},
    "sixteen groups": {"num_groups": 16},
}


@pytest.mark.parametrize("case", TRANSFORMERS)
@each_size
@torch.no_grad()
def test_a_folder_of_transformers_gives_its_numbers(case: str, size: tuple[int, int], tmp_path: Path) -> None:
    theirs = of_transformers(**TRANSFORMERS[case])
    theirs.save_pretrained(tmp_path / "bit")
    ours = load(tmp_path / "bit", image_size=size)
    assert isinstance(ours, BiT)
    assert ours.load_report.unused == ours.load_report.fresh == []
    assert_same(ours(pictures(size)), theirs(pictures(size)).logits)

    randomise(ours, seed=5)
    ours.labels = tuple("abcde")
    save(ours, tmp_path / "out", format="hf")
    again = hf.BitForImageClassification.from_pretrained(tmp_path / "out").eval()
    assert again.config.id2label[4] == "e"
    assert_same(ours(pictures(size)), again(pictures(size)).logits)
    back = load(tmp_path / "out")
    assert (back.config, back.preprocess, back.labels) == (ours.config, ours.preprocess, ours.labels)


@pytest.mark.parametrize(
    "changes", [{"layer_type": "bottleneck"}, {"global_padding": "same"}, {"output_stride": 8}, {"hidden_act": "gelu"}]
)
def test_other_bits_of_transformers_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    of_transformers(**changes).save_pretrained(tmp_path / "bit")
    with pytest.raises(CheckpointError, match=r"BiT"):
        load(tmp_path / "bit")


def test_the_preprocessing_of_transformers_decides_the_size(tmp_path: Path) -> None:
    of_transformers().save_pretrained(tmp_path / "bit")
    processor = hf.BitImageProcessor(size={"shortest_edge": 48}, crop_size={"height": 40, "width": 40})
    processor.save_pretrained(tmp_path / "bit")
    ours = load(tmp_path / "bit")
    assert ours.config.image_size == ours.preprocess.size == (40, 40)
    assert ours.preprocess.shortest_edge == 48


@pytest.mark.parametrize("name", ["50x1", "50x3", "101x1", "101x3", "152x2", "152x4"])
def test_rows_of_the_zoo_have_timms_sizes(name: str) -> None:
    """Exactly as many parameters as timm's entry point of that name."""
    row = ZOO[f"bit-r{name}"]
    with torch.device("meta"):
        peer = timm.create_model(f"resnetv2_{name}_bit")
    model = empty_model(from_dict(family_of(row.family).config, row.config, where=name))
    assert count_parameters(model) == sum(value.numel() for value in peer.parameters())
