"""The published figures against each other: one table follows from another, from the text, or from what we count.

None of these tests rests on a figure from memory.
"""

import importlib.util
from pathlib import Path

import pytest

from vitlab.core.errors import UnknownNameError
from vitlab.data.sources.published.vtab import GROUPS
from vitlab.evaluation.cost import exaflops
from vitlab.evaluation.published.tables import (
    ROOM,
    TABLES,
    Table,
    group_means,
    published_columns,
    published_notes,
    published_sources,
    published_study,
    published_table,
)
from vitlab.models.zoo.facts import kept_facts
from vitlab.recipes import RECIPES, finetuning, pretraining

DOCS = Path(__file__).parents[4] / "docs"
IMAGES = 303e6  # of JFT-300M


def value(table: Table, row: str, column: str) -> float:
    figure = table.figures[row, column]
    assert not figure.from_memory
    return figure.value


def test_every_file_is_a_table_and_every_figure_has_a_source() -> None:
    assert {path.name.removesuffix(".json") for path in ROOM.iterdir() if path.name.endswith(".json")} == {
        *TABLES,
        "sources",
    }
    used = {figure.source for name in TABLES for figure in published_table(name).figures.values()}
    assert used <= set(published_sources().values())
    assert all(source.cite and source.seen for source in used)
    with pytest.raises(UnknownNameError, match="vit-v2-main"):
        published_table("vit-v2-mein")


@pytest.mark.parametrize("model", published_table("vit-v2-vtab").columns)
def test_nineteen_tasks_make_the_vtab_of_the_main_table(model: str) -> None:
    """Tasks are printed to a tenth, so that their mean is off by a twentieth at most."""
    tasks = published_table("vit-v2-vtab").column(model)
    mean = sum(figure.value for name, figure in tasks.items() if name != "mean") / 19
    assert len(tasks) == 20
    assert mean == pytest.approx(value(published_table("vit-v2-main"), "vtab", model), abs=0.05)
    assert mean == pytest.approx(tasks["mean"].value, abs=0.1)
    groups = group_means(model)
    assert {group: len(members) for group, members in GROUPS.items()} == {
        "natural": 7,
        "specialised": 4,
        "structured": 8,
    }
    assert (7 * groups["natural"] + 4 * groups["specialised"] + 8 * groups["structured"]) / 19 == pytest.approx(mean)


def test_figure_2_by_hand() -> None:
    """ViT-H/14's natural tasks add up to 606.8, its specialised ones to 348, its structured ones to 520.2."""
    assert group_means("ViT-H/14 (JFT)") == pytest.approx(
        {"natural": 606.8 / 7, "specialised": 87.0, "structured": 520.2 / 8}
    )


@pytest.mark.parametrize("optimizer", published_table("vit-v2-optimizers").columns)
def test_the_mean_of_table_7_is_that_of_its_rows(optimizer: str) -> None:
    column = published_table("vit-v2-optimizers").column(optimizer)
    rows = [figure.value for name, figure in column.items() if name != "mean"]
    assert sum(rows) / len(rows) == pytest.approx(column["mean"].value, abs=0.006)


def test_tables_5_6_and_7_agree_where_they_print_the_same_runs() -> None:
    sizes, scaling = published_table("vit-v2-data-size"), published_table("vit-v2-scaling")
    for model, epochs in (("ViT-B/32", 7), ("ViT-B/16", 7), ("ViT-L/32", 7), ("ViT-L/16", 14)):
        for data in ("imagenet", "imagenet real", "cifar10", "cifar100", "pets", "flowers102"):
            assert value(sizes, f"JFT-300M: {data}", model) == value(scaling, f"{model} {epochs}", data)
    optimizers = published_table("vit-v2-optimizers")
    for model in ("R50x1", "R152x2"):
        for data in ("imagenet", "cifar10", "cifar100", "pets", "flowers102"):
            assert value(optimizers, data, f"{model}, Adam") == value(scaling, f"{model} 7", data)


@pytest.mark.parametrize(
    ("row", "model"),
    [
        ("ViT-B/32 7", "vit-b32-224"), ("ViT-B/16 7", "vit-b16-224"), ("ViT-L/32 7", "vit-l32-224"),
        ("ViT-L/16 7", "vit-l16-224"), ("ViT-L/16 14", "vit-l16-224"), ("ViT-H/14 14", "vit-h14-224"),
        ("R50x1 7", "bit-r50x1"), ("R50x2 7", "bit-r50x2"), ("R101x1 7", "bit-r101x1"), ("R152x1 7", "bit-r152x1"),
        ("R152x2 7", "bit-r152x2"), ("R152x2 14", "bit-r152x2"), ("R200x3 14", "bit-r200x3"),
        ("R50+ViT-B/32 7", "r50-vit-b32-224"), ("R50+ViT-B/16 7", "r50-vit-b16-224"),
        ("R50+ViT-L/32 7", "r50-vit-l32-224"), ("R50+ViT-L/16 7", "r50-vit-l16-224"),
        ("R50+ViT-L/16 14", "r50-vit-l16-224"),
    ],
)  # fmt: skip
def test_the_papers_exaflops_are_what_our_models_count(row: str, model: str) -> None:
    """Six FLOPs a multiply-add, 303M images, so many epochs."""
    scaling = published_table("vit-v2-scaling")
    flops = next(fact["flops"] for fact in kept_facts() if fact["name"] == model)
    images = IMAGES * value(scaling, row, "epochs")
    assert exaflops(flops, images) == pytest.approx(value(scaling, row, "exaFLOPs"), rel=0.1)


def test_what_the_text_says_follows_from_the_tables() -> None:
    main, sizes = published_table("vit-v2-main"), published_table("vit-v2-data-size")
    masked = published_table("vit-v2-self-supervision").column("imagenet")
    scratch, supervised = (value(sizes, f"{data}: imagenet", "ViT-B/16") for data in ("ImageNet", "ImageNet-21k"))
    assert round(masked["self-supervised"].value - scratch) == masked["over training from scratch"].value
    assert round(supervised - masked["self-supervised"].value) == masked["behind supervised pre-training"].value
    assert value(main, "core-days", "ViT-L/16 (I21k)") == pytest.approx(8 * 30, rel=0.05)  # 8 cores, some 30 days
    assert value(main, "imagenet", "ViT-L/16 (JFT)") > value(main, "imagenet", "BiT-L (R152x4)")
    positions = published_table("vit-v2-positions")
    ways = [figure.value for (row, _), figure in positions.figures.items() if row != "none"]
    assert max(ways) - min(ways) < 0.004 < 0.02 < min(ways) - value(positions, "none", "stem")


def test_the_sizes_of_table_1_are_what_our_models_count() -> None:
    """L is the L/32, B and H the B/16 and H/14; each within the rounding of a million."""
    models = published_table("vit-v2-models")
    facts = {fact["name"]: fact for fact in kept_facts()}
    for row, name in (("ViT-Base", "vit-b16-224"), ("ViT-Large", "vit-l32-224"), ("ViT-Huge", "vit-h14-224")):
        sizes = [facts[name][field] for field in ("layers", "width", "mlp_dim", "heads")]
        assert sizes == [value(models, row, column) for column in ("layers", "width", "MLP", "heads")]
        assert facts[name]["parameters"] / 1e6 == pytest.approx(value(models, row, "parameters (M)"), abs=1)


def test_coatnets_text_follows_from_its_table() -> None:
    """CoAtNet-6 takes more than 4 times less computation than ViT-G/14, CoAtNet-7 1.5 times."""
    days = published_table("leaderboard-imagenet").column("core-days")
    assert days["ViT-G/14"].value / days["CoAtNet-6"].value > 4
    assert round(days["ViT-G/14"].value / days["CoAtNet-7"].value, 1) == 1.5


def test_leaderboards_fall_from_row_to_row() -> None:
    for name in ("leaderboard-cifar100", "leaderboard-imagenet"):
        scores = [figure.value for figure in published_table(name).column("top-1").values()]
        assert len(scores) == 5
        assert scores == sorted(scores, reverse=True)


def test_recipes_are_what_tables_3_and_4_print() -> None:
    table = published_table("vit-v2-pretraining")
    for name in table.rows:
        row = pretraining.ROWS[name]
        printed = [value(table, name, column) for column in ("epochs", "base lr", "weight decay", "dropout")]
        assert [row.epochs, row.lr, row.weight_decay, row.dropout] == printed, name
        assert row.decay == ("cosine" if name.endswith("-imagenet") else "linear")
        assert name in RECIPES
    table = published_table("vit-v2-finetuning")
    assert set(table.rows) == set(finetuning.ROWS)
    for name, row in finetuning.ROWS.items():
        steps, *lrs = (figure.value for figure in table.row(name).values())
        assert (row.steps, row.lrs) == (steps, tuple(lrs))


def test_the_first_version_has_its_four_columns_and_says_what_is_from_memory() -> None:
    table = published_table("vit-v1-main")
    assert (len(table.columns), len(table.rows)) == (4, 8)
    bit = table.column("BiT-L (R152x4)")
    assert {row for row, figure in bit.items() if not figure.from_memory} >= {"imagenet", "cifar10", "pets", "vtab"}
    assert bit["vtab"].source.cite.startswith("Big Transfer")
    (note,) = [note for note in published_notes("v1") if note.startswith("From memory")]
    assert "pets of ViT-H/14 (JFT), ViT-L/16 (JFT)" in note
    assert not any(note.startswith("From memory") for note in published_notes("v2"))
    assert [column.core_days for column in published_columns("v2")] == [2500, 680, 230, 9900, 12300]


def test_studies_stand_beside_the_papers_rows() -> None:
    """Of table 8 all eight, called as the study calls them; of self-supervision what the text compares."""
    positions = published_study("positions")
    assert len(positions) == 8
    assert (positions["none"], positions["1-D, every layer, shared"]) == (0.61382, 0.64292)
    assert positions["relative, every layer"] == 0.64032
    masked = published_study("self-supervision")
    assert masked["from scratch"] < masked["masked patches"] < masked["supervised"]
    assert published_study("cost") == {}


def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("docs_published", DOCS / "published.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0, "run python docs/published.py"
