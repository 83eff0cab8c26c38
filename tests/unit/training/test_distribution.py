"""How a model is spread over processes, decided before any process is met."""

from typing import Literal

import pytest
import torch

from vitlab.core.errors import ConfigError
from vitlab.models.contract import Model
from vitlab.models.create import create
from vitlab.training.distribution import resolve_strategy
from vitlab.training.mixed import by_kind, clip_by, total_norm
from vitlab.training.optimizers import Optimizer, build


@pytest.fixture
def mixture() -> Model:
    """Four experts per layer."""
    return create("vmoe-digits")


@pytest.mark.parametrize(("size", "how"), [(1, "replicate"), (2, "experts"), (4, "experts"), (3, "replicate")])
def test_experts_are_spread_where_the_processes_divide_them(mixture: Model, size: int, how: str) -> None:
    assert resolve_strategy("auto", mixture, size)[0] == how


def test_a_sentence_says_where_experts_are(mixture: Model) -> None:
    assert resolve_strategy("auto", mixture, 1)[1] is None
    assert resolve_strategy("auto", mixture, 2)[1] == "Each of 2 processes holds 2 of the 4 experts of a layer."
    uneven = "The 4 experts of a layer cannot be spread evenly over 8 processes: each process holds all of them."
    assert resolve_strategy("auto", mixture, 8)[1] == uneven


@pytest.mark.parametrize("how", ["replicate", "shard"])
def test_what_is_asked_for_is_done(mixture: Model, how: Literal["replicate", "shard"]) -> None:
    assert resolve_strategy(how, mixture, 2) == (how, None)


def test_a_run_with_spread_experts_goes_on_in_one_process(mixture: Model) -> None:
    assert resolve_strategy("experts", mixture, 1) == ("replicate", None)


def test_experts_that_cannot_be_spread_are_refused(mixture: Model) -> None:
    with pytest.raises(ConfigError, match="evenly over 3 processes: start a number of processes that divides 4"):
        resolve_strategy("experts", mixture, 3)
    with pytest.raises(ConfigError, match="has no experts"):
        resolve_strategy("experts", create("vit-digits"), 2)
    twice = create("vmoe-digits", checkpoint_blocks=True)
    assert resolve_strategy("experts", twice, 2)[0] == "experts"
    with pytest.raises(ConfigError, match="both compile and model.checkpoint_blocks: leave one of these out"):
        resolve_strategy("experts", twice, 2, compiled=True)
    assert resolve_strategy("auto", twice, 2, compiled=True)[0] == "replicate"


def test_a_model_without_experts_is_copied() -> None:
    assert resolve_strategy("auto", create("vit-digits"), 2) == ("replicate", None)


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_experts_have_groups_of_their_own(mixture: Model, name: Literal["adamw", "muon"]) -> None:
    """Also in one process, so that a run's groups are the same however many there are."""
    strategy = {id(value) for part, value in mixture.named_parameters() if ".experts." in part}
    groups = [
        {id(p) for p in group["params"]}
        for optimizer in build(mixture, [], Optimizer(name=name, lr=1e-3, weight_decay=0.1))
        for group in optimizer.param_groups
    ]
    assert set.union(*groups) == {id(p) for p in mixture.parameters()}
    assert all(group <= strategy or not group & strategy for group in groups)


def test_the_norm_of_all_gradients() -> None:
    torch.manual_seed(0)
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((3, 4), (5,), (2,))]
    for p in parameters[:2]:
        p.grad = torch.randn(p.shape)
    assert by_kind(parameters) == [[0, 1, 2]]
    together = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).double()
    norm = total_norm(parameters)
    assert norm.item() == pytest.approx(together.square().sum().sqrt().item(), rel=1e-6)
    clip_by(parameters, 0.5, norm)
    assert total_norm(parameters).item() == pytest.approx(0.5, rel=1e-5)
