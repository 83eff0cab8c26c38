"""Model and objective under one roof: phases, and what a call gives."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from batches import labelled
from vitlab.core.errors import ConfigError
from vitlab.data.batch import Batch
from vitlab.models.contract import Model
from vitlab.models.create import create
from vitlab.objectives.contract import Metrics, Objective, Phase
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training.learner import Learner

NOW = torch.zeros(())


class Two(Objective):
    """Two phases, which train what they are told to."""

    def __init__(self, first: Callable[[str], bool], second: Callable[[str], bool]) -> None:
        super().__init__()
        self.own, self.first, self.second = torch.nn.Linear(10, 1), first, second

    def phases(self, model: Model) -> tuple[Phase, ...]:
        del model
        return Phase("first", self.loss, self.first), Phase("second", self.other, self.second)

    def loss(self, model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, Metrics]:
        return self.own(model(batch.images)).mean() + progress, {"of": torch.tensor(1.0)}

    def other(self, model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, Metrics]:
        del model, progress
        return batch.images.mean(), {"of": torch.tensor(2.0)}


def a_model() -> Model:
    torch.manual_seed(0)
    model = create("vit-digits", depth=1)
    torch.nn.init.normal_(model.get_parameter("head.weight"))
    return model


def a_batch() -> Batch:
    return labelled(torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)), torch.eye(10)[:4])


def trained(learner: Learner) -> set[str]:
    return {name for name, parameter in learner.named_parameters() if parameter.requires_grad}


def test_a_parameter_of_two_phases_is_refused() -> None:
    objective = Two(lambda _: True, lambda name: name == "objective.own.bias")
    with pytest.raises(ConfigError, match=r"^objective\.own\.bias is trained by more than one phase"):
        Learner(a_model(), objective)


def test_another_turn_of_a_phase_has_its_parameters() -> None:
    class Again(Two):
        def phases(self, model: Model) -> tuple[Phase, ...]:
            return *super().phases(model), Phase("once more", self.loss, again="first")

    learner = Learner(a_model(), Again(lambda name: name == "model.head.bias", lambda name: "own" in name))
    assert {name for name, _ in learner.trained("once more")} == {"model.head.bias"}
    learner.turn("once more")
    assert trained(learner) == {"model.head.bias"}


def test_each_phase_has_gradients_of_its_own_and_what_none_trains_is_frozen() -> None:
    objective = Two(lambda name: name.startswith("model.head."), lambda name: name == "objective.own.weight")
    learner = Learner(a_model(), objective)
    head = {"model.head.weight", "model.head.bias"}
    assert trained(learner) == head | {"objective.own.weight"}
    assert {name for name, _ in learner.trained("first")} == head
    assert {name for name, _ in learner.trained("second")} == {"objective.own.weight"}
    for phase, own in (("first", head), ("second", {"objective.own.weight"}), ("first", head)):
        learner.turn(phase)
        assert trained(learner) == own
    learner.turn(None)
    assert trained(learner) == head | {"objective.own.weight"}


def test_what_was_frozen_before_stays_so() -> None:
    model = a_model()
    model.requires_grad_(False)
    model.head.requires_grad_(True)
    learner = Learner(model, Supervised(CrossEntropy()))
    learner.turn("train")
    assert trained(learner) == {"model.head.weight", "model.head.bias"}


def test_a_call_names_its_phase() -> None:
    objective = Two(lambda name: name.startswith("model."), lambda name: name.startswith("objective."))
    learner, batch = Learner(a_model(), objective), a_batch()
    loss, metrics = learner(batch, torch.tensor(0.5), "first")
    torch.testing.assert_close(loss, objective.own(learner.model(batch.images)).mean() + 0.5)
    assert metrics["of"] == 1
    loss, metrics = learner(batch, torch.tensor(0.5), "second")
    torch.testing.assert_close(loss, batch.images.mean())
    assert metrics["of"] == 2


def test_the_models_own_losses_are_added_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, objective, batch = a_model(), Supervised(CrossEntropy()), a_batch()
    asked: list[int] = []

    def auxiliary() -> dict[str, Tensor]:
        asked.append(1)
        return {"balance": torch.tensor(3.0, requires_grad=True), "load": torch.tensor(0.25)}

    monkeypatch.setattr(model, "auxiliary", auxiliary)
    plain, measured = objective.loss(model, batch, NOW)
    loss, metrics = Learner(model, objective)(batch, NOW, "train")
    torch.testing.assert_close(loss, plain + 3.25)
    assert asked == [1]
    assert metrics.keys() == measured.keys() | {"balance", "load"}
    assert (metrics["balance"].item(), metrics["load"].item()) == (3.0, 0.25)
    assert not metrics["balance"].requires_grad


def test_images_alone_are_given_to_the_model() -> None:
    model, images = a_model().eval(), a_batch().images
    assert torch.equal(Learner(model, Supervised(CrossEntropy()))(images), model(images))


def test_where_parameters_are_sharded_in_another_type_images_are_cast_and_targets_are_not() -> None:
    seen: list[Batch] = []

    class Noting(Objective):
        def loss(self, model: Model, batch: Batch, progress: Tensor) -> tuple[Tensor, Metrics]:
            del model
            seen.append(batch)
            return progress, {}

    learner = Learner(a_model().to(torch.bfloat16).eval(), Noting())
    learner.cast_to = torch.bfloat16
    batch = a_batch()
    learner(batch, NOW, "train")
    assert seen[0].images.dtype == torch.bfloat16
    assert torch.equal(seen[0].targets["label"], batch.targets["label"])
    assert seen[0].places.dtype == torch.int64
    assert learner(batch.images).dtype == torch.bfloat16


def test_what_is_saved_is_called_by_whose_it_is() -> None:
    objective: Any = Two(lambda name: name.startswith("model."), lambda name: name.startswith("objective."))
    names = set(Learner(a_model(), objective).state_dict())
    assert {name.partition(".")[0] for name in names} == {"model", "objective"}
    assert {"objective.own.weight", "objective.own.bias", "model.head.weight"} <= names
