"""Models on a real GPU: the kernels of our own against float64, and whole models against the CPU."""

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

import vitlab
from batches import labelled
from vitlab.core.compiling import compile_options
from vitlab.kernels import attention, folding
from vitlab.kernels.attention import MOST_TOKENS, short_attention, takes
from vitlab.models.contract import Layout
from vitlab.models.positions import apply_rotary, rotary_angles
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training.learner import Learner

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS")]


def reference(qkv: Tensor, heads: int, layout: Layout | None = None) -> Tensor:
    q, k, v = rearrange(qkv, "b n (three h d) -> three b h n d", three=3, h=heads)
    if layout is not None:
        angles = torch.complex(*rotary_angles(layout, q.shape[-1], q.device).double())[:, None]
        q, k = (angles * torch.complex(*x.chunk(2, dim=-1)) for x in (q, k))
        q, k = (torch.cat([x.real, x.imag], dim=-1) for x in (q, k))
    A = (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)
    return rearrange(A @ v, "b h n d -> b n (h d)")


def by_torch(qkv: Tensor, heads: int, layout: Layout | None = None) -> Tensor:
    q, k, v = rearrange(qkv, "b n (three h d) -> three b h n d", three=3, h=heads)
    if layout is not None:
        q, k = (apply_rotary(x.transpose(1, 2), layout).transpose(1, 2) for x in (q, k))
    return rearrange(F.scaled_dot_product_attention(q, k, v), "b h n d -> b n (h d)")


def error(found: Tensor, expected: Tensor) -> float:
    return ((found.double() - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("tokens", "heads", "width"),
    [(1, 2, 64), (4, 3, 16), (17, 4, 32), (50, 12, 64), (64, 6, 64), (65, 6, 64), (100, 3, 16), (128, 2, 64)],
)
def test_attention_over_few_tokens_is_as_exact_as_torchs(tokens: int, heads: int, width: int, dtype: torch.dtype):
    compare_attention(tokens, heads, width, dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("grid", "prefix", "kept", "heads", "width"),
    [((8, 8), 0, None, 6, 64), ((8, 8), 1, None, 6, 64), ((4, 5), 2, None, 3, 32), ((8, 8), 1, 16, 3, 64)],
)
def test_attention_with_rotary_positions_is_as_exact_as_torchs(
    grid: tuple[int, int], prefix: int, kept: int | None, heads: int, width: int, dtype: torch.dtype
):
    """Over all places, and over places of each image's own."""
    num = grid[0] * grid[1]
    present = None if kept is None else torch.stack([torch.randperm(num, device="cuda")[:kept] for _ in range(5)])
    layout = Layout(grid=grid, present=present, num_prefix=prefix)
    compare_attention(prefix + (kept or num), heads, width, dtype, layout)


def compare_attention(tokens: int, heads: int, width: int, dtype: torch.dtype, layout: Layout | None = None) -> None:
    """Output and gradient of the kernels and of torch's attention beside those in float64."""
    generator = torch.Generator("cuda").manual_seed(0)
    qkv = torch.randn(5, tokens, 3 * heads * width, device="cuda", dtype=dtype, generator=generator) * 2
    weights = torch.randn(5, tokens, heads * width, device="cuda", dtype=dtype, generator=generator)
    angles = None if layout is None else rotary_angles(layout, width, qkv.device)

    def both(function, values: Tensor, places: Layout | Tensor | None) -> tuple[Tensor, Tensor]:  # pyright: ignore[reportMissingParameterType]
        values = values.clone().requires_grad_()
        out = function(values, heads, places)
        (gradient,) = torch.autograd.grad(out, values, weights.to(values.dtype))
        return out.detach(), gradient

    found, torchs = both(short_attention, qkv, angles), both(by_torch, qkv, layout)
    for ours, others, right in zip(found, torchs, both(reference, qkv.double(), layout), strict=True):
        if right.norm() > 0:  # one token: q and k have no gradient, v's is all
            assert error(ours, right) < 1.5 * error(others, right) + 1e-4


def test_attention_over_few_tokens_reads_a_batch_past_the_reach_of_32_bits():
    qkv = torch.zeros(90_000, 128, 3 * 64, device="cuda", dtype=torch.bfloat16)  # 2.2e9 numbers
    qkv[-1] = torch.randn(128, 3 * 64, device="cuda")
    torch.testing.assert_close(short_attention(qkv, 1)[-1], short_attention(qkv[-1:].clone(), 1)[0])


def test_attention_over_few_tokens_is_a_well_behaved_operator():
    qkv = torch.randn(2, 5, 3 * 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.library.opcheck(short_attention, (qkv, 2))
    qkv = torch.randn(2, 5, 3 * 64, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    torch.library.opcheck(short_attention, (qkv, 2, rotary_angles(Layout(grid=(2, 2), num_prefix=1), 32, qkv.device)))


def test_a_model_uses_it_where_it_can(monkeypatch: pytest.MonkeyPatch):
    torch.manual_seed(0)
    used: list[int] = []

    def spy(qkv: Tensor, heads: int, angles: Tensor | None) -> Tensor:
        used.append(qkv.shape[1])
        return short_attention(qkv, heads, angles)

    monkeypatch.setattr(attention, "short_attention", spy)
    for size, expected in ((32, [65] * 11), (64, [])):  # the last layer has one query; 257 tokens are too many
        model = vitlab.create("vit-ti4-32", image_size=size, num_classes=3).cuda().eval()
        with torch.no_grad():
            model.head.weight.normal_()  # pyright: ignore[reportCallIssue]
            images = torch.randn(64, 3, size, size)  # many: the error of a few logits is a matter of luck
            with torch.autocast("cuda", torch.bfloat16):
                found = model(images.cuda())
            assert used == expected
            used.clear()
            with monkeypatch.context() as patch, torch.autocast("cuda", torch.bfloat16):
                patch.setattr(attention, "takes", lambda *_, **__: False)
                torchs = model(images.cuda())
            right = model.cpu()(images).double().cuda()
            assert not used
            assert error(found, right) < 2 * error(torchs, right) + 1e-3
    assert not takes(torch.zeros(1, 4, 3 * 128, device="cuda"), 2)  # float32
    assert not takes(torch.zeros(1, MOST_TOKENS + 1, 3 * 128, device="cuda", dtype=torch.bfloat16), 2)
    assert not takes(torch.zeros(1, 4, 3 * 80, device="cuda", dtype=torch.bfloat16), 1)  # H/14's heads
    assert not takes(torch.zeros(1, 4, 3 * 32, device="cuda", dtype=torch.bfloat16), 2, rotary=True)  # halves of 8


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("width", "rows"),
    [(24, (5, 40, 8)), (200, (3, 1000)), (384, (1152, 1536) * 2), (96, (288, 130) * 25)],  # the last: two launches
)
def test_norms_are_folded_into_all_layers_at_once(width: int, rows: tuple[int, ...], dtype: torch.dtype):
    torch.manual_seed(0)
    weights, biases = [torch.randn(n, width) for n in rows], [torch.randn(n + 1)[1:] for n in rows]
    learnt = [weights, biases, *([torch.randn(width) for _ in rows] for _ in range(2))]
    given = [torch.randn_like(value).to(dtype) for value in (*weights, *biases)]
    exact = [[value.double().requires_grad_() for value in values] for values in learnt]
    right = [w * s for w, _, s, _ in zip(*exact, strict=True)] + [w @ t + b for w, b, _, t in zip(*exact, strict=True)]
    by_right = torch.autograd.grad(right, [x for values in exact for x in values], [g.double() for g in given])
    there = [[value.cuda().requires_grad_() for value in values] for values in learnt]
    there[1][0] = torch.cat([there[1][0].new_zeros(1), there[1][0].detach()])[1:].requires_grad_()  # not aligned
    found = folding.fold(*there, dtype)
    by_found = torch.autograd.grad(found, [x for values in there for x in values], [g.cuda() for g in given])
    rounding = 3e-3 if dtype is torch.bfloat16 else 1e-6
    assert all(value.dtype == dtype for value in found)
    for a, b in zip(found, right, strict=True):
        assert error(a.cpu(), b) < rounding
    for a, b in zip(by_found, by_right, strict=True):
        assert error(a.cpu(), b) < 1e-6


@pytest.mark.compiled
def test_norms_folded_into_the_next_layer_are_as_exact(monkeypatch: pytest.MonkeyPatch):
    """Compiled in bf16, the gradients of both forms beside those in float64."""
    torch.manual_seed(0)
    model = vitlab.create("vit-ti4-32", num_classes=3, depth=3).train()
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.add_(torch.randn_like(value), alpha=0.5 if "norm" in name else 0.02)
    images, labels = torch.randn(64, 3, 32, 32), torch.arange(64) % 3

    learner = Learner(model, Supervised(CrossEntropy()))
    learner.fold_norms()

    def gradients() -> dict[str, Tensor]:
        torch._dynamo.reset()
        model.zero_grad()
        batch = labelled(images.cuda(), F.one_hot(labels.cuda(), 3).float())
        with torch.autocast("cuda", torch.bfloat16):
            compiled = torch.compile(learner, options=compile_options(torch.device("cuda")))
            loss, _ = compiled(batch, torch.zeros((), device="cuda"), "train")
        loss.backward()
        return {name: value.grad.cpu() for name, value in model.named_parameters() if value.grad is not None}

    F.cross_entropy(model.double()(images.double()), labels).backward()
    right = {name: value.grad.clone() for name, value in model.named_parameters() if value.grad is not None}
    model.float().cuda()
    folded = gradients()
    monkeypatch.setattr(folding, "WIDEST", 0)
    plain = gradients()
    assert right.keys() == folded.keys() == plain.keys()
    assert any(not torch.equal(folded[name], plain[name]) for name in right)
    for name, value in right.items():
        assert error(folded[name], value) < 1.5 * error(plain[name], value) + 2e-3, name
