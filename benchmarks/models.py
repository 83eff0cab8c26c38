"""Speed of the models beside those of timm, transformers, vit-pytorch and torchvision, in one run.

    python benchmarks/models.py                        all models, eager and compiled: some hours on two cores
    python benchmarks/models.py --models ti s b --modes eager --rounds 9
    python benchmarks/models.py --models hybrid bit deit map cvt coatnet --modes eager --rounds 9

Forward passes and training steps (forward, cross-entropy, backward, AdamW) at 224 px in float32, interleaved round by
round. A ratio above 1 means that vitlab is faster; it is the median of the paired rounds, with its quartiles. A row is
a model, with a column for each library: a dash where it has no such model, or builds another.
"""

import argparse
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import vitlab
from timing import Timing, interleave, machine
from vitlab.core.peers import import_timm, import_torchvision
from vitlab.models.zoo.row import SIZES

PEERS = ("timm", "transformers", "vit-pytorch", "torchvision")
Build: TypeAlias = Callable[[], nn.Module]


@dataclass(frozen=True)
class Row:
    """A model of ours by its name in the zoo, and how each peer builds the same, with 1000 classes at 224 px."""

    name: str
    batch: int
    peers: Mapping[str, Build]
    changes: Mapping[str, Any] = field(default_factory=dict)  # to the row of the zoo, for the peers' activations

    def ours(self) -> nn.Module:
        return vitlab.create(self.name, image_size=224, num_classes=1000, **self.changes)


class Logits(nn.Module):
    """transformers' model, giving its logits."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(images).logits


def of_timm(name: str) -> Build:
    return lambda: import_timm().create_model(name, num_classes=1000)


def of_transformers(kind: str, model: str, **fields: Any) -> Build:
    """A model by the names of its configuration and class; attention is scaled_dot_product_attention by default."""

    def build() -> nn.Module:
        import_torchvision()  # transformers asks for it
        import transformers

        config = getattr(transformers, kind)(**fields)
        config.num_labels = 1000
        return Logits(getattr(transformers, model)(config))

    return build


def of_vit_pytorch(size: str) -> Build:
    depth, width, mlp_dim, heads = SIZES[size]

    def build() -> nn.Module:
        from vit_pytorch import ViT

        return ViT(
            image_size=224,
            patch_size=16,
            num_classes=1000,
            dim=width,
            depth=depth,
            heads=heads,
            mlp_dim=mlp_dim,
            dim_head=width // heads,
        )

    return build


def of_torchvision(size: str) -> Build:
    depth, width, mlp_dim, heads = SIZES[size]

    def build() -> nn.Module:
        import_torchvision()
        from torchvision.models import VisionTransformer

        return VisionTransformer(224, 16, depth, heads, width, mlp_dim)

    return build


def in_transformers(size: str) -> dict[str, int]:
    """A size of ViT in transformers' names."""
    depth, width, mlp_dim, heads = SIZES[size]
    return {
        "hidden_size": width,
        "num_hidden_layers": depth,
        "num_attention_heads": heads,
        "intermediate_size": mlp_dim,
    }


def plain(size: str, batch: int, timm_name: str) -> Row:
    peers = {
        "timm": of_timm(timm_name),
        "transformers": of_transformers("ViTConfig", "ViTForImageClassification", **in_transformers(size)),
        "vit-pytorch": of_vit_pytorch(size),
        "torchvision": of_torchvision(size),
    }
    return Row(f"vit-{size}16-224", batch, peers, {"gelu": "exact"})


ROWS: dict[str, Row] = {
    "ti": plain("ti", 16, "vit_tiny_patch16_224"),
    "s": plain("s", 8, "vit_small_patch16_224"),
    "b": plain("b", 4, "vit_base_patch16_224"),
    "map": Row(  # the attention pooling of ViT-g/14 and G/14, at a size that two cores can train
        "vit-b16-224",
        4,
        {"timm": of_timm("vit_base_patch16_siglip_224")},
        {"class_token": False, "pool": "attention", "gelu": "exact"},
    ),
    "deit": Row(
        "deit-s16-224",
        4,
        {
            "timm": of_timm("deit_small_distilled_patch16_224"),
            "transformers": of_transformers(
                "DeiTConfig", "DeiTForImageClassificationWithTeacher", **in_transformers("s")
            ),
        },
    ),
    "hybrid": Row("r26-vit-s32-224", 4, {"timm": of_timm("vit_small_r26_s32_224")}, {"gelu": "exact"}),
    "bit": Row(
        "bit-r50x1",
        4,
        {
            "timm": of_timm("resnetv2_50x1_bit"),
            "transformers": of_transformers("BitConfig", "BitForImageClassification"),
        },
    ),
    "cvt": Row(
        "cvt-13",
        4,
        {"transformers": of_transformers("CvtConfig", "CvtForImageClassification", drop_path_rate=[0.0] * 3)},
        {"gelu": "exact"},
    ),
    "coatnet": Row("coatnet-0", 4, {"timm": of_timm("coatnet_0_224")}),
}


def forward_of(model: nn.Module, images: Tensor) -> Callable[[], object]:
    model.eval()

    def run() -> Tensor:
        with torch.inference_mode():
            return model(images)

    return run


def training_step_of(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], object]:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def run() -> float:
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return run


TASKS = ("forward", "training step")


def measure(row: Row, mode: str, task: str, rounds: int) -> dict[str, Timing]:
    torch._dynamo.reset()
    images, labels = torch.randn(row.batch, 3, 224, 224), torch.randint(0, 1000, (row.batch,))
    candidates: dict[str, Callable[[], object]] = {}
    sizes: dict[str, int] = {}
    for name, build in {"vitlab": row.ours, **row.peers}.items():
        torch.manual_seed(0)
        model = build()
        sizes[name] = sum(parameter.numel() for parameter in model.parameters())
        if mode == "compiled":
            model.compile()
        candidates[name] = forward_of(model, images) if task == "forward" else training_step_of(model, images, labels)
    # vit-pytorch's q, k and v have no bias; whatever else differed would be another model.
    assert max(sizes.values()) < 1.003 * min(sizes.values()), sizes
    return interleave(candidates, rounds=rounds)


HEADER = ["model", "batch", "task", "mode", "vitlab img/s", *(f"vs {peer}" for peer in PEERS)]


def line(label: str, row: Row, mode: str, task: str, timings: Mapping[str, Timing]) -> str:
    ours = timings["vitlab"]
    cells = [label, str(row.batch), task, mode, f"{row.batch / ours.median:.2f}"]
    for peer in PEERS:
        if peer in timings:
            middle, low, high = ours.speed_over(timings[peer])
            cells.append(f"{middle:.2f} ({low:.2f} to {high:.2f})")
        else:
            cells.append("-")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--modes", nargs="+", default=["eager", "compiled"], choices=["eager", "compiled"])
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    print(f"{machine()}; {arguments.rounds} interleaved rounds, median and quartiles of the paired ratios.\n")
    print(f"| {' | '.join(HEADER)} |\n{'|-' * len(HEADER)}|", flush=True)
    for mode in arguments.modes:
        for name in arguments.models:
            row = ROWS[name]
            label = f"{row.name}, MAP" if name == "map" else row.name
            for task in arguments.tasks:
                timings = measure(row, mode, task, arguments.rounds)
                print(line(label, row, mode, task, timings), flush=True)


if __name__ == "__main__":
    main()
