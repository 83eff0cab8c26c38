"""What every objective promises: those of the house, and the masked autoencoder of docs/extending.md."""

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
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import documented
import processes
import vitlab
from changing import changed, lose_at
from short_runs import short_recipe, write_small_set
from tiny_vits import SIZES, random_vit
from vitlab.cli import main
from vitlab.core import registry
from vitlab.core.config import Choice, to_dict
from vitlab.core.errors import ConfigError, DataError
from vitlab.data.augmentation import Augmentation
from vitlab.data.batch import Batch, Stream
from vitlab.data.loading.order import Order
from vitlab.data.open import open_data
from vitlab.data.sources.holdout import labelled_part_of_train
from vitlab.data.streams import StreamPlan, View
from vitlab.models.contract import Model
from vitlab.models.vit import ViTConfig
from vitlab.objectives import OBJECTIVES
from vitlab.objectives.contract import Criterion, Objective, ObjectiveKind, Setting
from vitlab.objectives.cross_entropy import Loss
from vitlab.objectives.supervised import Supervised
from vitlab.tasks.classification import Classification
from vitlab.training import session
from vitlab.training.learner import Learner
from vitlab.training.recipe import Recipe, read_recipe

MAE = documented.named("objective")
NAMES = [*OBJECTIVES.names(), MAE]
every = pytest.mark.parametrize(
    "name", NAMES, ids=[*OBJECTIVES.names(), "documented"]
)  # a path is another in each process
# every option of every objective, away from its default; TEACHER and TREE stand for a model and a file that are there
OPTIONS: dict[str, dict[str, Any]] = {
    "supervised": {},
    "distillation": {"teacher": "TEACHER", "kind": "soft", "alpha": 0.25, "tau": 2.0},
    "masked-patches": {"fraction": 0.75, "mask_share": 0.5, "random_share": 0.25, "target": "pixels"},
    "mae": {
        "mask_ratio": 0.5,
        "decoder_width": 16,
        "decoder_depth": 1,
        "decoder_heads": 2,
        "target": "pixels",
    },
    "dino": {
        "num_small": 2,
        "small_side": 0.5,
        "small_area": [0.2, 0.5],
        "out_dim": 16,
        "hidden": 8,
        "bottleneck": 4,
        "momentum": 0.9,
        "student_temp": 0.2,
        "teacher_temp": 0.1,
        "teacher_temp_start": 0.05,
        "teacher_temp_warmup": 0.5,
        "center_momentum": 0.5,
        "freeze_last": 0.1,
        "patch_weight": 0.5,
        "mask_prob": 0.75,
        "mask_ratio": [0.25, 0.75],
        "koleo": 0.1,
    },
    "simclr": {"temperature": 0.5, "hidden": 8, "out_dim": 4},
    "lejepa": {
        "num_small": 1,
        "small_side": 0.5,
        "small_area": [0.2, 0.5],
        "weight": 0.1,
        "num_large": 2,
        "slices": 8,
        "hidden": 8,
        "out_dim": 4,
    },
    "semantic-softmax": {
        "hierarchy": "TREE",
        "inner": "branching",
        "max_factor": 1.1,
        "drop_deepest": True,
        "extend_leaves": True,
    },
    "transgan": {
        "loss": "hinge",
        "gradient_penalty": 1.0,
        "drift": 0.01,
        "n_critic": 2,
        "critic_lr": 0.01,
        "critic_patch": 2,
        "critic_width": 8,
        "critic_depth": 1,
        "critic_heads": 2,
        "augment": ["translation", "cutout"],
    },
    "fixmatch": {
        "policy": "trivial",
        "num_ops": 1,
        "magnitude": 5.0,
        "erase": 0.5,
        "erase_area": [0.05, 0.2],
        "threshold": 0.4,
        "ratio": 2,
        "weight": 0.5,
        "temperature": 0.5,
        "teacher_ema": 0.9,
    },
    "noisy-student": {
        "teacher": "TEACHER",
        "labels": "hard",
        "temperature": 0.5,
        "threshold": 0.2,
        "quota": 20,
        "copies": "one",
        "ratio": 2,
    },
    "meta-pseudo-labels": {
        "policy": "trivial",
        "num_ops": 1,
        "magnitude": 5.0,
        "erase": 0.5,
        "erase_area": [0.05, 0.2],
        "ratio": 2,
        "labels": "sampled",
        "sign": "theory",
        "baseline_rate": 0.5,
        "wait": 0.2,
        "weight": 2.0,
        "ramp": 0.25,
        "temperature": 0.5,
        "threshold": 0.4,
        "teacher_lr": 2.0,
        "teacher_start": "student",
    },
    MAE: {"mask_ratio": 0.5, "width": 32},
}
# what is another than for most: a model that makes images, and its task; labels are not looked at
GENERATOR: dict[str, Any] = {"model.source": "transgan-digits", "model.set": ["depths=1,1", "width=32", "latent_dim=4"]}
MODELS: dict[str, dict[str, Any]] = {"transgan": GENERATOR}
TASKS_OF = {"transgan": Choice("generation", {"features": "pixels"})}
# models with parts that not every path through them takes
VITS: list[dict[str, Any]] = [
    {},
    {"pool": "mean", "class_token": False, "num_registers": 1},
    {"pool": "attention", "norm_pooled": True},
    {"representation": 5},
    {"distill_token": True},
    {"positions": "relative2d", "pool": "mean"},
]
# room for all in every group and nothing that balances, so that it does not matter which images are routed together
EXPERTS: dict[str, Any] = {
    "model.source": "vmoe-digits",
    "model.set": ["depth=2", "router_noise=0", "capacity=4", "eval_capacity=4", "importance_weight=0", "load_weight=0"],
    "strategy": "experts",
}
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
    """A folder with a small set, a tree of its classes, pictures without labels, and a teacher."""
    folder = tmp_path_factory.mktemp("objectives")
    write_small_set(folder / "small.npz")
    (folder / "tree.json").write_text('{"0": "dark", "1": "dark", "dark": "all", "2": "all"}')
    torch.manual_seed(0)
    vitlab.save(random_vit(ViTConfig(**SIZES, num_classes=3)), folder / "teacher")
    (folder / "flat").mkdir()
    for i in range(20):
        Image.fromarray(np.full((8, 8, 3), 10 * i, np.uint8)).save(folder / "flat" / f"{i}.png")
    return folder


def options(name: str, here: Path) -> dict[str, Any]:
    files = {"TEACHER": str(here / "teacher"), "TREE": str(here / "tree.json")}
    return {
        field: files.get(value, value) if isinstance(value, str) else value for field, value in OPTIONS[name].items()
    }


def built(name: str, here: Path, **fields: Any) -> tuple[ObjectiveKind, Model, Objective]:
    """An objective by its options, for a tiny ViT with no two parameters alike."""
    kind = OBJECTIVES.find(name)
    sizes: dict[str, Any] = {**SIZES, "num_classes": 3 if kind.objective.scores_task else 0, **fields}
    model: Model = random_vit(ViTConfig(**sizes))
    if name in MODELS:
        torch.manual_seed(0)
        model = vitlab.create("transgan-digits", depths=(1, 1), width=32, latent_dim=4)
    dataset = open_data(here / "small.npz")
    if kind.objective.needs_unlabelled:
        dataset = labelled_part_of_train(dataset, 0.5)

    def criterion() -> Criterion:
        return Classification().criterion(Loss(), dataset, dataset.splits["train"])

    setting = Setting(model=model, dataset=dataset, target="label", criterion=criterion)
    return kind, model.train(), kind.build(kind.options(**options(name, here)), setting)


def batch_of(objective: Objective, here: Path, num: int = 6) -> Batch:
    """Random images in the streams and views that the objective asks for."""
    generator = torch.Generator().manual_seed(0)
    split = open_data(here / "small.npz").splits["train"]
    main = StreamPlan("train", split, Order(0, len(split)), num, (View(Augmentation(), (8, 8)),), num_classes=3)
    streams: dict[str, Stream] = {}
    for plan in objective.streams(main):
        places = torch.arange(plan.batch_size)
        views = tuple(torch.randn(plan.batch_size, 3, *view.size, generator=generator) for view in plan.views)
        streams[plan.name] = Stream(views, {"label": torch.eye(3)[places % 3]}, places)
    return Batch(streams)


def recipe_for(name: str, here: Path, **fields: object) -> Recipe:
    """Eight steps by an objective, without what it does not take and without what follows the rank."""
    plain = {"augmentation.mixup": 0.0, "augmentation.cutmix": 0.0, "model.dropout": 0.0, "model.drop_path": 0.0}
    sgd = {"optimizer.name": "sgd", "optimizer.weight_decay": 0.0, "optimizer.lr": 0.05}
    steps = {"schedule.total": "8 steps", "schedule.warmup": "2 steps", "keep": "last", "evaluate_every": "4 steps"}
    few = {"data.labelled": 0.5} if OBJECTIVES.find(name).objective.needs_unlabelled else {}
    wanted = plain | sgd | steps | few | {"checkpoint_every": "3 steps"} | MODELS.get(name, {}) | fields
    short = changed(short_recipe(here / "small.npz"), **wanted)
    task = TASKS_OF.get(name, short.task)
    return dataclasses.replace(short, objective=Choice(name, options(name, here)), task=task)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@every
def test_it_describes_itself(name: str) -> None:
    kind = OBJECTIVES.find(name)
    assert re.fullmatch(r"[a-z][a-z0-9-]*", kind.name)
    assert kind.summary
    assert "\n" not in kind.summary
    assert issubclass(kind.objective, Objective)
    assert kind.options.__dataclass_params__.frozen
    default = to_dict(kind.options())  # all have defaults
    assert set(OPTIONS[name]) == set(default)
    assert all(OPTIONS[name][field] != value for field, value in default.items())


@every
def test_its_loss_is_a_mean_over_images(name: str, here: Path) -> None:
    """A finite scalar; where the loss is over single images, parts of a batch add up to it."""
    _, model, objective = built(name, here)
    learner, batch, progress = Learner(model, objective), batch_of(objective, here), torch.tensor(0.5)
    for phase in learner.phases:
        loss, metrics = learner(batch, progress, phase)
        assert loss.shape == ()
        assert math.isfinite(loss.item())
        assert loss.requires_grad
        assert all(value.shape == () and value.isfinite() for value in metrics.values())
        assert not any(value.requires_grad for value in metrics.values())
        if not objective.whole_batch:
            parts = [learner(part, progress, phase)[0] * len(part) / len(batch) for part in batch.parts(3)]
            torch.testing.assert_close(sum(parts), loss)


@every
@pytest.mark.parametrize("fields", VITS, ids=lambda fields: "-".join(fields) or "plain")
def test_gradients_reach_what_is_trained_and_nothing_else(name: str, fields: dict[str, Any], here: Path) -> None:
    _, model, objective = built(name, here, **fields)
    learner = Learner(model, objective)
    trained = {phase: {own for own, _ in learner.trained(phase)} for phase in learner.phases}
    assert all(trained.values())
    for phase in learner.phases:
        learner.zero_grad()
        learner.turn(phase)
        learner(batch_of(objective, here), torch.tensor(0.5), phase)[0].backward()
        reached = {own for own, parameter in learner.named_parameters() if parameter.grad is not None}
        assert reached == trained[phase]
        still = {own for own, parameter in learner.named_parameters() if own in reached and not parameter.grad.any()}  # pyright: ignore[reportOptionalMemberAccess]
        assert still == set()
        if objective.teacher is not None:
            assert all(parameter.grad is None for parameter in objective.teacher.parameters())
    never = {own for own, _ in learner.named_parameters()} - set[str]().union(*trained.values())
    assert not any(parameter.requires_grad for own, parameter in learner.named_parameters() if own in never)
    groups = [parameter for group in objective.param_groups() for parameter in group["params"]]
    assert {id(p) for p in groups} == {id(p) for p in objective.parameters() if p.requires_grad}


@every
def test_its_options_survive_json_and_the_command_line(
    name: str, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of the command line's defaults each is the objective's own; a wrong value or name is one sentence."""
    given: list[Recipe] = []

    def train(recipe: Recipe, **_: object) -> SimpleNamespace:
        given.append(recipe)
        return SimpleNamespace(status=0, folder=here, reason="signal", step=0, scores={}, ending="")

    monkeypatch.setattr("vitlab.api.train", train)
    wanted = options(name, here)
    flags: list[str] = []
    for field, value in wanted.items():
        values = [] if value is True else value if isinstance(value, list) else [value]
        flags += [f"--objective.{field.replace('_', '-')}", *map(str, values)]
    assert main(["train", "digits", "--objective", name, *flags]) == 0
    assert main(["train", "digits", "--objective", name]) == 0
    assert given[0].objective == Choice(name, wanted)
    assert given[1].objective == Choice(name, to_dict(OBJECTIVES.find(name).options()))
    for recipe in given:
        assert read_recipe(json.loads(json.dumps(to_dict(recipe))), where="test") == recipe
    capsys.readouterr()
    assert main(["train", "digits", "--objective", name, "--objective.colour", "3"]) == 2
    said = capsys.readouterr().err
    assert "There is no option '--objective.colour'." in said


@every
def test_a_lost_run_resumes_to_the_bit(name: str, here: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert math.isfinite(again.scores["val score"])


def test_two_processes_are_one(here: Path, tmp_path: Path) -> None:
    """All objectives in one launch, as copies; those with parameters or a teacher of their own as shards too.

    Those whose teacher is an average also with spread experts, of which a teacher has all.
    """
    runs = {f"{i}": recipe_for(name, here) for i, name in enumerate(NAMES)}
    for name in ("dino", "semantic-softmax", "meta-pseudo-labels", MAE):
        runs[f"shards {len(runs)}"] = recipe_for(name, here, strategy="shard")
    for name in ("dino", "fixmatch"):
        runs[f"experts {len(runs)}"] = recipe_for(name, here, **EXPERTS)
    for file, recipe in runs.items():
        (tmp_path / f"{file}.json").write_text(json.dumps(to_dict(recipe)))
    (tmp_path / "launched.py").write_text(SCRIPT)
    launched = processes.forked(tmp_path / "launched.py", tmp_path)
    assert launched.returncode == 0, launched.stderr[-3000:]
    for file, recipe in runs.items():
        whole = changed(recipe, strategy="auto")
        alone = session.train(whole, tmp_path / f"{file} alone", device="cpu", show=False)
        found, expected = weights(tmp_path / file), weights(tmp_path / f"{file} alone")
        for own, value in expected.items():
            torch.testing.assert_close(
                found[own], value, rtol=1e-5, atol=1e-5, msg=f"{file} {recipe.objective.name}: {own}"
            )
        result = json.loads((tmp_path / file / "result.json").read_text())
        assert result["val score"] == pytest.approx(alone.scores["val score"], rel=1e-4)


class Waiting(TorchDispatchMode):
    """Notes what would make the host wait for a GPU, and so could not be captured in a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.found = set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        name = str(func)
        shapes = ("_local_scalar_dense", "nonzero", "masked_select", "unique")  # a number, or as many as values say
        kinds = {each.dtype for each in tree_leaves(args) if isinstance(each, torch.Tensor)}
        masks = name.startswith("aten.index.") and torch.bool in kinds
        if masks or any(each in name for each in shapes) or "lift_fresh" in name:  # the last: a copy from the host
            self.found.add(name)
        return func(*args, **(kwargs or {}))


@every
def test_a_step_that_is_captured_never_waits_for_the_device(name: str, here: Path) -> None:
    """Nor does one in phases, which may be captured some day."""
    _, model, objective = built(name, here)
    learner, batch = Learner(model, objective), batch_of(objective, here)
    progress, made = torch.tensor(0.5), torch.tensor(True)
    for phase in learner.phases:
        learner.turn(phase)
        with Waiting() as waiting:
            learner(batch, progress, phase)[0].backward()
            objective.after_step(model, made)
        assert waiting.found == set()


def test_what_waits_is_noticed() -> None:
    x = torch.arange(4.0)
    for waits in (lambda: x.sum().item(), lambda: x[x > 1], lambda: torch.tensor([1.0]) + x, lambda: bool(x[0] > 0)):
        with Waiting() as waiting:
            waits()
        assert waiting.found


@pytest.mark.slow
@pytest.mark.compiled
def test_it_compiles(here: Path) -> None:
    """As one graph, the loss and its gradients as without."""
    for name in NAMES:
        with pytest.MonkeyPatch.context() as patch:  # what is differentiated twice is not compiled
            patch.setitem(OPTIONS["transgan"], "gradient_penalty", 0.0)
            _, model, objective = built(name, here, depth=1)
        learner, batch = Learner(model, objective), batch_of(objective, here)
        for phase in learner.phases:
            torch.compiler.reset()  # a learner is compiled for a few objectives at most
            learner.turn(phase)
            expected = _gradients(learner, learner, batch, phase)
            found = _gradients(torch.compile(learner, backend="aot_eager", fullgraph=True), learner, batch, phase)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def _gradients(called: Any, learner: Learner, batch: Batch, phase: str) -> dict[str, torch.Tensor]:
    learner.zero_grad()
    torch.manual_seed(0)
    loss, _ = called(batch, torch.tensor(0.5), phase)
    loss.backward()
    made = {own: p.grad.clone() for own, p in learner.named_parameters() if p.grad is not None}
    return {"loss": loss.detach(), **made}


@every
def test_without_labels(name: str, here: Path, tmp_path: Path) -> None:
    """Who learns labels refuses images that have none, in one sentence; who does not trains on them."""
    recipe = recipe_for(name, here, **{"data.source": str(here / "flat"), "data.labelled": 1.0, "batch_size": 4})
    if OBJECTIVES.find(name).objective.scores_task and name not in TASKS_OF:
        with pytest.raises(DataError, match="has no labels, and a classifier learns from labels") as caught:
            session.train(recipe, tmp_path / "run", device="cpu", show=False)
        assert "\n" not in str(caught.value)
    else:
        ended = session.train(recipe, tmp_path / "run", device="cpu", show=False)
        assert (ended.reason, ended.step) == ("done", 8)


@every
def test_mixing_needs_labels(name: str, here: Path, tmp_path: Path) -> None:
    steps = {"schedule.total": "1 step", "schedule.warmup": "0 steps"}
    recipe = recipe_for(name, here, **{"augmentation.mixup": 0.8, **steps})
    if OBJECTIVES.find(name).objective.scores_task and name not in TASKS_OF:
        assert session.train(recipe, tmp_path / "run", device="cpu", show=False).step == 1
    else:
        with pytest.raises(ConfigError, match="the stream 'train' has no targets: leave them out"):
            session.train(recipe, tmp_path / "run", device="cpu", show=False)


@every
def test_a_name_that_is_only_saved_is_not_run(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = json.loads(json.dumps(to_dict(recipe_for(name, here))))
    monkeypatch.setattr(registry, "_permitted", set[str]())
    read = read_recipe(recipe, where="test")  # reading a recipe runs nothing
    if registry.is_file_reference(name):
        with pytest.raises(ConfigError, match=r"is code in a file, which is not run .*: give its name again") as caught:
            OBJECTIVES.find(read.objective.name)
        assert "\n" not in str(caught.value)
    else:
        assert OBJECTIVES.find(read.objective.name).name == name


class Contrast(Supervised):  # pyright: ignore[reportGeneralTypeIssues]
    whole_batch = True


def test_a_loss_over_a_whole_batch_refuses_accumulation(here: Path, tmp_path: Path) -> None:
    _, _, objective = built("supervised", here)
    objective.__class__ = Contrast
    recipe = recipe_for("supervised", here, accumulate=2)
    with pytest.raises(ConfigError, match="compares all images of a batch: accumulate must be 1"):
        vitlab.train(recipe, objective=objective, out=tmp_path / "run", device="cpu")


def test_distillation_refuses_what_it_cannot_do(here: Path) -> None:
    kind, model = OBJECTIVES.find("distillation"), random_vit(ViTConfig(**SIZES, num_classes=3))
    dataset = open_data(here / "small.npz")

    class Squared(Criterion):
        def losses(self, outputs: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            return (outputs - target).square().mean(dim=1)

    setting = Setting(model=model, dataset=dataset, target="label", criterion=Squared)
    with pytest.raises(ConfigError, match=r"needs a teacher: name a trained model \(--objective.teacher SOURCE\)"):
        kind.build(kind.options(), setting)
    with pytest.raises(ConfigError, match="Distillation is for classification"):
        kind.build(kind.options(teacher=str(here / "teacher")), setting)


def test_the_autoencoder_refuses_a_model_without_patches(here: Path, tmp_path: Path) -> None:
    fields = {"model.source": "bit-r50x1", "model.set": ["layers=1,1,1,1"], "model.image_size": 32}
    with pytest.raises(ConfigError, match="does not cut images into patches: choose a Vision Transformer"):
        session.train(recipe_for(MAE, here, **fields), tmp_path / "run", device="cpu", show=False)


def test_the_autoencoder_predicts_removed_patches_only(here: Path) -> None:
    """With a decoder that says nothing, each removed patch's loss is the mean square of its normalised pixels."""
    _, model, objective = built(MAE, here)
    own: Any = objective
    with torch.no_grad():
        own.leave.weight.zero_()
        own.leave.bias.zero_()
    batch = batch_of(objective, here)
    loss, _ = objective.loss(model, batch, torch.tensor(0.0))
    n = 4 * 4 * 3  # torch's variance divides by n - 1
    assert loss.item() == pytest.approx((n - 1) / n, rel=1e-4)
    seen = batch.images.clone().requires_grad_()
    with torch.no_grad():
        own.leave.weight.normal_()
    shown = Batch({"train": dataclasses.replace(batch.first, views=(seen,))})
    encoded: list[torch.Tensor] = []
    handle = own.enter.register_forward_hook(lambda _, given, __: encoded.append(given[0]))
    objective.loss(model, shown, torch.tensor(0.0))
    handle.remove()
    [gradient] = torch.autograd.grad(encoded[0].square().sum(), seen)
    patches = gradient.unfold(2, 4, 4).unfold(3, 4, 4).abs().sum(dim=(1, 4, 5)).flatten(1)  # [B, 4]
    assert (patches > 0).sum(dim=1).tolist() == [2] * 6  # half of the patches enter the model
    assert len({tuple(row) for row in (patches > 0).tolist()}) > 1  # other ones of other images
