"""How fast the loop's step is on one GPU, and what it costs over the bare step of the model.

    python benchmarks/training.py                      all kinds at batches of 256 and 1024: some five minutes
    python benchmarks/training.py --optimizer adamw --kinds bare captured

A resident set of random pictures, the recipe's augmentation, mixing, model, clipping, optimizer and averaged weights.
`captured`: the loop as it runs (one CUDA graph a step). `unfolded`: the same with layer norms left where they are.
`launched`: the step of the loop, launched kernel by kernel. `bare`: the compiled model's forward, loss, backward and
the optimizer on one fixed batch, captured, with nothing around it.
All are measured in turn, round by round, on as many images each.
"""

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F

from vitlab.core.compiling import compile_options
from vitlab.data.contract import DataSet, Split
from vitlab.data.loading.resident import Pixels
from vitlab.recipes import find_recipe
from vitlab.training.assembly import assemble, main_stream
from vitlab.training.captured import CapturedStepper
from vitlab.training.distribution import World
from vitlab.training.ema import Ema
from vitlab.training.execution import Execution
from vitlab.training.learner import Learner
from vitlab.training.model import build_model
from vitlab.training.muon import Muon
from vitlab.training.plan import Given, make_plan
from vitlab.training.recipe import Recipe
from vitlab.training.step import Stepper

FACTOR = 0.1  # of the recipe's lr: its size changes no time
KINDS = ["bare", "captured", "unfolded", "launched"]
Times: TypeAlias = dict[tuple[int, str], list[float]]


class Noise:
    """Random pictures."""

    def __init__(self, num: int, side: int) -> None:
        self.pixels = np.random.default_rng(0).integers(0, 256, (num, side, side, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return len(self.pixels)

    def read(self, index: int) -> np.ndarray[Any, Any]:
        return self.pixels[index]

    def where(self, index: int) -> str:
        return f"picture {index}"


def make(recipe: Recipe, batch: int, *, capture: bool, fold: bool = True) -> Stepper:
    """A run's stepper, compiled, over a resident set."""
    world = World(0, 1, torch.device("cuda"))
    optimizer = dataclasses.replace(recipe.optimizer, ema=0.999)
    recipe = dataclasses.replace(recipe, batch_size=batch, accumulate=1, optimizer=optimizer)
    side = recipe.model.image_size or 32
    labels = np.arange(20_000) % 10
    split = Split.labelled(Noise(len(labels), side), labels)
    dataset = DataSet("noise", tuple(str(i) for i in range(10)), {"train": split}, "")
    plan = make_plan(recipe, Path(), dataset, Given())
    model = build_model(plan).to(world.device).train()
    learner = Learner(model, plan.objective(model).to(world.device))
    pixels = torch.from_numpy(split.images.pixels).permute(0, 3, 1, 2).contiguous().to(world.device)  # pyright: ignore[reportAttributeAccessIssue]
    streams = learner.objective.streams(main_stream(plan, split, model.preprocess))
    execution = Execution(
        dtype=torch.bfloat16,
        autocast=functools.partial(torch.autocast, "cuda", torch.bfloat16),
        strategy="replicate",
        compile=False,  # a run begins with an empty compiler: here several live beside each other
        one_thread=False,
        on_device=True,
        capture=capture,
        num_workers=0,
        train={stream.name: Pixels(pixels) for stream in streams},
    )
    run = assemble(plan, learner, streams, execution, world, None, print, lambda: 0)
    if fold:
        run.state.learner.fold_norms()
    run.stepper.turns[0].module.compile(options=compile_options(world.device))
    for part in (run.state.ema, *run.state.all_optimizers):
        if isinstance(part, Ema | Muon):
            part.compile()
    run.feed.compile()  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(run.stepper, CapturedStepper):
        run.stepper.compile()
    return run.stepper


def stepping(recipe: Recipe, batch: int, kind: str) -> Callable[[int], object]:
    """A step of a kind by its number, warmed up."""
    if kind == "bare":
        return bare(recipe, batch)
    stepper = make(recipe, batch, capture=kind != "launched", fold=kind != "unfolded")
    for i in range(10):
        stepper(i, FACTOR)
    return lambda i: stepper(10 + i, FACTOR)


def bare(recipe: Recipe, batch: int) -> Callable[[int], object]:
    """The model's own step on a fixed batch, captured."""
    stepper = make(recipe, batch, capture=False)
    model, optimizers = stepper.turns[0].module, stepper.state.all_optimizers
    first = stepper.feed.batch(0)
    images, targets = first.images, first.targets["label"]

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images).float(), targets)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()

    def replay(_: int, kept: object = (model, optimizers, images, targets)) -> None:
        del kept  # held by this function: the graph works in their memory
        graph.replay()

    return replay


def milliseconds(step: Callable[[int], object], number: int, first: int) -> float:
    """A step's time over a number of them."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for i in range(number):
        step(first + i)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / number * 1e3


def measure(candidates: dict[tuple[int, str], Callable[[int], object]], images: int, rounds: int) -> Times:
    """Every candidate in turn, round by round, each on as many images: the card is as warm for one as for the other."""
    times: Times = {key: [] for key in candidates}
    for i in range(rounds):
        for key, step in candidates.items():
            number = images // key[0]
            milliseconds(step, number // 4, i * 2 * number)  # what the one before left in caches and clocks
            times[key].append(milliseconds(step, number, (i * 2 + 1) * number))
    return times


def speed(times: Times, one: tuple[int, str], other: tuple[int, str]) -> str:
    """Images per second of one over the other's: the median of the rounds, and the least and the most."""
    ratios = [one[0] / a / (other[0] / b) for a, b in zip(times[one], times[other], strict=True)]
    return f"{statistics.median(ratios):.1%} ({min(ratios):.1%} to {max(ratios):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10")
    parser.add_argument("--batches", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--images", type=int, default=51_200, help="of a round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--optimizer", help="another one than the recipe's")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    arguments = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(False)  # as in every run: docs/decisions/0005
    torch._dynamo.config.automatic_dynamic_shapes = False  # each size is compiled for itself, as in a run of its own
    recipe = find_recipe(arguments.recipe)
    if arguments.optimizer:
        optimizer = dataclasses.replace(recipe.optimizer, name=arguments.optimizer)
        recipe = dataclasses.replace(recipe, optimizer=optimizer)
    candidates = {
        (batch, kind): stepping(recipe, batch, kind) for batch in arguments.batches for kind in arguments.kinds
    }
    times = measure(candidates, arguments.images, arguments.rounds)
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{where}, recipe {recipe.name}, {recipe.optimizer.name}, bf16, compiled; {arguments.rounds} rounds")
    print("| batch | step | ms: median (least to most) | images/s | of the bare step's speed |\n|-|-|-|-|-|")
    for (batch, kind), own in times.items():
        middle = statistics.median(own)
        beside = speed(times, (batch, kind), (batch, "bare")) if "bare" in arguments.kinds else ""
        strategy = f"{middle:.3f} ({min(own):.3f} to {max(own):.3f})"
        print(f"| {batch} | {kind} | {strategy} | {batch / middle * 1e3:,.0f} | {beside} |")
    for batch in arguments.batches if {"captured", "unfolded"} <= set(arguments.kinds) else []:
        print(f"batch {batch}: captured at {speed(times, (batch, 'captured'), (batch, 'unfolded'))} of unfolded")
    small, large = min(arguments.batches), max(arguments.batches)
    for kind in arguments.kinds:
        print(f"{kind}: batch {small} at {speed(times, (small, kind), (large, kind))} of batch {large}'s images/s")


if __name__ == "__main__":
    main()
