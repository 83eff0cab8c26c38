"""A trained head that goes on being trained, where its classes are the data's."""

from pathlib import Path

import pytest
import torch

from vitlab.core.errors import ConfigError
from vitlab.models.create import create
from vitlab.training.model import build_model
from vitlab.training.plan import Given, Plan, make_plan, open_parts
from vitlab.training.recipe import ModelChoice, Recipe
from vitlab.weights.load import save


def saved(path: Path, classes: tuple[str, ...] | None, num_classes: int = 10) -> str:
    model = create("vit-digits", num_classes=num_classes)
    torch.nn.init.normal_(model.head.get_parameter("weight"))
    model.labels = classes
    save(model, path)
    return str(path)


def recipe(source: str, *, pretrained: bool = True, keep_head: bool = True) -> Recipe:
    return Recipe(model=ModelChoice(source=source, pretrained=pretrained, keep_head=keep_head))


def planned(chosen: Recipe, path: Path) -> Plan:
    return make_plan(chosen, path, open_parts(Recipe()), Given())


@pytest.mark.parametrize("named", [True, False])
def test_the_head_is_kept(tmp_path: Path, named: bool) -> None:
    digits = open_parts(Recipe())
    source = saved(tmp_path / "model", digits.classes if named else None)
    kept, fresh = (build_model(planned(recipe(source, keep_head=keep), tmp_path)) for keep in (True, False))
    assert kept.head.get_parameter("weight").abs().max() > 1
    assert not fresh.head.get_parameter("weight").any()
    assert kept.labels == digits.classes


def test_other_classes_are_refused(tmp_path: Path) -> None:
    digits = open_parts(Recipe())
    with pytest.raises(ConfigError, match=r"knows 7 classes and .* has 10; leave it out"):
        build_model(planned(recipe(saved(tmp_path / "seven", None, 7)), tmp_path))
    for name, wording in (("turned", "{}"), ("worded", "{}_")):  # names are compared as everywhere
        classes = tuple(wording.format(each) for each in digits.classes[::-1])
        with pytest.raises(ConfigError, match="in another order"):
            build_model(planned(recipe(saved(tmp_path / name, classes)), tmp_path))
    with pytest.raises(ConfigError, match=r"goes with model\.pretrained"):
        build_model(planned(recipe("vit-digits", pretrained=False), tmp_path))
