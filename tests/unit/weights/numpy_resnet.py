"""Residual networks once more, in NumPy and float64, over the documented names of Google's `.npz` files.

Nothing of vitlab or torch is used here, so that it can contradict them.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Weights = dict[str, Array]


def random_weights(
    dialect: str, layers: tuple[int, ...], *, width: int = 32, classes: int | None = 5, seed: int = 0, axes: int = 1
) -> Weights:
    """Random float32 weights: 'v1' (also a hybrid's stem, without classes), 'v2', or BiT's own names, 'bit'."""
    rng = np.random.default_rng(seed)

    def kernel(*shape: int) -> Array:
        return (0.05 * rng.standard_normal(shape) + 0.02).astype(np.float32)

    def norm(name: str, size: int) -> Iterator[tuple[str, Array]]:
        scale, bias = ("gamma", "beta") if dialect == "bit" else ("scale", "bias")
        shape = (1,) * (axes - 1) + (size,)
        yield f"{name}/{scale}", (1 + 0.3 * rng.standard_normal(shape)).astype(np.float32)
        yield f"{name}/{bias}", (0.3 * rng.standard_normal(shape)).astype(np.float32)

    def everything() -> Iterator[tuple[str, Array]]:
        post = dialect == "v1"
        root = {"v1": "conv_root", "v2": "root_block/conv_root", "bit": "resnet/root_block/standardized_conv2d"}
        yield f"{root[dialect]}/kernel", kernel(7, 7, 3, width)
        if post:
            yield from norm("gn_root", width)
        inputs = width
        for stage, count in enumerate(layers):
            inner = width * 2**stage
            for unit in range(count):
                sizes = [(1, 1, inputs, inner), (3, 3, inner, inner), (1, 1, inner, 4 * inner)]
                normed = [inner, inner, 4 * inner] if post else [inputs, inner, inner]
                for part in range(3):
                    conv, gn = unit_names(dialect, stage, unit, part)
                    yield f"{conv}/kernel", kernel(*sizes[part])
                    yield from norm(gn, normed[part])
                if unit == 0:
                    conv, gn = unit_names(dialect, stage, unit, 3)
                    yield f"{conv}/kernel", kernel(1, 1, inputs, 4 * inner)
                    if post:
                        yield from norm(gn, 4 * inner)
                inputs = 4 * inner
        if not post:
            yield from norm("resnet/group_norm" if dialect == "bit" else "norm-pre-head", inputs)
        if classes is not None:
            head, shape = ("resnet/head/conv2d", (1, 1)) if dialect == "bit" else ("head", ())
            yield f"{head}/kernel", (rng.standard_normal((*shape, inputs, classes)) / inputs**0.5).astype(np.float32)
            yield f"{head}/bias", rng.standard_normal(classes).astype(np.float32)

    return dict(everything())


def unit_names(dialect: str, stage: int, unit: int, part: int) -> tuple[str, str]:
    """Convolution and norm of a unit; part 3 is the projection."""
    if dialect == "bit":
        start = f"resnet/block{stage + 1}/unit{unit + 1:02d}"
        letter = ("a", "b", "c", "a/proj")[part]
        return f"{start}/{letter}/standardized_conv2d", f"{start}/{letter}/group_norm"
    start = f"block{stage + 1}/unit{unit + 1}" if dialect == "v1" else f"block{stage + 1}/unit{unit + 1:02d}"
    return f"{start}/conv{part + 1 if part < 3 else '_proj'}", f"{start}/gn{part + 1 if part < 3 else '_proj'}"


def logits(weights: Weights, images: Array, dialect: str, layers: tuple[int, ...]) -> Array:
    """Images [B, H, W, 3] to logits."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    x = feature_map(weights, images, dialect, layers)
    if dialect != "v1":
        x = np.maximum(_norm(w, "resnet/group_norm" if dialect == "bit" else "norm-pre-head", x, 1e-5), 0)
    pooled = x.mean(axis=(1, 2))
    head = "resnet/head/conv2d" if dialect == "bit" else "head"
    kernel = w[f"{head}/kernel"]
    return pooled @ kernel.reshape(kernel.shape[-2:]) + w[f"{head}/bias"]


def feature_map(weights: Weights, images: Array, dialect: str, layers: tuple[int, ...]) -> Array:
    """What leaves the last unit, [B, H, W, C]."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    if dialect == "v1":
        return _post(w, images.astype(np.float64), layers)
    x = _conv(images.astype(np.float64), _by_variance(w[_root(dialect)]), 2, ((3, 3), (3, 3)))
    x = _max_pool(x, ((1, 1), (1, 1)), 0.0 if dialect == "bit" else -np.inf)
    for stage, count in enumerate(layers):
        for unit in range(count):
            names = [unit_names(dialect, stage, unit, part) for part in range(4)]
            kernels = {
                i: _by_variance(w[f"{conv}/kernel"]) for i, (conv, _) in enumerate(names) if f"{conv}/kernel" in w
            }
            stride = 2 if stage > 0 and unit == 0 else 1
            first = np.maximum(_norm(w, names[0][1], x, 1e-5), 0)
            y = _conv(first, kernels[0], 1, NONE)
            y = _conv(np.maximum(_norm(w, names[1][1], y, 1e-5), 0), kernels[1], stride, ((1, 1), (1, 1)))
            y = _conv(np.maximum(_norm(w, names[2][1], y, 1e-5), 0), kernels[2], 1, NONE)
            x = y + (_conv(first, kernels[3], stride, NONE) if 3 in kernels else x)
    return x


def _post(w: Weights, images: Array, layers: tuple[int, ...]) -> Array:
    x = _conv(images, _by_std(w["conv_root/kernel"]), 2, _same(images, 7, 2))
    x = np.maximum(_norm(w, "gn_root", x, 1e-6), 0)
    x = _max_pool(x, _same(x, 3, 2), -np.inf)
    for stage, count in enumerate(layers):
        for unit in range(count):
            names = [unit_names("v1", stage, unit, part) for part in range(4)]
            kernels = {i: _by_std(w[f"{conv}/kernel"]) for i, (conv, _) in enumerate(names) if f"{conv}/kernel" in w}
            stride = 2 if stage > 0 and unit == 0 else 1
            y = np.maximum(_norm(w, names[0][1], _conv(x, kernels[0], 1, NONE), 1e-6), 0)
            y = np.maximum(_norm(w, names[1][1], _conv(y, kernels[1], stride, _same(y, 3, stride)), 1e-6), 0)
            y = _norm(w, names[2][1], _conv(y, kernels[2], 1, NONE), 1e-6)
            x = np.maximum(
                y + (_norm(w, names[3][1], _conv(x, kernels[3], stride, NONE), 1e-6) if 3 in kernels else x), 0
            )
    return x


Pads = tuple[tuple[int, int], tuple[int, int]]
NONE: Pads = ((0, 0), (0, 0))


def _root(dialect: str) -> str:
    return "resnet/root_block/standardized_conv2d/kernel" if dialect == "bit" else "root_block/conv_root/kernel"


def _by_std(kernel: Array) -> Array:
    return (kernel - kernel.mean(axis=(0, 1, 2))) / (kernel.std(axis=(0, 1, 2)) + 1e-5)


def _by_variance(kernel: Array) -> Array:
    return (kernel - kernel.mean(axis=(0, 1, 2))) / np.sqrt(kernel.var(axis=(0, 1, 2)) + 1e-10)


def _same(x: Array, size: int, stride: int) -> Pads:
    """TensorFlow's rule, by its documentation: out = ceil(in / stride); what is missing, the larger half last."""

    def side(length: int) -> tuple[int, int]:
        total = max(size - stride if length % stride == 0 else size - length % stride, 0)
        return total // 2, total - total // 2

    return side(x.shape[1]), side(x.shape[2])


def _windows(x: Array, size: int, stride: int, pads: Pads, value: float) -> Array:
    padded = np.pad(x, ((0, 0), *pads, (0, 0)), constant_values=value)
    return np.lib.stride_tricks.sliding_window_view(padded, (size, size), axis=(1, 2))[:, ::stride, ::stride]


def _conv(x: Array, kernel: Array, stride: int, pads: Pads) -> Array:
    windows = _windows(x, kernel.shape[0], stride, pads, 0.0)
    return np.einsum("byxihw,hwio->byxo", windows, kernel, optimize=True)


def _max_pool(x: Array, pads: Pads, value: float) -> Array:
    return _windows(x, 3, 2, pads, value).max(axis=(-2, -1))


def _norm(w: Weights, name: str, x: Array, eps: float) -> Array:
    scale, bias = ("gamma", "beta") if f"{name}/gamma" in w else ("scale", "bias")
    batch, height, width, channels = x.shape
    groups = x.reshape(batch, height, width, 32, channels // 32)
    centred = groups - groups.mean(axis=(1, 2, 4), keepdims=True)
    normed = centred / np.sqrt((centred**2).mean(axis=(1, 2, 4), keepdims=True) + eps)
    return normed.reshape(x.shape) * w[f"{name}/{scale}"].reshape(-1) + w[f"{name}/{bias}"].reshape(-1)
