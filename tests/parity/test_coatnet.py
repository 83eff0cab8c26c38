"""The same numbers as timm's CoAtNets, the paper's reading and timm's own variants, in both directions."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from peers import timm
from vitlab.core.config import from_dict, replace
from vitlab.core.errors import CannotHoldError, CheckpointError
from vitlab.models.coatnet import CoAtNet, CoAtNetConfig
from vitlab.models.counts import count_parameters
from vitlab.models.create import empty_model, family_of
from vitlab.models.relative import resize_bias
from vitlab.models.zoo.rows import ZOO
from vitlab.weights.load import load, save
from vitlab.weights.timm.coatnet_config import VARIANTS

maxxvit = timm.models.maxxvit
deprecated = pytest.mark.filterwarnings(  # what torch says of timm's interpolation
    "ignore:Using a non-tuple sequence", r"ignore:torch\.searchsorted\(\)"
)

SMALL: dict[str, Any] = {"embed_dim": (16, 24, 32, 64), "depths": (1, 2, 2, 1), "transformer_dim_head": 8}
STEMS = {"paper": {"stem_width": 16, "head_hidden_size": 48}, "rw": {"stem_width": (8, 16)}}


def of_timm(entry: str, size: Any = 64, **changes: Any) -> Any:
    """An entry point's own model with small stages."""
    stem = STEMS["rw" if "_rw" in entry else "paper"]
    hidden = {"transformer_rel_pos_dim": 16} if "rmlp" in entry else {}
    model = timm.create_model(entry, img_size=size, num_classes=5, **{**SMALL, **stem, **hidden, **changes})
    return randomise(model).eval()


def randomise(module: Any, seed: int = 0) -> Any:
    """Weights, and running statistics that are far from a new batch norm's."""
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if "table" in name:
            value.data = noise
        elif value.ndim == 1:
            value.data = 0.3 * noise + ("norm" in name and name.endswith("weight"))
        else:
            value.data = noise / value[0].numel() ** 0.5
    for name, value in module.named_buffers():
        if name.endswith("running_mean"):
            value.copy_(torch.rand(value.shape, generator=generator) - 0.5)
        elif name.endswith("running_var"):
            value.copy_(0.3 + torch.rand(value.shape, generator=generator))
    return module


def pictures(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.1
    assert (theirs[0] - theirs[1]).abs().max() > 1e-3 * theirs.abs().max(), "the images make no difference"
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def folder(path: Path, model: Any, entry: str, size: int = 64) -> Path:
    """What timm's hub has: the tensors, and a config.json that names the entry point."""
    path.mkdir()
    save_file(model.state_dict(), path / "model.safetensors")
    pretrained = {"input_size": [3, size, size], "mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": 0.95}
    settings = {"architecture": entry, "num_classes": 5, "pretrained_cfg": pretrained}
    (path / "config.json").write_text(json.dumps(settings))
    return path


ENTRIES = ["coatnet_0_224", *(f"{name}_224" for name in VARIANTS if "_rw" in name)]


@pytest.mark.parametrize("entry", ENTRIES)
@torch.no_grad()
def test_every_variant_gives_timms_numbers(entry: str, tmp_path: Path) -> None:
    theirs = of_timm(entry)
    ours = load(folder(tmp_path / "theirs", theirs, entry))
    assert isinstance(ours, CoAtNet)
    assert ours.load_report.lines() == []
    assert_same(ours(pictures((64, 64))), theirs(pictures((64, 64))))

    save(ours, tmp_path / "out.safetensors", format="timm")
    again = load_file(tmp_path / "out.safetensors")
    assert again.keys() == theirs.state_dict().keys()
    assert all(torch.equal(value, again[name]) for name, value in theirs.state_dict().items())
    back = load(tmp_path / "out.safetensors")
    assert (back.config, back.preprocess) == (ours.config, ours.preprocess)
    assert back.load_report.lines() == []


@pytest.mark.parametrize("entry", ["coatnet_0_224", "coatnet_nano_rw_224", "coatnet_rmlp_1_rw_224", "coatnet_3_rw_224"])
@torch.no_grad()
def test_timm_builds_our_folder(entry: str, tmp_path: Path) -> None:
    """Sizes that no entry point has, through an entry point's arguments."""
    ours = randomise(load(folder(tmp_path / "theirs", of_timm(entry), entry)), seed=5)
    ours.labels = tuple("abcde")
    save(ours, tmp_path / "out", format="timm")
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert_same(ours(pictures((64, 64))), theirs(pictures((64, 64))))
    again = load(tmp_path / "out")
    assert (again.config, again.preprocess, again.labels) == (ours.config, ours.preprocess, ours.labels)


@torch.no_grad()
def test_stages_are_timms(tmp_path: Path) -> None:
    theirs = of_timm("coatnet_0_rw_224")
    ours = load(folder(tmp_path / "theirs", theirs, "coatnet_0_rw_224"))
    layers, images = ours.features(pictures((64, 64))), pictures((64, 64))
    assert [layer.grid[0] for layer in layers] == [32, 16, 8, 8, 4, 4, 2]
    stages = theirs.forward_intermediates(images, intermediates_only=True)
    for layer, stage in zip((0, 1, 3, 5, 6), stages, strict=True):
        assert_same(layers[layer].values, stage.flatten(2).transpose(1, 2))


@torch.no_grad()
def test_batch_norms_need_no_count_of_their_batches(tmp_path: Path) -> None:
    """Files of conversions have none, and timm reads them."""
    theirs = of_timm("coatnet_1_rw_224")
    state = {name: value for name, value in theirs.state_dict().items() if not name.endswith("num_batches_tracked")}
    assert len(state) < len(theirs.state_dict())
    path = folder(tmp_path / "theirs", theirs, "coatnet_1_rw_224")
    save_file(state, path / "model.safetensors", metadata={"format": "pt"})
    ours = load(path)
    assert not ours.load_report.fresh
    assert_same(ours(pictures((64, 64))), theirs(pictures((64, 64))))
    counts = {value.item() for name, value in ours.state_dict().items() if name.endswith("num_batches_tracked")}
    assert counts == {0}


def test_training_moves_the_same_statistics_and_gradients(tmp_path: Path) -> None:
    theirs = of_timm("coatnet_1_rw_224")
    ours = load(folder(tmp_path / "theirs", theirs, "coatnet_1_rw_224")).train()
    answer, expected = ours(pictures((64, 64))), theirs.train()(pictures((64, 64)))
    assert_same(answer.detach(), expected.detach())
    answer.square().sum().backward()
    expected.square().sum().backward()
    for mine, other in (
        ("stem.conv1.weight", "stem.conv1.weight"),
        ("blocks.1.depthwise.weight", "stages.1.blocks.0.conv2_kxk.weight"),
        ("blocks.3.attention.relative.table", "stages.2.blocks.0.attn.rel_pos.relative_position_bias_table"),
    ):
        gradient = theirs.get_parameter(other).grad
        largest = float(gradient.abs().max())
        torch.testing.assert_close(ours.get_parameter(mine).grad, gradient, rtol=1e-3, atol=1e-4 * largest)
    for buffer in ("running_mean", "running_var", "num_batches_tracked"):
        moved = theirs.get_buffer(f"stages.1.blocks.1.norm2.{buffer}")
        torch.testing.assert_close(ours.get_buffer(f"blocks.2.norm2.{buffer}"), moved, rtol=1e-5, atol=1e-5)


@deprecated
@pytest.mark.parametrize("size", [(96, 96), (128, 96), (32, 64)])
@torch.no_grad()
def test_another_resolution_resizes_as_timm_does(size: tuple[int, int], tmp_path: Path) -> None:
    """timm's model of that size with the same file, as its own loading fills it."""
    small = of_timm("coatnet_0_rw_224")
    path = folder(tmp_path / "theirs", small, "coatnet_0_rw_224")
    larger = of_timm("coatnet_0_rw_224", size)
    larger.load_state_dict(maxxvit.checkpoint_filter_fn(small.state_dict(), larger))
    ours = load(path, image_size=size)
    assert "Relative biases resized by the rule 'timm'." in ours.load_report.adapted
    assert_same(ours(pictures(size)), larger(pictures(size)))
    at_once = load(path)(pictures(size))  # a model of the file's own size, given larger pictures
    assert_same(at_once, larger(pictures(size)))


@deprecated
@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (24, 24)), ((7, 7), (12, 12)), ((14, 14), (7, 10)), ((2, 2), (9, 3))]
)
def test_the_stretched_resize_is_timms(old: tuple[int, int], new: tuple[int, int]) -> None:
    table = torch.randn((2 * old[0] - 1) * (2 * old[1] - 1), 3)
    offsets = (2 * new[0] - 1) * (2 * new[1] - 1)
    expected = timm.layers.resize_rel_pos_bias_table(table, new, (offsets, 3))
    torch.testing.assert_close(resize_bias(table, new, old_grid=old, rule="timm"), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("entry", ["coatnet_0_224", "coatnet_pico_rw_224", "coatnet_0_rw_224"])
@torch.no_grad()
def test_tensors_alone_are_taken_for_the_variant_that_they_fit(entry: str, tmp_path: Path) -> None:
    small = {**SMALL, **STEMS["paper"]} if entry == "coatnet_0_224" else {}  # timm's variants are known by their sizes
    theirs = randomise(timm.create_model(entry, img_size=64, num_classes=5, **small)).eval()
    save_file(theirs.state_dict(), tmp_path / "bare.safetensors")
    ours = load(tmp_path / "bare.safetensors")
    assert ours.config.image_size == (64, 64)
    assert f"'{entry.removesuffix('_224')}' were assumed" in " ".join(ours.load_report.lines())
    assert (ours(pictures((64, 64))) - theirs(pictures((64, 64)))).abs().max() < 1e-4


@pytest.mark.parametrize("entry", ["coatnet_bn_0_rw_224", "coatnet_nano_cc_224"])
def test_other_models_of_timm_are_refused(entry: str, tmp_path: Path) -> None:
    save_file(of_timm(entry, depths=(1, 1, 2, 2)).state_dict(), tmp_path / "other.safetensors")
    with pytest.raises(CheckpointError, match="not a CoAtNet that vitlab has"):
        load(tmp_path / "other.safetensors")


def test_arguments_that_vitlab_does_not_know_are_refused(tmp_path: Path) -> None:
    path = folder(tmp_path / "theirs", of_timm("coatnet_0_224"), "coatnet_0_224")
    settings = json.loads((path / "config.json").read_text())
    for arguments, match in (
        ({"conv_padding": "same"}, "conv_padding"),
        ({"conv_act_layer": "relu"}, "no conv_act_layer='relu'"),
        ({"conv_pool_type": "max", "transformer_pool_type": "avg2"}, "pools by one rule"),
    ):
        (path / "config.json").write_text(json.dumps({**settings, "model_args": arguments}))
        with pytest.raises(CheckpointError, match=match):
            load(path)


def test_what_timm_cannot_be_is_refused(tmp_path: Path) -> None:
    sizes: dict[str, Any] = {"depths": (1, 1), "widths": (8, 16), "kinds": ("conv", "attention"), "head_width": 8}
    cases: list[tuple[dict[str, Any], str]] = [
        ({"strides": (2, 1), "representation": 8}, "halve the map in every stage"),
        ({"strides": (2, 2)}, "or neither"),
    ]
    for changes, match in cases:
        model = empty_model(CoAtNetConfig(**sizes, **changes)).to_empty(device="cpu")
        model.initialize()
        with pytest.raises(CannotHoldError, match=match):
            save(model, tmp_path / "out.safetensors", format="timm")


ROWS = {**{f"coatnet-{i}": f"coatnet_{i}_224" for i in range(6)}, "coatnet-nano-rw": "coatnet_nano_rw_224"}
ROWS |= {f"coatnet-{i}-rw": f"coatnet_{i}_rw_224" for i in range(4)}


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_the_zoo_have_timms_sizes(name: str) -> None:
    """Exactly as many parameters as timm's entry point; its CoAtNet-5 has heads of width 32, the paper's 64."""
    row = ZOO[name]
    with torch.device("meta"):
        peer = timm.create_model(ROWS[name], num_classes=1000)
    config = from_dict(family_of(row.family).config, row.config, where=name)
    config = replace(config, {"head_width": 32}, where=name)
    assert count_parameters(empty_model(config)) == sum(value.numel() for value in peer.parameters())
