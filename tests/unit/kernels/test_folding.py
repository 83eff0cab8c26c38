"""Scale and shift of a norm in the next layer's weights: the same model, by other sums."""

from typing import Any, final

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from batches import labelled
from tiny_vits import SIZES
from vitlab.data.batch import Batch
from vitlab.kernels import folding
from vitlab.models.axial import AxialConfig, AxialViT
from vitlab.models.contract import Model
from vitlab.models.vit import ViT, ViTConfig
from vitlab.models.vmoe import VMoE, VMoEConfig
from vitlab.objectives.contract import Metrics, Objective
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training.adapters import choose
from vitlab.training.learner import Learner


@final
class Penalised(Objective):
    """Looks at the parameters."""

    def loss(self, model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, Metrics]:
        penalty = sum(parameter.square().sum() for parameter in model.parameters())
        return model(batch.images).square().sum() + penalty + progress, {}


def random_model(config: ViTConfig) -> Model:
    of_config = {AxialConfig: AxialViT, VMoEConfig: VMoE}.get(type(config), ViT)
    model, random = of_config(config).double(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=random, dtype=torch.float64))
    return model.train()


def gradients(learner: Learner, call: Any, images: Tensor) -> dict[str, Tensor]:
    learner.zero_grad()
    batch = labelled(images, F.one_hot(torch.arange(len(images)) % 3, 3).double())
    call(batch, torch.zeros(()), "train")[0].backward()
    return {name: p.grad.clone() for name, p in learner.named_parameters() if p.grad is not None}


def without_scale(node: fx.Node) -> bool:
    return node.kwargs.get("weight", node.args[2] if len(node.args) > 2 else None) is None


ONE: dict[str, Any] = {**SIZES, "depth": 1, "num_classes": 3}
CASES: list[tuple[ViTConfig, int]] = [  # a configuration, and how many of the norms are folded
    (ViTConfig(**ONE), 2),
    (ViTConfig(**ONE, pool="mean", qk_norm=True, layer_scale=0.5), 2),
    (ViTConfig(**ONE, gated_mlp=True, positions="relative"), 2),
    (ViTConfig(**ONE, qkv_bias=False), 1),  # nowhere to put the shift
    (AxialConfig(**ONE), 4),
    (VMoEConfig(**ONE, num_experts=2, every=1, router_noise=0.0), 1),  # the router reads the other too
]


@pytest.mark.compiled
def test_gradients_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    norms: list[fx.Node] = []

    def noting(graph: fx.GraphModule, inputs: list[Tensor]) -> fx.GraphModule:
        del inputs
        for part in graph.modules():
            if isinstance(part, fx.GraphModule):
                norms.extend(node for node in part.graph.nodes if node.target is F.layer_norm)
        return graph

    def folded_in(learner: Learner, images: Tensor) -> int:
        """How many norms have neither scale nor shift when the learner is compiled; its gradients stay the same."""
        torch._dynamo.reset()
        norms.clear()
        learner.fold_norms()
        names = [name for name, _ in learner.named_parameters()]
        expected = gradients(learner, learner, images)
        found = gradients(learner, torch.compile(learner, backend=noting, fullgraph=True), images)
        assert norms
        assert [name for name, _ in learner.named_parameters()] == names
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12, msg=name)
        return sum(map(without_scale, norms))

    images = torch.randn(5, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert folded_in(Learner(random_model(CASES[0][0]), Supervised(CrossEntropy())), images) == 0  # no GPU, no gain
    monkeypatch.setattr(folding, "worth_it", lambda _: torch.compiler.is_compiling())
    for config, number in CASES:
        assert folded_in(Learner(random_model(config), Supervised(CrossEntropy())), images) == number, config


def test_nothing_is_folded_where_parameters_are_read_by_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folding, "worth_it", lambda _: True)
    plain, adapted, penalised = (Learner(random_model(ViTConfig(**ONE)), Supervised(CrossEntropy())) for _ in range(3))
    choose(adapted.model, "all", lora=2)
    penalised = Learner(penalised.model, Penalised())
    for learner in (plain, adapted, penalised):
        learner.fold_norms()
    assert len(folding.folded(plain, plain.norms)) == 8
    assert not folding.folded(adapted, adapted.norms)
    assert not penalised.norms
    assert not random_model(ViTConfig(**ONE, checkpoint_blocks=True)).normed_layers  # the backward pass reads them
    assert not random_model(ViTConfig(**ONE, norm="post")).normed_layers


def test_only_what_is_trained_here_and_whole_is_folded() -> None:
    norm, layer = nn.LayerNorm(4), nn.Linear(4, 3)
    assert folding.can_fold(norm, layer)
    with torch.no_grad():
        assert not folding.can_fold(norm, layer)
    assert not folding.can_fold(norm.eval(), layer)
    norm.train()
    norm.bias.requires_grad_(False)
    assert not folding.can_fold(norm, layer)
    assert not folding.can_fold(nn.LayerNorm(4, elementwise_affine=False), layer)
    assert not folding.can_fold(nn.LayerNorm(4), nn.Linear(4, 3, bias=False))
    assert not folding.can_fold(nn.RMSNorm(4), layer)
    assert not folding.folded(nn.ModuleDict({"norm": nn.LayerNorm(4), "layer": layer}), [("norm", "layer")])


@pytest.mark.compiled
def test_it_is_a_well_behaved_operator() -> None:
    weights = [torch.randn(n, 4, requires_grad=True) for n in (5, 3)]
    biases = [torch.randn(n, requires_grad=True) for n in (5, 3)]
    scales, shifts = ([torch.randn(4, requires_grad=True) for _ in range(2)] for _ in range(2))
    torch.library.opcheck(folding.fold, (weights, biases, scales, shifts, torch.bfloat16))


def test_its_gradients_are_those_by_differences() -> None:
    """With the shape checks on, which look at some of a tuple only: the operator is called many times."""
    sizes = [(2, 3), (1, 3), (2,), (1,), *[(3,)] * 4]
    random = torch.Generator().manual_seed(0)
    given = [torch.randn(size, dtype=torch.float64, generator=random, requires_grad=True) for size in sizes]

    def folded(*values: Tensor) -> tuple[Tensor, ...]:
        lists = [list(values[i : i + 2]) for i in range(0, len(values), 2)]
        return tuple(folding.fold(*lists, torch.float64))

    (w, _, b, _, s, _, t, _), found = given, folded(*given)
    torch.testing.assert_close(found[0], w * s)
    torch.testing.assert_close(found[2], w @ t + b)
    assert torch.autograd.gradcheck(folded, given)
