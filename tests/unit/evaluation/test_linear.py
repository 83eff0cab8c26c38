"""The linear probe against scikit-learn's logistic regression."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from digit_features import digits
from vitlab.evaluation import labeled_features as examples_module
from vitlab.evaluation import logistic as logistic_module
from vitlab.evaluation.contract import EvaluationError
from vitlab.evaluation.labeled_features import Array, Examples, held_out, moments
from vitlab.evaluation.linear import linear
from vitlab.evaluation.logistic import Fit, Probe, Standardized, fit


def fitted(x: Array, y: Array, l2: float, probe: Probe) -> Fit:
    train = Examples.of(x, y, "train")
    return fit(Standardized([train], 10, *moments(train)), l2, probe)


def theirs(x: Array, y: Array, l2: float) -> tuple[StandardScaler, LogisticRegression]:
    scaler = StandardScaler().fit(x)
    model = LogisticRegression(C=1 / (l2 * len(y)), solver="newton-cholesky", tol=1e-10)
    return scaler, model.fit(scaler.transform(x), y)


@pytest.mark.parametrize("l2", [1.0, 1e-2, 1e-3])
def test_lbfgs_is_scikit_learns(l2: float) -> None:
    x, y, _, _ = digits()
    found = fitted(x, y, l2, Probe(tolerance=1e-9))
    _, model = theirs(x, y, l2)
    assert found.converged
    np.testing.assert_allclose(found.weights.numpy().T, model.coef_, atol=2e-5)
    centred = found.bias - found.bias.mean()  # the bias is free up to a constant
    intercept = np.asarray(model.intercept_)
    np.testing.assert_allclose(centred.numpy(), intercept - intercept.mean(), atol=2e-5)


def test_float32_comes_close() -> None:
    x, y, test, _ = digits()
    found = fitted(x.astype(np.float32), y, 1e-3, Probe())
    scaler, model = theirs(x, y, 1e-3)
    assert found.converged
    probabilities = (torch.from_numpy(scaler.transform(test)) @ found.weights + found.bias).softmax(1)
    np.testing.assert_allclose(probabilities.numpy(), model.predict_proba(scaler.transform(test)), atol=4e-3)


def test_sgd_comes_close_and_repeats() -> None:
    x, y, test, _ = digits()
    probe = Probe(solver="sgd", epochs=60, batch_size=100)
    found, again, other = (fitted(x, y, 1e-2, each) for each in (probe, probe, Probe(solver="sgd", epochs=60, seed=1)))
    scaler, model = theirs(x, y, 1e-2)
    probabilities = (torch.from_numpy(scaler.transform(test)) @ found.weights + found.bias).softmax(1)
    off = np.abs(probabilities.numpy() - model.predict_proba(scaler.transform(test)))
    assert off.mean() < 1e-3
    assert off.max() < 0.05
    assert torch.equal(found.weights, again.weights)
    assert not torch.equal(found.weights, other.weights)


@pytest.mark.parametrize("solver", ["lbfgs", "sgd"])
def test_reading_in_blocks_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, solver: logistic_module.Solver
) -> None:
    x, y, _, _ = digits()
    probe = Probe(solver=solver, epochs=2, batch_size=64)
    expected = fitted(x, y, 1e-2, probe)
    np.save(tmp_path / "x.npy", x)
    monkeypatch.setattr(examples_module, "BLOCK_BYTES", 50_000)
    for kept in (2**30, 0):
        monkeypatch.setattr(logistic_module, "KEPT_BYTES", kept)
        found = fitted(np.load(tmp_path / "x.npy", mmap_mode="r"), y, 1e-2, probe)
        torch.testing.assert_close(found.weights, expected.weights, rtol=0, atol=1e-4)


def test_the_penalty_is_chosen_on_a_given_split_and_the_fit_is_on_both() -> None:
    x, y, test, labels = digits()
    grid = (1e-5, 1e-3, 1e-1, 10.0)
    outcome = linear(
        x[:700], y[:700], test, labels, val_x=x[700:], val_y=y[700:], l2s=grid, probe=Probe(tolerance=1e-7)
    )
    choice = outcome.selected["l2"]
    for l2 in grid:
        scaler, model = theirs(x[:700], y[:700], l2)
        expected = model.score(scaler.transform(x[700:]), y[700:])
        assert choice["scores"][str(l2)] == pytest.approx(expected, abs=1 / 300 + 1e-9)
    assert choice["scores"][str(choice["value"])] == max(choice["scores"].values())
    assert choice["on"] == "val (300 images)"
    scaler, model = theirs(x, y, choice["value"])
    assert outcome.metrics["top-1"].value == pytest.approx(model.score(scaler.transform(test), labels), abs=2e-3)
    assert outcome.metrics["top-1"].value > 0.85
    assert outcome.counts == {"train": 700, "val": 300, "test": 797, "classes": 10}
    assert outcome.details["fit"]["converged"]


def test_without_a_split_a_part_of_train_is_held_out() -> None:
    x, y, test, labels = digits()
    outcome = linear(x, y, test, labels, l2s=(1e-3, 1.0))
    held = held_out(y, 0.1)
    assert outcome.selected["l2"]["on"] == f"{held.sum()} images held out of train"
    for l2 in (1e-3, 1.0):
        scaler, model = theirs(x[~held], y[~held], l2)
        expected = model.score(scaler.transform(x[held]), y[held])
        assert outcome.selected["l2"]["scores"][str(l2)] == pytest.approx(expected, abs=1 / held.sum() + 1e-9)
    assert linear(x, y, test, labels, l2s=(1e-3,)).selected == {}


def test_holding_out_is_stable_and_keeps_every_class() -> None:
    labels = np.repeat(np.arange(50), [1, 2, 3, 4, 100] * 10)
    held = held_out(labels, 0.2)
    np.testing.assert_array_equal(held, held_out(labels, 0.2))
    assert not np.array_equal(held, held_out(labels, 0.2, seed=1))
    assert len(np.unique(labels[~held])) == 50
    assert 0.15 < held.mean() < 0.25
    assert held_out(np.array([0, 0, 1]), 1e-6).tolist().count(True) == 1
    with pytest.raises(EvaluationError, match="every class has one image"):
        held_out(np.arange(5), 0.5)


def test_constant_and_far_features_do_no_harm() -> None:
    x, y, test, labels = digits()
    clean = linear(x, y, test, labels, l2s=(1e-2,)).metrics["top-1"].value
    more = [np.hstack([part + 1e6, np.full((len(part), 3), 0.1)]) for part in (x, test)]
    assert linear(more[0], y, more[1], labels, l2s=(1e-2,)).metrics["top-1"].value == pytest.approx(clean, abs=2e-3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"l2s": ()}, "must not be negative"),
        ({"l2s": (-1.0,)}, "must not be negative"),
        ({"val_x": np.zeros((2, 64))}, "both features and labels"),
        ({"val_x": np.zeros((2, 63)), "val_y": np.zeros(2, int)}, "different widths"),
        ({"num_classes": 5}, "but there are 5 classes"),
        ({"holdout": 1.0}, "between 0 and 1"),
    ],
)
def test_bad_input_is_one_sentence(changes: dict[str, object], message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        linear(*digits(), **changes)  # pyright: ignore[reportArgumentType]


def test_bad_probes_are_refused() -> None:
    with pytest.raises(EvaluationError, match="lbfgs or sgd"):
        Probe(solver="newton")  # pyright: ignore[reportArgumentType]
    with pytest.raises(EvaluationError, match="above 0"):
        Probe(epochs=0)
