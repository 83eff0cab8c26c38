"""Whole runs with a teacher, and with batch norm's statistics in their state."""

import functools
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file

import vitlab
from batches import labelled
from changing import changed, lose_at
from vitlab.core.errors import ConfigError
from vitlab.data.contract import DataSet
from vitlab.models.heads import DistilledHead
from vitlab.models.timm.adapter import TimmModel
from vitlab.objectives.distillation import Distillation, class_order
from vitlab.recipes import find_recipe
from vitlab.training import checkpoints, session
from vitlab.training.learner import Learner
from vitlab.training.model import build_model
from vitlab.training.plan import Given, Plan, make_plan, open_parts
from vitlab.training.recipe import Recipe
from vitlab.training.run import RunError

SMALL_DEIT = ["patch_size=2", "width=32", "depth=2", "mlp_dim=64", "heads=4"]


def distilling(recipe: Recipe, teacher: Path | str, **fields: Any) -> Recipe:
    student = {"model.source": "deit-ti16-224", "model.set": SMALL_DEIT, "model.image_size": 8}
    return changed(recipe, **student, objective=taught_by(teacher), **fields)


def taught_by(teacher: Path | str, **options: Any) -> dict[str, Any]:
    return {"name": "distillation", "teacher": str(teacher), **options}


def plan_of(recipe: Recipe, folder: Path) -> Plan:
    return make_plan(recipe, folder, open_parts(recipe), Given())


@pytest.fixture
def teacher(tmp_path: Path) -> Path:
    model = vitlab.create("vit-digits", depth=1, num_classes=3)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    vitlab.save(model, tmp_path / "teacher")
    return tmp_path / "teacher"


def test_a_lost_run_with_a_teacher_goes_on_to_the_bit(
    short: Recipe, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = distilling(short, teacher)
    session.train(recipe, tmp_path / "whole", device="cpu", show=False)
    with monkeypatch.context() as patch:
        lose_at(14, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, tmp_path / "lost", device="cpu", show=False)
    session.resume(tmp_path / "lost", device="cpu", show=False)
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "lost")]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert all(0 <= line["agreement"] <= 1 for line in lines if "loss" in line)
    last = checkpoints.complete(tmp_path / "whole" / "checkpoints")[-1][1]
    stored = dcp.FileSystemReader(last).read_metadata().state_dict_metadata
    assert any(name.startswith("model.model.blocks.0") for name in stored)
    assert not any(name.startswith("model.objective") for name in stored)  # the teacher is read again
    student = vitlab.load(tmp_path / "whole")
    assert isinstance(student.head, DistilledHead)
    assert student(torch.zeros(1, 3, 8, 8)).shape == (1, 3)


@pytest.mark.parametrize("kind", ["hard", "soft"])
def test_any_student_learns_from_any_teacher(short: Recipe, tmp_path: Path, kind: str) -> None:
    """A ConvNet of timm's at another size teaches a plain ViT, which has one head for both."""
    vitlab.save(vitlab.create("timm:test_resnet", num_classes=3, image_size=32), tmp_path / "teacher")
    fields = {"objective": taught_by(tmp_path / "teacher", kind=kind), "schedule.total": "5 steps"}
    ended = session.train(changed(short, **fields), tmp_path / "run", device="cpu", show=False)
    assert ended.step == 5


def test_a_distilled_model_of_timms_learns_with_both_heads(short: Recipe, teacher: Path, tmp_path: Path) -> None:
    arguments = {"embed_dim": 24, "depth": 1, "num_heads": 3, "patch_size": 4}
    fields = {"model.source": "timm:deit_tiny_distilled_patch16_224", "model.image_size": 8, "model.dropout": 0.0}
    recipe = changed(
        short,
        **fields,
        **{"model.set": [f"{name}={value}" for name, value in arguments.items()]},
        objective=taught_by(teacher),
    )
    plan = plan_of(recipe, tmp_path)
    model = build_model(plan).train()
    objective = plan.objective(model)
    assert isinstance(objective, Distillation)
    assert model(torch.zeros(2, 3, 8, 8)).shape == (2, 3)
    head = model.head
    assert isinstance(head, DistilledHead)
    torch.nn.init.normal_(model.get_parameter("head.teacher.weight"))  # so that the heads differ
    batch = labelled(torch.randn(2, 3, 8, 8), torch.eye(3)[[0, 2]])
    for alpha, learns, rests in ((0.0, head.label, head.teacher), (1.0, head.teacher, head.label)):
        model.zero_grad()
        objective.alpha = alpha
        Learner(model, objective)(batch, torch.zeros(()), "train")[0].backward()
        assert all(parameter.grad is not None and parameter.grad.any() for parameter in learns.parameters())
        assert not any(parameter.grad is not None and parameter.grad.any() for parameter in rests.parameters())


def test_a_teacher_of_other_classes_is_refused_and_one_of_another_order_is_put_in_order(
    short: Recipe, tmp_path: Path
) -> None:
    vitlab.save(vitlab.create("vit-digits", depth=1), tmp_path / "ten")
    with pytest.raises(ConfigError, match="knows 10 classes and .* has 3"):
        session.train(distilling(short, tmp_path / "ten"), tmp_path / "run", device="cpu", show=False)
    dataset = open_parts(short)
    model = vitlab.create("vit-digits", depth=1, num_classes=3)
    model.labels = tuple(reversed(dataset.classes))
    vitlab.save(model, tmp_path / "turned")
    plan = plan_of(distilling(short, tmp_path / "turned"), tmp_path)
    objective = plan.objective(build_model(plan))
    assert isinstance(objective, Distillation)
    assert objective.order is not None
    assert objective.order.tolist() == [2, 1, 0]


@pytest.mark.parametrize(
    ("known", "classes", "order", "said"),
    [
        (("Sea_lion", "Cat", "dog"), ("cat", "dog", "sea lion"), [1, 2, 0], ""),
        (("n02084071", "n02121620"), ("cat (n02121620)", "dog (n02084071)"), [1, 0], ""),
        (("a", "A"), ("A", "a"), [1, 0], ""),
        (("cat", "dog"), ("cat", "dog"), None, ""),
        (None, ("cat", "dog"), None, ""),
        (
            ("0", "1"),
            ("cat", "dog"),
            None,
            r"teacher runs/t are not those of pets \('0', the data's 'cat'\): matched by num",
        ),
    ],
)
def test_a_teachers_classes_are_matched_by_name_or_said_not_to_be(
    known: tuple[str, ...] | None,
    classes: tuple[str, ...],
    order: list[int] | None,
    said: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As an evaluation matches them: by names but for case and underscores, or by WordNet ids."""
    model = vitlab.create("vit-digits", depth=1, num_classes=len(classes))
    model.labels = known
    dataset = DataSet(name="pets", classes=classes, splits={}, fingerprint="")
    assert class_order("runs/t", model, dataset) == order
    assert re.search(said, caplog.text) if said else not caplog.text


def batch_normed(recipe: Recipe) -> Recipe:
    fields = {"model.source": "timm:test_resnet", "model.image_size": 16, "model.set": [], "model.dropout": 0.0}
    return changed(recipe, **fields, **{"schedule.total": "10 steps", "schedule.warmup": "2 steps"})


def test_a_lost_run_with_batch_norm_goes_on_to_the_bit(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = batch_normed(short)
    session.train(recipe, tmp_path / "whole", device="cpu", show=False)
    start = functools.partial(session.train, recipe)
    for step in (6, 9):
        with monkeypatch.context() as patch:
            lose_at(step, patch)
            with pytest.raises(KeyboardInterrupt):
                start(tmp_path / "lost", device="cpu", show=False)
        start = session.resume
    session.resume(tmp_path / "lost", device="cpu", show=False)
    weights = [load_file(tmp_path / name / "model" / "model.safetensors") for name in ("whole", "lost")]
    assert any(name.endswith("running_var") for name in weights[0])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_fine_tuned_adapter_starts_from_a_zero_classifier_only(short: Recipe, tmp_path: Path) -> None:
    """LeViT's classifiers have a norm before the product: with zeros in it nothing could be learned."""
    narrow = {"embed_dim": [16, 24, 32], "num_heads": [2, 2, 2]}
    vitlab.save(vitlab.create("timm:levit_128s", num_classes=3, image_size=64, **narrow), tmp_path / "levit")
    fields = {"model.source": str(tmp_path / "levit"), "model.pretrained": True, "model.dropout": 0.0, "model.set": []}
    recipe = changed(short, **fields, **{"model.drop_path": 0.0})
    model = build_model(plan_of(recipe, tmp_path))
    assert isinstance(model, TimmModel)
    zero = {name for name, value in model.head.named_parameters() if not value.any() and value.ndim == 2}
    assert zero == {"label.linear.weight", "teacher.linear.weight"}
    assert dict(model.head.named_parameters())["label.bn.weight"].all()


@pytest.mark.slow
def test_a_tiny_deit_learns_the_digits_from_a_teacher(tmp_path: Path) -> None:
    """Hard labels of a trained ViT on the distillation token, above 95% on the part that nobody saw."""
    short = {"data.workers": 0, "evaluate_every": "10 epochs"}
    digits = changed(find_recipe("digits"), **short, **{"schedule.total": "40 epochs"})
    teacher = session.train(digits, tmp_path / "teacher", device="cpu", show=False)
    sizes = ["patch_size=2", "width=64", "depth=4", "mlp_dim=128", "heads=4"]
    start = ["positions_std=0.5", "residual_scale=0"]
    student = changed(
        digits,
        **{"model.source": "deit-ti16-224", "model.set": sizes + start, "model.image_size": 8},
        **{"objective": taught_by(tmp_path / "teacher"), "schedule.total": "60 epochs"},
    )
    ended = session.train(student, tmp_path / "student", device="cpu", show=False)
    assert teacher.scores["test accuracy"] > 0.95
    assert ended.scores["test accuracy"] > 0.95
    model = vitlab.load(tmp_path / "student")
    assert isinstance(model.head, DistilledHead)
    assert np.isfinite(ended.scores["test loss"])


@pytest.mark.parametrize("own", [None, "Ours.", "Ours.\n\nFor research."])
def test_a_teachers_licence_goes_with_what_learned_from_it(
    short: Recipe, teacher: Path, tmp_path: Path, own: str | None
) -> None:
    """After the licence of the weights that the student starts from, once, also when the run is resumed."""
    (teacher / "LICENSE").write_text("For research.")
    start = vitlab.create("vit-digits", depth=1, num_classes=3)
    start.license = own
    vitlab.save(start, tmp_path / "start")
    fields = {"model.source": str(tmp_path / "start"), "model.pretrained": True, "schedule.total": "5 steps"}
    recipe = changed(short, **fields, evaluate_every="5 steps", objective=taught_by(teacher))
    session.train(recipe, tmp_path / "run", device="cpu", show=False)
    session.resume(tmp_path / "run", device="cpu", show=False)
    assert vitlab.load(tmp_path / "run").license == ("Ours.\n\nFor research." if own else "For research.")


def test_a_changed_teacher_is_refused(short: Recipe, teacher: Path, tmp_path: Path) -> None:
    recipe = distilling(short, teacher, **{"schedule.total": "4 steps"})
    session.train(recipe, tmp_path / "run", device="cpu", show=False)
    vitlab.save(vitlab.create("vit-digits", depth=1, num_classes=3), teacher)
    with pytest.raises(RunError, match=r"The teacher \(.*\) changed since"):
        session.resume(tmp_path / "run", device="cpu", show=False)


def test_a_teacher_that_was_moved(
    short: Recipe, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = distilling(short, teacher)
    with monkeypatch.context() as patch:
        lose_at(14, patch)
        with pytest.raises(KeyboardInterrupt):
            session.train(recipe, tmp_path / "run", device="cpu", show=False)
    teacher.rename(tmp_path / "elsewhere")
    moved = changed(recipe, **{"objective.teacher": str(tmp_path / "elsewhere")})
    with pytest.raises(RunError, match=r"objective\.name: 'distillation', now 'supervised'"):
        session.resume(tmp_path / "run", recipe=changed(recipe, objective="supervised"), device="cpu", show=False)
    alone = changed(recipe, **{"objective.teacher": None})
    with pytest.raises(ConfigError, match=r"needs a teacher.*--objective\.teacher"):
        session.resume(tmp_path / "run", recipe=alone, device="cpu", show=False)
    assert session.resume(tmp_path / "run", recipe=moved, device="cpu", show=False).step == 24
