"""What tests of ViTs over a map share: hybrids, and those with convolutions in the place of patches."""

from typing import Any, TypeVar

import torch

from vitlab.models.vit import ViT, ViTConfig

SIZES: dict[str, Any] = {"image_size": (32, 48), "width": 32, "depth": 2, "mlp_dim": 64, "heads": 4, "num_classes": 5}
AnyViT = TypeVar("AnyViT", bound=ViT)


def with_noise(model: AnyViT) -> AnyViT:
    """The model with random weights, norms' about one, for evaluation."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = 0.3 * noise + ("norm" in name and name.endswith("weight"))
    return model.eval()


def check_after_the_map(model: ViT, stem: tuple[str, ...], features: tuple[int, int, int]) -> None:
    """A ViT with patches of 1 x 1 over the map as an image of many channels gives the same answer as the model.

    `stem` begins the names of what makes the map, of so many channels, rows and columns.
    """
    images = torch.randn(2, 3, 32, 48)
    seen = model.stem(images)
    assert seen.shape == (2, *features)
    plain = ViT(ViTConfig(**{**SIZES, "image_size": features[1:]}, patch_size=1, channels=features[0])).eval()
    state = {name: value for name, value in model.state_dict().items() if not name.startswith(stem)}
    plain.load_state_dict(state, strict=True)
    torch.testing.assert_close(model(images), plain(seen), rtol=1e-5, atol=1e-5)


def encoder_parameters(c: dict[str, Any], inputs: int) -> int:
    """All after the map, of a projection from so many numbers, from its sizes alone."""
    d, m, places = c["width"], c["mlp_dim"], (c["image_size"][0] // c["patch_size"]) ** 2
    total = inputs * d + d + d + (1 + places) * d
    return total + c["depth"] * (4 * d * d + 4 * d + 2 * d * m + m + d + 4 * d) + 2 * d + c["num_classes"] * (d + 1)
