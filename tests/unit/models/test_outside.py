"""Modules and families from outside: wrapped, given by file, given by an entry point."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import vitlab
from vitlab.core.errors import ConfigError
from vitlab.core.preprocess import Preprocess
from vitlab.models import FAMILIES
from vitlab.models.create import create
from vitlab.models.outside import wrap
from vitlab.models.zoo.rows import ZOO
from vitlab.weights.load import load, save


class Net(nn.Module):
    """Eight channels of 4 x 4 squares, their mean, a norm that would change in training, and a classifier."""

    def __init__(self, last: nn.Module) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.BatchNorm1d(8)
        self.last = last

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.last(self.norm(self.conv(images).mean(dim=(2, 3))))


IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def test_the_last_linear_layer_is_the_head() -> None:
    net = Net(nn.Linear(8, 5))
    expected = net.eval()(IMAGES)
    model = wrap(net.train(), num_classes=5, image_size=(16, 16))
    assert model.training
    assert (model.num_features, model.config.num_classes) == (8, 5)
    assert torch.equal(model.eval()(IMAGES), expected)
    assert torch.equal(model.head(model.pooled(IMAGES)), expected)
    assert net.norm.num_batches_tracked == 0  # the trial pass was no training
    assert isinstance(net.last, nn.Linear)  # the user's own module is as it was


def test_another_number_of_classes_gets_a_fresh_head() -> None:
    net = Net(nn.Linear(8, 5)).eval()
    model = wrap(net, num_classes=3, image_size=(16, 16))
    assert model(IMAGES).shape == (2, 3)
    net.last = nn.Identity()
    assert torch.equal(model.pooled(IMAGES), net(IMAGES))


@pytest.mark.parametrize(("classes", "outputs"), [(None, 8), (3, 3), (8, 8)])
def test_features_get_a_head(classes: int | None, outputs: int) -> None:
    model = wrap(Net(nn.ReLU()), num_classes=classes, image_size=(16, 16))
    assert model(IMAGES).shape == (2, outputs)
    assert isinstance(model.head, nn.Linear) == (classes == 3)


def test_maps_can_have_a_dense_head_and_vectors_cannot() -> None:
    model = wrap(nn.Conv2d(3, 8, 4, 4), num_classes=3, head="patches", preprocess=Preprocess(size=(16, 24)))
    assert model.config.image_size == (16, 24)
    assert model(torch.randn(2, 3, 16, 24)).shape == (2, 3, 16, 24)
    with pytest.raises(ConfigError, match="one vector per image"):
        wrap(Net(nn.ReLU()), num_classes=3, head="patches", image_size=(16, 16))


def test_what_cannot_be_wrapped_or_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Net takes no images .1, 1, 16, 16.: "):
        wrap(Net(nn.ReLU()), image_size=(16, 16), channels=1)
    with pytest.raises(ConfigError, match="must make one tensor"):
        wrap(nn.Flatten(0), image_size=(16, 16))
    with pytest.raises(ConfigError, match="does not cut images into patches"):
        wrap(Net(nn.ReLU()), image_size=(16, 16)).patchify(IMAGES)
    with pytest.raises(ConfigError, match="belongs to no family.*keep its state_dict"):
        save(wrap(Net(nn.Linear(8, 5)), image_size=(16, 16)), tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


MINE = """
from dataclasses import dataclass
from vitlab.models.family import Family
from vitlab.models.vit import ViT, ViTConfig
from vitlab.models.zoo.row import ZooRow

@dataclass(frozen=True, kw_only=True)
class Config(ViTConfig):
    image_size: tuple[int, int] = (16, 16)
    patch_size: int = 8
    width: int = 16
    depth: int = 1
    mlp_dim: int = 16
    heads: int = 2

class Mine(ViT):
    def pool(self, tokens):
        return 2 * super().pool(tokens)

FAMILY = Family(name="mine", config=Config, model=Mine, summary="ViT of my own",
                rows=(ZooRow("mine-16", "mine", {"num_classes": 7}, "", "all", "me"),))
TAKEN = Family(name="taken", config=ViTConfig, model=ViT, summary="")
"""


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that were given in this process are not given any more, and `sys.path` is as it was."""
    monkeypatch.setattr("vitlab.core.registry._permitted", set[str]())
    monkeypatch.setattr("sys.path", [*__import__("sys").path])


@pytest.mark.usefixtures("forgotten")
def test_a_family_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = f"{tmp_path / 'family_of_mine.py'}:FAMILY"
    (tmp_path / "family_of_mine.py").write_text(MINE)
    torch.manual_seed(0)
    model = vitlab.create(name, num_classes=4).eval()
    nn.init.normal_(model.get_parameter("head.weight"))
    assert (type(model).__name__, model.config.num_classes, model.config.depth) == ("Mine", 4, 1)
    save(model, tmp_path / "saved")
    assert "ViT of my own" in (tmp_path / "saved" / "README.md").read_text()

    monkeypatch.setattr("vitlab.core.registry._permitted", set[str]())  # as in another process
    with pytest.raises(ConfigError, match="code in a file.*give its name again"):
        load(tmp_path / "saved")
    again = load(tmp_path / "saved", family=name)
    assert torch.equal(again(IMAGES), model(IMAGES))
    with pytest.raises(ConfigError, match="the configuration class of the family 'vit'"):
        create(name.replace("FAMILY", "TAKEN"))


def test_a_family_is_given_for_models_that_need_it(tmp_path: Path) -> None:
    save(create("vit-digits"), tmp_path / "saved")
    with pytest.raises(ConfigError, match="leave it out"):
        load(tmp_path / "saved", family="mine.py:FAMILY")


@pytest.mark.usefixtures("forgotten")
def test_an_installed_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "installed_family.py").write_text(MINE)
    described: Any = tmp_path / "installed_family-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: installed-family\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text("[vitlab.models]\nmine = installed_family:FAMILY\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(FAMILIES, "_own", None)
    assert "mine" in FAMILIES.names()
    assert ZOO["mine-16"].source == "me"
    model = vitlab.create("mine-16").eval()
    save(model, tmp_path / "saved")
    assert torch.equal(load(tmp_path / "saved")(IMAGES), model(IMAGES))
