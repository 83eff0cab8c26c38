"""Corruption errors: AlexNet by itself, a published row, and sums worked by hand."""

import numpy as np
import pytest

from vitlab.data.conditions import ALL, COMMON, SEVERITIES, condition
from vitlab.data.contract import Array
from vitlab.evaluation.corruption_errors import ALEXNET, ALEXNET_CLEAN, CorruptionErrors
from vitlab.evaluation.labeled_features import Z95

# ResNet-50 in table 1 of the paper: clean error 23.9, mCE 76.7, relative mCE 105.0, and each CE in whole percent
RESNET50 = (80, 82, 83, 75, 89, 78, 80, 78, 75, 66, 57, 71, 85, 77, 77)


def constant(errors: dict[str, float], num: int = 4) -> CorruptionErrors:
    wrong = {(name, severity): np.full(num, error) for name, error in errors.items() for severity in SEVERITIES}
    return CorruptionErrors(wrong, paired=True)


def test_alexnet_has_100() -> None:
    errors = constant(ALEXNET)
    assert errors.mce().value == pytest.approx(100)
    assert errors.relative_mce(np.full(4, ALEXNET_CLEAN)).value == pytest.approx(100)
    assert errors.error(*COMMON).value == pytest.approx(np.mean(list(ALEXNET.values())))


def test_a_published_row_gives_its_published_means() -> None:
    errors = constant({name: ce / 100 * ALEXNET[name] for name, ce in zip(COMMON, RESNET50, strict=True)})
    assert errors.mce().value == pytest.approx(76.7, abs=0.5)
    assert errors.relative_mce(np.full(4, 0.2387)).value == pytest.approx(105.0, abs=0.5)


def some(seed: int = 0) -> tuple[Array, Array, Array]:
    """Conditions, labels and answers of 20 images under fog and spatter at two severities, in a mixed order."""
    rng = np.random.default_rng(seed)
    numbers = [condition(name, severity) for name in ("spatter", "fog") for severity in (1, 4)]
    conditions = np.repeat(numbers, 20)
    labels = np.tile(np.arange(20) % 3, 4)
    return conditions, labels, (rng.random(80) < 0.4).astype(float)


def test_errors_by_hand() -> None:
    conditions, labels, wrong = some()
    errors = CorruptionErrors.of(conditions, labels, wrong)
    assert errors.corruptions == ["fog", "spatter"]
    assert errors.averaged == ["fog"]  # spatter is none of the fifteen
    assert not errors.whole
    by_hand = {number: wrong[conditions == number].mean() for number in np.unique(conditions)}
    assert errors.table() == {
        name: {str(severity): pytest.approx(by_hand[condition(name, severity)]) for severity in (1, 4)}
        for name in ("fog", "spatter")
    }
    fog = (wrong[conditions == condition("fog", 1)] + wrong[conditions == condition("fog", 4)]) / 2
    found = errors.error("fog")
    assert found.value == pytest.approx(fog.mean())
    assert found.spread == pytest.approx(Z95 * fog.std(ddof=1) / np.sqrt(20))  # images, not answers, are independent
    assert found.count == 40
    clean = np.zeros(20)
    clean[:3] = 1
    beyond = errors.beyond(clean)
    assert beyond.value == pytest.approx(100 * (fog.mean() - 0.15))
    assert beyond.spread == pytest.approx(100 * Z95 * (fog - clean).std(ddof=1) / np.sqrt(20))
    apart = errors.beyond(np.r_[clean, np.zeros(10)])  # other images: variances add
    expected = fog.var(ddof=1) / 20 + np.r_[clean, np.zeros(10)].var(ddof=1) / 30
    assert apart.spread == pytest.approx(100 * Z95 * np.sqrt(expected))


def test_the_interval_holds_the_truth() -> None:
    """Images that are hard are hard under each condition: the interval over images holds in 95%, not over answers."""
    rng = np.random.default_rng(0)
    numbers = [condition(name, severity) for name in COMMON for severity in SEVERITIES]
    held = 0
    for _ in range(100):
        hard = rng.beta(0.3, 0.7, 60)
        wrong = (rng.random((75, 60)) < hard).astype(float)
        found = CorruptionErrors.of(np.repeat(numbers, 60), np.zeros(4500, int), wrong.ravel()).error(*COMMON)
        assert found.spread is not None
        held += abs(found.value - 0.3) < found.spread
    assert 88 <= held < 100


def test_unreadable_images_and_others_in_each_condition() -> None:
    conditions, labels, wrong = some()
    wrong[:5] = np.nan
    found = CorruptionErrors.of(conditions, labels, wrong).error("spatter")
    kept = [wrong[conditions == condition("spatter", severity)] for severity in (1, 4)]
    assert found.value == pytest.approx(np.mean([np.nanmean(each) for each in kept]))
    assert found.count == 35
    labels[3] = 2
    labels[4] = 2
    other = CorruptionErrors.of(conditions, labels, wrong)
    assert not other.paired
    assert other.error("fog").spread is None
    assert other.error("fog").spread_of == ""


def test_extra_corruptions_alone_are_averaged() -> None:
    assert constant({"spatter": 0.2, "saturate": 0.4}).averaged == ["spatter", "saturate"]
    assert set(ALL) - set(COMMON) >= {"spatter", "saturate"}
