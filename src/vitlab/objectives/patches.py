"""What objectives over masked patches share: which patches, counted from places, and which models they can train."""

from typing import ClassVar, NamedTuple

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from vitlab.core.errors import ConfigError
from vitlab.core.random import bits
from vitlab.data.contract import Array
from vitlab.models.contract import Model, evaluating
from vitlab.objectives.contract import Objective, Phase


class Patches(NamedTuple):
    """The patches of a model's images: how many, their grid, the pixels of a side, and the width of their tokens."""

    num: int
    grid: tuple[int, int]
    side: int
    width: int


def patches_of(model: Model, what: str, *, subsets: bool = False) -> Patches:
    """A model's patches; an error where it has none, or where tokens see beyond their own patch.

    A hidden patch would show through its neighbours there. `subsets` is whether tokens are to be left out.
    """
    name, image = type(model).__name__, _image(model)
    need_all_patches(model, what)
    with evaluating(model), torch.no_grad():
        pixels, grid = model.patches(image)  # refuses a family that has none
    if subsets and not model.takes_subsets:
        raise ConfigError(
            f"{what} encodes some of an image's patches and {name} takes all of them: choose a plain Vision"
            " Transformer, or masked-patches."
        )
    with evaluating(model), torch.enable_grad():
        # By a generator of its own: fresh parts of the objective are the same whatever device the model is on.
        drawn = torch.rand(image.shape, generator=torch.Generator().manual_seed(0))
        seen = drawn.to(image).requires_grad_()
        values = model.patchify(seen).values
        [gradient] = torch.autograd.grad(values[:, 0].float().square().sum(), seen)
    if model.patches(gradient)[0][0, 1:].any():
        raise ConfigError(
            f"Tokens of {name} see beyond their own patches, so that {what} could look at what it hides: choose a plain"
            " Vision Transformer."
        )
    side = round((pixels.shape[2] / image.shape[1]) ** 0.5)
    return Patches(pixels.shape[1], grid, side, values.shape[2])


def need_all_patches(model: Model, what: str) -> None:
    """Refuse a model that leaves patches out in training, under an objective that chooses patches itself."""
    if getattr(model.config, "patch_dropout", 0):
        raise ConfigError(f"{what} decides by itself which patches the model sees: set model.patch_dropout to 0.")


def reaching_patches(model: Model) -> frozenset[str]:
    """The parameters that encoded patches depend on: not the head's, nor those that only pool."""
    named = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    if not named:
        return frozenset()
    with evaluating(model), torch.enable_grad():
        encoded = model.encode(model.place(model.patchify(_image(model)))).patches
        found = torch.autograd.grad(encoded.sum(), list(named.values()), allow_unused=True)
    return frozenset(name for name, gradient in zip(named, found, strict=True) if gradient is not None)


def _image(model: Model) -> Float[Tensor, "1 3 h w"]:
    return next(model.parameters()).new_zeros(1, 3, *model.preprocess.size)


class PatchObjective(Objective):
    """An objective over the patches of one view, whose choice of patches is counted from the batch's places.

    The key of that choice is drawn from torch's generator, which the recipe's seed sets, and saved with the run.
    """

    only_calls: ClassVar[bool] = True
    scores_task: ClassVar[bool] = False

    key: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, model: Model, what: str, *, subsets: bool = False) -> None:
        super().__init__()
        self.register_buffer("key", torch.randint(2**32, ()))
        self.patches = patches_of(model, what, subsets=subsets)
        for name in ("mean", "std"):
            channels = torch.tensor(getattr(model.preprocess, name))[:, None, None]
            self.register_buffer(name, channels, persistent=False)

    def phases(self, model: Model) -> tuple[Phase, ...]:
        """One, that trains all that encoded patches depend on."""
        reached = reaching_patches(model)
        return (
            Phase("train", self.loss, lambda name: not name.startswith("model.") or name.split(".", 1)[1] in reached),
        )

    def order(self, places: Int[Tensor, "b"]) -> Int[Tensor, "b n"]:
        """All patches of each image, in an order of its own: sorted by hashes, of which no two are equal."""
        num = self.patches.num
        columns = torch.arange(num, device=places.device)
        return (bits(self.key, places[:, None], columns) * num + columns).argsort(dim=1)

    def colors(self, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b c h w"]:
        """Normalised images as the bytes that they were, 0 to 255; what was erased with noise may lie outside."""
        return ((images.float() * self.std + self.mean) * 255).round()

    def pictures(self, pixels: Float[Tensor, "b n pixels"]) -> list[Array]:
        """Patches of normalised images put together again, as bytes [H, W, 3]."""
        height, side = self.patches.grid[0], self.patches.side
        images = rearrange(pixels, "b (h w) (c p q) -> b c (h p) (w q)", h=height, p=side, q=side)
        shown = self.colors(images).clamp(0, 255).to(torch.uint8)
        return list(rearrange(shown, "b c h w -> b h w c").cpu().numpy())


def put(
    into: Float[Tensor, "b n d"], places: Int[Tensor, "b m"], values: Float[Tensor, "b m d"]
) -> Float[Tensor, "b n d"]:
    """Each image's patches with others at some places."""
    return into.scatter(1, places[:, :, None].expand_as(values), values.to(into.dtype))


def taken(patches: Tensor, places: Int[Tensor, "b m"]) -> Tensor:
    """Each image's patches [B, N, ...] at some places, [B, M, ...]."""
    index = places.reshape(*places.shape, *[1] * (patches.ndim - 2)).expand(-1, -1, *patches.shape[2:])
    return patches.gather(1, index)
