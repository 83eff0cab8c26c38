"""V-MoE's `.npz` by the names of the authors' code against a NumPy forward pass, and up-cycling."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unit.weights import numpy_vit as reference
from unit.weights.comparing import IMAGES, answers, assert_same, random_model
from vitlab.core.errors import CannotHoldError, CheckpointError, ConfigError
from vitlab.models.create import create
from vitlab.models.vmoe import VMoE, VMoEConfig
from vitlab.weights.load import load, save
from vitlab.weights.upcycle import upcycle

Array = np.ndarray[Any, Any]
DEPTH, WIDTH, HEADS, MLP, EXPERTS, PATCH = 4, 32, 4, 48, 4, 8


def random_weights(layers: tuple[int, ...]) -> dict[str, Array]:
    rng = np.random.default_rng(0)

    def some(*shape: int, shift: float = 0.0) -> Array:
        return (shift + 0.2 * rng.standard_normal(shape)).astype(np.float32)

    weights = {
        "embedding/kernel": some(PATCH, PATCH, 3, WIDTH),
        "embedding/bias": some(WIDTH),
        "cls": some(1, 1, WIDTH),
        "Encoder/posembed_input/pos_embedding": some(1, 17, WIDTH),
        "Encoder/encoder_norm/scale": some(WIDTH, shift=1),
        "Encoder/encoder_norm/bias": some(WIDTH),
        "head/kernel": some(WIDTH, 5),
        "head/bias": some(5),
    }
    for i in range(DEPTH):
        block = f"Encoder/encoderblock_{i}"
        for norm in ("LayerNorm_0", "LayerNorm_1"):
            weights[f"{block}/{norm}/scale"], weights[f"{block}/{norm}/bias"] = some(WIDTH, shift=1), some(WIDTH)
        for part in ("query", "key", "value"):
            weights[f"{block}/SelfAttention/{part}/kernel"] = some(WIDTH, HEADS, WIDTH // HEADS)
            weights[f"{block}/SelfAttention/{part}/bias"] = some(HEADS, WIDTH // HEADS)
        weights[f"{block}/SelfAttention/out/kernel"] = some(HEADS, WIDTH // HEADS, WIDTH)
        weights[f"{block}/SelfAttention/out/bias"] = some(WIDTH)
        many = (EXPERTS,) if i in layers else ()
        mlp = f"{block}/Moe/Mlp" if i in layers else f"{block}/Mlp"
        weights[f"{mlp}/Dense_0/kernel"], weights[f"{mlp}/Dense_0/bias"] = some(*many, WIDTH, MLP), some(*many, MLP)
        weights[f"{mlp}/Dense_1/kernel"], weights[f"{mlp}/Dense_1/bias"] = some(*many, MLP, WIDTH), some(*many, WIDTH)
        if i in layers:
            weights[f"{block}/Moe/Router/dense/kernel"] = some(WIDTH, EXPERTS)
    return weights


def softmax(values: Array) -> Array:
    exponentials = np.exp(values - values.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def logits(weights: dict[str, Array], images: Array, layers: tuple[int, ...]) -> Array:
    """The whole batch routed together: two experts per token, capacity 1.05, all first choices first."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}

    def norm(x: Array, name: str) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def mlp(x: Array, name: str, *which: int) -> Array:
        hidden = x @ w[f"{name}/Dense_0/kernel"][which] + w[f"{name}/Dense_0/bias"][which]
        gelu = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
        return gelu @ w[f"{name}/Dense_1/kernel"][which] + w[f"{name}/Dense_1/bias"][which]

    batch = len(images)
    patches = images.astype(np.float64).reshape(batch, 4, PATCH, 4, PATCH, 3).transpose(0, 1, 3, 2, 4, 5)
    x = patches.reshape(batch, 16, -1) @ w["embedding/kernel"].reshape(-1, WIDTH) + w["embedding/bias"]
    x = np.concatenate([np.repeat(w["cls"], batch, 0), x], 1) + w["Encoder/posembed_input/pos_embedding"]
    for i in range(DEPTH):
        block = f"Encoder/encoderblock_{i}"
        y = norm(x, f"{block}/LayerNorm_0")
        q, k, v = (
            np.einsum("bnd,dhe->bhne", y, w[f"{block}/SelfAttention/{part}/kernel"])
            + w[f"{block}/SelfAttention/{part}/bias"][:, None]
            for part in ("query", "key", "value")
        )
        attended = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(WIDTH // HEADS)) @ v
        x = x + np.einsum("bhne,hed->bnd", attended, w[f"{block}/SelfAttention/out/kernel"])
        x = x + w[f"{block}/SelfAttention/out/bias"]
        y = norm(x, f"{block}/LayerNorm_1")
        if i not in layers:
            x = x + mlp(y, f"{block}/Mlp")
            continue
        tokens, flat = y.reshape(-1, WIDTH), x.reshape(-1, WIDTH).copy()
        gates = softmax(tokens @ w[f"{block}/Moe/Router/dense/kernel"])
        room, used = round(2 * len(tokens) * 1.05 / EXPERTS), [0] * EXPERTS
        for choice in range(2):
            for t, token in enumerate(tokens):
                expert = int(np.argsort(-gates[t])[choice])
                if used[expert] < room:
                    used[expert] += 1
                    flat[t] += gates[t, expert] * mlp(token, f"{block}/Moe/Mlp", expert)
        assert max(used) == room, "nobody was refused"
        x = flat.reshape(x.shape)
    return norm(x, "Encoder/encoder_norm")[:, 0] @ w["head/kernel"] + w["head/bias"]


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/"])
@pytest.mark.parametrize(("layers", "last"), [((1, 3), None), ((3,), 1)])
def test_files_by_the_names_of_the_authors_code(
    tmp_path: Path, prefix: str, layers: tuple[int, ...], last: int | None
) -> None:
    weights = random_weights(layers)
    reference.save(tmp_path / "vmoe.npz", weights, prefix)
    model = load(tmp_path / "vmoe.npz")
    config = model.config
    assert isinstance(config, VMoEConfig)
    assert (config.num_experts, config.num_selected, config.every, config.last) == (4, 2, 2, last)
    assert (config.image_size, config.patch_size, config.mlp_dim, config.heads) == ((32, 32), 8, 48, 4)
    assert not model.load_report.unused
    assert not model.load_report.fresh
    assert any("How tokens are routed is not in the file" in line for line in model.load_report.assumed)
    assert_same(model, logits(weights, IMAGES, layers), exactly=False)


def test_experts_in_every_layer(tmp_path: Path) -> None:
    weights = random_weights((0, 1, 2, 3))
    reference.save(tmp_path / "all.npz", weights)
    model = load(tmp_path / "all.npz")
    assert (model.config.every, model.config.last) == (1, None)
    assert_same(model, logits(weights, IMAGES, (0, 1, 2, 3)), exactly=False)


def test_written_and_read_back_to_the_bit(tmp_path: Path) -> None:
    model = create("vmoe-digits", group=2).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save(model, tmp_path / "a.npz", format="google")
    again = load(tmp_path / "a.npz")
    images = torch.randn(3, 3, 8, 8)
    assert torch.equal(again(images), model(images))
    with np.load(tmp_path / "a.npz") as file:
        assert file["Encoder/encoderblock_1/Moe/Mlp/Dense_0/kernel"].shape == (4, 64, 128)
        assert file["Encoder/encoderblock_1/Moe/Router/dense/kernel"].shape == (64, 4)
        assert "Encoder/encoderblock_0/Mlp/Dense_0/kernel" in file


@pytest.mark.parametrize(
    "fields", [{"capacity": 2.0}, {"num_selected": 1}, {"batch_priority": True}, {"gelu": "exact"}], ids=str
)
def test_what_a_file_cannot_tell_is_not_written(tmp_path: Path, fields: dict[str, Any]) -> None:
    with pytest.raises(CannotHoldError, match=next(iter(fields))):
        save(create("vmoe-digits", **fields), tmp_path / "a.npz", format="google")
    with pytest.raises(CannotHoldError, match="family|plain ViTs"):
        save(create("vmoe-digits"), tmp_path / "a.safetensors", format="timm")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    weights = random_weights((1, 3))
    del weights["Encoder/encoderblock_1/Moe/Mlp/Dense_1/kernel"]
    reference.save(tmp_path / "a.npz", weights)
    with pytest.raises(CheckpointError, match="Encoder/encoderblock_1/Moe/Mlp/Dense_1/kernel' is missing"):
        load(tmp_path / "a.npz")
    weights = random_weights((0, 3))
    reference.save(tmp_path / "b.npz", weights)
    with pytest.raises(CheckpointError, match=r"experts in the layers \[0, 3\]"):
        load(tmp_path / "b.npz")
    weights = random_weights((1, 3))
    weights["Encoder/encoderblock_3/Moe/Mlp/Dense_0/bias"] = np.zeros((EXPERTS, 7), np.float32)
    reference.save(tmp_path / "c.npz", weights)
    with pytest.raises(CheckpointError, match="Dense_0/bias' has the shape"):
        load(tmp_path / "c.npz")


ROOM = {"num_experts": 4, "capacity": 2.0}  # for every token


@pytest.mark.parametrize("fields", [{}, {"num_selected": 4, "normalized": False}, {"num_selected": 1}], ids=str)
def test_an_upcycled_model_answers_as_the_dense_one(fields: dict[str, Any]) -> None:
    """Weights normalised, or those of all experts: either way they add up to 1."""
    dense = random_model(depth=4, layer_scale=0.5)
    dense.labels = tuple("abcde")
    sparse = upcycle(dense, **{**ROOM, "capacity": 4.0, **fields})
    assert isinstance(sparse, VMoE)
    assert sparse.labels == dense.labels
    assert_same(sparse, answers(dense).astype(np.float64), exactly=False)


def test_with_vmoes_own_weights_it_starts_as_another() -> None:
    """The MLP's part is multiplied by the sum of the two chosen gates, here nearly 2 of 4."""
    dense = random_model(depth=2)
    sparse = upcycle(dense, **ROOM, normalized=False)
    assert not np.allclose(answers(sparse), answers(dense), rtol=1e-2)
    z = torch.randn(2, 17, 32)
    experts, mlp = sparse.get_submodule("blocks.1.mlp"), dense.get_submodule("blocks.1.mlp")
    weights = (z @ sparse.get_parameter("blocks.1.mlp.router.dense.weight").T).softmax(-1).topk(2).values.sum(-1)
    torch.testing.assert_close(experts(z)[0], mlp(z) * weights[..., None], rtol=1e-4, atol=1e-5)


def test_upcycling_by_seed_and_its_errors() -> None:
    dense = random_model(depth=2)
    one, same, other = (upcycle(dense, **ROOM, seed=seed) for seed in (0, 0, 1))
    router = "blocks.1.mlp.router.dense.weight"
    assert torch.equal(one.get_parameter(router), same.get_parameter(router))
    assert not torch.equal(one.get_parameter(router), other.get_parameter(router))
    with pytest.raises(ConfigError, match="Only a plain ViT"):
        upcycle(one)
    with pytest.raises(ConfigError, match="change width before"):
        upcycle(dense, width=64)
    with pytest.raises(ConfigError, match="no field 'expert'"):
        upcycle(dense, expert=4)
