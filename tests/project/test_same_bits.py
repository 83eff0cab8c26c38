"""The benchmark that compares two trees: what it takes for equal, and which recipes it has."""

import shlex

import pytest
import torch
from torch import Tensor

from same_bits import difference
from same_bits_cases import CASES, TRAINED
from vitlab import recipes


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (torch.tensor([0.0]), torch.tensor([-0.0]), "a by 0"),
        (torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.5]), "a by 0.5"),
        (
            torch.tensor([1.0]),
            torch.tensor([1.0], dtype=torch.float64),
            "a: torch.float32 (1,), now torch.float64 (1,)",
        ),
        (torch.zeros(2), torch.zeros(1, 2), "a: torch.float32 (2,), now torch.float32 (1, 2)"),
        (torch.tensor([torch.nan]), torch.tensor([torch.nan]), None),
        (torch.eye(3).T, torch.eye(3), None),
    ],
)
def test_equal_means_the_same_bits(before: Tensor, now: Tensor, words: str | None) -> None:
    assert difference({"a": before}, {"a": now}) == words


def test_a_tensor_that_is_missing_is_a_difference() -> None:
    assert difference({"a": torch.zeros(1)}, {}) == "a is in one of them only"


def test_every_family_of_recipes_is_compared() -> None:
    modules = [value for name, value in vars(recipes).items() if hasattr(value, "RECIPES") and name != "RECIPES"]
    used = {shlex.split(case.command)[1] for case in (*TRAINED, *CASES)}
    assert len(modules) >= 10
    assert [module.__name__ for module in modules if not used & module.RECIPES.keys()] == []


def test_names_are_folders_of_their_own() -> None:
    names = [case.name for case in (*TRAINED, *CASES)]
    assert len(set(names)) == len(names)
    assert all(shlex.quote(name) == name for name in names)
