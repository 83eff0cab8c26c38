"""How fast the loop's step is on one GPU, and what it costs over the bare step of the model.

    python benchmarks/training.py [--recipe cifar10] [--optimiser adamw] [--batches 256 1024] [--steps 200]

A resident set of random pictures, the recipe's augmentation, mixing, model, clipping, optimiser and averaged weights.
`captured`: the loop as it runs (one CUDA graph a step). `launched`: the same step, launched kernel by kernel. `bare`:
the compiled model's forward, loss, backward and the optimiser on one fixed batch, captured, with nothing around it.
"""

import argparse
import dataclasses
import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitlab.core.compiling import compile_options
from vitlab.data.contract import DataSet, Split
from vitlab.recipes import find_recipe
from vitlab.training import prepare
from vitlab.training.average import Average
from vitlab.training.captured import CapturedStepper
from vitlab.training.distribution import World
from vitlab.training.muon import Muon
from vitlab.training.optimisers import build
from vitlab.training.recipe import Recipe
from vitlab.training.state import State
from vitlab.training.step import Stepper


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


def make(recipe: Recipe, batch: int, kind: type[Stepper]) -> tuple[Stepper, World]:
    world = World(0, 1, torch.device("cuda"))
    recipe = dataclasses.replace(recipe, batch_size=batch)
    side = recipe.model.image_size or 32
    labels = np.arange(20_000) % 10
    split = Split(Noise(len(labels), side), labels)
    dataset = DataSet("noise", tuple(str(i) for i in range(10)), {"train": split}, "")
    model = prepare.build_model(recipe, dataset).to(world.device).train()
    objective = prepare.build_objective(recipe, prepare.divide(dataset), dataset, model).to(world.device)
    pixels = torch.from_numpy(split.images.pixels).permute(0, 3, 1, 2).contiguous().to(world.device)  # pyright: ignore[reportAttributeAccessIssue]
    feed = prepare.build_feed(recipe, split, pixels, model.preprocess, 10, world, 0)
    average = Average(model, 0.999)
    state = State(model, objective, build(model, [], recipe.optimiser, on_device=True), average)
    model.compile(options=compile_options(world.device))
    for part in (average, *state.optimisers):
        if isinstance(part, Average | Muon):
            part.compile()
    feed.compile()  # pyright: ignore[reportAttributeAccessIssue]
    autocast = functools.partial(torch.autocast, "cuda", torch.bfloat16)
    return (
        kind(state, model, feed, recipe.optimiser, accumulate=1, seed=0, world=world, autocast=autocast),
        world,
    )


def bare(recipe: Recipe, batch: int) -> Callable[[], object]:
    """The model's own step on a fixed batch, captured."""
    stepper, _ = make(recipe, batch, Stepper)
    model, optimisers = stepper.module, stepper.state.optimisers
    images, targets = stepper.feed.batch(0)

    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        with torch.autocast("cuda", torch.bfloat16):
            loss = F.cross_entropy(model(images).float(), targets)
        loss.backward()
        for optimiser in optimisers:
            optimiser.step()

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()
    return graph.replay


def milliseconds(run: Callable[[int], object], steps: int, rounds: int = 5) -> tuple[float, float]:
    """The median over rounds of a step's time, and the spread between the fastest and the slowest round."""
    for i in range(20):
        run(i)
    torch.cuda.synchronize()
    times: list[float] = []
    for r in range(rounds):
        start = time.perf_counter()
        for i in range(steps):
            run(20 + r * steps + i)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start) / steps * 1e3)
    return statistics.median(times), max(times) - min(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="cifar10")
    parser.add_argument("--batches", nargs="+", type=int, default=[256, 1024])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--optimiser", help="another one than the recipe's")
    parser.add_argument("--kinds", nargs="+", choices=["captured", "launched"], default=["captured", "launched"])
    arguments = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(False)  # as in every run: docs/decisions/0005
    recipe = find_recipe(arguments.recipe)
    if arguments.optimiser:
        optimiser = dataclasses.replace(recipe.optimiser, name=arguments.optimiser)
        recipe = dataclasses.replace(recipe, optimiser=optimiser)
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{where}, recipe {recipe.name}, {recipe.optimiser.name}, bf16, compiled")
    print("| batch | step | ms a step | spread | images/s | over the bare step |\n|-|-|-|-|-|-|")
    for batch in arguments.batches:
        rows: dict[str, tuple[float, float]] = {}
        replay = bare(recipe, batch)
        rows["bare"] = milliseconds(lambda _, replay=replay: replay(), arguments.steps)
        for name in arguments.kinds:
            kind = CapturedStepper if name == "captured" else Stepper
            stepper, _ = make(recipe, batch, kind)
            rows[name] = milliseconds(lambda i, s=stepper: s(i, 1e-4), arguments.steps)
        for name, (median, spread) in rows.items():
            over = median / rows["bare"][0] - 1
            images = f"{batch / median * 1e3:,.0f}"
            print(f"| {batch} | {name} | {median:.2f} | {spread:.2f} | {images} | {over:+.0%} |", flush=True)


if __name__ == "__main__":
    main()
