"""The short runs that benchmarks/same_bits.py compares: command lines that old and new trees understand.

They run in the folder `before` or `now`, beside `data`, and write to `runs/NAME`.
"""

import shlex
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

# this tree's name for an option, a recipe or a row of the zoo: what it was called in earlier trees
RENAMED: dict[str, str] = {
    "--optimizer.ema": "--optimiser.average",
    "--optimizer.lr": "--optimiser.rate",
    "--optimizer.name": "--optimiser.name",
    "--optimizer.sam": "--optimiser.sam",
    "--strategy": "--spread",
}

SHORT = (
    '--device cpu --schedule.total "12 steps" --schedule.warmup "2 steps" --batch-size 32 --data.workers 0'
    ' --evaluate-every "6 steps" --checkpoint-every "6 steps" --log-every "4 steps"'
)
DIGITS = "--data.source digits"
VIT = "--model.source vit-digits"  # in the place of a recipe's own
TINY = "--model.set width=32 depth=2 mlp_dim=64 heads=4"
DEIT = "--model.source deit-ti16-224 --model.image-size 8 --model.set patch_size=2 width=32 depth=2 mlp_dim=64 heads=4"
CVT = (
    "--model.image-size 32 --model.set widths=[32,64] depths=[1,2] heads=[1,2] patch_sizes=[7,3] patch_strides=[4,2]"
    " patch_paddings=[2,1]"
)
COATNET = (
    "--model.image-size 32 --model.set stem=[16,16] kinds=[conv,attention] depths=[1,2] widths=[32,64] strides=[2,2]"
    " representation=64"
)
BIT = "--model.source bit-r50x1 --model.image-size 32 --model.set layers=[1,1] width=32"
TRAINED_VIT, TRAINED_BIT = "../before/runs/trained-vit", "../before/runs/trained-bit"


@dataclass(frozen=True)
class Case:
    """A run: the words after `vitlab`, over so many processes, and whether it is killed and resumed."""

    name: str
    words: str
    processes: int = 1
    resumed: bool = False

    @property
    def run(self) -> str:
        return f"runs/{self.name}"

    @property
    def command(self) -> str:
        return f"{self.words} --out {self.run}"


def _train(
    name: str, recipe: str, *options: str, short: str = SHORT, processes: int = 1, resumed: bool = False
) -> Case:
    return Case(name, shlex.join(["train", recipe, *shlex.split(" ".join((short, *options)))]), processes, resumed)


LONGER = SHORT.replace("12 steps", "80 steps").replace('--checkpoint-every "6 steps"', '--checkpoint-every "3 steps"')

# what fine-tuning starts from, and teachers; made by the earlier tree
TRAINED = (
    _train("trained-vit", "digits", TINY),
    _train("trained-bit", "bit-r152x4-imagenet", DIGITS, BIT, "--no-compile"),
)

CASES = (
    # ways of training, by the recipe for digits
    _train("digits", "digits"),
    _train("mixup-ema", "digits", TINY, "--augmentation.mixup 0.8 --augmentation.cutmix 1 --optimizer.ema 0.9"),
    _train("class-weights", "digits", TINY, "--loss.class-weights --optimizer.name adamw"),
    _train("balanced", "digits", TINY, "--data.balanced --optimizer.name lion --optimizer.lr 3e-4"),
    _train("lora", "digits", f"--model.source {TRAINED_VIT} --model.pretrained --model.lora 2 --model.set"),
    _train(
        "head-alone", "digits", f"--model.source {TRAINED_VIT} --model.pretrained --model.train-only head --model.set"
    ),
    _train("soft-teacher", "digits", TINY, f"--teacher.source {TRAINED_VIT} --teacher.kind soft"),
    _train("accumulation", "digits", TINY, "--accumulate 4"),
    _train("sam", "digits", TINY, "--optimizer.sam 0.05"),
    _train("repeats", "digits", TINY, "--data.repeats 3 --augmentation.policy randaugment --augmentation.erase 0.5"),
    _train("best-kept", "digits", TINY, "--keep best --patience 5"),
    _train("several-labels", "digits", TINY, "--data.source ../data/several.csv --batch-size 16"),
    _train("workers", "digits", TINY, "--data.source ../data/photos --data.resident False --data.workers 2"),
    _train("resumed", "digits", TINY, short=LONGER, resumed=True),
    _train(
        "resumed-workers",
        "digits",
        TINY,
        "--data.source ../data/photos --data.resident False --data.workers 2",
        short=LONGER,
        resumed=True,
    ),
    _train("two-copies", "digits", TINY, "--strategy replicate", processes=2),
    _train("two-shards", "digits", TINY, "--strategy shard --optimizer.name adamw", processes=2),
    _train("spread-experts", "vmoe-digits", "--strategy experts", processes=2),
    # the families of recipes
    _train("small", "cifar10", DIGITS, VIT, "--model.image-size 8 --augmentation.pad 1 --no-compile"),
    _train(
        "box",
        "vitlab-tiny-64",
        DIGITS,
        VIT,
        f"--objective.teacher {TRAINED_VIT} --model.image-size 8 --model.drop-path 0 --no-compile",
    ),
    _train("masked-patches", "masked-patches-digits"),
    _train("mae", "mae-digits"),
    _train("pretraining", "vit-b32-jft", DIGITS, VIT, "--no-compile"),
    _train("finetuning", "finetune-cifar10", DIGITS, f"--model.source {TRAINED_VIT} --model.image-size 16"),
    _train("bit", "bit-cifar10", DIGITS, f"--model.source {TRAINED_BIT} --model.image-size 32"),
    _train("cvt", "cvt-13-imagenet", DIGITS, CVT, "--no-compile"),
    _train("coatnet", "coatnet-0-imagenet", DIGITS, COATNET, "--no-compile"),
    _train("modern", "vit-s16-imagenet-90ep", DIGITS, VIT, "--no-compile"),
    _train("augreg", "augreg-ti16-imagenet", DIGITS, VIT, "--no-compile"),
    _train("polyak", "vit-l16-512-imagenet", DIGITS, f"--model.source {TRAINED_VIT} --model.image-size 16"),
    _train("deit3", "deit3-s16-imagenet", DIGITS, VIT, "--model.image-size 8 --no-compile"),
    _train(
        "deit-distilled", "deit-ti16-imagenet-distilled", DIGITS, DEIT, f"--teacher.source {TRAINED_VIT} --no-compile"
    ),
    _train("scaling-shards", "vit-g14-jft", DIGITS, VIT, processes=2),
    _train("experts", "vmoe-digits"),
    _train("axial", "axial-vit-b32-jft", DIGITS, "--model.source axial-vit-digits --no-compile"),
    _train("sasa", "sasa-26-imagenet", DIGITS, "--model.source sasa-digits --no-compile"),
    _train("non-local", "nonlocal-r50-imagenet", DIGITS, "--model.source nonlocal-digits --no-compile"),
    _train("views", "dino-digits"),
    _train("sam-recipe", "sam-digits", TINY),
    _train("gsam", "gsam-b32-imagenet", DIGITS, VIT, "--no-compile"),
    _train(
        "semantic",
        "semantic-cifar100",
        DIGITS,
        VIT,
        "--objective.hierarchy ../data/tree.csv --model.image-size 8 --augmentation.pad 1 --no-compile",
    ),
    _train("generation", "transgan-digits"),
    _train("few-labels", "fixmatch-digits"),
    _train("meta-pseudo-labels", "meta-pseudo-labels-digits"),
    Case("transfer", f"finetune --data digits --model {TRAINED_VIT} --steps 12 --device cpu"),
)


def write_data(folder: Path) -> None:
    """Class folders of small JPEGs of many sizes, a table that gives each of them one to three labels, and a tree."""
    rng = np.random.default_rng(0)
    lines = ["path,label,split"]
    for i in range(96):
        kind, split = i % 3, "val" if i % 6 == 5 else "train"
        height, width = rng.integers(12, 40, 2)
        pixels = rng.integers(0, 120, (height, width, 3)) + 60 * kind
        path = folder / "photos" / split / "abc"[kind] / f"{i:02}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels.astype(np.uint8)).save(path, quality=90)
        labels = sorted({"abc"[kind], *rng.choice(list("abcd"), rng.integers(0, 3))})
        lines.append(f"{path.relative_to(folder)},{';'.join(labels)},{split}")
    (folder / "several.csv").write_text("\n".join(lines) + "\n")
    (folder / "tree.csv").write_text("".join(f"{digit},{'odd' if digit % 2 else 'even'}\n" for digit in range(10)))
