"""The leaderboards beside our models: counts against the published ones, and why they differ where they do."""

import pytest

from vitlab.evaluation.contract import Metric, Result
from vitlab.evaluation.published.tables import published_table
from vitlab.models.create import configured, create
from vitlab.recipes import RECIPES, find_recipe
from vitlab.studies.boards import BOARDS, OURS, BoardRow, Ours, board_rows, count_of, measured_score, same_count

EVERY = [(data, method, ours) for data, found in OURS.items() for method, ours in found.items()]


def row_of(data: str, method: str) -> BoardRow:
    ours = OURS[data][method]
    count = count_of(ours.model, ours.image_size)
    return BoardRow(1, method, published_table(BOARDS[data]).row(method), ours, count, "", None)


def test_every_row_has_a_model() -> None:
    for data, name in BOARDS.items():
        assert tuple(OURS[data]) == published_table(name).rows


@pytest.mark.parametrize(("data", "method", "ours"), EVERY)
def test_recipes_lead_from_the_model_to_the_score(data: str, method: str, ours: Ours) -> None:
    assert set(ours.recipes) <= set(RECIPES), method
    for before, after in zip(ours.recipes, ours.recipes[1:], strict=False):
        assert find_recipe(after).model.source == f"runs/{before}"
        assert find_recipe(before).model.source == ours.model
    last = find_recipe(ours.recipes[-1])
    assert (last.model.image_size, last.data.source) == (ours.image_size, data)


def test_vit_g_is_smaller_in_its_paper() -> None:
    """48 layers of 1664 and 8192, patches of 14: 1,842.8M by hand; the pooling head and 1000 classes make 1,882.8M."""
    width, mlp, depth = 1664, 8192, 48
    layer = 4 * width * width + 4 * width + 2 * width * mlp + mlp + width + 4 * width
    stem = 14 * 14 * 3 * width + width
    assert (depth * layer + stem + 256 * width + 2 * width) / 1e6 == pytest.approx(1842.8, abs=0.05)
    row = row_of("imagenet", "ViT-G/14")
    count = row.count
    assert count is not None
    assert count.parameters / 1e6 == pytest.approx(1882.8, abs=0.05)
    assert count.outside["the classifier"] == width * 1000 + 1000
    pooling = layer + width  # attention and MLP of a layer, a query, and one norm where a layer has two
    assert count.outside["the pooling head"] == pooling - 2 * width
    assert (count.parameters - sum(count.outside.values())) / 1e6 == pytest.approx(1842.8, abs=0.05)
    assert row.why == (
        "ViT-G/14: 1,882.8M parameters counted here, 1,843M published: the layers alone, without the classifier (1.7M)"
        " and the pooling head (38.4M)."
    )


@pytest.mark.parametrize("method", ["CoAtNet-6", "CoAtNet-7"])
def test_coatnets_parameters_and_multiply_adds_are_the_papers(method: str) -> None:
    row = row_of("imagenet", method)
    assert row.count is not None
    assert row.why == ""
    assert row.count.side == row.published["pixels"].value
    assert row.count.flops / 2e9 == pytest.approx(row.published["GFLOPs"].value, rel=0.02)


def test_vit_ls_count_is_another_models() -> None:
    assert row_of("cifar100", "ViT-L/16").why.endswith("The paper's 307M is the count of L/32.")


@pytest.mark.slow
def test_whole_leaderboards() -> None:
    rows = {row.method: row for data in BOARDS for row in board_rows(data)}
    assert [row.method for row in board_rows("imagenet")] == list(published_table("leaderboard-imagenet").rows)
    for method in ("EffNet-L2 (SAM)", "CvT-W24", "ViT-MoE-15B", "Meta Pseudo Labels", "ViT-H/14"):
        assert (rows[method].why, rows[method].missing) == ("", ""), method


def test_a_result_stands_beside_its_row() -> None:
    result = Result(
        protocol="finetune",
        model="cvt-w24-384-cifar100",
        data="cifar100",
        metrics={"top-1": Metric(value=0.93, count=3)},
    )
    other = Result(protocol="knn", model="cvt-w24", data="cifar100", metrics={"k=1": Metric(value=0.5, count=3)})
    names = (OURS["cifar100"]["CvT-W24"].model, *OURS["cifar100"]["CvT-W24"].recipes)
    assert measured_score([result, other], "cifar100", names) == result.metrics["top-1"]
    assert measured_score([result, other], "imagenet", names) is None
    assert measured_score([result, other], "cifar100", ("vit-h14-224",)) is None


def test_a_count_is_compared_to_the_figures_that_are_printed() -> None:
    assert same_count(1_471_400_000, 1470)
    assert same_count(14_705_120_000, 14705.1)
    assert not same_count(14_705_200_000, 14705.1)
    assert not same_count(1_882_800_000, 1843)
    assert same_count(480_310_000, 480)


def test_counting_is_that_of_a_model_with_weights() -> None:
    count, model = count_of("vit-digits", None), create("vit-digits")
    assert count.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (count.side, count.num_classes) == (8, configured("vit-digits").num_classes)
    assert count.outside == {"the classifier": 64 * 10 + 10}
