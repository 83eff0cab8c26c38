"""The rules on how a run learned, on courses that were seen and on their opposites."""

from dataclasses import replace
from pathlib import Path

import pytest

from vitlab.reporting.advice import notes
from vitlab.reporting.curves import small_form
from vitlab.reporting.learning import (
    Course,
    chance,
    coarse,
    fell,
    findings,
    jump,
    learned_by_heart,
    loss_rose,
    still_rising,
)
from vitlab.reporting.record import RunRecord

EPOCHS = 112


def course(scores: list[float], *, train: float | None = None, num: int = 10_000, **more: object) -> Course:
    """A run of 100 steps with scores evenly apart; `train` is the score on training pictures at the end."""
    step = 100 // len(scores)
    points = [(step * (i + 1), value) for i, value in enumerate(scores)]
    seen = [] if train is None else [(10 * i, train * i / 10) for i in range(1, 11)]
    return Course(steps=100, scores=points, train=seen, num=num, **more)  # pyright: ignore[reportArgumentType]


def text(found: Course) -> str:
    return " ".join(finding.text for finding in findings(found))


def test_a_drop_of_a_few_pictures_is_noise_and_is_called_so() -> None:
    best, last = 25 / 38, 22 / 38
    few = course([0.4, best, 0.6, 0.6, last], train=0.95, num=38)
    found = chance(few)
    assert found is not None
    assert "3 of 38 validation pictures" in found.text
    assert fell(few) is None
    assert "right on 95.0% of training pictures" in text(few)  # which is no chance
    many = fell(course([0.4, best, 0.6, 0.6, last], train=0.95, num=3800))
    assert many is not None
    assert "by heart" in many.text
    assert chance(course([0.4, best, 0.6, 0.6, last], train=0.95, num=3800)) is None
    assert findings(course([0.4, 0.5, 0.6, 0.65, 0.65], num=38)) == []


def test_the_width_of_noise_is_half_of_the_95_percent_interval() -> None:
    assert course([0.1, 0.5, 0.5], num=100).noise == pytest.approx(0.098, abs=1e-4)  # 1.96 sqrt(0.25 / 100)
    assert course([0.1, 0.5, 0.5], num=0).noise == 0


def test_a_model_no_better_on_training_pictures_learned_nothing_by_heart() -> None:
    found = fell(course([0.2, 0.42, 0.40, 0.38, 0.368], train=0.366))
    assert found is not None
    assert "did not learn them by heart" in found.text
    assert found.cure == "steadier"
    opposite = fell(course([0.2, 0.42, 0.40, 0.38, 0.368], train=0.9))
    assert opposite is not None
    assert "began to learn the training pictures by heart (90.0% of them right)" in opposite.text


def test_a_wide_gap_speaks_against_training_for_longer() -> None:
    rising = [0.1, 0.2, 0.3, 0.35, 0.38, 0.4, 0.42, 0.44, 0.47, 0.49]
    assert "right on 84.0% of training pictures and on 49.0%" in text(course(rising, train=0.84))
    assert "still getting better" not in text(course(rising, train=0.84))
    assert "still getting better" in text(course(rising, train=0.5))
    assert learned_by_heart(course(rising, train=0.84, num=10)) is not None
    assert learned_by_heart(course(rising, train=0.6, num=10)) is None  # 11 points of 10 pictures are one picture


def test_a_run_from_trained_weights_is_not_advised_to_start_from_trained_weights() -> None:
    found = course([0.3, 0.35, 0.4, 0.45, 0.5], train=0.95)
    assert "a start from trained weights would help" in text(found)
    assert "More pictures or pictures varied more (augmentation) would help" in text(replace(found, pretrained=True))


def test_a_validation_loss_that_rises_is_told_though_the_score_holds() -> None:
    scores = [0.4, 0.55, 0.6, 0.62, 0.64, 0.65, 0.65, 0.65, 0.65, 0.65]
    rising = [
        (10 * i, value) for i, value in enumerate((2.5, 2.0, 1.7, 1.55, 1.5, 1.52, 1.56, 1.6, 1.65, 1.7), start=1)
    ]
    found = findings(course(scores, train=0.687, losses=rising))
    assert len(found) == 1
    assert "lowest at step 50 (1.5) and rose to 1.7" in found[0].text
    falling = [(step, 2.5 - step / 100) for step, _ in rising]
    assert findings(course(scores, train=0.687, losses=falling)) == []
    late = [*((step, 2.5 - step / 100) for step, _ in rising[:-1]), (100, 1.8)]
    assert loss_rose(course(scores, losses=late)) is None


def test_a_loss_that_a_single_picture_may_raise_says_nothing() -> None:
    losses = [(20, 0.4), (40, 0.17), (60, 0.28), (80, 0.25), (100, 0.29)]
    scores = [0.9375] * 5
    assert loss_rose(course(scores, num=16, losses=losses)) is None  # one mistake
    assert loss_rose(course(scores, num=64, losses=losses)) is not None  # four
    assert loss_rose(course(scores, num=0, losses=losses)) is not None  # how many is not known


def test_scores_on_mixed_pictures_tell_nothing_of_learning_by_heart() -> None:
    found = fell(course([0.2, 0.42, 0.40, 0.38, 0.368]))
    assert found is not None
    assert "training pictures" not in found.text
    lines = tuple(
        {"step": step, "accuracy": 0.3, "val accuracy": score, "val score": score, "val count": 10_000}
        for step, score in ((20, 0.2), (40, 0.42), (60, 0.4), (80, 0.38), (100, 0.368))
    )
    unmixed = RunRecord(
        folder=Path("runs/x"), recipe={}, environment={}, data={}, lines=lines, result={"step": 100}, state="done"
    )
    assert "did not learn them by heart" in notes(unmixed, ())[0].text
    mixed = replace(unmixed, recipe={"augmentation": {"cutmix": 1.0}})
    assert "by heart" not in notes(mixed, ())[0].text
    assert "did not learn them by heart" in notes(mixed, (), mixed=60)[0].text  # by the scores after that


def test_a_jump_is_more_than_the_scatter_around_it() -> None:
    steps = range(10, 101, 10)
    assert jump([(step, 2.0 if step <= 50 else 1.0) for step in steps], 50) == (2.0, 1.0)
    assert jump([(step, 2.0 - step / 100) for step in steps], 50) is None  # it fell before and after as well
    across = [(step, 2.0 if step <= 50 else 1.5 if step == 60 else 1.0) for step in steps]  # 60 is a mean of both
    assert jump(across, 55) == (2.0, 1.0)
    noisy = [(step, 2.0 + 0.5 * (-1) ** (step // 10) - 0.1 * (step > 50)) for step in steps]
    assert jump(noisy, 50) is None
    assert jump([(10, 2.0), (20, 1.0)], 15) is None  # too few to tell


def test_a_run_that_is_flat_at_its_end_is_not_told_to_go_on() -> None:
    flat = [0.65 - 0.004 * max(0, 80 - epoch) for epoch in range(1, EPOCHS + 1)]
    points = [(epoch, value) for epoch, value in enumerate(flat, start=1)]
    assert still_rising(Course(steps=EPOCHS, scores=points, num=10_000)) is None
    steady = [(epoch, 0.3 + 0.003 * epoch) for epoch in range(1, EPOCHS + 1)]
    assert still_rising(Course(steps=EPOCHS, scores=steady, num=10_000)) is not None
    assert still_rising(Course(steps=EPOCHS, scores=steady, num=38)) is None  # 7 points of 38 pictures


def test_the_jump_where_mixing_ends_is_no_reason_to_go_on() -> None:
    jump = [(step, 0.6 if step <= 85 else 0.66) for step in range(5, 101, 5)]
    assert still_rising(Course(steps=100, scores=jump, num=10_000)) is not None
    assert still_rising(Course(steps=100, scores=jump, num=10_000, mixed=86)) is None
    onward = [(step, value + max(0, step - 85) / 200) for step, value in jump]
    assert still_rising(Course(steps=100, scores=onward, num=10_000, mixed=86)) is not None


def test_few_pixels_of_a_photo_are_told() -> None:
    assert "sees 8 x 8 pixels" in (coarse((8, 8), (132, 176)) or "")
    assert coarse((8, 8), (8, 8)) is None  # the embedded digits have no more
    assert coarse((224, 224), (132, 176)) is None


def test_learning_rates_of_one_axis_are_written_alike() -> None:
    assert [small_form(1e-3)(value) for value in (0, 2.5e-4, 5e-4, 1e-3)] == ["0", "2.5e-4", "5e-4", "1e-3"]
    assert [small_form(0.03)(value) for value in (0, 0.005, 0.03)] == ["0", "0.005", "0.03"]
