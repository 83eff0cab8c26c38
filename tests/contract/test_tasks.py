"""What every task promises: those of the house, and the regression of docs/extending.md."""

import dataclasses
import json
import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from sklearn.metrics import mean_absolute_error, r2_score
from torch import Tensor

import documented
import processes
import vitlab
from changing import changed, lose_at
from short_runs import short_recipe, write_small_set
from tiny_vits import SIZES, random_vit
from vitlab.cli import main
from vitlab.core.config import Choice, to_dict
from vitlab.core.errors import ConfigError, Error
from vitlab.core.registry import permit
from vitlab.data.batch import Batch, Stream
from vitlab.data.contract import IGNORED, DataSet
from vitlab.data.open import open_data
from vitlab.models.contract import Model
from vitlab.models.vit import ViTConfig
from vitlab.objectives.cross_entropy import Loss
from vitlab.objectives.supervised import Supervised
from vitlab.tasks import TASKS
from vitlab.tasks.contract import Task
from vitlab.training import session
from vitlab.training.learner import Learner
from vitlab.training.recipe import Recipe, read_recipe

REGRESSION = documented.named("task")
ANSWERING = [name for name in TASKS.names() if name != "generation"]  # which takes no images
NAMES = [*ANSWERING, REGRESSION]
every = pytest.mark.parametrize("name", NAMES, ids=[*ANSWERING, "regression"])  # a path is another in each process
made_too = pytest.mark.parametrize("name", [*NAMES, "generation"], ids=[*ANSWERING, "regression", "generation"])
OPTIONS: dict[str, dict[str, Any]] = {  # of each, all
    "classification": {},
    "segmentation": {},
    "generation": {"features": "pixels"},
    REGRESSION: {},
}
# what each learns from; the data of the others, and images alone, it refuses in one sentence
DATA = {"classification": "small.npz", "segmentation": "masks", REGRESSION: documented.named("source")}
SCRIPT = """
import json, sys
from pathlib import Path
from vitlab.core.registry import permit
from vitlab.training import session
from vitlab.training.recipe import read_recipe

for path in sorted(Path(sys.argv[1]).glob("*.json")):
    recipe = read_recipe(json.loads(path.read_text()), where="test")
    permit(*recipe.names().values())
    session.train(recipe, path.with_suffix(""), device="cpu", show=False)
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with labelled images, images with masks of three classes, and images alone."""
    folder, rng = tmp_path_factory.mktemp("tasks"), np.random.default_rng(0)
    write_small_set(folder / "small.npz")
    for name in ("masks/images", "masks/masks", "flat"):
        (folder / name).mkdir(parents=True)
    (folder / "masks" / "classes.txt").write_text("dark\nmiddle\nbright\n")
    for i in range(40):
        mask = rng.integers(0, 3, (2, 2)).repeat(4, axis=0).repeat(4, axis=1).astype(np.uint8)
        picture = np.stack([mask * 100 + rng.integers(0, 50, (8, 8), dtype=np.uint8)] * 3, axis=2)
        mask[0, i % 8] = IGNORED
        Image.fromarray(picture).save(folder / "masks" / "images" / f"{i}.png")
        Image.fromarray(mask).save(folder / "masks" / "masks" / f"{i}.png")
        Image.fromarray(picture).save(folder / "flat" / f"{i}.png")
    return folder


def source(name: str, here: Path) -> str:
    permit(DATA[name])
    return DATA[name] if DATA[name].endswith("DOTS") else str(here / DATA[name])


def built(name: str, here: Path, **fields: Any) -> tuple[Task, DataSet, Model]:
    """A task, its data, and a tiny ViT with the head that it asks for."""
    kind = TASKS.find(name)
    task, dataset = kind.build(kind.options(**OPTIONS[name])), open_data(source(name, here))
    model = random_vit(ViTConfig(**(SIZES | fields | task.fields(dataset))))
    task.fit(model, dataset)
    return task, dataset, model


def answered(name: str, num: int = 7) -> tuple[Tensor, Tensor]:
    """Random outputs and targets of so many images, as a task's criterion and scorer take them."""
    generator = torch.Generator().manual_seed(0)
    if name == "classification":
        return torch.randn(num, 3, generator=generator), torch.eye(3)[torch.arange(num) % 3]
    if name == "segmentation":
        target = torch.randint(3, (num, 8, 8), generator=generator)
        target[:, 0] = IGNORED
        return torch.randn(num, 3, 8, 8, generator=generator), target
    return torch.randn(num, 1, generator=generator), torch.randn(num, generator=generator)


def recipe_for(name: str, here: Path, **fields: object) -> Recipe:
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "model.dropout": 0.0, "model.drop_path": 0.0}
    sgd = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.02, "data.workers": 0}
    steps = {"schedule.total": "8 steps", "schedule.warmup": "2 steps", "keep": "last", "evaluate_every": "4 steps"}
    wanted = plain | sgd | steps | {"checkpoint_every": "3 steps", "data.source": source(name, here)} | fields
    return dataclasses.replace(changed(short_recipe(here), **wanted), task=Choice(name, OPTIONS[name]))


def weights(run: Path) -> dict[str, Tensor]:
    return load_file(run / "model" / "model.safetensors")


@made_too
def test_it_describes_itself(name: str) -> None:
    kind = TASKS.find(name)
    assert re.fullmatch(r"[a-z][a-z0-9-]*", kind.name)
    assert kind.summary
    assert "\n" not in kind.summary
    assert kind.options.__dataclass_params__.frozen
    assert kind.options.__doc__
    default = to_dict(kind.options())  # all have defaults
    assert set(OPTIONS[name]) == set(default)
    assert all(OPTIONS[name][field] != value for field, value in default.items())


@every
def test_its_head_gives_what_its_loss_takes(name: str, here: Path) -> None:
    """A finite loss per image, and what is logged of each; the gradient reaches all of the model."""
    task, dataset, model = built(name, here)
    outputs = model(torch.randn(7, 3, 8, 8))
    expected, target = answered(name)
    assert outputs.shape == expected.shape
    criterion = task.criterion(Loss(), dataset, dataset.splits["train"])
    losses = criterion.losses(outputs.float(), target)
    assert losses.shape == (7,)
    assert losses.isfinite().all()
    measures = criterion.measures(outputs.float(), target)
    assert all(value.shape == (7,) and value.isfinite().all() for value in measures.values())
    learner = Learner(model.train(), Supervised(criterion, task.target))
    batch = Batch({"train": Stream((torch.randn(7, 3, 8, 8),), {task.target: target}, torch.arange(7))})
    learner(batch, torch.tensor(0.0), "train")[0].backward()
    assert [own for own, p in learner.named_parameters() if p.grad is None or not p.grad.any()] == []


@every
def test_sums_add_up_over_batches_and_leave_out_what_does_not_count(name: str, here: Path) -> None:
    task, dataset, _ = built(name, here)
    scorer, (outputs, target) = task.scorer(Loss(), dataset), answered(name)
    counts = torch.tensor([True] * 5 + [False] * 2)
    whole = scorer.sums(outputs[:5], target[:5], counts[:5])
    assert whole.dtype == torch.float64
    assert whole.ndim == 1
    spoilt = outputs.clone()
    spoilt[5:] = float("nan")  # rows that fill a batch, or could not be read
    torch.testing.assert_close(scorer.sums(spoilt, target, counts), whole)
    parts = scorer.sums(outputs[:2], target[:2], counts[:2]) + scorer.sums(outputs[2:], target[2:], counts[2:])
    torch.testing.assert_close(parts, whole)
    scores = scorer.scores(whole)
    assert scores["count"] == 5
    assert all(math.isfinite(value) for value in scores.values())
    losses = task.criterion(Loss(), dataset, dataset.splits["train"]).losses(outputs[:5], target[:5])
    assert scores["loss"] == pytest.approx(losses.mean().item())
    assert task.words(scores)
    assert "\n" not in task.words(scores)
    assert not task.words({})


@every
def test_a_perfect_answer_scores_better_than_another(name: str, here: Path) -> None:
    task, dataset, _ = built(name, here)
    scorer, (outputs, target), counts = task.scorer(Loss(), dataset), answered(name), torch.ones(7, dtype=torch.bool)
    perfect = {
        "classification": lambda: 20 * target,
        "segmentation": lambda: 20 * torch.eye(4)[target.clamp(max=3)].permute(0, 3, 1, 2)[:, :3],
        REGRESSION: lambda: target[:, None],
    }[name]()
    best, other = (scorer.scores(scorer.sums(each, target, counts)) for each in (perfect, outputs))
    assert best["score"] == pytest.approx(1)
    assert other["score"] < best["score"]
    assert best["loss"] < other["loss"]


@every
def test_an_answer_per_image(name: str, here: Path) -> None:
    task, _, model = built(name, here)
    answers = task.answers(model, answered(name)[0], top=2)
    assert len(answers) == 7
    for answer in answers:
        assert json.loads(json.dumps(answer.plain()))
        assert all(len(row) == 2 for row in answer.rows())
        assert answer.rows()


@every
def test_it_refuses_other_data_in_one_sentence(name: str, here: Path) -> None:
    task = built(name, here)[0]
    task.check(open_data(source(name, here)))
    for other in (*(each for each in NAMES if each != name), None):
        dataset = open_data(here / "flat" if other is None else source(other, here))
        with pytest.raises(Error) as caught:
            task.check(dataset)
        assert re.fullmatch(r"[^\n]+\.", str(caught.value))
        assert dataset.name in str(caught.value)


@made_too
def test_its_options_survive_json_and_the_command_line(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Recipe] = []

    def train(recipe: Recipe, **_: object) -> SimpleNamespace:
        given.append(recipe)
        return SimpleNamespace(status=0, folder=here, reason="signal", step=0, scores={}, ending="")

    monkeypatch.setattr("vitlab.api.train", train)
    flags = [
        text for field, value in OPTIONS[name].items() for text in (f"--task.{field.replace('_', '-')}", str(value))
    ]
    assert main(["train", "digits", "--task", name, *flags]) == 0
    assert given[0].task == Choice(name, OPTIONS[name])
    assert read_recipe(json.loads(json.dumps(to_dict(given[0]))), where="test") == given[0]
    capsys.readouterr()
    assert main(["train", "digits", "--task", name, "--task.colour", "3"]) == 2
    said = capsys.readouterr().err
    assert "There is no option '--task.colour'." in said


@every
def test_a_lost_run_resumes_to_the_bit_and_predicts(
    name: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_for(name, here, **{"model.dropout": 0.1, "optimizer.name": "adamw", "optimizer.lr": 1e-3})
    whole = session.train(recipe, tmp_path / "whole", device="cpu", show=False)
    with monkeypatch.context() as patch:
        lose_at(5, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, tmp_path / "lost", device="cpu", show=False)
    again = session.resume(tmp_path / "lost", device="cpu", show=False)
    found, expected = weights(tmp_path / "lost"), weights(tmp_path / "whole")
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[own], expected[own]) for own in expected)
    assert again.scores == whole.scores
    [prediction] = vitlab.predict(tmp_path / "lost", [here / "flat" / "0.png"])
    assert prediction.error is None
    assert prediction.answer is not None
    assert prediction.answer.rows()


def test_two_processes_are_one(here: Path, tmp_path: Path) -> None:
    """All tasks in one launch; the score of the held-out part, which the processes share, too."""
    runs = {f"{i}": recipe_for(name, here) for i, name in enumerate(NAMES)}
    for file, recipe in runs.items():
        (tmp_path / f"{file}.json").write_text(json.dumps(to_dict(recipe)))
    (tmp_path / "launched.py").write_text(SCRIPT)
    launched = processes.forked(tmp_path / "launched.py", tmp_path)
    assert launched.returncode == 0, launched.stderr[-3000:]
    for file, recipe in runs.items():
        alone = session.train(recipe, tmp_path / f"{file} alone", device="cpu", show=False)
        found, expected = weights(tmp_path / file), weights(tmp_path / f"{file} alone")
        for own, value in expected.items():
            torch.testing.assert_close(found[own], value, rtol=1e-5, atol=1e-5, msg=f"{recipe.task.name}: {own}")
        result = json.loads((tmp_path / file / "result.json").read_text())
        assert result["val score"] == pytest.approx(alone.scores["val score"], rel=1e-4, abs=1e-6)


@pytest.mark.slow
@pytest.mark.compiled
def test_it_compiles(here: Path) -> None:
    for name in NAMES:
        task, dataset, model = built(name, here, depth=1)
        criterion = task.criterion(Loss(), dataset, dataset.splits["train"])
        learner, target = Learner(model.train(), Supervised(criterion, task.target)), answered(name)[1]
        batch = Batch({"train": Stream((torch.randn(7, 3, 8, 8),), {task.target: target}, torch.arange(7))})
        expected, logged = learner(batch, torch.tensor(0.0), "train")
        compiled: Any = torch.compile(learner, backend="aot_eager", fullgraph=True)
        loss, again = compiled(batch, torch.tensor(0.0), "train")
        torch.testing.assert_close((loss, again), (expected, logged), rtol=1e-4, atol=1e-5)


@every
def test_only_class_labels_are_mixed(name: str, here: Path, tmp_path: Path) -> None:
    steps = {"schedule.total": "1 step", "schedule.warmup": "0 steps"}
    recipe = recipe_for(name, here, **{"augmentation.mixup": 0.8, **steps})
    if name == "classification":
        assert session.train(recipe, tmp_path / "run", device="cpu", show=False).step == 1
    else:
        with pytest.raises(ConfigError, match="Mixup and cutmix mix one view of each image and its class labels"):
            session.train(recipe, tmp_path / "run", device="cpu", show=False)


@every
def test_options_of_another_loss_are_refused(name: str, here: Path) -> None:
    if name == "classification":
        return  # whose loss they are
    task, dataset, _ = built(name, here)
    with pytest.raises(ConfigError, match=r"loss\.\*") as caught:
        task.criterion(Loss(class_weights=True), dataset, dataset.splits["train"])
    assert "\n" not in str(caught.value)


def test_regression_scores_as_scikit_learn_does(here: Path) -> None:
    task, dataset, _ = built(REGRESSION, here)
    scorer, (outputs, target) = task.scorer(Loss(), dataset), answered(REGRESSION)
    scores = scorer.scores(scorer.sums(outputs, target, torch.ones(7, dtype=torch.bool)))
    assert scores["R2"] == scores["score"] == pytest.approx(r2_score(target, outputs[:, 0]))
    assert scores["absolute error"] == pytest.approx(mean_absolute_error(target, outputs[:, 0]))
