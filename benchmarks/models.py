"""Speed of the ViT beside timm, transformers, vit-pytorch and torchvision, in one run.

    python benchmarks/models.py                        all sizes, eager and compiled: about an hour on two cores
    python benchmarks/models.py --sizes ti --modes eager --rounds 5

Forward passes and training steps (forward, cross-entropy, backward, AdamW) at 224 px in float32, interleaved round by
round. A ratio above 1 means that vitlab is faster; it is the median of the paired rounds, with its quartiles.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitlab
from timing import Timing, interleave, machine
from vitlab.core.peers import import_timm, import_torchvision
from vitlab.models.zoo import SIZES

BATCH = {"ti": 16, "s": 8, "b": 4}
TIMM_NAMES = {"ti": "vit_tiny_patch16_224", "s": "vit_small_patch16_224", "b": "vit_base_patch16_224"}


class Logits(nn.Module):
    """transformers' model, giving its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def builders(size: str) -> dict[str, Callable[[], nn.Module]]:
    """Each library's model of that size, with 1000 classes at 224 px."""
    depth, width, mlp_dim, heads = SIZES[size]
    import_torchvision()
    timm = import_timm()
    from torchvision.models import VisionTransformer
    from transformers import ViTConfig, ViTForImageClassification
    from vit_pytorch import ViT

    hf = ViTConfig(hidden_size=width, num_hidden_layers=depth, num_attention_heads=heads, intermediate_size=mlp_dim)
    hf.num_labels = 1000  # its attention is scaled_dot_product_attention unless told otherwise
    return {
        "vitlab": lambda: vitlab.create(f"vit-{size}16-224", gelu="exact"),  # the peers' GELU
        "timm": lambda: timm.create_model(TIMM_NAMES[size]),
        "transformers": lambda: Logits(ViTForImageClassification(hf)),
        "vit-pytorch": lambda: ViT(
            image_size=224,
            patch_size=16,
            num_classes=1000,
            dim=width,
            depth=depth,
            heads=heads,
            mlp_dim=mlp_dim,
            dim_head=width // heads,
        ),
        "torchvision": lambda: VisionTransformer(224, 16, depth, heads, width, mlp_dim),
    }


def forward_of(model: nn.Module, images: Tensor) -> Callable[[], object]:
    model.eval()

    def run() -> Tensor:
        with torch.inference_mode():
            return model(images)

    return run


def training_step_of(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    model.train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> float:
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        return loss.item()

    return run


def measure(size: str, mode: str, task: str, rounds: int) -> dict[str, Timing]:
    torch._dynamo.reset()
    images, labels = torch.randn(BATCH[size], 3, 224, 224), torch.randint(0, 1000, (BATCH[size],))
    candidates: dict[str, Callable[[], object]] = {}
    for name, build in builders(size).items():
        torch.manual_seed(0)
        model = build()
        if mode == "compiled":
            model.compile()
        candidates[name] = forward_of(model, images) if task == "forward" else training_step_of(model, images, labels)
    return interleave(candidates, rounds=rounds)


def table(rows: list[tuple[str, str, str, dict[str, Timing]]]) -> str:
    lines = [
        "| model | batch | task | mode | vitlab img/s | vs timm | vs transformers | vs vit-pytorch | vs torchvision |",
        "|-|-|-|-|-|-|-|-|-|",
    ]
    for size, mode, task, timings in rows:
        ours = timings["vitlab"]
        cells = [f"{BATCH[size] / ours.median:.2f}"]
        for peer in ("timm", "transformers", "vit-pytorch", "torchvision"):
            middle, low, high = ours.speed_over(timings[peer])
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        lines.append(f"| {size.capitalize()}/16 | {BATCH[size]} | {task} | {mode} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["ti", "s", "b"], choices=list(BATCH))
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--tasks", nargs="+", default=["forward", "training step"])
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    rows: list[tuple[str, str, str, dict[str, Timing]]] = []
    for mode in arguments.modes:
        for size in arguments.sizes:
            for task in arguments.tasks:
                rows.append((size, mode, task, measure(size, mode, task, arguments.rounds)))
                print(table(rows[-1:]).splitlines()[-1], file=sys.stderr, flush=True)
    print(f"{machine()}; {arguments.rounds} interleaved rounds, median and quartiles of the paired ratios.\n")
    print(table(rows))


if __name__ == "__main__":
    main()
