"""V-MoE: placements and counts by hand, layers of experts against a loop over tokens, and the losses that they add."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from batches import labelled
from vitlab.core.config import from_dict
from vitlab.core.errors import ConfigError
from vitlab.models.counts import count_parameters
from vitlab.models.create import create, empty_model
from vitlab.models.routing import Router
from vitlab.models.vit import ViT, ViTConfig
from vitlab.models.vmoe import ExpertBlock, ExpertMlp, VMoE, VMoEConfig
from vitlab.models.zoo.rows import ZOO
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training.learner import Learner
from vitlab.training.optimizers import Optimizer, kinds

SIZES: dict[str, Any] = {
    "image_size": (16, 24),
    "patch_size": 8,
    "width": 16,
    "depth": 4,
    "mlp_dim": 24,
    "heads": 2,
    "num_classes": 3,
}
SMALL: dict[str, Any] = {**SIZES, "num_experts": 4}


def small(**changes: Any) -> VMoE:
    model = VMoE(VMoEConfig(**{**SMALL, **changes}))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def images(num: int = 4) -> torch.Tensor:
    return torch.randn(num, 3, 16, 24, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("depth", "every", "last", "expected"),  # of the authors' code
    [(12, 2, None, (1, 3, 5, 7, 9, 11)), (32, 2, 5, (23, 25, 27, 29, 31)), (8, 2, 2, (5, 7)), (3, 1, None, (0, 1, 2))],
)
def test_where_experts_are(depth: int, every: int, last: int | None, expected: tuple[int, ...]) -> None:
    config = VMoEConfig(**{**SMALL, "depth": depth, "every": every, "last": last})
    assert config.expert_layers == expected
    has = [isinstance(block, ExpertBlock) for block in empty_model(config).get_submodule("blocks").children()]
    assert [i for i, yes in enumerate(has) if yes] == list(expected)


@pytest.mark.parametrize("name", [name for name, row in ZOO.items() if row.family == "vmoe"])
def test_parameters_are_the_formula(name: str) -> None:
    c = ZOO[name].config
    d, m, e = c["width"], c["mlp_dim"], c["num_experts"]
    mlp = 2 * d * m + m + d
    layer, places = 4 * d * d + 4 * d + 4 * d + mlp, (c["image_size"][0] // c["patch_size"]) ** 2
    total = 3 * c["patch_size"] ** 2 * d + d + d + (1 + places) * d + c["depth"] * layer + 2 * d
    total += (c.get("last") or c["depth"] // 2) * ((e - 1) * mlp + d * e)
    total += d * d + d if "representation" in c else 0
    total += d * c.get("num_classes", 1000) + c.get("num_classes", 1000)
    assert count_parameters(empty_model(VMoEConfig(**c))) == total


def test_one_expert_with_room_is_the_dense_model() -> None:
    sparse = small(num_experts=1, num_selected=1)
    dense = ViT(ViTConfig(**SIZES)).eval()
    state = {
        name.replace(".experts.", "."): value[0] if ".experts." in name else value
        for name, value in sparse.state_dict().items()
        if "router" not in name
    }
    dense.load_state_dict(state, strict=True)
    torch.testing.assert_close(sparse(images()), dense(images()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("batch_priority", [False, True])
@pytest.mark.parametrize("capacity", [0.4, 1.05, 2.0])
def test_a_layer_is_a_loop_over_tokens(capacity: float, batch_priority: bool) -> None:
    config = VMoEConfig(**SMALL, capacity=capacity, batch_priority=batch_priority)
    layer = ExpertMlp(config).double().eval()
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    z = torch.randn(3, 7, 16, dtype=torch.float64)
    state = layer.state_dict()
    tokens = z.flatten(0, 1)
    logits = (tokens.float() @ state["router.dense.weight"].float().T).double()
    gates = logits.softmax(-1)
    room = min(math.floor(2 * 21 * capacity / 4 + 0.5), 21)
    used, expected = [0] * 4, torch.zeros_like(tokens)
    queue = gates.max(-1).values.argsort(descending=True).tolist() if batch_priority else range(21)
    for choice in range(2):
        for t in queue:
            i = int(gates[t].argsort(descending=True)[choice])
            if used[i] < room:
                used[i] += 1
                hidden = state["experts.up.weight"][i] @ tokens[t] + state["experts.up.bias"][i]
                made = state["experts.down.weight"][i] @ F.gelu(hidden, approximate="tanh")
                expected[t] += gates[t, i] * (made + state["experts.down.bias"][i])
    assert (max(used) == room) == (capacity < 2)
    output, losses = layer(z)
    torch.testing.assert_close(output.flatten(0, 1), expected, rtol=1e-6, atol=1e-6)
    assert losses.tolist() == [0, 0]


def test_a_token_without_room_passes_by_the_residual() -> None:
    """Room for one token an expert: the others leave the block as attention left them."""
    model = small(capacity=1e-3, num_selected=1)
    block = model.get_submodule("blocks.1")
    assert isinstance(block, ExpertBlock)
    tokens = model.embed(images())
    z, _ = block(tokens.values, tokens.layout)
    after_attention = block.attention(block.norm1(tokens.values), tokens.layout) + tokens.values
    moved = (z - after_attention).abs().amax(-1) > 1e-6
    assert 1 <= moved.sum() <= 4 < moved.numel()


def test_more_room_outside_training() -> None:
    tight, wide = small(capacity=0.3, eval_capacity=2.0), small(capacity=2.0)
    assert torch.equal(tight(images()), wide(images()))
    assert not torch.equal(small(capacity=0.3)(images()), wide(images()))


def test_groups_are_routed_alone_in_training() -> None:
    together, alone = small(capacity=0.4, router_noise=0.0, group=2).train(), small(capacity=0.4, router_noise=0.0)
    halves = torch.cat([alone.train()(images()[i : i + 2]) for i in (0, 2)])
    torch.testing.assert_close(together(images()), halves, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(alone(images()), halves, rtol=1e-3, atol=1e-3)
    with pytest.raises(ConfigError, match="A batch of 3 images cannot be routed in groups of 2"):
        together(images(3))


def test_forward_is_the_four_steps() -> None:
    """The last layer has experts: no token of it may be left out, since all of them ask for room."""
    model = small(capacity=0.5)
    steps = model.head(model.pool(model.encode(model.embed(images()))))
    assert torch.equal(model(images()), steps)


def recomputed(model: VMoE, inputs: list[tuple[torch.Tensor, ...]]) -> list[torch.Tensor]:
    """The importance losses, from what went into each router."""
    losses: list[torch.Tensor] = []
    routers = [module for module in model.modules() if isinstance(module, Router)]
    for router, (z,) in zip(routers, inputs, strict=True):
        sums = (z @ router.dense.weight.T).softmax(-1).sum(1)
        losses.append((sums.std(dim=1, correction=0) / sums.mean(1)).square().mean())
    return losses


def test_losses_reach_the_objective_once() -> None:
    model, seen = small(group=2).train(), list[tuple[torch.Tensor, ...]]()
    hooks = [
        module.register_forward_pre_hook(lambda _, arguments: seen.append(arguments))
        for module in model.modules()
        if isinstance(module, Router)
    ]
    torch.manual_seed(0)
    logits = model(images())
    for hook in hooks:
        hook.remove()
    own = model.auxiliary()
    assert set(own) == {"importance loss", "load loss"}
    expected = 0.005 * torch.stack(recomputed(model, seen)).sum()
    torch.testing.assert_close(own["importance loss"], expected, rtol=1e-4, atol=1e-7)
    assert own["load loss"].item() > 0
    assert model.auxiliary() == {}

    targets = torch.eye(3)[[0, 1, 2, 0]]
    torch.manual_seed(0)
    loss, metrics = Learner(model, Supervised(CrossEntropy()))(labelled(images(), targets), torch.zeros(()), "train")
    plain = -(targets * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(loss, plain + own["importance loss"] + own["load loss"])
    torch.testing.assert_close(metrics["load loss"], own["load loss"].detach())
    model.eval()(images())
    assert model.auxiliary() == {}


def gradients(model: VMoE) -> tuple[torch.Tensor, list[torch.Tensor]]:
    torch.manual_seed(3)
    batch = labelled(images(), torch.eye(3)[[0, 1, 2, 0]])
    loss, _ = Learner(model, Supervised(CrossEntropy()))(batch, torch.zeros(()), "train")
    loss.backward()
    found = [parameter.grad for parameter in model.parameters()]
    assert all(gradient is not None and gradient.abs().sum() > 0 for gradient in found)
    return loss.detach(), [gradient for gradient in found if gradient is not None]


def test_recomputed_blocks_give_the_same_gradients() -> None:
    """Noise, losses and all; and a gradient reaches every parameter, the routers' too."""
    kept, again = (gradients(small(checkpoint_blocks=value).train()) for value in (False, True))
    torch.testing.assert_close(again, kept)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.parametrize("checkpoint_blocks", [False, True])
def test_compiled_gives_the_same_losses(checkpoint_blocks: bool) -> None:
    fields = {"depth": 2, "router_noise": 0.0, "capacity": 0.8, "checkpoint_blocks": checkpoint_blocks}
    expected = gradients(small(**fields).train())
    model = small(**fields).train()
    model.compile(backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(gradients(model), expected, rtol=1e-4, atol=1e-5)


def test_fresh_weights_leave_nothing_out() -> None:
    model = VMoE(VMoEConfig(**SMALL, residual_scale=0.5))
    for parameter in model.parameters():
        torch.nn.init.constant_(parameter, math.nan)
    model.initialize()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
    up, down = (model.get_parameter(f"blocks.1.mlp.experts.{name}.weight") for name in ("up", "down"))
    assert torch.equal(up[0], up[3])  # all experts of a layer start alike
    assert not torch.equal(up, model.get_parameter("blocks.3.mlp.experts.up.weight"))
    assert 0.9 < up.abs().max() / math.sqrt(6 / (16 + 24)) <= 1  # Xavier
    assert 0.9 < down.abs().max() / math.sqrt(6 / (16 + 24)) / 0.5 <= 1


def test_experts_kernels_decay_and_their_biases_do_not() -> None:
    found = kinds(small(), Optimizer(weight_decay=0.1))
    decays = {name.removeprefix("blocks.1.mlp."): kind.decays for name, kind in found.items() if "blocks.1.mlp" in name}
    assert decays == {
        "router.dense.weight": True,
        "experts.up.weight": True,
        "experts.up.bias": False,
        "experts.down.weight": True,
        "experts.down.bias": False,
    }


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("num_experts", 0, "num_experts must be at least 1"),
        ("num_selected", 5, "a token goes to 1 to 4"),
        ("last", 3, "there are 2 layers"),
        ("group", 0, "group must be at least 1"),
        ("capacity", 0.0, "capacity must be above 0"),
        ("load_weight", -1.0, "load_weight must be at least 0"),
    ],
)
def test_what_cannot_be_is_refused(field: str, value: float, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VMoEConfig(**{**SMALL, field: value})


def test_the_zoos_smallest_answers() -> None:
    model = create("vmoe-digits").eval()
    assert model(torch.randn(3, 3, 8, 8)).shape == (3, 10)


def test_a_configuration_of_before_is_read() -> None:
    fields = {
        "image_size": [8, 8],
        "patch_size": 2,
        "width": 8,
        "heads": 2,
        "depth": 2,
        "mlp_dim": 8,
        "normalised": True,
    }
    assert from_dict(VMoEConfig, fields, where="test").normalized
