"""Dense heads: worked by hand, in padded images, after the final norm, and in files."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitlab.models.coatnet import FAMILY as COATNET
from vitlab.models.coatnet import CoAtNet, CoAtNetConfig
from vitlab.models.contract import Model, Tokens
from vitlab.models.heads import DistilledHead, PatchHead
from vitlab.models.vit import FAMILY as VIT
from vitlab.models.vit import ViT, ViTConfig
from vitlab.weights.load import load, save


def randomised(model: Model) -> Model:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.2, generator=generator)
    return model.eval()


def vit(**changes: Any) -> Model:
    return randomised(ViT(ViTConfig(**{**VIT.example, **changes})))


def test_patch_head_by_hand() -> None:
    head = PatchHead(1, 2)
    nn.init.ones_(head.linear.weight)
    head.linear.bias.data = torch.tensor([0.0, 10.0])
    tokens = Tokens(values=torch.tensor([[[99.0], [0.0], [4.0]]]), grid=(1, 2), num_prefix=1)
    made = head(tokens, size=(1, 4), covered=(1, 4))
    assert made.tolist() == [[[[0.0, 1.0, 3.0, 4.0]], [[10.0, 11.0, 13.0, 14.0]]]]  # centres of pixels at 1/4 and 3/4
    assert head(tokens, size=(1, 3), covered=(1, 4)).tolist() == made[..., :3].tolist()


def test_padding_is_cut_off() -> None:
    model, images = vit(head="patches", indivisible="pad"), torch.randn(2, 3, 27, 44)
    padded = F.pad(images, (0, 4, 0, 5))
    assert model(images).shape == (2, 5, 27, 44)
    assert torch.equal(model(images), model(padded)[..., :27, :44])


@pytest.mark.parametrize(("model", "config", "example"), [(ViT, ViTConfig, VIT), (CoAtNet, CoAtNetConfig, COATNET)])
def test_the_final_norm_comes_first_wherever_it_is(model: Any, config: Any, example: Any) -> None:
    images = torch.randn(1, 3, 32, 48)
    made = [
        randomised(model(config(**example.example, head="patches", norm_pooled=late)))(images) for late in (True, False)
    ]
    torch.testing.assert_close(made[0], made[1])


def test_what_only_pools_is_left_out() -> None:
    model = vit(head="patches", pool="attention", class_token=False, representation=16)
    assert (model.config.pool, model.config.representation) == ("mean", None)
    assert model(torch.randn(1, 3, 32, 48)).shape == (1, 5, 32, 48)
    assert isinstance(vit(distill_token=True, head="patches").head, PatchHead)


def test_both_answers_of_a_distilled_model() -> None:
    model, images = vit(distill_token=True), torch.randn(2, 3, 32, 48)
    assert isinstance(model.head, DistilledHead)
    label, teacher = model.head.both(model.pooled(images))
    tokens = model.encode(model.embed(images))
    torch.testing.assert_close(label, model.head.label(tokens.values[:, 0]), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(teacher, model.head.teacher(tokens.values[:, 1]), rtol=1e-4, atol=1e-5)
    assert torch.equal(model.train()(images), (label + teacher) / 2)


def test_a_dense_head_on_a_trained_backbone(tmp_path: Path) -> None:
    model, images = vit(), torch.randn(1, 3, 32, 48)
    save(model, tmp_path / "pooled")
    dense = load(tmp_path / "pooled", head="patches", num_classes=12)
    assert dense.load_report.lines() == ["Head for 5 classes replaced by a fresh dense one for 12."]
    torch.testing.assert_close(dense.pooled(images), model.pooled(images))
    assert dense(images).shape == (1, 12, 32, 48)


def test_a_file_from_before_dense_heads(tmp_path: Path) -> None:
    model, images = vit(), torch.randn(1, 3, 32, 48)
    save(model, tmp_path / "old")
    settings = json.loads((tmp_path / "old" / "config.json").read_text())
    assert settings["config"].pop("head") == "pooled"
    (tmp_path / "old" / "config.json").write_text(json.dumps(settings))
    assert torch.equal(load(tmp_path / "old")(images), model(images))
