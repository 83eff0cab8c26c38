"""SGD as ResNets are trained with it: Nesterov's momentum and a coupled decay of kernels."""

import pytest
import torch

from vitlab.core.errors import ConfigError
from vitlab.models.create import create
from vitlab.training.optimizers import Optimizer, build


def test_nesterov_and_the_coupled_decay_are_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = create("nonlocal-digits"), create("nonlocal-digits")
    theirs.load_state_dict(ours.state_dict())
    kernels = [p for p in theirs.parameters() if p.ndim > 1]
    others = [p for p in theirs.parameters() if p.ndim == 1]
    reference = torch.optim.SGD(
        [{"params": kernels, "weight_decay": 0.01}, {"params": others}], lr=0.1, momentum=0.8, nesterov=True
    )
    (optimizer,) = build(ours, [], Optimizer(name="sgd", lr=0.1, momentum=0.8, nesterov=True, l2=0.01))
    for _ in range(3):
        for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        optimizer.step()
        reference.step()
    for (name, one), other in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one, other, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("fields", [{"l2": 1e-4}, {"nesterov": True}])
def test_only_sgd_has_them(fields: dict[str, float | bool]) -> None:
    with pytest.raises(ConfigError, match="are SGD's; adamw has weight_decay"):
        build(create("vit-digits"), [], Optimizer(**fields))  # pyright: ignore[reportArgumentType]
