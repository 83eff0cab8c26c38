"""The model against torch's own Transformer layers, the paper's worked example, and its own contract."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitlab.core.errors import ConfigError, ImageError
from vitlab.models.create import create, empty_model
from vitlab.models.heads import AttentionPool
from vitlab.models.vit import Block, Mlp, ViT, ViTConfig

SMALL = {"image_size": (16, 24), "patch_size": 8, "width": 32, "depth": 3, "mlp_dim": 48, "heads": 4, "num_classes": 5}


def small(**changes: object) -> ViT:
    """A small model whose every parameter is random, zero-initialised ones included."""
    model = ViT(ViTConfig(**{**SMALL, **changes}))
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3, generator=generator)
    return model.eval()


def torch_layer(block: Block, *, norm_first: bool) -> nn.TransformerEncoderLayer:
    """torch's encoder layer with the block's weights."""
    layer = nn.TransformerEncoderLayer(
        32, 4, 48, dropout=0.0, activation="gelu", layer_norm_eps=1e-6, batch_first=True, norm_first=norm_first
    )
    layer.self_attn.in_proj_weight.data = block.attention.qkv.weight.data
    layer.self_attn.in_proj_bias.data = block.attention.qkv.bias.data
    layer.self_attn.out_proj = block.attention.out  # pyright: ignore[reportAttributeAccessIssue]
    layer.norm1, layer.norm2 = block.norm1, block.norm2
    layer.linear1, layer.linear2 = block.mlp.up, block.mlp.down
    return layer.train()  # the fused inference path is another kernel; without dropout training is the same function


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_encoder_is_torchs_transformer(norm: str) -> None:
    model = small(norm=norm, gelu="exact")
    tokens = model.embed(torch.randn(2, 3, 16, 24))
    z = tokens.values
    for block in model.blocks:
        assert isinstance(block, Block)
        z = torch_layer(block, norm_first=norm == "pre")(z)
    if norm == "pre":
        assert model.norm is not None
        z = model.norm(z)
    torch.testing.assert_close(model.encode(tokens).values, z, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(model(torch.zeros(1, 3, 16, 24)).shape, torch.Size([1, 5]))


def test_attention_pool_is_torchs_attention() -> None:
    pool = AttentionPool(32, 4, Mlp(ViTConfig(**SMALL)), 1e-6)
    for parameter in pool.parameters():
        nn.init.normal_(parameter, std=0.3)
    z = torch.randn(2, 7, 32)
    attention = nn.MultiheadAttention(32, 4, batch_first=True)
    attention.in_proj_weight.data = torch.cat([pool.q.weight, pool.kv.weight])
    attention.in_proj_bias.data = torch.cat([pool.q.bias, pool.kv.bias])
    attention.out_proj = pool.out  # pyright: ignore[reportAttributeAccessIssue]
    pooled = attention(pool.probe.expand(2, -1, -1), z, z, need_weights=False)[0]
    torch.testing.assert_close(pool(z), (pooled + pool.mlp(pool.norm(pooled)))[:, 0], rtol=1e-5, atol=1e-5)


def test_the_slides_worked_example() -> None:
    model = create("vit-cifar-d128")
    assert isinstance(model, ViT)
    images = torch.randn(1, 3, 32, 32)
    patches, grid = model.patches(images)
    assert grid == (8, 8)
    assert patches.shape == (1, 64, 48)
    assert model.projection(patches).shape == (1, 64, 128)
    assert model.embed(images).values.shape == (1, 65, 128)
    assert torch.equal(patches[0, 9], images[0, :, 4:8, 4:8].flatten())  # second row, second column


def test_projection_is_the_strided_convolution() -> None:
    model = small()
    images = torch.randn(2, 3, 16, 24)
    kernel = model.projection.weight.reshape(32, 3, 8, 8)
    convolved = F.conv2d(images, kernel, model.projection.bias, stride=8).flatten(2).transpose(1, 2)
    torch.testing.assert_close(model.projection(model.patches(images)[0]), convolved, rtol=1e-5, atol=1e-5)


VARIANTS: list[dict[str, object]] = [
    {},
    {"class_token": False, "pool": "mean", "norm_pooled": True},
    {"class_token": False, "pool": "attention"},
    {"pool": "token+mean", "num_registers": 1, "norm_pooled": True},
    {"distill_token": True, "positions_for_prefix": 2},
    {"num_registers": 3, "positions_for_prefix": 0},
    {"positions": "none"},
    {"positions": "learned", "positions_at": "every"},
    {"positions": "learned", "positions_at": "shared"},
    {"positions": "learned2d"},
    {"positions": "learned2d", "positions_at": "every"},
    {"positions": "learned2d", "positions_at": "shared"},
    {"positions": "sincos1d"},
    {"positions": "sincos2d", "positions_at": "shared"},
    {"positions": "relative"},
    {"positions": "relative", "positions_at": "shared"},
    {"positions": "relative2d"},
    {"rotary": True},
    {"rotary": True, "qk_norm": True, "num_registers": 2},
    {"rotary": True, "rotary_unit": "image", "positions": "none"},
    {"norm": "post"},
    {"norm_stem": True, "gelu": "quick", "patch_bias": False},
    {"qk_norm": True, "layer_scale": 0.1, "gated_mlp": True, "qkv_bias": False},
    {"representation": 16},
]
ids = ["-".join(f"{k}={v}" for k, v in variant.items()) or "paper" for variant in VARIANTS]


@pytest.mark.parametrize("variant", VARIANTS, ids=ids)
class TestEveryVariant:
    def test_forward_is_the_four_steps(self, variant: dict[str, object]) -> None:
        model, images = small(**variant), torch.randn(2, 3, 16, 24)
        steps = model.head(model.pool(model.encode(model.embed(images))))
        torch.testing.assert_close(model(images), steps, rtol=1e-5, atol=1e-5)
        assert model.pool(model.encode(model.embed(images))).shape == (2, model.num_features)

    def test_any_resolution(self, variant: dict[str, object]) -> None:
        model = small(**variant)
        assert model(torch.randn(1, 3, 32, 8)).shape == (1, 5)
        assert model(torch.randn(1, 3, 8, 8)).isfinite().all()

    def test_gradients_reach_every_parameter(self, variant: dict[str, object]) -> None:
        model = small(**variant).train()
        model(torch.randn(2, 3, 16, 24)).square().sum().backward()
        assert [name for name, value in model.named_parameters() if value.grad is None] == []

    def test_no_nan_is_left_after_initialisation(self, variant: dict[str, object]) -> None:
        model = empty_model(ViTConfig(**{**SMALL, **variant})).to_empty(device="cpu")
        for value in model.state_dict().values():
            value.fill_(math.nan)
        model.initialize()
        assert all(value.isfinite().all() for value in model.state_dict().values())
        assert model(torch.randn(1, 3, 16, 24)).abs().max() == 0  # the head starts at zero

    def test_order_of_a_subset_does_not_matter(self, variant: dict[str, object]) -> None:
        """Tokens carry their places with them: all of them, shuffled, give the same features."""
        model, images = small(**variant), torch.randn(2, 3, 16, 24)
        tokens = model.embed(images)
        shuffled = torch.stack([torch.randperm(6), torch.randperm(6)])
        torch.testing.assert_close(
            model.pool(model.encode(tokens.keep(shuffled))), model.pool(model.encode(tokens)), rtol=1e-4, atol=1e-5
        )


def test_a_subset_attends_to_itself_alone() -> None:
    model = small(gelu="exact")
    tokens = model.embed(torch.randn(2, 3, 16, 24)).keep(torch.tensor([[4, 1, 2], [0, 5, 3]]))
    assert tokens.values.shape == (2, 1 + 3, 32)
    z = tokens.values
    for block in model.blocks:
        assert isinstance(block, Block)
        z = torch_layer(block, norm_first=True)(z)
    torch.testing.assert_close(model.encode(tokens).values, model.norm(z) if model.norm else z, rtol=1e-5, atol=1e-5)


def test_features_are_the_layers_inputs_and_outputs() -> None:
    model, images = small(), torch.randn(2, 3, 16, 24)
    seen: list[torch.Tensor] = []
    for block in model.blocks:
        block.register_forward_hook(lambda _m, _a, out: seen.append(out))  # pyright: ignore[reportArgumentType]
    layers = model.features(images)
    assert len(layers) == 1 + model.config.depth
    assert torch.equal(layers[0].values, model.embed(images).values)
    assert all(torch.equal(a.values, b) for a, b in zip(layers[1:], seen, strict=False))
    assert model.norm is not None
    torch.testing.assert_close(model.norm(layers[-1].values), model.encode(model.embed(images)).values)


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "relative"}, {"positions": "relative2d"}, {"rotary": True}], ids=str
)
def test_tapped_attention_is_what_the_layer_used(changes: dict[str, object]) -> None:
    """Rebuilding the layer's output from the recomputed A gives the fused product's."""
    model, images = small(**changes), torch.randn(2, 3, 16, 24)
    for tap in model.taps.attention:
        calls: list[tuple[tuple[object, ...], torch.Tensor]] = []
        handle = tap.module.register_forward_hook(lambda _m, args, out, calls=calls: calls.append((args, out)))
        model.features(images)
        handle.remove()
        (args, out) = calls[0]
        attention = tap.recompute(*args)
        assert attention.shape == (2, 4, 7, 7)
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4, 7))
        _, _, v = tap.module.project(args[0], args[1])  # pyright: ignore[reportCallIssue]
        rebuilt = tap.module.out((attention @ v).transpose(1, 2).flatten(2))  # pyright: ignore[reportCallIssue]
        torch.testing.assert_close(rebuilt, out, rtol=1e-5, atol=1e-5)


def test_taps_show_filters_and_positions() -> None:
    model = small()
    assert model.taps.filters is not None
    assert model.taps.positions is not None
    assert model.taps.filters().shape == (32, 3, 8, 8)
    assert model.taps.positions().shape == (6, 32)
    assert small(positions="relative").taps.positions is None


def test_padding_is_zero_pixels_to_the_right_and_below() -> None:
    model = small(indivisible="pad")
    images = torch.randn(1, 3, 13, 20)
    torch.testing.assert_close(model(images), model(F.pad(images, (0, 4, 0, 3))))
    with pytest.raises(ImageError, match=r"13 x 20 px.*indivisible='pad'"):
        small()(images)


def test_wrong_channels_are_refused() -> None:
    with pytest.raises(ImageError, match="3 channels, not 1"):
        small()(torch.randn(1, 1, 16, 24))


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    images = torch.randn(2, 3, 16, 24)
    gradients = []
    for checkpointed in (False, True):
        model = small(checkpoint_blocks=checkpointed).train()
        model(images).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_stochastic_depth_drops_whole_parts_and_keeps_the_mean() -> None:
    block = small(drop_path=0.5).blocks[2].train()
    assert isinstance(block, Block)
    assert block.drop_path == 0.5
    torch.manual_seed(0)
    out = block.residual(torch.ones(4000, 3, 2), None)
    per_image = out[:, 0, 0]
    assert set(per_image.tolist()) == {0.0, 2.0}
    assert torch.equal(out, per_image[:, None, None].expand_as(out))
    assert per_image.mean().item() == pytest.approx(1, abs=0.06)
    first = small(drop_path=0.5).blocks[0]
    assert isinstance(first, Block)
    assert first.drop_path == 0


def test_dropout_acts_in_training_only() -> None:
    model, images = small(dropout=0.5, attention_dropout=0.5), torch.randn(1, 3, 16, 24)
    assert torch.equal(model(images), model(images))
    model.train()
    assert not torch.equal(model(images), model(images))


@pytest.mark.parametrize("changes", [{}, {"class_token": False, "pool": "mean", "rotary": True}])
def test_patch_dropout_leaves_out_patches_of_each_image(changes: dict[str, object]) -> None:
    """As many as timm's PatchDropout leaves, each image's own, every place as often; the others are as they were."""
    model, images = small(image_size=(32, 48), patch_dropout=0.4, **changes), torch.randn(64, 3, 32, 48)
    whole = model.embed(images)
    assert whole.present is None
    torch.manual_seed(0)
    drawn = [model.train().embed(images) for _ in range(20)]
    places = [tokens.present for tokens in drawn if tokens.present is not None]
    assert [tuple(each.shape) for each in places] == [(64, 14)] * 20  # int(24 * 0.6)
    assert all(len(set(row)) == 14 for each in places for row in each.tolist())
    assert len({tuple(sorted(row)) for row in places[-1].tolist()}) > 60
    counts = torch.cat(places).flatten().bincount(minlength=24)
    assert abs(counts / counts.float().mean() - 1).max() < 0.1  # 747 of each, with a deviation of 17
    some, index = drawn[-1], places[-1][:, :, None].expand(-1, -1, model.config.width)
    torch.testing.assert_close(some.patches, whole.patches.gather(1, index), rtol=0, atol=0)
    torch.testing.assert_close(some.prefix, whole.prefix, rtol=0, atol=0)
    assert model(images).shape == (64, 5)


def test_patch_dropout_is_refused_where_all_patches_are_needed() -> None:
    with pytest.raises(ConfigError, match="every patch needs all of them"):
        small(patch_dropout=0.5, head="patches")
    with pytest.raises(ConfigError, match="leave patch_dropout out"):
        create("axial-vit-digits", patch_dropout=0.5)


@pytest.mark.parametrize(
    ("gelu", "reference"),
    [
        ("exact", lambda x: x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))),
        ("tanh", lambda x: 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))),
        ("quick", lambda x: x / (1 + torch.exp(-1.702 * x))),
    ],
)
def test_gelus(gelu: str, reference: object) -> None:
    mlp = Mlp(ViTConfig(**SMALL, gelu=gelu))  # pyright: ignore[reportArgumentType]
    z = torch.randn(2, 3, 32)
    torch.testing.assert_close(mlp(z), mlp.down(reference(mlp.up(z))))  # pyright: ignore[reportCallIssue]


def test_distilled_head_is_the_mean_of_two() -> None:
    model, images = small(distill_token=True), torch.randn(2, 3, 16, 24)
    tokens = model.encode(model.embed(images)).values
    label, teacher = model.head.both(model.pool(model.encode(model.embed(images))))  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(label, model.head.label(tokens[:, 0]))  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(teacher, model.head.teacher(tokens[:, 1]))  # pyright: ignore[reportCallIssue]
    torch.testing.assert_close(model(images), (label + teacher) / 2, rtol=1e-5, atol=1e-5)


def test_initialisation_has_the_official_spread() -> None:
    torch.manual_seed(0)
    model = create("vit-s16-224")
    assert isinstance(model, ViT)
    block = model.blocks[0]
    assert isinstance(block, Block)
    bound = math.sqrt(6 / (384 + 384))  # Xavier of a [384, 384] kernel, not of the fused [384, 1152]
    assert block.attention.qkv.weight.abs().max().item() == pytest.approx(bound, rel=1e-3)
    assert block.mlp.up.weight.std().item() == pytest.approx(math.sqrt(2 / (384 + 1536)), rel=0.02)
    assert model.projection.weight.std().item() == pytest.approx(768**-0.5, rel=0.02)
    assert model.prefix is not None
    assert model.prefix.abs().sum() == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": 5}, "not divisible by the 5 heads"),
        ({"image_size": (17, 24)}, "do not divide an image of 17 x 24"),
        ({"class_token": False}, "needs class_token=True"),
        ({"positions": "relative", "positions_at": "stem"}, "'every' or 'shared'"),
        ({"positions": "sincos2d", "width": 30, "heads": 3}, "width that 4 divides"),
        ({"drop_path": 1.0}, "below 1"),
        ({"depth": -1}, "depth must be at least 0"),
        ({"distill_token": True, "pool": "mean"}, "needs pool='token'"),
        ({"patch_size": 0}, "at least 1"),
        ({"representation": 0}, "representation must be at least 1"),
        ({"norm_eps": float("nan")}, "norm_eps must be above 0 and finite"),
        ({"norm_eps": -1e-6}, "norm_eps must be above 0"),
        ({"layer_scale": float("inf")}, "layer_scale must be at least 0 and finite"),
        ({"rotary": True, "width": 24}, "width that 4 divides"),
        ({"rotary": True, "positions": "relative"}, "not relative"),
    ],
)
def test_contradictions_are_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        small(**changes)
