"""What every protocol promises: those of the house, and one that exists only in a file of the caller's."""

import contextlib
import dataclasses
import math
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.neighbors import NearestCentroid

import vitlab
from tiny_vits import SIZES, random_vit
from vitlab.cli import main
from vitlab.cli.evaluate import parse_arguments
from vitlab.core.errors import ConfigError, Error
from vitlab.core.registry import permit
from vitlab.evaluation.contract import Protocol, Result
from vitlab.evaluation.results import read_result, write_result
from vitlab.models.vit import ViTConfig
from vitlab.studies import PROTOCOLS
from vtab_folders import make_task

MINE = '''
"""How often an image is nearest to the mean features of its own class."""

from dataclasses import dataclass

import numpy as np

from vitlab.evaluation.contract import Outcome, Protocol, Result
from vitlab.evaluation.labeled_features import share
from vitlab.evaluation.measurement import Measurement
from vitlab.evaluation.request import Request


@dataclass(frozen=True, kw_only=True)
class Options:
    """The nearest class mean answers."""

    power: float = 2.0
    """Of the differences that a distance sums."""


def nearest_mean(on: Measurement, options: Options) -> Outcome:
    train, test = on.train_and_test()
    means = np.stack([train.values[train.labels == k].mean(axis=0) for k in range(on.dataset.num_classes)])
    distances = (np.abs(test.values[:, None] - means) ** options.power).sum(axis=2)
    right = int((distances.argmin(axis=1) == test.labels).sum())
    return Outcome(metrics={"top-1": share(right, len(test.labels))}, counts={"test": len(test.labels)})


def run(request: Request) -> Result:
    return request.measure(nearest_mean)


NEAREST = Protocol(
    name="nearest-mean",
    summary="the nearest class mean of the features",
    options=Options,
    examples=("--model runs/digits --data digits --power 1",),
    run=run,
)
'''
OWN = "mine.py:NEAREST"
NAMES = [*PROTOCOLS.names(), OWN]
SELECTS = {"fewshot": "l2 for 1 shots", "linear": "l2", "knn": "k", "finetune": "lr", "vtab": "lr of svhn"}
FEW = {"steps": 1, "lrs": (0.01, 0.02), "seeds": (0,), "own_size": True}
OPTIONS: dict[str, dict[str, Any]] = {  # so that each chooses what it can choose, in little time
    "fewshot": {"shots": (1, 2), "sweep": True},
    "linear": {"l2s": (0.1, 1.0)},
    "knn": {"ks": (1, 3)},
    "finetune": FEW,
    "vtab": FEW | {"tasks": ("svhn",)},
    "cost": {"seconds": 0.01},
    "semantic": {"hierarchy": "tree.csv", "inner": "branching"},
    "frechet": {"features": "small", "num": 12},
}


@pytest.fixture(autouse=True, scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with mine.py, a model, and data for each protocol."""
    folder = tmp_path_factory.mktemp("here")
    (folder / "mine.py").write_text(MINE)
    torch.manual_seed(0)
    for name, num_classes in (("small", 10), ("thousand", 1000)):
        vitlab.save(random_vit(ViTConfig(**SIZES, num_classes=num_classes)), folder / name)
    vitlab.save(vitlab.create("transgan-digits"), folder / "generator")
    _write_colours(folder / "colours")
    (folder / "val").mkdir()
    for i in range(1, 5):
        Image.new("RGB", (9, 9), (50 * i, 0, 0)).save(folder / "val" / f"ILSVRC2012_val_{i:08d}.JPEG")
    (folder / "real.json").write_text("[[0, 1], [7], [], [999]]")
    (folder / "tree.csv").write_text("".join(f"{digit},{'odd' if digit % 2 else 'even'}\n" for digit in range(10)))
    make_task(folder / "vtab", "svhn", 10)
    with contextlib.chdir(folder), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        permit(OWN)
        yield folder


def _write_colours(root: Path) -> None:
    """Ten classes of pictures that differ in colour, 4 to train, 2 to choose on and 2 to test on each."""
    rng = np.random.default_rng(0)
    for split, count in (("train", 4), ("val", 2), ("test", 2)):
        for label in range(10):
            (root / split / str(label)).mkdir(parents=True)
            for i in range(count):
                pixels = rng.integers(0, 60, (8, 8, 3)) + np.array([label * 20, 0, 180 - label * 20])
                Image.fromarray(pixels.astype(np.uint8)).save(root / split / str(label) / f"{i}.png")


def find(name: str) -> Protocol:
    return PROTOCOLS.find(name)


RESULTS: dict[str, Result] = {}


def result(name: str) -> Result:
    """What a protocol finds of a tiny model on little data; measured once."""
    if name not in RESULTS:
        data = {"real": "val", "vtab": "vtab", "cost": None}.get(name, "colours")
        model = {"real": "thousand", "frechet": "generator"}.get(name, "small")
        options = OPTIONS.get(name, {})
        RESULTS[name] = vitlab.evaluate(name, model, data, device="cpu", workers=0, batch_size=8, **options)
    return RESULTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_it_describes_itself(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Each option has a default and a text in the help, and the options' class a sentence."""
    protocol = find(name)
    assert re.fullmatch(r"[a-z][a-z0-9-]*", protocol.name)
    assert protocol.summary
    assert "\n" not in protocol.summary
    assert protocol.options.__dataclass_params__.frozen
    protocol.options()  # all have defaults
    assert main(["evaluate", name, "--help"]) == 0
    text = capsys.readouterr().out
    assert protocol.options.__doc__ is not None
    assert protocol.options.__doc__.split(":")[0] in text
    for field in dataclasses.fields(protocol.options):
        flag = f"--{field.name.replace('_', '-')}"
        found = re.search(rf"^\W*{flag} .*?\(default:", text, re.MULTILINE | re.DOTALL)
        assert found is not None, flag
        words = re.findall(r"\b[a-z][a-z-]+\b", found[0].removeprefix(flag))  # not the metavar's capitals
        assert len(words) >= 2, found[0]


@pytest.mark.parametrize("name", NAMES)
def test_its_examples_are_command_lines(name: str) -> None:
    """They are parsed as they would be, and each names a model and, where the protocol takes data, data."""
    protocol = find(name)
    assert protocol.examples
    for example in protocol.examples:
        given = parse_arguments(name, protocol, shlex.split(example))
        assert isinstance(given.options, protocol.options)
        assert given.model
        assert (given.data is not None) == protocol.takes_data


@pytest.mark.parametrize("name", NAMES)
def test_it_measures(name: str) -> None:
    """Finite figures, each over a number of things, and the options that made them."""
    found, protocol = result(name), find(name)
    assert found.protocol == protocol.name
    assert found.metrics
    for metric in found.metrics.values():
        assert math.isfinite(metric.value)
        assert metric.count >= 1
        assert metric.spread is None or (metric.spread >= 0 and metric.spread_of)
        assert metric.unit != "fraction" or 0 <= metric.value <= 1
    assert all(count >= 0 for count in found.counts.values())
    assert bool(found.counts) == protocol.takes_data
    assert found.cost["parameters"] > 0
    assert found.seconds > 0
    assert found.environment["command"]


@pytest.mark.parametrize("name", NAMES)
def test_it_records_what_it_selected_on(name: str) -> None:
    """A choice among several values has its value, where it was made, and the score of each."""
    found = result(name)
    assert bool(found.selected) == (name in SELECTS)
    if name in SELECTS:
        choice = found.selected[SELECTS[name]]
        assert choice["on"]
        assert str(choice["value"]) in choice["scores"]
        assert len(choice["scores"]) >= 2


@pytest.mark.parametrize("name", NAMES)
def test_its_result_survives_json(name: str, tmp_path: Path) -> None:
    found = result(name)
    write_result(found, tmp_path / "result.json")
    again = read_result(tmp_path / "result.json")
    assert (again.protocol, again.model, again.data) == (found.protocol, found.model, found.data)
    assert again.metrics == found.metrics
    assert again.counts == found.counts
    assert again.seeds == found.seeds
    assert list(again.selected) == list(found.selected)


@pytest.mark.parametrize("name", NAMES)
def test_an_unknown_option_is_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    data = "colours" if find(name).takes_data else None
    with pytest.raises(ConfigError, match=f"The protocol {find(name).name} has no option 'color'") as caught:
        vitlab.evaluate(name, "small", data, color=3)
    assert "\n" not in str(caught.value)
    assert main(["evaluate", name, "--model", "small", "--color", "3"]) == 2
    said = capsys.readouterr().err
    assert "There is no option '--color'." in said


@pytest.mark.parametrize("name", [name for name in PROTOCOLS.names() if find(name).takes_data])
def test_missing_data_is_one_sentence(name: str) -> None:
    with pytest.raises(Error, match=f"The protocol {name} needs a data set"):
        vitlab.evaluate(name, "small")


def test_a_protocol_of_ones_own_gives_what_scikit_learn_gives(here: Path) -> None:
    def images(split: str) -> list[Path]:
        return sorted((here / "colours" / split).glob("*/*.png"))

    def labels(split: str) -> list[str]:
        return [path.parent.name for path in images(split)]

    train, test = (vitlab.embed("small", images(split), device="cpu").features for split in ("train", "test"))
    score = NearestCentroid().fit(train, labels("train")).score(test, labels("test"))
    found = result(OWN)
    assert found.metrics["top-1"].value == pytest.approx(score)
    assert found.metrics["top-1"].count == 20
    assert found.settings["power"] == 2
    assert 0.1 < score < 1  # neither chance nor what any rule would give


def test_a_protocol_of_ones_own_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--model", "small", "--data", "colours", "--device", "cpu", "--workers", "0"]
    assert main(["evaluate", OWN, *arguments]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("small: nearest-mean on colours (test)")
    assert f"{100 * result(OWN).metrics['top-1'].value:.2f}" in printed
    assert len(MINE.strip().splitlines()) < 40


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine.py:NEARST", "has no NEARST. Did you mean NEAREST"),
        ("mine.py:Options", "mine.py:Options must be a Protocol, not type"),
        ("gone.py:NEAREST", "There is no file"),
    ],
)
def test_a_name_in_a_file_that_is_no_protocol_is_one_sentence(
    name: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Error, match=words):
        vitlab.evaluate(name, "small", "colours")
    assert main(["evaluate", name, "--model", "small"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
