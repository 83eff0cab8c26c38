"""What training computes, beside what the paper states of its own models (arXiv 2010.11929, table 6)."""

import pytest

from vitlab.models.counts import count_flops
from vitlab.models.create import empty_model
from vitlab.recipes.scales import config_of
from vitlab.studies.cost import ZOO, as_good, core_days_per_exaflop, frontier, on_jft, papers_series, rows
from vitlab.studies.findings import Sample

# epochs, and exaFLOPs on JFT; of BiTs we count 3 to 4% more
STATED = {"ViT-B/16": (7, 224), "ViT-L/16": (14, 1567), "R50+ViT-B/16": (7, 274), "R50x1": (7, 50)}


@pytest.mark.parametrize("model", STATED)
def test_our_count_is_the_papers(model: str) -> None:
    epochs, exaflops = STATED[model]
    assert on_jft(ZOO[model], epochs) == pytest.approx(exaflops, rel=0.05 if model.startswith("R50x") else 0.01)


def test_core_days_come_from_table_2() -> None:
    """680 core-days for 1567 exaFLOPs, and 2500 for 4262."""
    found = core_days_per_exaflop()
    assert found["ViT-L/16 (JFT)"] == pytest.approx(680 / 1567, rel=0.01)
    assert found["ViT-H/14 (JFT)"] == pytest.approx(2500 / 4262, rel=0.01)


def test_lengths_multiply_the_schedule() -> None:
    found = rows("digits", (1, 3))
    assert found["ViT, 2 layers"].schedule.total == "200 steps"
    assert found["ViT, 2 layers, 3 times as long"].schedule.total == "600 steps"


@pytest.mark.parametrize("scale", ["digits", "cifar", "tiny-imagenet"])
def test_each_family_costs_as_much_as_some_vits(scale: str) -> None:
    """Else it could not be said which needs less for the same score."""
    costs = {row: count_flops(empty_model(config_of(recipe))) for row, recipe in rows(scale, (1,)).items()}
    vits = [cost for row, cost in costs.items() if row.startswith("ViT")]
    for family in ("BiT", "hybrid"):
        own = [cost for row, cost in costs.items() if row.startswith(family)]
        assert min(own) < max(vits)
        assert max(own) > min(vits)


def test_thefrontier_is_what_no_cheaper_row_beats() -> None:
    scores = {"a": (0.5, 0.52), "b": (0.4, 0.42), "c": (0.53, 0.51), "d": (0.9, 0.91)}
    found = {row: Sample(values) for row, values in scores.items()}
    (said,) = frontier(found, {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0})
    assert "a (51.0 ± 1.4%); c (52.0 ± 1.4%, not sure); d (90.5 ± 0.7%, sure)" in said


def test_what_others_need_for_the_best_vits_score() -> None:
    scores = {
        "ViT, a": (0.8, 0.8),
        "ViT, b": (0.9, 0.9),
        "BiT, a": (0.9, 0.92),
        "BiT, b": (0.95, 0.95),
        "hybrid, a": (0.7,),
    }
    found = {row: Sample(values) for row, values in scores.items()}
    (said,) = as_good(found, {"ViT, a": 1.0, "ViT, b": 4.0, "BiT, a": 8.0, "BiT, b": 10.0, "hybrid, a": 2.0})
    needed = "BiT, a (91.0 ± 1.4%) with 2 times its FLOPs; no hybrid"
    assert said == f"At or above the best ViT (ViT, b, 90.0 ± 0.0%), by means: {needed}."
    assert as_good({"BiT, a": found["BiT, a"]}, {"BiT, a": 1.0}) == []


def test_the_papers_points() -> None:
    """Table 6: ViT-H/14 has 4262 exaFLOPs and 88.08%, R50x1 50 and 77.54%."""
    found = papers_series()
    assert {family: len(points) for family, points in found.items()} == {"ViT": 6, "BiT": 7, "hybrid": 5}
    last, first = found["ViT"][-1], found["BiT"][0]
    assert (last[0], last[1].mean) == (4262, pytest.approx(0.8808))
    assert (first[0], first[1].mean) == (50, pytest.approx(0.7754))
