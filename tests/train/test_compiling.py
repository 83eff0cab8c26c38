"""Runs that are to be compiled where torch's compiler does not work."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch._dynamo.exc import Unsupported
from torch._inductor import config as inductor

from changing import changed
from vitlab.data.batch import Batch
from vitlab.models.create import create
from vitlab.training import session
from vitlab.training.compiling import can_compile
from vitlab.training.distribution import World
from vitlab.training.plan import Given, with_given
from vitlab.training.recipe import Recipe
from vitlab.training.run import RunError
from vitlab.training.step import Stepper, Turn


def broken(folder: Path) -> Path:
    """A C++ compiler that says a lot, as one does that finds no headers below a path with a space."""
    path = folder / "g++"
    path.write_text("#!/bin/sh\n[ \"$1\" = --version ] && echo 'g++ 13.1' && exit 0\nseq 300\nexit 1\n")
    path.chmod(0o755)
    return path


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


@pytest.mark.parametrize("found", [True, False])
def test_without_a_compiler_the_run_says_so_and_continues(
    found: bool, short: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler = str(broken(tmp_path)) if found else "no-such-compiler"
    quick = changed(short, **{"schedule.total": "2 steps", "schedule.warmup": "1 step"})
    with inductor.patch({"cpp.cxx": (compiler,)}):
        session.train(changed(quick, compile=True), tmp_path / "run", device="cpu", show=True)
    said = capsys.readouterr().err
    log = tmp_path / "run" / "compile.log"
    assert f"torch's compiler does not work here ({log} says why): the run continues without it" in said
    assert len(said.splitlines()) < 40
    assert ("\n300\n" in log.read_text()) == found
    session.train(quick, tmp_path / "plain", device="cpu", show=False)
    plain = weights(tmp_path / "plain")
    assert all(torch.equal(value, plain[name]) for name, value in weights(tmp_path / "run").items())


@pytest.mark.compiled
@pytest.mark.inductor
def test_a_compiler_that_works(tmp_path: Path) -> None:
    said: list[str] = []
    assert can_compile(World(0, 1, torch.device("cpu")), tmp_path, said.append)
    assert not said
    assert not list(tmp_path.iterdir())


def refuse_from(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that works, and then fails over the model at a step, as over another size of batch."""

    def compiled(_: object, __: object, ___: object, stepper: Stepper, *____: object) -> None:
        make = stepper.gradients

        def gradients(turn: Turn, batch: Batch) -> object:
            if stepper.state.progress.step >= step:
                raise Unsupported("Of this model nothing.\n" * 300)
            return make(turn, batch)

        monkeypatch.setattr(stepper, "gradients", gradients)

    monkeypatch.setattr("vitlab.training.assembly.can_compile", lambda *_: True)
    monkeypatch.setattr("vitlab.training.assembly._compile", compiled)


@pytest.mark.parametrize("step", [0, 9])
def test_a_model_that_cannot_be_compiled_is_trained_without(
    step: int, short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the last checkpoint on, and the weights are what they would have been."""
    refuse_from(step, monkeypatch)
    session.train(changed(short, compile=True), tmp_path / "run", device="cpu", show=True)
    said, log = capsys.readouterr().err, tmp_path / "run" / "compile.log"
    assert f"This model cannot be compiled ({log} says why): the run continues without." in said
    assert said.count("Of this model nothing") == 0
    assert log.read_text().count("Of this model nothing") >= 300
    assert ("Resuming from step 8." in said) == (step == 9)
    session.train(short, tmp_path / "plain", device="cpu", show=False)
    plain = weights(tmp_path / "plain")
    assert all(torch.equal(value, plain[name]) for name, value in weights(tmp_path / "run").items())


def test_where_others_wait_the_sentence_says_how_to_go_on(
    short: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_from(0, monkeypatch)
    mine = create("vit-digits", num_classes=3)
    recipe = with_given(changed(short, compile=True, **{"model.set": ()}), given := Given(model=mine))
    with pytest.raises(RunError, match=r"cannot be compiled .*resume without, vitlab train --resume .* --no-compile"):
        session.train(recipe, tmp_path / "run", device="cpu", show=False, given=given)
