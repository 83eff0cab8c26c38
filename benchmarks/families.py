"""Speed of the other families beside the peer that has each, in one run.

    python benchmarks/families.py                      all families, eager: some four minutes on two cores
    python benchmarks/families.py --families cvt --rounds 9

As in benchmarks/models.py: forward passes and training steps at 224 px in float32, interleaved round by round. A ratio
above 1 means that vitlab is faster.
"""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")
sys.path.insert(0, str(Path(__file__).parent))

import torch
from torch import nn

import vitlab
from models import Logits, forward_of, training_step_of
from timing import Timing, interleave, machine
from vitlab.core.peers import import_timm, import_torchvision

BATCH = 4
OURS = {
    "hybrid": "r26-vit-s32-224",
    "bit": "bit-r50x1",
    "deit": "deit-s16-224",
    "cvt": "cvt-13",
    "coatnet": "coatnet-0",
}
TIMM_NAMES = {
    "hybrid": "vit_small_r26_s32_224",
    "bit": "resnetv2_50x1_bit",
    "deit": "deit_small_distilled_patch16_224",
    "coatnet": "coatnet_0_224",
}


def builders(family: str) -> tuple[str, dict[str, Callable[[], nn.Module]]]:
    """The peer, and both models with 1000 classes at 224 px."""
    gelu = {"gelu": "exact"} if family in ("hybrid", "deit") else {}  # the peer's

    def ours() -> nn.Module:
        return vitlab.create(OURS[family], image_size=224, num_classes=1000, **gelu)

    def theirs() -> nn.Module:
        if family != "cvt":
            return import_timm().create_model(TIMM_NAMES[family])
        import_torchvision()  # transformers asks for it
        from transformers import CvtConfig, CvtForImageClassification

        config = CvtConfig()
        config.num_labels = 1000
        return Logits(CvtForImageClassification(config))

    return "transformers" if family == "cvt" else "timm", {"vitlab": ours, "peer": theirs}


def measure(family: str, task: str, rounds: int) -> tuple[str, dict[str, Timing]]:
    images, labels = torch.randn(BATCH, 3, 224, 224), torch.randint(0, 1000, (BATCH,))
    peer, building = builders(family)
    candidates: dict[str, Callable[[], object]] = {}
    for name, build in building.items():
        torch.manual_seed(0)
        model = build()
        candidates[name] = forward_of(model, images) if task == "forward" else training_step_of(model, images, labels)
    return peer, interleave(candidates, rounds=rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--families", nargs="+", default=list(OURS), choices=list(OURS))
    parser.add_argument("--tasks", nargs="+", default=["forward", "training step"])
    parser.add_argument("--rounds", type=int, default=9)
    arguments = parser.parse_args()
    print(f"{machine()}; {arguments.rounds} interleaved rounds, median and quartiles of the paired ratios.\n")
    print("| model | batch | task | vitlab img/s | beside | speed over it |\n|-|-|-|-|-|-|")
    for family in arguments.families:
        for task in arguments.tasks:
            peer, timings = measure(family, task, arguments.rounds)
            middle, low, high = timings["vitlab"].speed_over(timings["peer"])
            rate = f"{BATCH / timings['vitlab'].median:.2f}"
            print(
                f"| {OURS[family]} | {BATCH} | {task} | {rate} | {peer} | {middle:.2f} ({low:.2f} to {high:.2f}) |",
                flush=True,
            )


if __name__ == "__main__":
    main()
