import dataclasses
from pathlib import Path

import pytest
from PIL import Image

from vitlab.evaluation.compare import compare, draw, save_figure
from vitlab.evaluation.contract import EvaluationError, Metric, Result
from vitlab.evaluation.published.tables import published_columns


def result(model: str, data: str, protocol: str, value: float, spread: float | None = None, **cost: float) -> Result:
    name = {"vtab": "mean", "fewshot": "5-shot"}.get(protocol, "top-1")
    metrics = {name: Metric(value=value, count=9, spread=spread), "other": Metric(value=0.1, count=9)}
    return Result(protocol=protocol, model=model, data=data, metrics=metrics, cost=cost)


RESULTS = [
    result("mine", "imagenet", "finetune", 0.801, 0.002, parameters=86.6e6, device_days=12.5),
    result("mine", "digits", "accuracy", 0.7125, 0.044),
    result("mine", "imagenet", "real", 0.8501),
    result("other", "digits", "accuracy", 0.9, parameters=22e6, device_days=3.0),
]


def lines_of(table: tuple[list[str], list[list[str]]]) -> dict[str, list[str]]:
    return {row[0]: row[1:] for row in table[1]}


def test_models_stand_side_by_side_with_cost_last() -> None:
    columns, rows = compare(RESULTS).table()
    assert columns == ["", ">mine", ">other"]
    assert rows[2] == ["digits, accuracy top-1", "71.25 ± 4.40", "90.00"]
    assert rows[0] == ["imagenet, finetune top-1", "80.10 ± 0.20", "–"]
    assert rows[1] == ["imagenet, finetune other", "10.00", "–"]
    assert rows[-2] == ["Parameters (M)", "86.60", "22"]
    assert rows[-1] == ["Training device-days", "12.50", "3"]


def test_the_published_columns_stand_beside_in_the_papers_rows() -> None:
    comparison = compare(RESULTS, published="v2")
    columns, rows = comparison.table()
    assert columns[3] == ">ViT-H/14 (JFT), published"
    assert [row[0] for row in rows[:8]] == [
        "ImageNet", "ImageNet ReaL", "CIFAR-10", "CIFAR-100", "Oxford-IIIT Pets", "Oxford Flowers-102",
        "VTAB (19 tasks)", "imagenet, finetune other",
    ]  # fmt: skip
    assert rows[0][1:4] == ["80.10 ± 0.20", "–", "88.55 ± 0.04"]
    assert rows[1][1:4] == ["85.01", "–", "90.72 ± 0.05"]
    assert rows[-1][0] == "TPUv3-core-days"
    assert rows[-1][3:] == ["2500", "680", "230", "9900", "12300"]
    assert "arXiv 2010.11929, version 2" in comparison.notes[0]


@pytest.mark.parametrize(
    ("edition", "model", "row", "cell"),
    [  # typed from the paper, the first of its versions and the second
        ("v1", "ViT-H/14 (JFT)", "ImageNet", "88.36"),
        ("v1", "ViT-H/14 (JFT)", "ImageNet ReaL", "90.77"),
        ("v1", "ViT-L/16 (JFT)", "VTAB (19 tasks)", "75.91"),
        ("v2", "ViT-H/14 (JFT)", "VTAB (19 tasks)", "77.63 ± 0.23"),
        ("v2", "ViT-L/16 (JFT)", "CIFAR-100", "93.90 ± 0.05"),
        ("v2", "ViT-L/16 (JFT)", "Oxford Flowers-102", "99.74 ± 0.00"),
        ("v2", "ViT-L/16 (I21k)", "Oxford-IIIT Pets", "94.67 ± 0.15"),
        ("v2", "BiT-L (R152x4)", "VTAB (19 tasks)", "76.29 ± 1.70"),
        ("v2", "BiT-L (R152x4)", "ImageNet ReaL", "90.54"),
        ("v2", "Noisy Student (EffNet-L2)", "ImageNet", "88.40"),
        ("v2", "Noisy Student (EffNet-L2)", "CIFAR-10", "–"),
    ],
)
def test_published_figures_are_the_papers(edition: str, model: str, row: str, cell: str) -> None:
    assert edition in ("v1", "v2")
    columns, _ = table = compare(RESULTS, published=edition).table()
    place = columns.index(f">{model}, published") - 1
    assert lines_of(table)[row][place] == cell


def test_the_vtab_row_takes_no_less_than_the_mean_of_all_tasks() -> None:
    some = Result(protocol="vtab", model="m", data="vtab", metrics={"dtd": Metric(value=0.5, count=3)})
    found = lines_of(compare([some], published="v2").table())
    assert found["VTAB (19 tasks)"][0] == "–"
    assert found["vtab, vtab dtd"][0] == "50.00"
    whole = result("m", "vtab", "vtab", 0.7)
    assert lines_of(compare([whole], published="v2").table())["VTAB (19 tasks)"][0] == "70.00"


def test_accuracy_stands_in_the_papers_row_where_there_is_no_finetune() -> None:
    alone = compare([result("m", "cifar10", "accuracy", 0.9)], published="v2")
    assert lines_of(alone.table())["CIFAR-10"][0] == "90.00"
    both = compare([result("m", "cifar10", "accuracy", 0.9), result("m", "cifar10", "finetune", 0.8)], published="v2")
    assert lines_of(both.table())["CIFAR-10"][0] == "80.00"
    assert lines_of(both.table())["cifar10, accuracy top-1"][0] == "90.00"


def test_a_cost_result_adds_cost_and_no_row() -> None:
    costs = {"parameters": 1e6, "flops": 2e9}
    cost = Result(
        protocol="cost", model="mine", data="", metrics={"parameters (M)": Metric(value=1, count=1)}, cost=costs
    )
    rows = compare([result("mine", "digits", "knn", 0.5), cost]).table()[1]
    assert rows == [
        ["digits, knn top-1", "50.00"], ["digits, knn other", "10.00"], ["Parameters (M)", "1"],
        ["GFLOPs per image", "2"],
    ]  # fmt: skip


def test_what_cannot_be_told_apart_is_refused() -> None:
    with pytest.raises(EvaluationError, match="Two results are of accuracy on digits with the model mine"):
        compare([RESULTS[1], RESULTS[1]])
    with pytest.raises(EvaluationError, match="nothing to compare"):
        compare([])


def test_the_markdown_can_be_pasted() -> None:
    text = compare(RESULTS, published="v1").markdown()
    table, note, *_ = text.split("\n\n")
    assert len({line.count("|") for line in table.splitlines()}) == 1
    assert note.startswith("Published figures: ")


@pytest.mark.parametrize("name", ["figure.png", "figure.svg"])
def test_a_figure_is_drawn(tmp_path: Path, name: str) -> None:
    save_figure(compare(RESULTS, published="v2"), tmp_path / name)
    if name.endswith("png"):
        with Image.open(tmp_path / name) as image:
            assert len(set(image.convert("RGB").resize((200, 100)).tobytes())) > 20
    else:
        assert "<svg" in (tmp_path / name).read_text()


def test_the_figure_shows_every_result_and_the_cost() -> None:
    comparison = compare(RESULTS, published="v2")
    left, right = draw(comparison).axes
    labels = [label.get_text() for label in left.get_yticklabels()]
    assert labels[:7] == [row[0] for row in comparison.table()[1][:7]]  # the paper's
    assert labels[7:] == ["digits, accuracy top-1"]  # of several metrics the first
    points = [line for line in right.lines if len(line.get_xdata())]  # pyright: ignore[reportArgumentType]
    assert len(points) == len(published_columns("v2"))
    assert right.get_xscale() == "log"
    assert len(draw(compare(RESULTS[:2])).axes) == 1


def test_a_figure_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="ends in .png, .svg or .pdf"):
        save_figure(compare(RESULTS), tmp_path / "figure.gif")


def test_a_measured_cost_goes_before_what_protocols_note_beside() -> None:
    asked = Result(
        protocol="cost", model="mine", data="", metrics={"x": Metric(value=1, count=1)}, cost={"parameters": 5e6}
    )
    for results in ([asked, *RESULTS], [*RESULTS, asked]):
        assert lines_of(compare(results).table())["Parameters (M)"] == ["5", "22"]
        assert lines_of(compare(results).table())["Training device-days"] == ["12.50", "3"]


def test_a_result_over_a_part_of_the_images_is_noted() -> None:
    whole = result("mine", "imagenet", "real", 0.85)
    part = dataclasses.replace(whole, counts={"images": 5000}, settings={"images in all": 50_000})
    assert compare([whole], published="v2").notes[0].startswith("Published figures")
    assert compare([part], published="v2").notes[0] == "mine: real over 5,000 of 50,000 images."
    assert compare([part]).notes == ("mine: real over 5,000 of 50,000 images.",)


def test_every_metric_is_kept_and_stands_by_its_protocol() -> None:
    names = ("mean", "natural", "specialized", "structured", "dtd")
    whole = {name: Metric(value=0.1 * (i + 1), count=3) for i, name in enumerate(names)}
    some = {"dtd": Metric(value=0.55, count=3), "pets": Metric(value=0.65, count=3)}
    results = [Result(protocol="vtab", model="a", data="vtab", metrics=whole), result("a", "digits", "knn", 0.5)]
    results.append(Result(protocol="vtab", model="b", data="vtab", metrics=some))
    rows = compare(results).table()[1]
    assert [row[0].removeprefix("vtab, vtab ") for row in rows[:6]] == [*names, "pets"]
    assert rows[4][1:] == ["50.00", "55.00"]
    assert rows[5][1:] == ["–", "65.00"]
    shots = {f"{k}-shot": Metric(value=k / 100, count=9) for k in (1, 5, 10, 25)}
    few = compare([Result(protocol="fewshot", model="a", data="cifar100", metrics=shots)])
    assert [row[1] for row in few.table()[1]] == ["1.00", "5.00", "10.00", "25.00"]
    assert [row.metric for row in few.main] == ["5-shot"]


def test_the_papers_table_stands_alone() -> None:
    columns, rows = compare([], published="v2").table()
    assert columns[1] == ">ViT-H/14 (JFT), published"
    assert len(columns) == 1 + len(published_columns("v2"))
    assert rows[0] == ["ImageNet", "88.55 ± 0.04", "87.76 ± 0.03", "85.30 ± 0.02", "87.54 ± 0.02", "88.40"]


def test_few_shots_of_a_models_own_classes_are_no_finding() -> None:
    few = Result(protocol="fewshot", model="a", data="digits", metrics={"5-shot": Metric(value=0.9, count=9)})
    known = dataclasses.replace(few, settings={"classes known": True})
    assert compare([few]).notes == ()
    (note,) = compare([known]).notes
    assert note.startswith("a: fewshot on digits is no finding: the model was trained to tell these classes")
