"""The Vision Transformer once more, in NumPy and float64, over the documented names of Google's `.npz` files.

Written from the paper's equations and the names alone; nothing of vitlab is used here, so that it can contradict it.
"""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]

VIT_JAX = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
BIG_VISION = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")


def random_weights(
    *,
    dialect: str,
    seed: int = 0,
    patch: int = 8,
    width: int = 32,
    depth: int = 2,
    heads: int = 4,
    mlp: int = 48,
    positions: int | None = 16,
    classes: int | None = 5,
    cls: bool = True,
    representation: int | None = None,
    attention_pool: bool = False,
    parts: tuple[str, str, str, str] | None = None,
) -> Weights:
    """Random float32 weights under a dialect's names; `positions` counts all of them, the class token's too."""
    rng = np.random.default_rng(seed)
    norm1, attention, norm2, block_mlp = parts or (VIT_JAX if dialect == "vit_jax" else BIG_VISION)

    def some(*shape: int, scale: float = 0.3, shift: float = 0.0) -> Array:
        return (shift + scale * rng.standard_normal(shape)).astype(np.float32)

    def norm(name: str) -> Iterator[tuple[str, Array]]:
        yield f"{name}/scale", some(width, shift=1)
        yield f"{name}/bias", some(width)

    def dense(name: str, inputs: int, outputs: int) -> Iterator[tuple[str, Array]]:
        yield f"{name}/kernel", some(inputs, outputs, scale=1.2 / inputs**0.5)
        yield f"{name}/bias", some(outputs)

    def attend(name: str) -> Iterator[tuple[str, Array]]:
        for part in ("query", "key", "value"):
            yield f"{name}/{part}/kernel", some(width, heads, width // heads, scale=1.2 / width**0.5)
            yield f"{name}/{part}/bias", some(heads, width // heads)
        yield f"{name}/out/kernel", some(heads, width // heads, width, scale=1.2 / width**0.5)
        yield f"{name}/out/bias", some(width)

    def feed(name: str) -> Iterator[tuple[str, Array]]:
        yield from dense(f"{name}/Dense_0", width, mlp)
        yield from dense(f"{name}/Dense_1", mlp, width)

    def everything() -> Iterator[tuple[str, Array]]:
        yield "embedding/kernel", some(patch, patch, 3, width, scale=1.2 / (patch * patch * 3) ** 0.5)
        yield "embedding/bias", some(width)
        if cls:
            yield "cls", some(1, 1, width)
        if positions is not None:
            place = "Transformer/posembed_input/pos_embedding" if dialect == "vit_jax" else "pos_embedding"
            yield place, some(1, positions, width)
        for i in range(depth):
            block = f"Transformer/encoderblock_{i}"
            yield from norm(f"{block}/{norm1}")
            yield from attend(f"{block}/{attention}")
            yield from norm(f"{block}/{norm2}")
            yield from feed(f"{block}/{block_mlp}")
        yield from norm("Transformer/encoder_norm")
        if attention_pool:
            yield "MAPHead_0/probe", some(1, 1, width)
            yield from attend("MAPHead_0/MultiHeadDotProductAttention_0")
            yield from norm("MAPHead_0/LayerNorm_0")
            yield from feed("MAPHead_0/MlpBlock_0")
        if representation is not None:
            yield from dense("pre_logits", width, representation)
        if classes is not None:
            yield from dense("head", representation or width, classes)

    return dict(everything())


def save(path: Path, weights: Weights, prefix: str = "", *, compressed: bool = False) -> None:
    """The arrays by their names, with NumPy's own writer."""
    arrays: dict[str, Any] = {prefix + name: value for name, value in weights.items()}
    (np.savez_compressed if compressed else np.savez)(path, **arrays)


def stacked(weights: Weights, depth: int) -> Weights:
    """The scanned form: what every block has, behind one another along a new first axis."""
    first = "Transformer/encoderblock_0/"
    together = {name: value for name, value in weights.items() if "encoderblock_" not in name}
    for name in weights:
        if name.startswith(first):
            part = name.removeprefix(first)
            layers = [weights[f"Transformer/encoderblock_{i}/{part}"] for i in range(depth)]
            together[f"Transformer/encoderblock/{part}"] = np.stack(layers)
    return together


def logits(weights: Weights, images: Array, parts: Iterable[str], *, positions: Array | None = None) -> Array:
    """Images [B, H, W, 3] to logits, or to features where there is no head, everything in float64.

    `positions` [P + N, D] takes the place of the file's embedding. Whether the class token has one of them is seen from
    their number.
    """
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    norm1, attention, norm2, block_mlp = parts
    kernel = w["embedding/kernel"]
    patch = kernel.shape[0]
    count, height, width, _ = images.shape
    tokens = np.stack(
        [
            np.einsum("bpqc,pqcd->bd", images[:, y : y + patch, x : x + patch].astype(np.float64), kernel)
            + w["embedding/bias"]
            for y in range(0, height, patch)
            for x in range(0, width, patch)
        ],
        axis=1,
    )
    name = next((name for name in w if name.endswith("pos_embedding")), None)
    places: Array = np.zeros(tokens.shape[1:]) if name is None else w[name][0]
    if positions is not None:
        places = positions
    if "cls" in w:
        tokens = np.concatenate([np.repeat(w["cls"], count, axis=0), tokens], axis=1)
        if len(places) < tokens.shape[1]:
            places = np.concatenate([np.zeros_like(places[:1]), places])
    z = tokens + places  # (1)
    for i in range(sum(name.endswith(f"{norm1}/scale") and "encoderblock_" in name for name in w)):
        block = f"Transformer/encoderblock_{i}"
        normed = _norm(w, f"{block}/{norm1}", z)
        z = z + _attention(w, f"{block}/{attention}", normed, normed)  # (2)
        z = z + _mlp(w, f"{block}/{block_mlp}", _norm(w, f"{block}/{norm2}", z))  # (3)
    z = _norm(w, "Transformer/encoder_norm", z)
    if "MAPHead_0/probe" in w:
        probe = np.repeat(w["MAPHead_0/probe"], count, axis=0)
        y = _attention(w, "MAPHead_0/MultiHeadDotProductAttention_0", probe, z)
        y = (y + _mlp(w, "MAPHead_0/MlpBlock_0", _norm(w, "MAPHead_0/LayerNorm_0", y)))[:, 0]
    else:
        y = z[:, 0] if "cls" in w else z.mean(axis=1)  # (4)
    if "pre_logits/kernel" in w:
        y = np.tanh(y @ w["pre_logits/kernel"] + w["pre_logits/bias"])
    return y @ w["head/kernel"] + w["head/bias"] if "head/kernel" in w else y


def _norm(w: Weights, name: str, z: Array) -> Array:
    centred = z - z.mean(axis=-1, keepdims=True)
    variance = (centred**2).mean(axis=-1, keepdims=True)
    return centred / np.sqrt(variance + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]


def _attention(w: Weights, name: str, queries: Array, keys: Array) -> Array:
    """Equations 5 to 8, a head at a time."""
    heads = w[f"{name}/query/kernel"].shape[1]
    out = np.zeros((*queries.shape[:2], w[f"{name}/out/kernel"].shape[2]))
    for head in range(heads):
        q, k, v = (
            source @ w[f"{name}/{part}/kernel"][:, head] + w[f"{name}/{part}/bias"][head]
            for part, source in (("query", queries), ("key", keys), ("value", keys))
        )
        scores = q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1])
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        out += scores / scores.sum(axis=-1, keepdims=True) @ v @ w[f"{name}/out/kernel"][head]
    return out + w[f"{name}/out/bias"]


def _mlp(w: Weights, name: str, z: Array) -> Array:
    h = z @ w[f"{name}/Dense_0/kernel"] + w[f"{name}/Dense_0/bias"]
    h = 0.5 * h * (1 + np.tanh(np.sqrt(2 / np.pi) * (h + 0.044715 * h**3)))
    return h @ w[f"{name}/Dense_1/kernel"] + w[f"{name}/Dense_1/bias"]
