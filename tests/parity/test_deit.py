"""DeiT: published sizes, and the same numbers as timm's and transformers' distilled models."""

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

import vitlab
from peers import timm
from vitlab.core.config import from_dict
from vitlab.models.counts import count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.heads import DistilledHead
from vitlab.models.vit import ViTConfig
from vitlab.models.zoo.rows import list_models
from vitlab.recipes import RECIPES, find_recipe

SMALL = {"image_size": 32, "patch_size": 8, "width": 48, "depth": 2, "mlp_dim": 96, "heads": 4, "num_classes": 5}

# our row, timm's name, the parameters in timm's results table
ROWS = [
    ("deit-ti16-224", "deit_tiny_distilled_patch16_224", 5.91),
    ("deit-s16-224", "deit_small_distilled_patch16_224", 22.44),
    ("deit-b16-224", "deit_base_distilled_patch16_224", 87.34),
    ("deit-b16-384", "deit_base_distilled_patch16_384", 87.63),
]


@pytest.mark.parametrize(("name", "theirs", "published"), ROWS)
def test_rows_have_the_published_parameters_and_timms_tensors(name: str, theirs: str, published: float) -> None:
    row = next(row for row in list_models() if row.name == name)
    model = empty_model(from_dict(ViTConfig, row.config, where=name))
    assert round(count_parameters(model) / 1e6, 2) == published
    with torch.device("meta"):
        peer = timm.create_model(theirs)
    assert count_parameters(model) == sum(value.numel() for value in peer.parameters())
    assert isinstance(model.head, DistilledHead)


def random(model: torch.nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))


def pictures() -> Tensor:
    return torch.randn(3, 3, 32, 32, generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def test_both_heads_are_timms(tmp_path: Path) -> None:
    ours = create("deit-ti16-224", **SMALL).eval()
    random(ours)
    vitlab.save(ours, tmp_path / "deit.safetensors", format="timm")
    theirs = timm.models.deit.VisionTransformerDistilled(
        img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=4, mlp_ratio=2, num_classes=5
    )
    timm.models.load_checkpoint(theirs, str(tmp_path / "deit.safetensors"))
    theirs.set_distilled_training(True)
    label, distilled = theirs.train()(pictures())  # no dropout in it
    features = ours.pool(ours.encode(ours.embed(pictures())))
    assert isinstance(ours.head, DistilledHead)
    for mine, told in zip(ours.head.both(features), (label, distilled), strict=True):
        torch.testing.assert_close(mine, told, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours(pictures()), theirs.eval()(pictures()), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_both_heads_are_transformers(tmp_path: Path) -> None:
    ours = create("deit-ti16-224", **SMALL, norm_eps=1e-12).eval()
    random(ours)
    vitlab.save(ours, tmp_path / "deit", format="hf")
    theirs = transformers.DeiTForImageClassificationWithTeacher.from_pretrained(tmp_path / "deit").eval()
    told = theirs(pictures())
    assert isinstance(ours.head, DistilledHead)
    label, distilled = ours.head.both(ours.pool(ours.encode(ours.embed(pictures()))))
    torch.testing.assert_close(label, told.cls_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(distilled, told.distillation_logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours(pictures()), told.logits, rtol=1e-4, atol=1e-5)


def test_recipes_hold_the_papers_table() -> None:
    names = [name for name in RECIPES if name.startswith("deit-") and "-384-" not in name]  # those fine-tune
    assert {f"deit-{size}16-imagenet{kind}" for size in ("ti", "s", "b") for kind in ("", "-distilled")} <= set(names)
    for name in names:
        recipe = find_recipe(name)
        assert recipe.schedule.total == "300 epochs"
        assert recipe.optimizer.lr == pytest.approx(5e-4 * recipe.batch_size / 512)
        assert (recipe.optimizer.name, recipe.optimizer.weight_decay) == ("adamw", 0.05)
        assert (recipe.augmentation.mixup, recipe.augmentation.cutmix, recipe.augmentation.erase) == (0.8, 1.0, 0.25)
        assert (recipe.augmentation.policy, recipe.augmentation.magnitude) == ("randaugment", 9.0)
        assert (recipe.data.repeats, recipe.loss.label_smoothing, recipe.model.drop_path) == (3, 0.1, 0.1)
    hard, soft = (find_recipe(f"deit-b16-imagenet-{kind}").objective.options for kind in ("distilled", "soft"))
    assert (hard["kind"], hard["alpha"]) == ("hard", 0.5)
    assert (soft["kind"], soft["alpha"], soft["tau"]) == ("soft", 0.1, 3.0)
    assert find_recipe("deit-b16-imagenet").objective.name == "supervised"
