"""The model that is called for requests against the model itself, layer by layer and whole."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from contract.test_models import build
from tiny_vits import random_vit, vit_configs
from vitlab.models import FAMILIES
from vitlab.models.vit import Mlp, ViT, ViTConfig
from vitlab.serving import packing
from vitlab.serving.packing import Packed, packed
from web.live import small_model

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packing is right on every processor that has oneDNN, also where it is not faster."""
    if torch.backends.mkldnn.is_available():
        monkeypatch.setattr(packing, "should_pack", lambda: True)


def layers_of(model: nn.Module, kind: type[nn.Module]) -> int:
    return sum(isinstance(module, kind) for module in model.modules())


@needs_onednn
@pytest.mark.parametrize("gelu", ["exact", "tanh"])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_the_product_in_double_precision(gelu: Any, bias: bool) -> None:
    linear = nn.Linear(48, 80, bias=bias)
    x = torch.randn(3, 7, 48)
    wanted = x.double() @ linear.weight.double().T + (linear.bias.double() if bias else 0)
    hidden = nn.functional.gelu(wanted, approximate="tanh" if gelu == "tanh" else "none")
    with torch.inference_mode():
        torch.testing.assert_close(Packed(linear)(x).double(), wanted, rtol=0, atol=1e-5)
        torch.testing.assert_close(Packed(linear, gelu)(x).double(), hidden, rtol=0, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(config=vit_configs())
def test_every_plain_vit_answers_as_it_did(config: ViTConfig) -> None:
    model = random_vit(config).requires_grad_(False)
    for parameter in model.parameters():
        parameter.mul_(0.3)
    images = torch.randn(3, config.channels, *config.image_size, generator=torch.Generator().manual_seed(0))
    twin = packed(model)
    with torch.inference_mode():
        torch.testing.assert_close(twin(images), model(images), rtol=1e-5, atol=1e-5)
        tokens = twin.encode(twin.embed(images))
        torch.testing.assert_close(tokens.values, model.encode(model.embed(images)).values, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", [name for name in FAMILIES.names() if not FAMILIES.find(name).generates])
def test_every_family_answers_as_it_did(family: str) -> None:
    model = build(family).requires_grad_(False)
    images = torch.randn(3, 3, *model.config.image_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        torch.testing.assert_close(packed(model)(images), model(images), rtol=1e-5, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize(
    ("changes", "mlps"), [({}, 0), ({"gelu": "exact"}, 0), ({"gelu": "quick"}, 3), ({"gated_mlp": True}, 3)]
)
def test_what_is_packed(changes: dict[str, Any], mlps: int) -> None:
    twin = packed(small_model(**changes))
    assert layers_of(twin, nn.Linear) == 0
    assert layers_of(twin, Packed) == 1 + 4 * 3 + 1  # the projection, four a block, the head
    assert layers_of(twin, Mlp) == mlps  # the others have their GELU in the layer before


def test_weights_are_shared_and_hooks_are_not() -> None:
    model = small_model()
    twin = packed(model)
    where = {value.data_ptr() for value in model.parameters()}
    assert {value.data_ptr() for value in twin.parameters()} == where
    seen: list[int] = []
    for block in model.blocks:
        block.register_forward_hook(lambda *_: seen.append(1))
    images = torch.randn(2, 3, *model.config.image_size)
    with torch.inference_mode():
        twin(images)
        assert not seen
        model(images)
    assert len(seen) == 3


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_precisions_are_left_as_they_are(dtype: torch.dtype) -> None:
    model = small_model().to(dtype)
    twin = packed(model)
    assert layers_of(twin, Packed) == 0
    images = torch.randn(2, 3, *model.config.image_size, dtype=dtype)
    with torch.inference_mode():
        assert torch.equal(twin(images), model(images))


def test_a_kind_of_linear_layer_is_left_alone() -> None:
    class Doubling(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            return 2 * super().forward(input)

    model = ViT(ViTConfig(image_size=(8, 8), patch_size=4, width=8, depth=1, mlp_dim=8, heads=2, num_classes=3))
    model.eval().initialize()
    model.head = Doubling(8, 3)
    images = torch.randn(2, 3, 8, 8)
    with torch.inference_mode():
        torch.testing.assert_close(packed(model)(images), model(images), rtol=1e-5, atol=1e-5)
