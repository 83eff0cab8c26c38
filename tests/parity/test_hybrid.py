"""The same numbers as timm's hybrids, in both directions."""

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any, final

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from peers import timm
from vitlab.core.config import from_dict
from vitlab.core.errors import CannotHoldError
from vitlab.models.counts import count_parameters
from vitlab.models.create import empty_model, family_of
from vitlab.models.hybrid import Hybrid, HybridConfig
from vitlab.models.zoo.rows import ZOO
from vitlab.weights.files.container import TensorFile
from vitlab.weights.format import Location
from vitlab.weights.load import load, save
from vitlab.weights.timm.vit import Timm

SIZES: dict[str, Any] = {"embed_dim": 32, "depth": 2, "num_heads": 4, "mlp_ratio": 2.0, "num_classes": 5}
# units per stage, the patch cut from the feature map, image size
CASES: dict[str, tuple[tuple[int, ...], int, tuple[int, int]]] = {
    "two stages": ((2, 1), 1, (32, 32)),
    "three stages": ((1, 1, 1), 1, (32, 48)),
    "patches of a stage": ((1,), 2, (24, 24)),
    "stem alone": ((), 8, (64, 64)),
}
each_case = pytest.mark.parametrize("case", CASES)


def build(case: str) -> Any:
    """timm's VisionTransformer over a small ResNet, put together as its entry points do."""
    layers, patch, size = CASES[case]
    conv = functools.partial(timm.layers.StdConv2dSame, eps=1e-8)
    if layers:
        widths = tuple(128 * 2**i for i in range(4))
        backbone = timm.models.resnetv2.ResNetV2(
            layers=layers,
            channels=widths,
            stem_chs=32,
            num_classes=0,
            global_pool="",
            preact=False,
            stem_type="same",
            conv_layer=conv,
        )
    else:
        backbone = timm.models.resnetv2.create_resnetv2_stem(3, 32, stem_type="same", preact=False, conv_layer=conv)
    embed = functools.partial(timm.layers.HybridEmbed, backbone=backbone)
    return randomise(
        timm.models.vision_transformer.VisionTransformer(img_size=size, patch_size=patch, embed_layer=embed, **SIZES)
    ).eval()


def randomise(module: Any, seed: int = 0) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for name, value in module.named_parameters():
        noise = torch.randn(value.shape, generator=generator)
        if value.ndim == 1:
            value.data = 0.3 * noise + ("norm" in name and name.endswith("weight"))
        elif any(part in name for part in ("token", "pos_embed", "prefix", "positions")):
            value.data = noise
        else:
            value.data = noise / value[0].numel() ** 0.5 + 0.01
    return module


def pictures(size: tuple[int, int]) -> Tensor:
    return torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    assert theirs.abs().max() > 0.1
    assert (theirs[0] - theirs[1]).abs().max() > 1e-3 * theirs.abs().max(), "the images make no difference"
    assert (ours - theirs).abs().max() <= 2e-5 * theirs.abs().max()  # 1.1e-5 on a CPU without AVX-512


@each_case
@torch.no_grad()
def test_a_file_of_timms_gives_its_numbers(case: str, tmp_path: Path) -> None:
    layers, _, size = CASES[case]
    theirs = build(case)
    torch.save(theirs.state_dict(), tmp_path / "hybrid.pth")
    ours = load(tmp_path / "hybrid.pth", heads=4, image_size=size)
    assert isinstance(ours, Hybrid)
    assert isinstance(ours.config, HybridConfig)
    assert ours.config.resnet_layers == layers
    assert ours.config.grid == theirs.patch_embed.grid_size
    assert ours.load_report.unused == ours.load_report.fresh == []
    assert_same(ours(pictures(size)), theirs(pictures(size)))


@each_case
@torch.no_grad()
def test_our_file_fits_timms_own_model(case: str, tmp_path: Path) -> None:
    theirs, size = build(case), CASES[case][2]
    torch.save(theirs.state_dict(), tmp_path / "hybrid.pth")
    ours = randomise(load(tmp_path / "hybrid.pth", heads=4, image_size=size), seed=5)
    save(ours, tmp_path / "out.safetensors", format="timm")
    theirs.load_state_dict(load_file(tmp_path / "out.safetensors"), strict=True)
    assert_same(ours(pictures(size)), theirs(pictures(size)))
    again = load(tmp_path / "out.safetensors")
    assert again.config == ours.config
    assert torch.equal(again(pictures(size)), ours(pictures(size)))


@torch.no_grad()
def test_timm_builds_our_folder(tmp_path: Path) -> None:
    fields: dict[str, Any] = {"width": 32, "depth": 1, "mlp_dim": 48, "heads": 4, "num_classes": 5, "patch_size": 32}
    of_timm = {"group_eps": 1e-5, "weight_eps": 1e-8, "weight_eps_of": "variance", "gelu": "exact"}
    config = family_of("hybrid").config(image_size=(64, 64), resnet_layers=(), **fields, **of_timm)
    ours = randomise(Hybrid(config)).eval()
    save(ours, tmp_path / "out", format="timm")
    settings = json.loads((tmp_path / "out" / "config.json").read_text())
    theirs = timm.create_model(settings["architecture"], **settings["model_args"]).eval()
    theirs.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"), strict=True)
    assert_same(ours(pictures((64, 64))), theirs(pictures((64, 64))))
    theirs = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    assert_same(ours(pictures((64, 64))), theirs(pictures((64, 64))))
    again = load(tmp_path / "out")
    assert (again.config.resnet_layers, again.config.weight_eps) == ((), 1e-8)
    assert torch.equal(again(pictures((64, 64))), ours(pictures((64, 64))))


def test_a_folder_for_timm_needs_one_of_its_entry_points(tmp_path: Path) -> None:
    theirs = build("two stages")
    torch.save(theirs.state_dict(), tmp_path / "hybrid.pth")
    ours = load(tmp_path / "hybrid.pth", heads=4)
    with pytest.raises(CannotHoldError, match="no entry point for a hybrid"):
        save(ours, tmp_path / "out", format="timm")


@final
class Unread(TensorFile):
    """Names and shapes of a model on the meta device."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__(Path("model.safetensors"))
        self.shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}

    def __getitem__(self, name: str) -> Tensor:
        raise AssertionError(name)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("r-vit-ti16-224", "vit_tiny_r_s16_p8_224"),
        ("r26-vit-s32-384", "vit_small_r26_s32_384"),
        ("r26-vit-b32-224", "vit_base_r26_s32_224"),
        ("r50-vit-b16-224", "vit_base_r50_s16_224"),
        ("r50-vit-l32-224", "vit_large_r50_s32_224"),
    ],
)
def test_rows_of_the_zoo_have_timms_sizes(ours: str, theirs: str) -> None:
    """Exactly as many parameters, and the same feature map, as timm's entry point of that name."""
    row = ZOO[ours]
    model = empty_model(from_dict(family_of(row.family).config, row.config, where=ours))
    with torch.device("meta"):
        peer: nn.Module = timm.create_model(theirs, num_classes=1000)
    assert count_parameters(model) == sum(value.numel() for value in peer.parameters())
    assert model.config.grid == peer.patch_embed.grid_size  # pyright: ignore[reportAttributeAccessIssue]

    contents = Timm().read(Location(Unread(peer), {"architecture": theirs}, Path()), {})
    of_timm = {"group_eps": 1e-5, "weight_eps": 1e-8, "weight_eps_of": "variance", "gelu": "exact"}
    assert contents.config == dataclasses.replace(model.config, **of_timm, resize_rule="timm")
    assert {name for rule in contents.rules for name in rule.theirs} == set(peer.state_dict())
