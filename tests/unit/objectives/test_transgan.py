"""Two players: their losses in NumPy, the gradient penalty against finite differences, and which images each sees."""

from typing import Any, get_args

import numpy as np
import pytest
import torch
from torch import nn

from vitlab.core.errors import ConfigError
from vitlab.data.augmentation import Augmentation
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import DataSet
from vitlab.data.loading.order import Order
from vitlab.data.open import open_data
from vitlab.data.streams import StreamPlan, View
from vitlab.models.generator import Generator
from vitlab.models.transgan import TransGAN as Made
from vitlab.models.transgan import TransGANConfig
from vitlab.models.vit import ViT, ViTConfig
from vitlab.objectives import transgan
from vitlab.objectives.contract import Setting
from vitlab.objectives.transgan import Kind, TransGAN, TransGANOptions, critic_losses, generator_losses, slopes
from vitlab.training.learner import Learner
from vitlab.training.optimizers import Optimizer, build

NOW = torch.zeros(())
SMALL: dict[str, Any] = {"critic_patch": 4, "critic_width": 8, "critic_depth": 1, "critic_heads": 2}


def players(**options: Any) -> tuple[Generator, TransGAN]:
    torch.manual_seed(0)
    model = Made(TransGANConfig(image_size=(8, 8), depths=(1, 1), width=32, heads=2, latent_dim=4))
    model.initialize()
    chosen: dict[str, Any] = SMALL | {"n_critic": 1} | options
    return model, TransGAN(TransGANOptions(**chosen), model)


def batch_of(*names: str, num: int = 6) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = {name: torch.randn(num, 3, 8, 8, generator=generator) for name in names or ("train",)}
    return Batch({name: Stream((each,), {}, torch.arange(num) + 100) for name, each in images.items()})


def numpy_losses(kind: str, real: Any, made: Any) -> tuple[Any, Any]:
    if kind == "wgan":
        return made - real, -made
    if kind == "hinge":
        return np.maximum(0, 1 - real) + np.maximum(0, 1 + made), -made
    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    return -np.log(sigmoid(real)) - np.log(1 - sigmoid(made)), -np.log(sigmoid(made))


@pytest.mark.parametrize("kind", get_args(Kind))
def test_losses_as_their_papers_have_them(kind: Any) -> None:
    rng = np.random.default_rng(0)
    real, made = rng.normal(size=(2, 50)) * 2
    critic, generator = numpy_losses(kind, real, made)
    scores = torch.from_numpy(real), torch.from_numpy(made)
    np.testing.assert_allclose(critic_losses(kind, *scores).numpy(), critic, rtol=1e-12)
    np.testing.assert_allclose(generator_losses(kind, scores[1]).numpy(), generator, rtol=1e-12)


def a_critic() -> ViT:
    torch.manual_seed(0)
    config = ViTConfig(image_size=(4, 4), patch_size=2, width=8, depth=2, mlp_dim=16, heads=2, num_classes=1)
    critic = ViT(config).double()
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.normal_(std=0.5)
    return critic


def test_slopes_against_finite_differences() -> None:
    critic, images, step = a_critic(), torch.randn(2, 3, 4, 4, dtype=torch.float64), 1e-5
    expected = torch.zeros(2, 48, dtype=torch.float64)
    with torch.no_grad():
        for place in range(48):
            nudge = torch.zeros(48, dtype=torch.float64)
            nudge[place] = step
            nudge = nudge.view(1, 3, 4, 4)
            expected[:, place] = (critic(images + nudge) - critic(images - nudge))[:, 0] / (2 * step)
    torch.testing.assert_close(slopes(critic, images), expected.norm(dim=1), rtol=1e-6, atol=1e-8)


def test_the_gradient_of_the_penalty_against_finite_differences() -> None:
    """Differentiated twice through attention, norms and GELU: for some weights of every parameter of the critic."""
    critic, images, step = a_critic(), torch.randn(2, 3, 4, 4, dtype=torch.float64), 1e-5

    def penalty() -> torch.Tensor:
        return (slopes(critic, images) - 1).square().mean()

    penalty().backward()
    rng = np.random.default_rng(0)
    for name, parameter in critic.named_parameters():
        if name in ("norm.bias", "head.bias"):  # a constant after the last layer has no slope
            assert parameter.grad is None or not parameter.grad.any()
            continue
        assert parameter.grad is not None, name
        flat, place = parameter.data.view(-1), int(rng.integers(parameter.numel()))
        value, found = flat[place].item(), list[float]()
        for sign in (1, -1):
            flat[place] = value + sign * step
            found.append(penalty().item())
        flat[place] = value
        expected = (found[0] - found[1]) / (2 * step)
        assert parameter.grad.view(-1)[place].item() == pytest.approx(expected, rel=1e-4, abs=1e-7), name


def test_the_critics_loss_is_the_sum_of_its_parts() -> None:
    model, objective = players(loss="hinge", gradient_penalty=3.0, drift=0.5, augment=())
    batch = batch_of()
    seen: list[torch.Tensor] = []
    objective.critic.register_forward_hook(lambda _, given, __: seen.append(given[0].detach()))
    loss, metrics = objective.loss(model, batch, NOW)
    together, between = seen
    real, made = together.chunk(2)
    assert torch.equal(real, batch.images)
    part = ((between - made) * (real - made)).flatten(1).sum(1) / (real - made).flatten(1).square().sum(1)
    assert ((part >= 0) & (part < 1)).all()
    assert part.std() > 0.1
    torch.testing.assert_close(between, made + part[:, None, None, None] * (real - made), rtol=1e-4, atol=1e-5)
    high, low = objective.critic(real)[:, 0], objective.critic(made)[:, 0]
    expected = critic_losses("hinge", high, low).mean() + 0.5 * high.square().mean()
    expected = expected + 3 * (slopes(objective.critic, between) - 1).square().mean()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close((metrics["real score"], metrics["made score"]), (high.mean(), low.mean()))
    varied = made.std(dim=0, correction=0).mean() / real.std(dim=0, correction=0).mean()
    torch.testing.assert_close(metrics["pixel diversity"], varied)


def test_each_turn_of_the_critic_has_images_and_noise_of_its_own() -> None:
    model, objective = players(n_critic=3, augment=())
    split = open_data("digits").splits["train"]
    main = StreamPlan("train", split, Order(0, len(split)), 6, (View(Augmentation(), (8, 8)),), targets=())
    plans = objective.streams(main)
    assert [plan.name for plan in plans] == ["train", "critic 2", "critic 3"]
    assert len({tuple(plan.order.epoch_order(0).tolist()) for plan in plans}) == 3
    assert all(sorted(plan.order.epoch_order(1).tolist()) == list(range(len(split))) for plan in plans)
    learner, batch = Learner(model, objective), batch_of("train", "critic 2", "critic 3")
    assert list(learner.phases) == ["critic", "critic 2", "critic 3", "generator"]
    assert [phase.again for phase in learner.phases.values()] == [None, "critic", "critic", None]
    seen: list[torch.Tensor] = []
    objective.critic.register_forward_hook(lambda _, given, __: seen.append(given[0].detach()))
    for phase in learner.phases:
        learner(batch, NOW, phase)
    firsts = [seen[i] for i in (0, 2, 4)]  # the others are between real and made ones
    for name, both in zip(batch.streams, firsts, strict=True):
        assert torch.equal(both[:6], batch.streams[name].views[0])
    made = [both[6:] for both in firsts] + [seen[6]]
    assert len({round(each.sum().item(), 4) for each in made}) == 4


def test_the_generator_alone_learns_in_its_turn() -> None:
    model, objective = players()
    learner = Learner(model, objective)
    learner.turn("critic")
    learner(batch_of(), NOW, "critic")[0].backward()
    assert all(parameter.grad is None for parameter in model.parameters())
    learner.turn("generator")
    learner.zero_grad()
    learner(batch_of(), NOW, "generator")[0].backward()
    assert all(parameter.grad is None for parameter in objective.critic.parameters())


def test_of_the_critic_too_kernels_alone_decay() -> None:
    model, objective = players()
    learner = Learner(model, objective)
    learner.turn("critic")
    [optimizer] = build(model, objective.param_groups(), Optimizer(weight_decay=0.1))
    names = {id(parameter): name for name, parameter in objective.critic.named_parameters()}
    found = {names[id(p)]: group["weight_decay"] for group in optimizer.param_groups for p in group["params"]}
    assert found.keys() == set(names.values())
    kernels = {f"{name}.weight" for name, module in objective.critic.named_modules() if isinstance(module, nn.Linear)}
    assert {name for name, decay in found.items() if decay} == kernels
    assert {"prefix", "positions.0.table"} <= found.keys() - kernels


def test_what_it_shows() -> None:
    model, objective = players()
    with torch.no_grad():
        shown = objective.show(model, batch_of())
    assert [len(row) for row in shown.rows] == [6, 8, 8, 8, 8]
    assert [row[0][0] for row in shown.rows] == ["real", "made", "made", "made", "made"]
    assert shown.rows[1][0][1].shape == (8, 8, 3)
    assert not shown.held_out


def test_a_model_of_images_is_refused() -> None:
    model = ViT(ViTConfig(image_size=(8, 8), patch_size=4, width=8, depth=1, mlp_dim=8, heads=2))
    nothing = DataSet(name="x", classes=(), splits={}, fingerprint="")

    def none() -> Any:
        raise AssertionError

    setting = Setting(model=model, dataset=nothing, target="", criterion=none)
    with pytest.raises(ConfigError, match="trains a generator, and ViT makes no images: choose one"):
        transgan.build(TransGANOptions(), setting)


def test_a_critic_that_cannot_be_is_refused_by_its_options() -> None:
    with pytest.raises(ConfigError, match=r"objective.critic_width \(8\) must be a multiple of .*critic_heads \(3\)"):
        players(critic_heads=3)
    with pytest.raises(ConfigError, match="images of 8 x 8 px, which patches of 3 px do not divide.*critic_patch"):
        players(critic_patch=3)
