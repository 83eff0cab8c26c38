"""The model behind the service: batches of pixels in, answers out. `run` is called in the batcher's threads."""

import threading
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast, final

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from vitlab.core.errors import Error
from vitlab.data.contract import Array
from vitlab.inspection.capture import misfit, read_by_pool, watching
from vitlab.inspection.rollout import Rollout
from vitlab.models.contract import Layout, Model
from vitlab.models.generator import need_images
from vitlab.serving.http.errors import APIError
from vitlab.serving.packing import packed
from vitlab.tasks import task_for
from vitlab.tasks.answer import Answer as TaskAnswer

MOST_CLASSES = 1000  # that a task of one's own is asked for
Rows: TypeAlias = Literal["output", "all"]


@dataclass(frozen=True)
class Classify:
    """What the model says by its task: the most probable classes, numbers, or a mask."""


@dataclass(frozen=True)
class Embed:
    """The feature vector."""


@dataclass(frozen=True)
class Attend:
    """Attention: rollout over all layers, or one layer's heads, from the output or from every token.

    Layers and heads count from 0.
    """

    rollout: bool = True
    layer: int | None = None
    head: int | None = None  # None: all
    rows: Rows = "output"


@dataclass(frozen=True)
class Compare:
    """How alike the patches' tokens are after a layer; 0 is before the first."""

    layer: int


Task: TypeAlias = Classify | Embed | Attend | Compare


@dataclass(frozen=True)
class Classes:
    """Every class from the most to the least probable; equal ones in the order of their index."""

    indices: Array  # [K]
    probabilities: Array  # [K]


@dataclass(frozen=True)
class AttentionMaps:
    """Attention as [rows, columns] of the grid from the output, or as [N, N] between all tokens."""

    rollout: Array | None
    heads: Array | None  # [heads, ...]


@dataclass(frozen=True)
class TokenSimilarity:
    """The cosine of each patch's token with every other's, [N, N], and the length of each, [rows, columns]."""

    similarity: Array
    norms: Array


Answer: TypeAlias = Classes | TaskAnswer | Array | AttentionMaps | TokenSimilarity
Answers: TypeAlias = Literal["classes", "numbers", "mask"]


@final
class Engine:
    """A model in evaluation mode on its device, with what the service says of it.

    On a CPU `threads` work for it, by default as many as for the caller. Who wants a lone image to be quick gives the
    caller one (`torch.set_num_threads(1)`) before the model is loaded: GNU's OpenMP keeps what threads it made for
    anyone, and with more of them than processors it lets all of them sleep between any two layers.
    """

    def __init__(self, model: Model, name: str, threads: int | None = None) -> None:
        need_images(model, name)
        self.model, self.name = model.eval(), name
        self.model.requires_grad_(False)
        self._weight = next(model.parameters())
        self._packed = packed(model)  # for all that needs no hooks
        self._hook_lock = threading.Lock()  # hooks on the model are one task's at a time
        self._buffers = threading.local()  # a batch a thread: the pages of a new one cost more than the arithmetic
        self.threads = threads or torch.get_num_threads()
        self.workers = 2 if self._weight.device.type == "cpu" and self.threads > 1 else 1
        self.layout = self._measure()
        self.grids = self._grids()
        self.num_classes = int(getattr(model.config, "num_classes", 0))
        self.task = task_for(model)
        self.answers: Answers | None = self._kind() if self.num_classes else None
        taps = model.taps.attention
        self.num_layers = len(taps)
        self.num_heads: tuple[int, ...] = ()
        self.misfits: dict[int, str] = {}  # layers whose attention is not between the tokens, and why
        self._read_tokens: Tensor | None = None  # which tokens the answer is read from
        if taps:
            self._try_attention()

    def largest(self, kind: Hashable) -> int:
        """How many images go together: attention of one is already the square of its tokens."""
        return 1 if isinstance(kind, Attend | Compare) else 1 << 30

    def run(self, task: Hashable, pixels: Sequence[Array]) -> Sequence[Answer | Exception]:
        """The answers to one task for images [H, W, 3]; an exception in the place of one that has none."""
        with torch.inference_mode():
            images = self._normalized(pixels)
            match cast("Task", task):
                case Classify():
                    return self._classify(images)
                case Embed():
                    return self._embed(images)
                case Attend() as wanted:
                    with self._hook_lock:
                        return [self._attend(images[i : i + 1], wanted) for i in range(len(images))]
                case Compare(layer):
                    return [self._compare(images[i : i + 1], layer) for i in range(len(images))]

    def share(self, num: int) -> None:
        """Let the calling thread, one of `num` that call `run` at a time, have its part of the processors."""
        if self._weight.device.type == "cpu":
            torch.set_num_threads(self.threads // num)

    def warm_up(self) -> None:
        """One pass before the first request: what is slow only once is over, and damaged weights are found."""
        blank = np.zeros((*self.model.preprocess.size, 3), np.uint8)
        (answer,) = self.run(Classify() if self.num_classes else Embed(), [blank])
        if isinstance(answer, Exception):
            raise Error("The model's output is not finite: its weights are damaged.")

    def _normalized(self, pixels: Sequence[Array]) -> Float[Tensor, "b 3 h w"]:
        weight, preprocess = self._weight, self.model.preprocess
        stacked = rearrange(torch.from_numpy(np.stack(list(pixels))).to(weight.device), "b h w c -> b c h w")
        if weight.device.type != "cpu":
            return preprocess.normalize(stacked).to(weight.dtype)
        kept: Tensor | None = getattr(self._buffers, "batch", None)
        if kept is None or len(kept) < len(stacked):
            kept = self._buffers.batch = torch.empty(stacked.shape, dtype=torch.float32)
        return preprocess.normalize(stacked, kept[: len(stacked)]).to(weight.dtype)

    def _classify(self, images: Float[Tensor, "b 3 h w"]) -> list[Answer | Exception]:
        outputs = self._packed(images)
        if not self.task.tells_classes:
            finite = outputs.flatten(1).isfinite().all(dim=-1).tolist()
            said = self.task.answers(self.model, outputs.float(), MOST_CLASSES)
            return [answer if good else _not_finite() for good, answer in zip(finite, said, strict=True)]
        probabilities = self.model.probabilities(outputs)
        values, indices = probabilities.sort(dim=-1, descending=True, stable=True)
        finite = probabilities.isfinite().all(dim=-1).tolist()
        rows = zip(finite, values.cpu().numpy(), indices.cpu().numpy(), strict=True)
        return [Classes(index, value) if good else _not_finite() for good, value, index in rows]

    def _embed(self, images: Float[Tensor, "b 3 h w"]) -> list[Answer | Exception]:
        model = self._packed
        features = model.pool(model.encode(model.embed(images))).float()
        finite = features.isfinite().all(dim=-1).tolist()
        return [row if good else _not_finite() for good, row in zip(finite, features.cpu().numpy(), strict=True)]

    def _attend(self, images: Float[Tensor, "1 3 h w"], task: Attend) -> Answer | Exception:
        tokens = self.model.embed(images)
        rollout, seen = Rollout(), list[Tensor]()

        def see(layer: int, attention: Tensor) -> None:
            if task.rollout:
                rollout.add(attention)
            if layer == task.layer:
                seen.append(attention[0] if task.head is None else attention[0, task.head : task.head + 1])

        layers = None if task.rollout else [] if task.layer is None else [task.layer]
        with watching(self.model, see, layers):
            self.model.encode(tokens)
        read = self._read_tokens if task.rows == "output" else None
        flow = None if rollout.flow is None else _from(rollout.flow, read, self.layout)[0]
        heads = _from(seen[0], read, self.layout) if seen else None
        if flow is not None and read is not None:
            flow = flow / flow.sum()  # shares of the patches alone
        for values in (flow, heads):
            if values is not None and not values.isfinite().all():
                return _not_finite()
        return AttentionMaps(*(None if values is None else values.float().cpu().numpy() for values in (flow, heads)))

    def _compare(self, images: Float[Tensor, "1 3 h w"], layer: int) -> Answer | Exception:
        tokens = self._packed.features(images)[layer]
        values = tokens.patches[0].float()
        if not values.isfinite().all():
            return _not_finite()
        unit = F.normalize(values, dim=-1)
        similarity, norms = (unit @ unit.T).clamp(-1, 1), values.norm(dim=-1).unflatten(0, tokens.grid)
        return TokenSimilarity(similarity.cpu().numpy(), norms.cpu().numpy())

    def reads(self) -> Literal["prefix", "patches"] | None:
        """Which tokens the answer is read from; None where that is not known."""
        if self._read_tokens is None:
            return None
        return "patches" if self._read_tokens[self.layout.num_prefix :].any() else "prefix"

    def _measure(self) -> Layout:
        blank = np.zeros((*self.model.preprocess.size, 3), np.uint8)
        with torch.inference_mode():
            return self.model.embed(self._normalized([blank])).layout

    def _kind(self) -> Answers:
        """Of what kind its answers are."""
        if self.task.tells_classes:
            return "classes"
        blank = np.zeros((*self.model.preprocess.size, 3), np.uint8)
        with torch.inference_mode():
            return self.task.answers(self.model, self._packed(self._normalized([blank])).float(), 1)[0].kind

    def _grids(self) -> tuple[tuple[int, int], ...]:
        """Rows and columns of the tokens that enter the first layer, then of those that leave each."""
        blank = np.zeros((*self.model.preprocess.size, 3), np.uint8)
        with torch.inference_mode():
            return tuple(tokens.grid for tokens in self.model.features(self._normalized([blank])))

    def _try_attention(self) -> None:
        """How many heads each layer has, what cannot be seen, and where the answer is read."""
        heads: list[int] = []

        def see(layer: int, attention: Tensor) -> None:
            heads.append(attention.shape[1])
            problem = misfit(layer, attention, self.layout, 1)
            if problem is not None:
                self.misfits[layer] = problem

        blank = np.zeros((*self.model.preprocess.size, 3), np.uint8)
        with torch.inference_mode(), watching(self.model, see):
            encoded = self.model.encode(self.model.embed(self._normalized([blank])))
        self.num_heads = tuple(heads)
        if not self.misfits:
            self._read_tokens = read_by_pool(self.model, encoded)
        if self._read_tokens is not None and self.model.is_dense:  # each pixel's from its own patches
            self._read_tokens = torch.arange(len(self._read_tokens)) >= self.layout.num_prefix


def _from(attention: Float[Tensor, "k n n"], read: Tensor | None, layout: Layout) -> Tensor:
    """All of it, or what the tokens that the answer is read from see of the patches, [k, rows, columns]."""
    if read is None:
        return attention
    return attention[:, read].mean(dim=1)[:, layout.num_prefix :].unflatten(-1, layout.grid)


def _not_finite() -> APIError:
    return APIError("internal", "The model's output for this image is not finite.")
