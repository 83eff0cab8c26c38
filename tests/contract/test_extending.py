"""docs/extending.md: its files are run, as its commands run them, and what it says of them is so."""

import contextlib
import dataclasses
import json
import re
import shlex
import signal
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn

import documented
import vitlab
from changing import changed, lose_at, signal_at
from documented import NAMES
from short_runs import short_recipe, write_small_set
from vitlab.cli import main
from vitlab.core import registry
from vitlab.core.config import Choice
from vitlab.core.errors import ConfigError, Error
from vitlab.core.registry import Registry, load_object
from vitlab.data.open import SOURCES, open_data
from vitlab.models import FAMILIES
from vitlab.models.contract import Tokens
from vitlab.models.create import fresh_model
from vitlab.objectives import OBJECTIVES
from vitlab.recipes import find_recipe
from vitlab.studies import PROTOCOLS
from vitlab.tasks import TASKS
from vitlab.training.recipe import Recipe

REGISTRIES: dict[str, Registry[Any]] = {
    "model": FAMILIES,
    "objective": OBJECTIVES,
    "task": TASKS,
    "source": SOURCES,
    "protocol": PROTOCOLS,
}
SMALL = ["--model.set", "depth=1", "--device", "cpu", "--data.workers", "0"]
FEW = ["--schedule.total", "60 steps", "--schedule.warmup", "6 steps", "--checkpoint-every", "20 steps"]
REGRESSION = ["--task", NAMES["task"], "--data.source", NAMES["source"]]
MAE = ["--augmentation.mixup", "0", "--loss.label-smoothing", "0", *SMALL, "--schedule.total", "12 steps"]
MAE += ["--checkpoint-every", "5 steps", "--objective.mask-ratio", "0.5"]


@pytest.fixture(autouse=True)
def in_the_folder() -> Iterator[None]:
    """The files' folder is the working directory, so that commands are those of the page; runs go elsewhere."""
    with contextlib.chdir(documented.folder()):
        yield


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


def same(a: Path, b: Path) -> bool:
    found, expected = weights(a), weights(b)
    return found.keys() == expected.keys() and all(torch.equal(found[own], expected[own]) for own in expected)


def said(capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a refusal."""
    text = capsys.readouterr().err
    assert text.count("\n") == 1
    return text


def commands() -> list[str]:
    """The commands of the page but for its part on packages, whose names are installed ones."""
    text = documented.PAGE.read_text().partition("## As a package")[0]
    return re.findall(r"^    (?:torchrun --nproc-per-node 8 -m )?vitlab (.+)$", text, re.MULTILINE)


def test_each_file_is_short_and_gives_what_the_page_names() -> None:
    assert set(documented.files()) == {name.partition(":")[0] for name in NAMES.values()}
    for name, text in documented.files().items():
        assert documented.lines_of_code(text) < 40, name
    for what, found in REGISTRIES.items():
        assert isinstance(load_object(NAMES[what]), found.kind)
    assert isinstance(find_recipe(NAMES["recipe"]), Recipe)
    used = " ".join(commands())
    assert all(name in used for name in NAMES.values())


@pytest.mark.parametrize(
    "command", [each for each in commands() if each.startswith("train") and "--resume" not in each]
)
def test_the_pages_commands_are_recipes(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Recipe] = []

    def train(recipe: Recipe, **_: object) -> SimpleNamespace:
        given.append(recipe)
        return SimpleNamespace(status=0, folder=Path(), reason="signal", step=0, scores={}, ending="Stopped at step 0.")

    monkeypatch.setattr("vitlab.api.train", train)
    assert main(shlex.split(command)) == 0
    assert isinstance(given[0], Recipe)


@pytest.fixture(scope="module")
def dots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the regression, which was never stopped."""
    run = tmp_path_factory.mktemp("dots") / "run"
    with contextlib.chdir(documented.folder()):
        assert main(["train", NAMES["recipe"], *FEW, *SMALL, "--optimizer.lr", "3e-3", "--out", str(run)]) == 0
    return run


def pictures(num: int) -> tuple[list[Any], np.ndarray[Any, Any]]:
    """Held-out dots, and where they are."""
    registry.permit(NAMES["source"])
    split = open_data(NAMES["source"], val_fraction=0.2).splits["val"]
    return [split.images.read(i) for i in range(num)], split.labels[:num]


def test_a_task_of_ones_own_learns_and_predicts(dots: Path) -> None:
    images, wanted = pictures(40)
    answers = [prediction.answer for prediction in vitlab.predict(dots, images)]
    found = np.array([answer.numbers["value"] for answer in answers if answer is not None])
    assert np.corrcoef(found, wanted)[0, 1] > 0.7
    assert np.abs(found - wanted).mean() < np.abs(wanted - wanted.mean()).mean()


def test_a_task_of_ones_own_resumes_to_the_bit(
    dots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        signal_at(33, signal.SIGTERM, patch)
        begun = ["train", NAMES["recipe"], *FEW, *SMALL, "--optimizer.lr", "3e-3", "--out", str(run)]
        assert main(begun) == 128 + signal.SIGTERM
    monkeypatch.setattr(registry, "_permitted", set[str]())  # as in another process
    capsys.readouterr()
    assert main(["train", "--resume", str(run), "--device", "cpu"]) == 2
    assert f"The task {NAMES['task']} is code in a file" in said(capsys)
    assert main(["train", "--resume", str(run), "--device", "cpu", "--task", NAMES["task"]]) == 2
    assert f"The data set {NAMES['source']} is code in a file" in said(capsys)
    assert main(["train", "--resume", str(run), "--device", "cpu", *REGRESSION]) == 0
    assert same(run, dots)


def test_a_task_of_ones_own_is_given_again_to_predict(
    dots: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [image], _ = pictures(1)
    Image.fromarray(image).save(tmp_path / "dot.png")
    monkeypatch.setattr(registry, "_permitted", set[str]())  # as in another process
    command = ["predict", str(tmp_path / "dot.png"), "--model", str(dots), "--json"]
    capsys.readouterr()
    assert main(command) == 2
    assert f"The task {NAMES['task']} is code in a file" in said(capsys)
    assert main([*command, "--task", NAMES["task"]]) == 0
    [answer] = json.loads(capsys.readouterr().out)
    [prediction] = vitlab.predict(dots, [image])
    assert prediction.answer is not None
    assert answer["numbers"] == {"value": pytest.approx(prediction.answer.numbers["value"], abs=1e-5)}


def test_a_task_of_ones_own_is_reported(dots: Path) -> None:
    report = vitlab.report(dots, device="cpu")
    assert report.missing == ()
    assert report.images > 0
    assert "R2" in report.path.read_text()


def test_a_task_of_ones_own_is_served(dots: Path, tmp_path: Path) -> None:
    from web.live import serving

    [image], _ = pictures(1)
    Image.fromarray(image).save(tmp_path / "dot.png")
    [prediction] = vitlab.predict(dots, [tmp_path / "dot.png"])
    assert prediction.answer is not None
    with serving(vitlab.load(dots)) as live:
        answer = live.post("/v1/predict", (tmp_path / "dot.png").read_bytes(), headers={"content-type": "image/png"})
    assert answer.status_code == 200, answer.text
    assert any(value == pytest.approx(prediction.answer.numbers["value"], abs=1e-3) for value in numbers(answer.json()))


def numbers(value: Any) -> Iterator[float]:
    """All numbers in a JSON document."""
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from numbers(each)
    elif isinstance(value, float | int):
        yield value


def test_an_objective_of_ones_own_trains_and_resumes_to_the_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "digits", "--objective", NAMES["objective"], *MAE]
    assert main([*arguments, "--out", str(tmp_path / "whole")]) == 0
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert any("val loss" in line for line in lines)
    run = tmp_path / "lost"
    with monkeypatch.context() as patch:
        lose_at(8, patch)
        assert main([*arguments, "--out", str(run)]) == 128 + signal.SIGINT
    monkeypatch.setattr(registry, "_permitted", set[str]())  # as in another process
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 2
    text = said(capsys)
    assert f"The objective {NAMES['objective']} is code in a file" in text
    assert "give its name again in this call" in text
    with pytest.raises(ConfigError, match="give its name again in this call"):
        vitlab.resume(run, device="cpu")
    assert main(["train", "--resume", str(run), "--objective", NAMES["objective"], "--device", "cpu"]) == 0
    assert same(run, tmp_path / "whole")
    encoder = vitlab.load(run)
    assert encoder.config.num_classes == 0
    assert vitlab.embed(run, [np.zeros((8, 8, 3), np.uint8)], device="cpu").features.shape == (1, 64)


@pytest.mark.slow
@pytest.mark.compiled
@pytest.mark.inductor
def test_an_objective_of_ones_own_trains_compiled(tmp_path: Path) -> None:
    sgd = ["--optimizer.name", "sgd", "--optimizer.weight-decay", "0", "--optimizer.lr", "0.05"]
    arguments = ["train", "digits", "--objective", NAMES["objective"], *MAE, *sgd, "--model.dropout", "0"]
    assert main([*arguments, "--out", str(tmp_path / "eager")]) == 0
    assert main([*arguments, "--compile", "--out", str(tmp_path / "compiled")]) == 0
    found, expected = weights(tmp_path / "compiled"), weights(tmp_path / "eager")
    for own, value in expected.items():
        torch.testing.assert_close(found[own], value, rtol=1e-4, atol=1e-5)


def test_a_family_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes, images that do not mix, and the same from a folder, where its file is named again."""
    model, images = vitlab.create(NAMES["model"], num_classes=5, depth=1, image_size=16), torch.randn(3, 3, 16, 16)
    model.eval()
    tokens = model.embed(images)
    assert isinstance(tokens, Tokens)
    assert model.pool(model.encode(tokens)).shape == (3, model.num_features)
    torch.testing.assert_close(model(images), torch.cat([model(images[i : i + 1]) for i in range(3)]))
    assert [each.values.shape[0] for each in model.features(images)] == [3, 3]
    with pytest.raises(ConfigError, match="takes all tokens of an image"):
        model.encode(tokens.keep(torch.zeros(3, 1, dtype=torch.long)))
    bare = fresh_model(model.config)
    assert all(value.isfinite().all() for value in bare.state_dict().values())
    vitlab.save(model, tmp_path / "saved")
    monkeypatch.setattr(registry, "_permitted", set[str]())  # as in another process
    with pytest.raises(ConfigError, match="give its name again"):
        vitlab.load(tmp_path / "saved")
    again = vitlab.load(tmp_path / "saved", family=NAMES["model"])
    assert torch.equal(again(images), model(images))


def test_a_family_of_ones_own_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    arguments = ["--model.dropout", "0", "--model.image-size", "8", "--model.set", "depth=1", "width=16"]
    steps = ["--schedule.total", "6 steps", "--checkpoint-every", "2 steps", "--device", "cpu"]
    command = ["train", "digits", "--model.source", NAMES["model"], *arguments, *steps]
    assert main([*command, "--out", str(tmp_path / "whole")]) == 0
    with monkeypatch.context() as patch:
        lose_at(3, patch)
        assert main([*command, "--out", str(run)]) == 128 + signal.SIGINT
    monkeypatch.setattr(registry, "_permitted", set[str]())  # as in another process
    assert main(["train", "--resume", str(run), "--device", "cpu"]) == 2
    assert main(["train", "--resume", str(run), "--device", "cpu", "--model.source", NAMES["model"]]) == 0
    assert same(run, tmp_path / "whole")


def test_a_protocol_of_ones_own(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    vitlab.save(vitlab.create("vit-digits", depth=1), tmp_path / "model")
    data = str(write_small_set(tmp_path / "small.npz"))
    arguments = ["--model", str(tmp_path / "model"), "--data", data, "--workers", "0", "--device", "cpu"]
    assert main(["evaluate", NAMES["protocol"], *arguments, "--power", "1"]) == 0
    assert "nearest-mean on small (test)" in capsys.readouterr().out


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, str]]:
    """The files as a package with the entry points of the page."""
    [text] = re.findall(r"^```toml\n(.*?)^```$", documented.PAGE.read_text(), re.MULTILINE | re.DOTALL)
    points = tomllib.loads(text)["project"]["entry-points"]
    package, about = tmp_path / "my_package", tmp_path / "my_package-1.dist-info"
    package.mkdir()
    about.mkdir()
    (package / "__init__.py").touch()
    for name, content in documented.files().items():
        (package / name).write_text(content)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: my_package\nVersion: 1\n")
    groups = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in lines.items()) for group, lines in points.items()]
    (about / "entry_points.txt").write_text("\n".join(groups))
    monkeypatch.syspath_prepend(tmp_path)
    for each in REGISTRIES.values():
        monkeypatch.setattr(each, "_own", None)
    monkeypatch.setattr(registry, "_permitted", set[str]())
    return points


def test_entry_points_make_names(installed: dict[str, dict[str, str]], tmp_path: Path) -> None:
    assert {f"vitlab.{what}s" for what in NAMES} == set(installed)
    for what, found in REGISTRIES.items():
        [(name, place)] = installed[f"vitlab.{what}s"].items()
        assert found.find(name).name == name
        assert place == "my_package." + NAMES[what].replace(".py", "")
    command = ["train", "where", "--data.source", "dots", "--task", "regression", *SMALL]
    steps = ["--schedule.total", "4 steps", "--schedule.warmup", "0 steps", "--checkpoint-every", "2 steps"]
    assert main([*command, *steps, "--out", str(tmp_path / "run")]) == 0
    [prediction] = vitlab.predict(tmp_path / "run", [np.zeros((16, 16, 3), np.uint8)])
    assert prediction.answer is not None
    assert set(prediction.answer.numbers) == {"value"}
    mae = ["train", "digits", "--objective", "my-mae", *MAE[:-2], "--out", str(tmp_path / "mae")]
    assert main([*mae, "--schedule.total", "2 steps"]) == 0


class Plain(nn.Module):
    """A module that knows nothing of vitlab."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Conv2d(3, 8, 3, 2), nn.GELU(), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.net(images)


def plain() -> Plain:
    torch.manual_seed(0)
    return Plain()


def test_objects_are_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model and an objective in place of the recipe's; a run that was lost needs both again, and says which."""
    mae = load_object(NAMES["objective"])
    write_small_set(tmp_path / "small.npz")
    fields: dict[str, object] = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "schedule.total": "8 steps"}
    recipe = changed(short_recipe(tmp_path / "small.npz"), **fields)

    def objects() -> dict[str, Any]:
        torch.manual_seed(0)
        model = vitlab.create("vit-digits", num_classes=0, depth=1)
        return {"model": model, "objective": mae.objective(mae.options(), model)}

    vitlab.train(recipe, **objects(), out=tmp_path / "whole", device="cpu")
    with monkeypatch.context() as patch:
        lose_at(6, patch)
        with pytest.raises(KeyboardInterrupt):
            vitlab.train(recipe, **objects(), out=tmp_path / "lost", device="cpu")
    with pytest.raises(
        Error, match=r"objective \(MaskedAutoencoder\) was given as an object: give it again, as vitlab.re"
    ):
        vitlab.resume(tmp_path / "lost", model=objects()["model"], device="cpu")
    with pytest.raises(Error, match=r"model \(ViT\) was given as an object: give it again, as vitlab.resume"):
        vitlab.resume(tmp_path / "lost", objective=objects()["objective"], device="cpu")
    assert main(["train", "--resume", str(tmp_path / "lost")]) == 2
    vitlab.resume(tmp_path / "lost", **objects(), device="cpu")
    assert same(tmp_path / "lost", tmp_path / "whole")


def test_a_module_is_finetuned(tmp_path: Path) -> None:
    write_small_set(tmp_path / "small.npz")
    ended = vitlab.finetune(
        tmp_path / "small.npz", model=plain(), steps=3, image_size=16, batch_size=8, out=tmp_path / "run", device="cpu"
    )
    assert ended.step == 3
    assert {"net.0.weight", "head.weight"} <= {name.removeprefix("net.") for name in weights(tmp_path / "run")}
    with pytest.raises(Error, match=r"model \(Plain\) was given as an object"):
        vitlab.resume(tmp_path / "run", device="cpu")


def test_a_choice_with_few_options_is_resumed_by_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options that Python left out are at their defaults, which the command line names."""
    write_small_set(tmp_path / "small.npz")
    fields: dict[str, object] = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "schedule.total": "8 steps"}
    recipe = changed(short_recipe(tmp_path / "small.npz"), **fields)
    recipe = dataclasses.replace(recipe, objective=Choice(NAMES["objective"], {"mask_ratio": 0.5}))
    with monkeypatch.context() as patch:
        lose_at(6, patch)
        with pytest.raises(KeyboardInterrupt):
            vitlab.train(recipe, out=tmp_path / "run", device="cpu")
    command = ["train", "--resume", str(tmp_path / "run"), "--objective", NAMES["objective"], "--device", "cpu"]
    assert main(command) == 0
