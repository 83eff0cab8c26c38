"""Update rules against NumPy and torch's own, and who decays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from vitlab.core.config import to_dict
from vitlab.core.errors import ConfigError
from vitlab.models.create import create
from vitlab.models.vit import ViT
from vitlab.training.adafactor import Adafactor
from vitlab.training.ema import Ema
from vitlab.training.muon import Muon, orthogonal
from vitlab.training.optimizers import Lion, Optimizer, build, kinds, set_lr
from vitlab.training.recipe import Recipe, read_recipe


def test_only_kernels_decay() -> None:
    model = create("vit-digits", layer_scale=0.1, qk_norm=True, num_registers=2)
    decaying = {name for name, kind in kinds(model, Optimizer()).items() if kind.decays}
    for name in decaying:
        assert name.endswith("weight")
        assert "norm" not in name
    assert {"projection.weight", "head.weight", "blocks.0.attention.qkv.weight", "blocks.3.mlp.down.weight"} <= decaying
    assert not {"prefix", "positions.0.table", "blocks.0.scale1", "projection.bias"} & decaying


def test_rates_fall_from_head_to_stem() -> None:
    model = create("vit-digits")
    lrs = {name: kind.lr_scale for name, kind in kinds(model, Optimizer(layer_decay=0.5, head_lr_scale=10)).items()}
    assert lrs["head.weight"] == 10
    assert lrs["norm.weight"] == 1
    assert lrs["blocks.3.mlp.up.weight"] == 0.5
    assert lrs["blocks.0.mlp.up.weight"] == 0.5**4
    assert lrs["projection.weight"] == lrs["positions.0.table"] == 0.5**5


def test_groups_get_the_schedules_rate_times_their_own() -> None:
    model = create("vit-digits")
    optimizers = build(model, [], Optimizer(layer_decay=0.5, weight_decay=0.1))
    set_lr(optimizers, 0.2)
    seen = {(float(group["lr"]), group["weight_decay"]) for group in optimizers[0].param_groups}
    assert (0.2, 0.1) in seen
    assert (0.1, 0.0) in seen
    covered = sum(len(group["params"]) for group in optimizers[0].param_groups)
    assert covered == len(list(model.parameters()))


def test_lion_is_its_papers_rule() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(3, 4))
    parameter = nn.Parameter(torch.tensor(weight))
    optimizer = Lion([{"params": [parameter], "weight_decay": 0.1, "rate": 1.0}], lr=0.01, betas=(0.9, 0.99))
    momentum = np.zeros_like(weight)
    for _ in range(4):
        gradient = rng.normal(size=(3, 4))
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        update = np.sign(0.9 * momentum + 0.1 * gradient)
        weight = weight * (1 - 0.01 * 0.1) - 0.01 * update
        momentum = 0.99 * momentum + 0.01 * gradient
        np.testing.assert_allclose(parameter.detach().numpy(), weight, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "betas"), [("lion", (0.9, 0.99)), ("adamw", (0.9, 0.999)), ("lamb", (0.9, 0.999)), ("muon", (0.9, 0.999))]
)
def test_betas_are_the_optimisers_own_unless_given(name: Any, betas: tuple[float, float]) -> None:
    def seen(**given: Any) -> list[tuple[float, float]]:
        optimizers = build(create("vit-digits", depth=1), [], Optimizer(name=name, **given))
        return [each.defaults["betas"] for each in optimizers if "betas" in each.defaults]

    assert seen() == [betas]
    assert seen(betas=(0.8, 0.95)) == [(0.8, 0.95)]


def _by_hand(matrix: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Newton-Schulz in float64."""
    x = matrix / np.linalg.norm(matrix)
    for _ in range(5):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x


def test_muon_is_its_authors_rule_and_torchs() -> None:
    rng = np.random.default_rng(0)
    shapes = [(4, 6), (6, 4), (4, 6), (5, 5)]  # two of one shape, worked on together
    weights = [rng.normal(size=shape) for shape in shapes]
    ours = [nn.Parameter(torch.tensor(weight)) for weight in weights]
    torchs = [nn.Parameter(torch.tensor(weight)) for weight in weights]
    optimizer = Muon([{"params": ours, "weight_decay": 0.1, "rate": 1.0}], lr=0.02, momentum=0.9)
    reference = torch.optim.Muon(torchs, lr=0.02, weight_decay=0.1, momentum=0.9, adjust_lr_fn="match_rms_adamw")
    momenta = [np.zeros(shape) for shape in shapes]
    for _ in range(3):
        for i, shape in enumerate(shapes):
            gradient = rng.normal(size=shape)
            ours[i].grad, torchs[i].grad = torch.tensor(gradient), torch.tensor(gradient)
            momenta[i] = 0.9 * momenta[i] + 0.1 * gradient
            ahead = 0.1 * gradient + 0.9 * momenta[i]
            weights[i] = weights[i] * (1 - 0.02 * 0.1) - 0.02 * 0.2 * max(shape) ** 0.5 * _by_hand(ahead)
        optimizer.step()
        reference.step()
    for weight, mine, theirs in zip(weights, ours, torchs, strict=True):
        np.testing.assert_allclose(mine.detach().numpy(), weight, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(mine, theirs, rtol=0, atol=2e-3)  # torch's products are bf16


def test_muons_steps_are_nearly_orthogonal() -> None:
    values = torch.linalg.svdvals(orthogonal(torch.randn(3, 20, 30, generator=torch.Generator().manual_seed(0))))
    assert 0.6 < values.min() <= values.max() < 1.3


def test_muon_leaves_out_a_step_that_is_not_finite() -> None:
    matrix = nn.Parameter(torch.eye(3))
    optimizer = Muon([{"params": [matrix], "weight_decay": 0.1, "rate": 1.0}], lr=0.1)
    matrix.grad = torch.full((3, 3), torch.nan)
    optimizer.found_inf = torch.ones(())
    optimizer.step()
    assert torch.equal(matrix, torch.eye(3))
    assert not optimizer.state[matrix]["momentum_buffer"].any()


@pytest.mark.parametrize("make", [lambda p: Muon(p, lr=0.1), lambda p: Adafactor(p, lr=0.1)])
def test_gradients_can_be_divided_on_the_way(make: Callable[[list[dict[str, Any]]], Muon | Adafactor]) -> None:
    """As torch's fused optimizers do it: the captured step clips so. A constant factor would change nothing here."""
    torch.manual_seed(0)
    start, gradients = torch.randn(4, 6), torch.randn(3, 4, 6)
    ended = []
    for factors in ((8.0, 0.5, 4.0), (None, None, None)):
        matrix = nn.Parameter(start.clone())
        optimizer = make([{"params": [matrix], "weight_decay": 0.1, "rate": 1.0}])
        for gradient, factor in zip(gradients, factors, strict=True):
            optimizer.grad_scale = None if factor is None else torch.tensor(factor)
            matrix.grad = gradient if factor is None else gradient * factor
            optimizer.step()
        ended.append(matrix.detach())
    assert torch.equal(*ended)


def test_adamw_and_sgd_are_torchs() -> None:
    for name, reference in (
        ("adamw", lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.0, fused=False, foreach=False)),
        ("sgd", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, fused=False, foreach=False)),
    ):
        torch.manual_seed(0)
        ours, theirs = create("vit-digits"), create("vit-digits")
        theirs.load_state_dict(ours.state_dict())
        optimizers = build(ours, [], Optimizer(name=name, lr=0.1))  # pyright: ignore[reportArgumentType]
        expected = reference(list(theirs.parameters()))
        for step in range(3):
            for model, opts in ((ours, optimizers), (theirs, [expected])):
                generator = torch.Generator().manual_seed(step)
                for parameter in model.parameters():
                    parameter.grad = torch.randn(parameter.shape, generator=generator)
                for optimizer in opts:
                    optimizer.step()
        for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)


def test_muon_takes_the_inner_matrices_only() -> None:
    model = create("vit-digits")
    muon, adamw = build(model, [], Optimizer(name="muon"))
    names = {id(p): name for name, p in model.named_parameters()}
    matrices = {names[id(p)] for group in muon.param_groups for p in group["params"]}
    assert matrices == {
        f"blocks.{i}.{part}.weight"
        for i in range(4)
        for part in ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
    }
    assert isinstance(adamw, torch.optim.AdamW)


def test_muon_takes_kernels_as_matrices() -> None:
    """Of outputs by all that each sees, whichever of them are more; a step is that of the matrix."""
    rng = np.random.default_rng(0)
    for shape in ((4, 6, 3, 3), (9, 2, 2, 1)):
        start, gradient = rng.normal(size=shape), rng.normal(size=shape)
        kernel = nn.Parameter(torch.tensor(start).contiguous(memory_format=torch.channels_last))
        kernel.grad = torch.tensor(gradient)
        Muon([{"params": [kernel], "weight_decay": 0.1, "rate": 1.0}], lr=0.02, momentum=0.9).step()
        flat = gradient.reshape(shape[0], -1)
        step = 0.2 * max(flat.shape) ** 0.5 * _by_hand(0.19 * flat).reshape(shape)
        np.testing.assert_allclose(kernel.detach().numpy(), start * (1 - 0.002) - 0.02 * step, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kernels", [True, False])
def test_muon_takes_convolutions_behind_the_first(kernels: bool) -> None:
    def taken(name: str, **config: Any) -> set[str]:
        model = create(name, **config)
        names = {id(p): name for name, p in model.named_parameters()}
        optimizers = build(model, [], Optimizer(name="muon", muon_kernels=kernels))
        muons = [optimizer for optimizer in optimizers if isinstance(optimizer, Muon)]
        return {names[id(p)] for muon in muons for group in muon.param_groups for p in group["params"]}

    convolutions = {f"units.{i}.{part}.weight" for i in (0, 1) for part in ("conv1", "conv2", "conv_proj")}
    assert taken("wrn-28-2", layers=(1, 1), width=8) == (convolutions if kernels else set())
    embeddings = {f"embeddings.{i}.conv.weight" for i in (1, 2)}  # the others are the image's, and grouped
    cvt = taken("cvt-13", widths=(8, 8, 8), depths=(1, 1, 1), heads=(1, 1, 1))
    assert {name for name in cvt if "conv" in name} == (embeddings if kernels else set())


def test_a_run_of_before_leaves_kernels_to_adamw() -> None:
    """Its checkpoints hold AdamW's moments for them."""
    stored = to_dict(Recipe(optimizer=Optimizer(name="muon")))
    assert read_recipe(stored, where="here").optimizer.muon_kernels
    del stored["optimizer"]["muon_kernels"]
    assert not read_recipe(stored, where="here").optimizer.muon_kernels


def test_an_average_that_is_noted_is_done_when_somebody_looks() -> None:
    model = create("timm:test_resnet", num_classes=3)
    at_once, later = Ema(model, decay=0.9), Ema(model, decay=0.9)
    for step in range(1, 8):
        later.catch_up()  # with the step before, as the next one begins
        with torch.no_grad():
            for value in (*model.parameters(), *at_once.statistics):
                value.add_(torch.randn_like(value))
        made = step % 3 > 0
        if made:
            at_once.update(step)
        later.note(torch.tensor(step), torch.tensor(made))
        if step in (3, 7):
            for _ in range(2):
                for one, other in zip(at_once.all_values, later.all_values, strict=True):
                    torch.testing.assert_close(one, other)
    later.note(torch.tensor(8), torch.tensor(True))
    at_once.update(8)
    later.swap()
    for value, averaged in zip(later.parameters, at_once.values, strict=True):
        torch.testing.assert_close(value.detach(), averaged)


def test_average_by_hand_and_swapped() -> None:
    model = create("vit-digits", depth=1)
    assert isinstance(model, ViT)
    ema = Ema(model, decay=0.9)
    value = model.projection.bias.detach().double().numpy().copy()
    for step in range(1, 40):
        with torch.no_grad():
            model.projection.bias.add_(0.1)
        ema.update(step)
        decay = min(0.9, (1 + step) / (10 + step))
        value = decay * value + (1 - decay) * model.projection.bias.detach().double().numpy()
    index = [name for name, _ in model.named_parameters()].index("projection.bias")
    np.testing.assert_allclose(ema.values[index].numpy(), value, rtol=1e-5, atol=1e-6)
    current = model.projection.bias.detach().clone()
    ema.swap()
    np.testing.assert_allclose(model.projection.bias.detach().numpy(), value, rtol=1e-5, atol=1e-6)
    ema.swap()
    assert torch.equal(model.projection.bias, current)


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="lr must be above 0"):
        build(create("vit-digits"), [], Optimizer(lr=0.0))
    with pytest.raises(ConfigError, match="without weight decay"):
        build(create("vit-digits"), [], Optimizer(name="sgd", weight_decay=0.1))
    frozen = create("vit-digits").requires_grad_(False)
    with pytest.raises(ConfigError, match="No parameter is left"):
        build(frozen, [], Optimizer())


def test_kernels_of_every_kind_decay() -> None:
    class Odd(nn.Module):
        num_layers = 0
        config = create("vit-digits").config

        def __init__(self) -> None:
            super().__init__()
            self.lstm, self.conv, self.norm = nn.LSTM(4, 4), nn.Conv3d(2, 2, 1), nn.BatchNorm3d(2)

        def layer_of(self, name: str) -> int:
            del name
            return 1

    found = kinds(Odd(), Optimizer())  # pyright: ignore[reportArgumentType]
    assert {name for name, kind in found.items() if kind.decays} == {
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
        "conv.weight",
    }
    model = create("timm:tf_efficientnet_cc_b0_4e", num_classes=3)
    kernel = next(name for name, p in model.named_parameters() if ".conv_pw.weight" in name and p.ndim == 2)
    assert kinds(model, Optimizer())[kernel].decays
