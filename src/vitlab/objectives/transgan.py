"""TransGAN (arXiv 2102.07074): a generator and a critic, which is a plain ViT, take turns."""

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from vitlab.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt
from vitlab.core.config import check_fields
from vitlab.core.errors import ConfigError
from vitlab.core.random import key, uniform
from vitlab.data.batch import Batch
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model
from vitlab.models.generator import Generator, is_generator
from vitlab.models.vit import ViT
from vitlab.models.vit_config import ViTConfig
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Phase, Setting, model_group
from vitlab.objectives.diff_augment import Change, diff_augment
from vitlab.objectives.shown import Shown

Kind: TypeAlias = Literal["wgan", "hinge", "nonsaturating"]
Slopes: TypeAlias = Callable[[torch.nn.Module, Tensor], Tensor]
SHOWN = (4, 8)  # rows and columns of made pictures in a report
EPS = 1e-12  # under the root of a slope, whose gradient has no end at 0


@dataclass(frozen=True, kw_only=True)
class TransGANOptions:
    """A critic scores real images high and generated ones low; the generator makes images that it scores high."""

    loss: Kind = "wgan"
    """wgan: the difference of the scores; hinge: that up to a margin; nonsaturating: the cross-entropy of telling real
    from generated images."""
    gradient_penalty: NonNegativeFloat = 10.0  # weight of (|slope| - 1)^2 between real and generated images; 0: none
    drift: NonNegativeFloat = 1e-3  # the weight of the real images' squared scores, which keeps them near 0
    n_critic: PositiveInt = 4  # the critic's updates per step, each with other images, before the generator's one
    critic_lr: PositiveFloat | None = None  # the critic's learning rate; None: the recipe's
    critic_patch: PositiveInt = 4  # the critic's patch size in pixels
    critic_width: PositiveInt = 384  # the critic's width
    critic_depth: PositiveInt = 7  # the critic's number of layers
    critic_heads: PositiveInt = 4  # the critic's number of attention heads
    augment: tuple[Change, ...] = ("color", "translation", "cutout")
    """DiffAugment: the augmentations of the images that the critic sees, real and generated."""

    def __post_init__(self) -> None:
        check_fields(self, "objective.")
        if self.critic_width % self.critic_heads:
            raise ConfigError(
                f"objective.critic_width ({self.critic_width}) must be a multiple of objective.critic_heads"
                f" ({self.critic_heads})."
            )


@final
class TransGAN(Objective):
    """In turns, with made images G(z) and T random changes (`diff_augment`), means over the images of a batch:

    the critic D minimises the loss of its scores of T(x) and T(G(z)), plus drift D(T(x))^2, plus
    gradient_penalty (|dD/dy| - 1)^2 at a random point y between T(x) and T(G(z)); then the generator minimises its own
    loss of D(T(G(z))). Noise and changes are counted from the places of the images. The run's model is the generator.
    """

    def __init__(self, options: TransGANOptions, model: Generator) -> None:
        super().__init__()
        self.options = options
        self.seed = int(torch.randint(2**32, ()))  # torch's generator is seeded by the recipe here
        self.turns = ("critic", *(f"critic {i}" for i in range(2, options.n_critic + 1)))
        self.critic = _critic(options, model)
        # What is compiled cannot be differentiated twice. At a module's level this would import torch's compiler.
        self.slopes = cast("Slopes", torch.compiler.disable(slopes))

    def phases(self, model: Model) -> tuple[Phase, ...]:
        del model
        lr = {} if self.options.critic_lr is None else {"lr": self.options.critic_lr}
        first, *others = self.turns
        return (
            Phase(first, self.loss, lambda name: name.startswith("objective."), lr),
            *(Phase(name, functools.partial(self.told_apart, turn=name), again=first) for name in others),
            Phase("generator", self.taken_for_real, lambda name: name.startswith("model.")),
        )

    def param_groups(self) -> list[dict[str, Any]]:
        return [model_group(self.critic)]

    def streams(self, main: StreamPlan) -> tuple[StreamPlan, ...]:
        """For each turn of the critic images of its own."""
        others = (dataclasses.replace(main, name=name, order=main.order.another(name)) for name in self.turns[1:])
        return (main, *others)

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        """The critic's, in its first turn."""
        return self.told_apart(model, batch, progress)

    def told_apart(
        self, model: Model, batch: Batch, progress: Tensor, turn: str = ""
    ) -> tuple[Float[Tensor, ""], Metrics]:
        """The critic's loss of real images and of made ones."""
        del progress
        options, stream = self.options, batch.streams[turn] if turn else batch.first
        images, places = stream.views[0].float(), stream.places
        with torch.no_grad():
            made = self._made(model, f"critic{turn}", places)
        real, fake = self._changed(images, f"real{turn}", places), self._changed(made, f"made{turn}", places)
        high, low = self.critic(torch.cat([real, fake])).float()[:, 0].chunk(2)
        loss = critic_losses(options.loss, high, low).mean() + options.drift * high.square().mean()
        metrics = {"real score": high.mean().detach(), "made score": low.mean().detach()}
        if options.gradient_penalty:
            part = uniform(key(self.seed, f"between{turn}"), places)[:, None, None, None]
            steep = self.slopes(self.critic, fake + part * (real - fake))
            loss = loss + options.gradient_penalty * (steep - 1).square().mean()
            metrics["slope"] = steep.mean().detach()
        if turn:  # the first one tells enough
            return loss, {}
        varied = [each.std(dim=0, correction=0).mean() for each in (made, images)]
        return loss, {**metrics, "pixel diversity": (varied[0] / varied[1].clamp(min=EPS)).detach()}

    def taken_for_real(self, model: Model, batch: Batch, progress: Tensor) -> tuple[Float[Tensor, ""], Metrics]:
        """The generator's loss."""
        del progress
        made = self._changed(self._made(model, "generator", batch.places), "judged", batch.places)
        return generator_losses(self.options.loss, self.critic(made).float()[:, 0]).mean(), {}

    def _made(self, model: Model, turn: str, places: Int[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
        assert is_generator(model)
        return model(model.latents(key(self.seed, turn), places)).float()

    def _changed(self, images: Tensor, which: str, places: Int[Tensor, "b"]) -> Float[Tensor, "b c h w"]:
        return diff_augment(images, self.options.augment, key(self.seed, which), places)

    def show(self, model: Model, batch: Batch) -> Shown:
        """What the generator makes of noise that stays the same, under some real images."""
        assert is_generator(model)
        rows, columns = SHOWN
        made = model(model.latents(0, torch.arange(rows * columns, device=batch.images.device)))
        parts = [("real", batch.images), *(("made", part) for part in made.chunk(rows))]
        pictures = [(words, model.pixels(part.float()).permute(0, 2, 3, 1).cpu().numpy()) for words, part in parts]
        return Shown(
            title="What it makes",
            words=f"{rows * columns} pictures that the generator made of noise, none of them chosen, under real ones.",
            rows=tuple(tuple((words, each) for each in row) for words, row in pictures),
            held_out=False,
        )


def critic_losses(kind: Kind, real: Float[Tensor, "b"], made: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """What the critic wants of its scores of a real image and a made one."""
    if kind == "hinge":
        return F.relu(1 - real) + F.relu(1 + made)
    return made - real if kind == "wgan" else F.softplus(-real) + F.softplus(made)


def generator_losses(kind: Kind, made: Float[Tensor, "b"]) -> Float[Tensor, "b"]:
    """What the generator wants of them."""
    return F.softplus(-made) if kind == "nonsaturating" else -made


def slopes(critic: torch.nn.Module, images: Float[Tensor, "b c h w"]) -> Float[Tensor, "b"]:
    """|dD/dy| of each image y, itself to be differentiated: attention by products that can be, without autocast."""
    y = images.detach().requires_grad_(True)
    with torch.enable_grad(), torch.autocast(y.device.type, enabled=False), sdpa_kernel(SDPBackend.MATH):
        [gradient] = torch.autograd.grad(critic(y).sum(), y, create_graph=True)
    return (gradient.flatten(1).square().sum(dim=1) + EPS).sqrt()


def _critic(options: TransGANOptions, model: Generator) -> ViT:
    height, width = model.config.image_size
    if height % options.critic_patch or width % options.critic_patch:
        raise ConfigError(
            f"The generator makes images of {height} x {width} px, which patches of {options.critic_patch} px do not"
            " divide: choose another objective.critic_patch."
        )
    config = ViTConfig(
        image_size=model.config.image_size,
        patch_size=options.critic_patch,
        width=options.critic_width,
        depth=options.critic_depth,
        mlp_dim=4 * options.critic_width,
        heads=options.critic_heads,
        num_classes=1,
        qkv_bias=False,
        gelu="exact",
    )
    critic = ViT(config, model.preprocess)
    critic.initialize()
    torch.nn.init.trunc_normal_(critic.get_parameter("head.weight"), std=0.02)  # at 0 the generator would learn nothing
    return critic


def build(options: TransGANOptions, setting: Setting) -> TransGAN:
    if not is_generator(setting.model):
        raise ConfigError(
            f"transgan trains a generator, and {type(setting.model).__name__} makes no images: choose one, as"
            " --model.source transgan-s-32."
        )
    return TransGAN(options, setting.model)


OBJECTIVE = ObjectiveKind(
    name="transgan",
    summary="make images that a critic takes for real ones",
    objective=TransGAN,
    options=TransGANOptions,
    build=build,
    source="TransGAN: Two Pure Transformers Can Make One Strong GAN, arXiv 2102.07074",
)
