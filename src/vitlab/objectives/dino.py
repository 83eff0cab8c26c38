"""DINO (arXiv 2104.14294): from one view of an image, predict a teacher's answer to another.

By option with iBOT's masked patches (arXiv 2111.07832) and KoLeo (DINOv2, arXiv 2304.07193).
"""

import copy
import math
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from vitlab.core.bounds import NonNegativeFloat, PositiveFloat, PositiveInt, Probability
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.data.streams import StreamPlan
from vitlab.models.contract import Model
from vitlab.objectives.averaging import move_average
from vitlab.objectives.block_masks import BlockMasks, block_masks
from vitlab.objectives.contract import Metrics, Objective, ObjectiveKind, Setting
from vitlab.objectives.patches import patches_of
from vitlab.objectives.views import Crops, by_size, feature_std, patch_of
from vitlab.objectives.whole_batch import gathered, total

LARGE = 2  # views that the teacher sees
KOLEO_EPS = 1e-8


@dataclass(frozen=True, kw_only=True)
class DinoOptions(Crops):
    """The student predicts the teacher's output for another view; the teacher is the student's moving average.

    Shares are of the run: 0.3 of 100 epochs is 30 epochs.
    """

    out_dim: PositiveInt = 65_536  # outputs of the head; about 1000 for sets of 50,000 images
    hidden: PositiveInt = 2048  # the width of the head's two inner layers
    bottleneck: PositiveInt = 256  # the width before the head's last layer, which is weight-normed
    momentum: Probability = 0.996  # momentum of the teacher's average; rises to 1 as a cosine
    student_temp: PositiveFloat = 0.1  # temperature of the student's softmax
    teacher_temp: PositiveFloat = 0.07  # temperature of the teacher's softmax; lower it if a run collapses
    teacher_temp_start: PositiveFloat = 0.04  # the teacher's temperature at the start
    teacher_temp_warmup: Probability = 0.3  # the share of the run in which that temperature rises
    center_momentum: Probability = 0.9  # momentum of the teacher's mean output, which is subtracted; 1: no centring
    freeze_last: Probability = 0.01  # the share of the run, from its start, in which the head's last layer is frozen
    patch_weight: NonNegativeFloat = 0.0  # iBOT: the weight of predicting masked patches; 0: none are masked
    mask_prob: Probability = 0.5  # iBOT: the probability that a large view is masked
    mask_ratio: tuple[float, float] = (0.1, 0.5)  # iBOT: the range of the share of patches that is masked then
    koleo: NonNegativeFloat = 0.0  # the weight of KoLeo for each large view, which pushes images apart; DINOv2: 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self.mask_ratio
        if not 0 < low <= high < 1:
            raise ConfigError(f"objective.mask_ratio is a range of fractions like [0.1, 0.5], not {[low, high]}.")


@final
class DinoHead(nn.Module):
    """Three layers to a bottleneck, its direction, and how near that is to each of the outputs' own directions."""

    def __init__(self, width: int, options: DinoOptions) -> None:
        super().__init__()
        hidden = options.hidden
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(),
            nn.Linear(hidden, options.bottleneck),
        )  # fmt: skip
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.last = nn.Parameter(torch.randn(options.out_dim, options.bottleneck))

    def forward(self, features: Float[Tensor, "*n f"], free: Tensor | None = None) -> Float[Tensor, "*n k"]:
        """Logits; where the scalar `free` is false, the last layer gets no gradient."""
        last = self.last if free is None else torch.where(free, self.last, self.last.detach())
        return F.linear(F.normalize(self.layers(features), dim=-1), F.normalize(last, dim=-1))


@final
class Dino(Objective):
    """The mean over pairs (t, s) of a large view t and another view s of - sum p_t log p_s.

    p_s = softmax(student / student_temp), p_t = softmax((teacher - centre) / teacher_temp). The teacher's weights and
    the centre are moving averages that change after a step; the teacher is what becomes the run's model.

    With `koleo`, the sum over the large views of KoLeo of the student's features is added, as DINOv2's code has it.
    With `patch_weight`, blocks of the student's large views are hidden behind a mask token, and the same head and
    cross-entropy, with a centre of their own, compare its masked patches with the teacher's, which sees them.
    """

    only_calls: ClassVar[bool] = True
    scores_task: ClassVar[bool] = False

    centers: Tensor
    seen: Tensor
    num_seen: Tensor
    seen_at: Tensor

    def __init__(self, options: DinoOptions, model: Model) -> None:
        super().__init__()
        self.options, self.patch = options, patch_of(model)
        self.whole_batch = options.koleo > 0  # pyright: ignore[reportAttributeAccessIssue]
        self.seed = int(torch.randint(2**32, ()))  # torch's generator is seeded by the recipe here
        self.head = DinoHead(model.num_features, options)
        self.ema_model = copy.deepcopy(model).eval().requires_grad_(False)
        self.ema_head = copy.deepcopy(self.head).eval().requires_grad_(False)
        self.mask: nn.Parameter | None = None
        self.patch_head: DinoHead | None = None
        self.ema_patch_head: DinoHead | None = None
        kinds = 1
        if options.patch_weight:
            width, kinds = patches_of(model, "iBOT (objective.patch_weight)").width, 2
            self.mask = nn.Parameter(0.02 * torch.randn(width))
            if width != model.num_features:  # class token and mean, or two tokens: the shared head does not fit
                self.patch_head = DinoHead(width, options)
                self.ema_patch_head = copy.deepcopy(self.patch_head).eval().requires_grad_(False)
        # of classes, and of patches
        self.register_buffer("centers", torch.zeros(kinds, options.out_dim))
        # of the step that is being made, for what follows it: the sum of the teacher's answers, over how many images
        self.register_buffer("seen", torch.zeros(kinds, options.out_dim), persistent=False)
        self.register_buffer("num_seen", torch.zeros(()), persistent=False)
        self.register_buffer("seen_at", torch.full((), -1.0), persistent=False)

    def streams(self, main: StreamPlan) -> tuple[StreamPlan, ...]:
        if self.options.koleo and main.batch_size < 2:
            raise ConfigError("KoLeo compares the images of a batch: batch_size must be 2 at least.")
        return (self.options.views(main, LARGE, self.patch),)

    def param_groups(self) -> list[dict[str, Any]]:
        """Without decay of the last layer: only its rows' directions count."""
        last = [head.last for head in (self.head, self.patch_head) if head is not None]
        kept = {id(parameter) for parameter in last}
        groups = super().param_groups()
        for group in groups:
            group["params"] = [parameter for parameter in group["params"] if id(parameter) not in kept]
        return [*groups, {"params": last, "weight_decay": 0.0}]

    def loss(self, model: Model, batch: Batch, progress: Float[Tensor, ""]) -> tuple[Float[Tensor, ""], Metrics]:
        options, views, num = self.options, batch.first.views, len(batch)
        large, free = torch.cat(views[:LARGE]), progress >= options.freeze_last
        masks, features, hidden = self._seen_by_student(model, large, batch)
        small = by_size(views[LARGE:], model.pooled)
        student = self.head(torch.cat([features, *small]), free).float().unflatten(0, (len(views), num))
        taught, taught_patches = self._taught(large, masks)
        temp = _rising(options.teacher_temp_start, options.teacher_temp, options.teacher_temp_warmup, progress)
        answers = ((taught - self.centers[0]) / temp).log_softmax(dim=-1)
        loss = cross_views(answers, (student / options.student_temp).log_softmax(dim=-1))
        metrics = _looked_at(answers) | {"feature std": feature_std(features)}
        if masks is not None:
            predicted = (self._patch_head(hidden, free).float() / options.student_temp).log_softmax(dim=-1)
            wanted = ((taught_patches - self.centers[1]) / temp).softmax(dim=-1)
            patch_loss = -((wanted * predicted).sum(dim=-1) * masks.weights).sum(dim=1).mean()
            loss = loss + options.patch_weight * patch_loss
            metrics["patch loss"] = patch_loss.detach()
        if options.koleo:
            apart = torch.stack([koleo(part) for part in features.chunk(LARGE)]).sum()
            loss = loss + options.koleo * apart
            metrics["koleo"] = apart.detach()
        if self.training:
            self._remember(taught, taught_patches, progress)
        return loss, metrics

    def _seen_by_student(self, model: Model, large: Tensor, batch: Batch) -> tuple[BlockMasks | None, Tensor, Tensor]:
        """What is hidden of large views, their features, and the encoded patches that the loss looks at."""
        if self.mask is None:
            return None, model.pooled(large), large
        tokens, options = model.patchify(large), self.options
        drawn = [
            block_masks(self.seed + view, batch.places, tokens.grid, options.mask_ratio, options.mask_prob)
            for view in range(LARGE)
        ]
        masks = BlockMasks(*(torch.cat(part) for part in zip(*drawn, strict=True)))
        encoded = model.encode(model.place(tokens.with_values(masks.hide(tokens.values, self.mask))))
        return masks, model.pool(encoded), masks.take(encoded.patches)

    @torch.no_grad()
    def _taught(self, large: Tensor, masks: BlockMasks | None) -> tuple[Float[Tensor, "two b k"], Tensor]:
        """The teacher's logits of large views, and of the patches that the loss looks at."""
        teacher = self.ema_model
        if masks is None:
            answers = self.ema_head(teacher.pooled(large)).float().unflatten(0, (LARGE, -1))
            return answers, answers
        encoded = teacher.encode(teacher.embed(large))
        head = self.ema_head if self.ema_patch_head is None else self.ema_patch_head
        of_patches = head(masks.take(encoded.patches)).float()
        return self.ema_head(teacher.pool(encoded)).float().unflatten(0, (LARGE, -1)), of_patches

    @property
    def _patch_head(self) -> DinoHead:
        return self.head if self.patch_head is None else self.patch_head

    @torch.no_grad()
    def _remember(self, taught: Tensor, taught_patches: Tensor, progress: Tensor) -> None:
        """Add what the teacher said to what it said in other parts of the same step; forget an earlier step."""
        sums = [taught.mean(dim=0).sum(dim=0)]
        if len(self.centers) > 1:
            sums.append(taught_patches.mean(dim=1).sum(dim=0) / LARGE)
        num = torch.full_like(self.num_seen, taught.shape[1])
        added = total(torch.cat([*sums, num[None]]))
        same = progress == self.seen_at
        self.seen.copy_(torch.where(same, self.seen, 0) + added[:-1].view_as(self.seen))
        self.num_seen.copy_(torch.where(same, self.num_seen, 0) + added[-1])
        self.seen_at.copy_(progress)

    @torch.no_grad()
    def after_step(self, model: Model, made: Tensor) -> None:
        keep = self.options.center_momentum
        moved = self.centers * keep + self.seen / self.num_seen * (1 - keep)
        self.centers.copy_(torch.where(made, moved, self.centers))
        # momentum rises to 1 as half a cosine: 1 - momentum falls to 0
        weight = (1 - self.options.momentum) * 0.5 * (1 + torch.cos(math.pi * self.seen_at)) * made
        student, teacher = (model, self.head, self.patch_head), (self.ema_model, self.ema_head, self.ema_patch_head)
        move_average(teacher, student, weight)

    def product(self, model: Model) -> Model:
        del model
        return self.ema_model


def cross_views(answers: Float[Tensor, "two b k"], predictions: Float[Tensor, "v b k"]) -> Float[Tensor, ""]:
    """The mean cross-entropy of every prediction to every answer to another view, both as log-probabilities.

    Answer i is to view i. The sum over the others is that over all without its own: one product per answer.
    """
    others = predictions.sum(dim=0) - predictions[: len(answers)]
    num_pairs = len(answers) * (len(predictions) - 1)
    return -(answers.exp() * others).sum(dim=-1).mean(dim=1).sum() / num_pairs


def koleo(features: Float[Tensor, "b f"]) -> Float[Tensor, ""]:
    """- log of the distance of each image's direction to the nearest other one's in the batch of all processes."""
    with torch.autocast(features.device.type, enabled=False):
        own = F.normalize(features.float(), dim=1, eps=KOLEO_EPS)
        everyone, first = gathered(own)
        near = (own @ everyone.T).detach()
        itself = torch.arange(len(own), device=own.device)[:, None] + first
        nearest = near.scatter(1, itself, -2.0).argmax(dim=1)
        return -(F.pairwise_distance(own, everyone[nearest], eps=KOLEO_EPS) + KOLEO_EPS).log().mean()


def _rising(start: float, end: float, share: float, progress: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """From start to end in a share of the run, then constant."""
    done = (progress / share).clamp(max=1) if share else torch.ones_like(progress)
    return start + (end - start) * done


@torch.no_grad()
def _looked_at(answers: Float[Tensor, "two b k"]) -> Metrics:
    """What tells of a collapse: the entropy of the teacher's answers, and of their mean, as parts of the largest.

    The first is 1 where it says nothing of any image, the second 0 where it says the same of all.
    """
    found, most = answers.exp(), math.log(max(answers.shape[-1], 2))
    return {
        "teacher entropy": torch.special.entr(found).sum(dim=-1).mean() / most,
        "teacher diversity": torch.special.entr(found.mean(dim=(0, 1))).sum() / most,
    }


def build(options: DinoOptions, setting: Setting) -> Dino:
    return Dino(options, setting.model)


OBJECTIVE = ObjectiveKind(
    name="dino",
    summary="predict a teacher's output for another view; the teacher is the model's own average",
    objective=Dino,
    options=DinoOptions,
    build=build,
    source="Emerging Properties in Self-Supervised Vision Transformers, arXiv 2104.14294",
)
