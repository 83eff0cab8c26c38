"""Batch norm's statistics: averaged with the weights, swapped with them, and spared by steps that are skipped."""

import torch

from batches import labelled, stepping
from vitlab.data.batch import Batch
from vitlab.models.create import create
from vitlab.objectives.cross_entropy import CrossEntropy
from vitlab.objectives.supervised import Supervised
from vitlab.training.ema import running
from vitlab.training.optimizers import Optimizer
from vitlab.training.state import State
from vitlab.training.step import Stepper


class Batches:
    """Random batches, the third of them spoilt."""

    damaged: dict[int, str] = {}  # noqa: RUF012

    def batch(self, step: int) -> Batch:
        generator = torch.Generator().manual_seed(step)
        images = torch.randn(4, 3, 32, 32, generator=generator)
        if step == 2:
            images[1] = float("nan")
        labels = torch.randint(0, 3, (4,), generator=generator)
        return labelled(images, torch.nn.functional.one_hot(labels, 3).float())

    def close(self) -> None:
        pass


def make(sam: float | None = None) -> tuple[State, Stepper]:
    torch.manual_seed(0)
    model = create("timm:test_resnet", num_classes=3, image_size=32)
    spec = Optimizer(name="sgd", lr=0.1, sam=sam)
    return stepping(model, Supervised(CrossEntropy()), spec, Batches(), ema=0.9)


def test_the_average_follows_the_statistics() -> None:
    state, step = make()
    ema = state.ema
    assert ema is not None
    name = next(name for name in ema.names if name.endswith("running_mean"))
    expected = running(state.model)[name].double()
    for number in range(2):
        assert step(number, 1.0)
        decay = min(0.9, (2 + number) / (11 + number))
        expected = decay * expected + (1 - decay) * running(state.model)[name].double()
    held = dict(zip(ema.names, ema.all_values, strict=True))
    assert not any(name.endswith("num_batches_tracked") for name in held)
    torch.testing.assert_close(held[name].double(), expected, rtol=1e-5, atol=1e-7)
    own, averaged = running(state.model)[name].clone(), held[name].clone()
    ema.swap()
    assert torch.equal(running(state.model)[name], averaged)
    ema.swap()
    assert torch.equal(running(state.model)[name], own)


def test_a_skipped_step_leaves_them_as_they_were() -> None:
    state, step = make()
    assert step(0, 1.0)
    before = {name: value.clone() for name, value in state.model.state_dict().items()}
    assert not step(2, 1.0)
    assert all(torch.equal(value, before[name]) for name, value in state.model.state_dict().items())
    assert step(1, 1.0)


def test_a_batch_is_counted_once_also_with_a_second_pass() -> None:
    counts = [value for name, value in running(make()[0].model).items() if name.endswith("num_batches_tracked")]
    assert all(count == 0 for count in counts)
    state, step = make(sam=0.05)
    first, _ = make()
    first.model(Batches().batch(0).images)
    assert step(0, 1.0)
    for name, value in running(state.model).items():
        assert torch.equal(value, running(first.model)[name]), name


def test_timms_checkpointing_counts_every_batch_once() -> None:
    images, found = torch.randn(4, 3, 32, 32), []
    for again in (False, True):
        torch.manual_seed(0)
        model = create("timm:test_resnet", num_classes=3, image_size=32, checkpoint_blocks=again).train()
        for _ in range(2):
            model(images).square().sum().backward()
        found.append((running(model), [p.grad for p in model.parameters()]))
    assert {value.item() for name, value in found[1][0].items() if name.endswith("tracked")} == {2}
    for name, value in found[0][0].items():
        assert torch.equal(found[1][0][name], value), name
    for one, other in zip(found[0][1], found[1][1], strict=True):
        assert one is not None
        assert other is not None
        torch.testing.assert_close(one, other)
