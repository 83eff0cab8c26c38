"""`vitlab demo`: a small ViT learns to tell two embedded photos apart, and shows what it sees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import tyro

from vitlab.cli.terminal import print_json, print_table

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor
    from torch.utils.hooks import RemovableHandle

    from vitlab.models.contract import AttentionTap, Model

    Pixels: TypeAlias = np.ndarray[Any, Any]

DESCRIPTION = """A small ViT learns, from nothing, to tell pieces of scikit-learn's two sample photos apart.

It trains on pieces of their left side and is tested on their right side, which it never saw; then it shows where it
looks. No pre-trained weights are used. It takes some ten seconds on two free cores.

Examples:
  vitlab demo
  vitlab demo --steps 120 --seed 1
  vitlab demo --json
"""
MODEL = "vit-cifar-d128"
SIDE = 32  # pixels of a piece, of photos at half their size
SPLIT = 192  # the column of 320 where training pieces end and test pieces begin


@dataclass(frozen=True)
class Arguments:
    steps: int = 30
    """Training steps of 32 pieces each."""
    seed: int = 0
    """What the initial weights and the choice of pieces follow from."""
    json: bool = False
    """Print the figures as one JSON document, and no pictures."""


def main(arguments: Sequence[str]) -> int:
    given = tyro.cli(
        Arguments,
        prog="vitlab demo",
        description=DESCRIPTION,
        args=arguments,
        config=(tyro.conf.FlagCreatePairsOff,),
    )

    from vitlab.core.errors import Error

    if given.steps < 1:
        raise Error(f"--steps must be at least 1, not {given.steps}.")
    if not 0 <= given.seed < 2**63:
        raise Error(f"--seed must be a whole number from 0 to 2^63 - 1, not {given.seed}.")

    import time

    import numpy as np
    import torch

    from vitlab import api

    photos = _photos()
    tests = {name: _tiles(photo) for name, photo in photos.items()}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(given.seed)
        model = api.create(MODEL, num_classes=len(photos))
    model.labels = tuple(photos)
    if not given.json:
        _show_photos(photos)
        _show_shapes(model, tests["flower"][len(tests["flower"]) // 2])
        print(f"\n3. Training: {given.steps} steps of 32 pieces from the left side of the photos\n")

    start = time.perf_counter()
    losses = _train(model, photos, given.steps, given.seed, report=_print_loss if not given.json else None)
    seconds = time.perf_counter() - start

    answers = {name: api.predict(model, tiles, top=len(photos)) for name, tiles in tests.items()}
    right = [answer.classes[0].label == name for name, photo in answers.items() for answer in photo]
    colour = _colour_accuracy(photos, tests, given.seed)
    if given.json:
        print_json(
            {
                "model": MODEL,
                "steps": given.steps,
                "seconds": round(seconds, 2),
                "final_loss": losses[-1],
                "test_pieces": len(right),
                "accuracy": float(np.mean(right)),
                "accuracy_of_mean_colour": colour,
            }
        )
        return 0

    print(f"\n4. The right side, which it never saw: {len(right)} pieces, after {seconds:.1f} s of training\n")
    table = [
        ["the ViT", f"{np.mean(right):.1%}"],
        ["logistic regression on a piece's mean colour", f"{colour:.1%}"],
        ["always the same answer", f"{1 / len(photos):.1%}"],
    ]
    print_table(["classifier", ">right"], table)
    for name, photo in answers.items():
        means = [np.mean([c.probability for a in photo for c in a.classes if c.label == label]) for label in photos]
        words = ", ".join(f"{label} {mean:.1%}" for label, mean in zip(photos, means, strict=True))
        print(f"  {name}.jpg, the mean over its pieces: {words}")
    _show_attention(model, tests)
    return 0


def _photos() -> "dict[str, Pixels]":
    """The photos at half their size, by name."""
    from pathlib import Path

    import numpy as np
    from PIL import Image
    from sklearn.datasets import load_sample_images

    bunch = load_sample_images()
    return {
        Path(name).stem: np.asarray(Image.fromarray(image).resize((320, 213), Image.Resampling.BILINEAR))
        for name, image in zip(bunch.filenames, bunch.images, strict=True)
    }


def _tiles(photo: "Pixels") -> "Pixels":
    """The test pieces: every half piece's width, right of the split."""
    import numpy as np

    tops = range(0, photo.shape[0] - SIDE + 1, SIDE // 2)
    lefts = range(SPLIT, photo.shape[1] - SIDE + 1, SIDE // 2)
    return np.stack([photo[y : y + SIDE, x : x + SIDE] for y in tops for x in lefts])


def _pieces(photos: "dict[str, Pixels]", count: int, rng: "np.random.Generator") -> "tuple[Pixels, Pixels]":
    """Random pieces left of the split, half of them mirrored, with the indices of their photos."""
    import numpy as np

    labels = rng.integers(len(photos), size=count)
    pieces: list[Any] = []
    for label in labels:
        photo = list(photos.values())[label]
        y, x = rng.integers(photo.shape[0] - SIDE + 1), rng.integers(SPLIT - SIDE + 1)
        piece = photo[y : y + SIDE, x : x + SIDE]
        pieces.append(piece[:, ::-1] if rng.integers(2) else piece)
    return np.stack(pieces), labels


def _train(
    model: "Model",
    photos: "dict[str, Pixels]",
    steps: int,
    seed: int,
    report: Callable[[int, float], None] | None,
) -> list[float]:
    """AdamW with warm-up and cosine decay; the losses of the steps."""
    import numpy as np
    import torch
    import torch.nn.functional as F

    rng = np.random.default_rng(seed)
    warmup = min(10, steps)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1, (step + 1) / warmup) * (1 + np.cos(np.pi * step / steps)) / 2
    )
    losses: list[float] = []
    model.train()
    for step in range(steps):
        pixels, labels = _pieces(photos, 32, rng)
        images = model.preprocess.normalise(torch.from_numpy(pixels).permute(0, 3, 1, 2))
        loss = F.cross_entropy(model(images), torch.from_numpy(labels))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
        if report is not None and (step % 10 == 0 or step == steps - 1):
            report(step, losses[-1])
    return losses


def _colour_accuracy(photos: "dict[str, Pixels]", tests: "dict[str, Pixels]", seed: int) -> float:
    """How far one gets without looking at anything but a piece's mean colour."""
    import numpy as np
    from sklearn.linear_model import LogisticRegression

    pixels, labels = _pieces(photos, 2000, np.random.default_rng(seed))
    classifier = LogisticRegression(max_iter=1000).fit(pixels.mean(axis=(1, 2)) / 255, labels)
    truth = np.repeat(np.arange(len(tests)), [len(tiles) for tiles in tests.values()])
    return float(classifier.score(np.concatenate(list(tests.values())).mean(axis=(1, 2)) / 255, truth))


def _rollout(model: "Model", pixels: "Pixels") -> "Tensor":
    """How much each patch flows into the class token: attention averaged over heads, multiplied over layers.

    Abnar and Zuidema, arXiv 2005.00928, with half of each layer for its residual connection; [H, W], summing to 1.
    """
    import torch

    attentions: list[Tensor] = []

    def record(tap: "AttentionTap") -> "RemovableHandle":
        return tap.module.register_forward_pre_hook(lambda _, given: attentions.append(tap.recompute(*given)))

    hooks = [record(tap) for tap in model.taps.attention]
    try:
        with torch.inference_mode():
            tokens = model.embed(model.preprocess(pixels))
            model.encode(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    flow = torch.eye(tokens.values.shape[1])
    for attention in attentions:
        flow = (attention[0].mean(dim=0) + torch.eye(len(flow))) / 2 @ flow
    patches = flow[0, tokens.num_prefix :]
    return (patches / patches.sum()).view(tokens.grid)


def _show_photos(photos: "dict[str, Pixels]") -> None:
    import numpy as np
    from PIL import Image

    from vitlab.cli.drawing import picture, show

    print("1. Two photos: it learns from what is left of the bar, and is tested right of it\n")
    small = [np.array(Image.fromarray(photo).resize((40, 26))) for photo in photos.values()]
    for pixels in small:
        pixels[:, SPLIT * 40 // 320] = 255
    show(*(picture(pixels) for pixels in small))
    print("  " + "".join(f"{name}.jpg".ljust(43) for name in photos).rstrip())


def _show_shapes(model: "Model", piece: "Pixels") -> None:
    import torch

    from vitlab.cli.drawing import cut, picture, show

    print(f"\n2. A piece of a photo through {MODEL}, equation by equation (arXiv 2010.11929)\n")
    patch = model.config.patch_size
    show(picture(piece), picture(cut(piece, patch)))
    with torch.inference_mode():
        images = model.preprocess(piece)
        embedded = model.embed(images)
        encoded = model.encode(embedded)
        pooled = model.pool(encoded)
        logits = model.head(pooled)
    count = embedded.patches.shape[1]
    rows = [
        ["the piece", "", _shape(piece)],
        [f"cut into patches of {patch} x {patch} pixels, flattened", "x_p", f"{count} x {patch * patch * 3}"],
        ["projected to the model's width", "x_p E", _shape(embedded.patches[0])],
        ["class token in front, positions added", "z_0  (1)", _shape(embedded.values[0])],
        [f"{model.config.depth} layers of attention and MLP", "z_L  (2, 3)", _shape(encoded.values[0])],
        ["the class token, normalised", "y  (4)", _shape(pooled[0])],
        ["a score for each photo, still zero: untrained", "head", _shape(logits[0])],
    ]
    print()
    print_table(["step", "symbol", ">shape"], rows)


def _show_attention(model: "Model", tests: "dict[str, Pixels]") -> None:
    from vitlab.cli.drawing import heat, picture, show

    print("\n5. Where it looks: attention rollout to the class token, bright (9) for much, beside the piece\n")
    for name, tiles in tests.items():
        piece = tiles[len(tiles) // 2]
        flow = _rollout(model, piece).numpy()
        doubled = flow.repeat(2, axis=0).repeat(2, axis=1)  # as large as the piece beside it
        show(picture(piece), heat(doubled, flow.min(), flow.max()))
        print(f"  a piece of {name}.jpg\n")


def _shape(values: Any) -> str:
    return " x ".join(str(size) for size in values.shape)


def _print_loss(step: int, loss: float) -> None:
    bar = "#" * max(1, round(40 * min(loss, 1)))
    print(f"  step {step:4d}  loss {loss:.3f}  {bar}", flush=True)
