"""What a study asks for and gets: cells by their recipes, each once; what failed is said, and the others are kept."""

import dataclasses
from pathlib import Path

import pytest

from short_runs import write_small_set
from studied import Inventing, invented
from vitlab.recipes.scales import scale_recipe, tuned, with_model
from vitlab.studies.context import Context, Forecasted, samples
from vitlab.studies.contract import StudyError

ROWS = {f"depth {depth}": with_model(scale_recipe("digits"), depth=depth) for depth in (1, 2)}


def context(folder: Path, executor: Inventing | None = None, **changes: object) -> Context:
    made = Context(study="trial", scale="digits", folder=folder, num_seeds=2, executor=executor or Inventing())
    return dataclasses.replace(made, **changes)


def test_every_row_has_every_seed(tmp_path: Path) -> None:
    found = samples(context(tmp_path).over_seeds(ROWS))
    assert list(found) == ["depth 1", "depth 2"]
    assert found["depth 1"].values == (invented("depth 1, seed 0"), invented("depth 1, seed 1"))


def test_a_cell_is_known_by_what_it_computes(tmp_path: Path) -> None:
    study, recipe = context(tmp_path), scale_recipe("digits")
    first = study.cell("a", recipe)
    assert Path(first.folder).parent == tmp_path / "runs"
    Path(first.folder).mkdir(parents=True)
    assert study.cell("b", recipe).folder == first.folder  # the same run under another name
    assert study.cell("a", dataclasses.replace(recipe, seed=1)).folder != first.folder
    assert study.cell("a", with_model(recipe, depth=1)).folder != first.folder


def test_long_runs_are_compiled_where_that_is_asked_and_stay_the_same_cells(tmp_path: Path) -> None:
    study, recipe = context(tmp_path), scale_recipe("cifar")
    study.data = str(write_small_set(tmp_path / "small.npz"))
    short = tuned(recipe, steps=200, lr=0.1)
    plain = [study.cell("a", each) for each in (recipe, short)]
    study.compile = True
    compiled = [study.cell("a", each) for each in (recipe, short)]
    assert [cell.recipe["compile"] for cell in plain] == [False, False]
    assert [cell.recipe["compile"] for cell in compiled] == [True, False]
    assert [cell.folder for cell in compiled] == [cell.folder for cell in plain]


def test_what_computes_the_same_is_computed_once(tmp_path: Path) -> None:
    executor = Inventing()
    study = context(tmp_path, executor)
    twice = [study.cell(name, ROWS["depth 1"]) for name in ("one", "other")]
    assert len({cell.folder.rpartition("-")[2] for cell in twice}) == 1
    same = [dataclasses.replace(cell, folder=twice[0].folder) for cell in twice]
    found = study.map(same)
    assert [cell.name for cell in executor.cells] == ["one"]
    assert found["one"].score() == found["other"].score() == invented("one")


def test_a_failure_is_said_and_loses_nothing_else(tmp_path: Path) -> None:
    said: list[str] = []
    study = context(tmp_path, Inventing(["depth 1, seed 0", "depth 2, seed 0", "depth 2, seed 1"]), say=said.append)
    found = study.over_seeds(ROWS)
    assert list(found) == ["depth 1"]
    assert [run.cell.name for run in found["depth 1"]] == ["depth 1, seed 1"]
    assert set(study.failed) == {"depth 1, seed 0", "depth 2, seed 0", "depth 2, seed 1"}
    assert "depth 2, seed 1 failed: it was to fail" in said
    with pytest.raises(StudyError, match="The run alone failed, and the others need it: it was to fail"):
        context(tmp_path, Inventing(["alone"])).train(ROWS["depth 1"], "alone")


def test_what_it_costs_is_said_first(tmp_path: Path) -> None:
    said: list[str] = []
    study = context(tmp_path, say=said.append, device="cpu")
    study.over_seeds(ROWS, what="trial", later=[ROWS["depth 1"]] * 3)
    assert said[0].startswith("trial: 4 runs; about ")
    assert "on this CPU" in said[0]
    assert "FLOPs of training; then up to 3 more runs, about " in said[0]
    with pytest.raises(Forecasted, match="4 runs"):
        context(tmp_path, dry=True, device="cpu").over_seeds(ROWS)


def test_progress_counts_runs(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    context(tmp_path, progress=lambda done, total: seen.append((done, total))).over_seeds(ROWS)
    assert seen == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_only_some_rows(tmp_path: Path) -> None:
    assert list(context(tmp_path, only="*2").over_seeds(ROWS)) == ["depth 2"]
    assert list(context(tmp_path, only="*2").over_seeds(ROWS, whole=True)) == ["depth 1", "depth 2"]
    with pytest.raises(StudyError, match="The study trial has no cell 'depth 3'. Did you mean depth 2, depth 1"):
        context(tmp_path, only="depth 3").over_seeds(ROWS)


def test_a_run_follows_another(tmp_path: Path) -> None:
    study = context(tmp_path)
    before = study.over_seeds(ROWS)
    after = study.follow(before, lambda run: dataclasses.replace(run.recipe, batch_size=8), then="tuned")
    assert [run.cell.name for run in after["depth 2"]] == ["depth 2, seed 0, tuned", "depth 2, seed 1, tuned"]
    assert all(run.recipe.batch_size == 8 for run in after["depth 2"])
    assert [run.recipe.seed for run in after["depth 2"]] == [0, 1]


def test_what_it_spent(tmp_path: Path) -> None:
    """By hand: three times the forward FLOPs of each of 640 images per run."""
    study = context(tmp_path)
    runs = study.over_seeds(ROWS)
    flops = sum(study.flops(own[0]) for own in runs.values())
    assert study.spent() == {"runs": 4, "seconds": 6.0, "exaflops": pytest.approx(2 * 3 * flops * 640 / 1e18)}


def test_data_of_ones_own_take_the_place_of_the_scales(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, recipe = str(write_small_set(tmp_path / "mine.npz")), scale_recipe("digits")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()  # which is not what the scale means
    assert context(tmp_path, data=mine).cell("a", recipe).recipe["data"]["source"] == mine
    chosen = dataclasses.replace(recipe, data=dataclasses.replace(recipe.data, source=mine))
    assert context(tmp_path, data="digits").cell("a", chosen).recipe["data"]["source"] == mine  # the study's own
