"""What the transfer protocols choose, on what, and how they sum up; the runs are a table of scores."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from PIL import Image

from tiny_vits import SIZES, random_vit
from vitlab.core.errors import DataError, Error, UnknownNameError
from vitlab.data.augmentation import Augmentation
from vitlab.data.open import hold_out, open_data
from vitlab.data.sources.published.vtab import TASKS
from vitlab.evaluation.contract import EvaluationError, Result
from vitlab.models.vit import ViTConfig
from vitlab.recipes.finetuning import ROWS
from vitlab.studies import transfer
from vitlab.studies.lr_search import best_lr, summary
from vitlab.training.hooks import DivergedError
from vitlab.training.plan import open_parts
from vitlab.training.recipe import Recipe
from vitlab.weights.load import save
from vtab_folders import make_task


class Table:
    """Scores in place of runs: on val by rate, on test by rate and seed; it remembers the recipes."""

    def __init__(self, val: Mapping[float, float | None], test: Mapping[tuple[float, int], float]) -> None:
        self.val, self.test = val, test
        self.recipes: list[Recipe] = []

    def __call__(self, recipe: Recipe, folder: Path) -> Mapping[str, Any]:
        self.recipes.append(recipe)
        lr, seed = recipe.optimizer.lr, recipe.seed
        splits = open_parts(recipe).splits
        result: dict[str, Any] = {"seconds": 2.0, "images_seen": 100, "best_score": None}
        if "val" in splits:
            folder.mkdir(parents=True)
            if self.val[lr] is None:
                raise DivergedError("Loss or gradients were not finite.")
            result["best_score"] = self.val[lr]
        if "test" in splits:
            result |= {"test accuracy": self.test[lr, seed], "test loss": 1 - self.test[lr, seed]}
        return result


@pytest.fixture
def model(tmp_path: Path) -> str:
    save(random_vit(ViTConfig(**SIZES, num_classes=3)), tmp_path / "model")
    return str(tmp_path / "model")


def photos(root: Path, **parts: int) -> str:
    """Two classes with so many pictures each, in parts."""
    for part, count in parts.items():
        for label in ("cat", "dog"):
            (root / part / label).mkdir(parents=True)
            for i in range(count):
                Image.new("RGB", (4, 4), (i, 0, 0)).save(root / part / label / f"{i}.png")
    return str(root)


class TestFinetune:
    """Digits: 1437 or so training images without a val part, and a test part."""

    # on val the second rate is best, on test the third
    VAL: ClassVar[dict[float, float | None]] = {0.1: 0.5, 0.2: 0.8, 0.4: 0.7}
    TEST: ClassVar[dict[tuple[float, int], float]] = {
        **{(0.1, seed): 0.1 for seed in range(3)},
        **{(0.4, seed): 0.99 for seed in range(3)},
        (0.2, 0): 0.60,
        (0.2, 1): 0.63,
        (0.2, 2): 0.69,
    }

    def run(self, model: str, tmp_path: Path, table: Table, **options: Any) -> Result:
        settings: dict[str, Any] = {"lrs": (0.4, 0.1, 0.2), "steps": 7, "image_size": None}
        return transfer.finetune(model, "digits", tmp_path / "grid", train=table, **(settings | options))

    def test_val_chooses_and_test_is_reported(self, model: str, tmp_path: Path) -> None:
        table = Table(self.VAL, self.TEST)
        result = self.run(model, tmp_path, table)
        accuracy = result.metrics["accuracy"]
        assert accuracy.value == pytest.approx(0.64)  # (.60 + .63 + .69) / 3
        assert accuracy.spread == pytest.approx(math.sqrt((0.04**2 + 0.01**2 + 0.05**2) / 2))  # n - 1
        assert "3 seeds" in accuracy.spread_of
        assert accuracy.count == 3
        assert next(iter(result.metrics)) == "accuracy"
        assert result.metrics["loss"].value == pytest.approx(0.36)
        assert result.selected == {
            "lr": {
                "value": 0.2,
                "on": "10% of train, held out",
                "scores": {"0.1": 0.5, "0.2": 0.8, "0.4": 0.7},
            }
        }
        assert result.details["test accuracies"] == {"0": 0.60, "1": 0.63, "2": 0.69}
        assert result.cost == {"seconds": 12.0, "images_seen": 600, "runs": 6}
        assert result.seeds == (0, 1, 2)

    def test_the_rates_never_see_test_and_the_end_sees_all_of_train(self, model: str, tmp_path: Path) -> None:
        table = Table(self.VAL, self.TEST)
        result = self.run(model, tmp_path, table)
        whole = open_data("digits")
        held = hold_out(whole, 0.1)
        choosing, final = table.recipes[:3], table.recipes[3:]
        for recipe in choosing:
            splits = open_parts(recipe).splits
            assert {name: len(split) for name, split in splits.items()} == {
                "train": len(held.splits["train"]),
                "val": len(held.splits["val"]),
            }
        for recipe in final:
            splits = open_parts(recipe).splits
            assert {name: len(split) for name, split in splits.items()} == {
                "train": len(whole.splits["train"]),
                "test": len(whole.splits["test"]),
            }
            assert np.array_equal(splits["train"].labels, whole.splits["train"].labels)
        assert result.counts == {
            "train": len(whole.splits["train"]),
            "test": len(whole.splits["test"]),
            "train while choosing": len(held.splits["train"]),
            "val while choosing": len(held.splits["val"]),
        }
        assert [recipe.seed for recipe in table.recipes] == [0, 0, 0, 0, 1, 2]
        assert {recipe.keep for recipe in table.recipes} == {"last"}  # no step is chosen either
        assert {recipe.evaluate_every for recipe in table.recipes} == {"0 steps"}

    def test_a_rate_that_diverges_is_out(self, model: str, tmp_path: Path) -> None:
        result = self.run(model, tmp_path, Table({**self.VAL, 0.2: None}, self.TEST))
        assert result.selected["lr"]["value"] == 0.4
        assert result.selected["lr"]["scores"] == {"0.1": 0.5, "0.2": None, "0.4": 0.7}
        assert result.cost["images_seen"] == 500

    def test_all_rates_diverge(self, model: str, tmp_path: Path) -> None:
        with pytest.raises(EvaluationError, match="digits: the runs of all rates diverged"):
            self.run(model, tmp_path, Table(dict.fromkeys(self.VAL), self.TEST))

    def test_one_rate_and_one_seed(self, model: str, tmp_path: Path) -> None:
        table = Table({}, self.TEST)
        result = self.run(model, tmp_path, table, lrs=(0.2,), seeds=(2,))
        assert result.selected == {}
        assert len(table.recipes) == 1
        accuracy = result.metrics["accuracy"]
        assert (accuracy.value, accuracy.count, accuracy.spread) == (0.69, 1, None)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"lrs": ()}, "at least one of the lrs"),
            ({"lrs": (0.1, 0.1)}, "each once"),
            ({"lrs": (0.1, -0.1)}, "above 0"),
            ({"seeds": ()}, "at least one of the seeds"),
            ({"steps": 0}, "at least 1, not 0"),
            ({"batch_size": -1}, "at least 1, not 7 and -1"),
        ],
    )
    def test_settings_that_cannot_be(self, model: str, tmp_path: Path, options: dict[str, Any], message: str) -> None:
        with pytest.raises(EvaluationError, match=message):
            self.run(model, tmp_path, Table({}, {}), **options)
        assert not (tmp_path / "grid").exists()

    def test_other_weights_under_the_same_name_are_another_plan(self, model: str, tmp_path: Path) -> None:
        self.run(model, tmp_path, Table(self.VAL, self.TEST))
        save(random_vit(ViTConfig(**SIZES, num_classes=3), seed=1), model)
        with pytest.raises(Error, match="planned otherwise.*model_fingerprint"):
            self.run(model, tmp_path, Table(self.VAL, self.TEST))

    def test_other_options_are_another_plan(self, model: str, tmp_path: Path) -> None:
        self.run(model, tmp_path, Table(self.VAL, self.TEST))
        with pytest.raises(Error, match=r"planned otherwise \(steps: 7, now 15; warmup"):
            self.run(model, tmp_path, Table(self.VAL, self.TEST), steps=15)


def plan(data: str, **options: Any) -> Any:
    settings: dict[str, Any] = {"steps": None, "lrs": None, "seeds": (0,), "batch_size": None, "image_size": 384}
    settings |= {"on_gpu": True, **options}
    return transfer.plan_finetune(data, **settings)


class TestPlans:
    def test_its_own_val_part_chooses_and_is_trained_on_at_last(self, tmp_path: Path) -> None:
        task = plan(photos(tmp_path / "mine", train=5, val=3, test=4))
        assert task.chosen_on == "the val part"
        chooser, final = open_data(task.choose_from, val_fraction=0), open_data(task.everything, val_fraction=0)
        assert {name: len(split) for name, split in chooser.splits.items()} == {"train": 10, "val": 6}
        assert {name: len(split) for name, split in final.splits.items()} == {"train": 16, "test": 8}
        assert task.counts == {"train": 16, "test": 8, "train while choosing": 10, "val while choosing": 6}

    def test_a_set_of_the_table(self, tmp_path: Path) -> None:
        """Flowers has a val part, which the paper leaves out: 10% of train chooses. Figures from table 4."""
        task = plan(photos(tmp_path / "flowers102", train=20, val=3, test=4))
        assert (task.steps, task.warmup, task.batch_size) == (500, 100, 512)
        assert task.lrs == (0.001, 0.003, 0.01, 0.03)
        assert task.chosen_on == "10% of train, held out"
        assert task.augmentation == Augmentation(crop="paper", crop_area=(0.05, 1.0), flip=0.5)
        final = open_data(task.everything, val_fraction=0)
        assert {name: len(split) for name, split in final.splits.items()} == {"train": 40, "test": 8}

    def test_imagenet_is_reported_on_val(self, tmp_path: Path) -> None:
        task = plan(photos(tmp_path / "imagenet", train=200, val=3))
        assert (task.steps, task.warmup, task.lrs) == (20_000, 500, (0.003, 0.01, 0.03, 0.06))
        assert task.held_out == 0.01
        assert task.counts["test"] == 6
        assert task.counts["train"] == 400
        assert "test" not in open_data(task.choose_from, val_fraction=0.01).splits

    def test_any_other_set(self) -> None:
        """Digits has 1,437 images or so: 500 steps; a GPU gets batches of 256, so that an epoch has four steps."""
        task = plan("digits")
        assert (task.steps, task.warmup, task.batch_size, task.held_out) == (500, 100, 256, 0.1)
        assert task.lrs == pytest.approx([lr / math.sqrt(2) for lr in (0.001, 0.003, 0.01, 0.03)], rel=1e-3)
        alone = plan("digits", on_gpu=False, steps=20)
        assert (alone.steps, alone.warmup, alone.batch_size) == (20, 4, 32)
        assert alone.lrs == (0.00025, 0.00075, 0.0025, 0.0075)  # a quarter, as 32 is a sixteenth of 512

    @pytest.mark.parametrize("parts", [{"train": 5}, {"train": 5, "val": 5}])
    def test_without_a_test_part(self, tmp_path: Path, parts: dict[str, int]) -> None:
        with pytest.raises(EvaluationError, match="mine has no test part"):
            plan(photos(tmp_path / "mine", **parts))

    def test_a_split_with_a_class_that_train_lacks(self, tmp_path: Path) -> None:
        root = Path(photos(tmp_path / "mine", train=5, test=4))
        (root / "test" / "bird").mkdir()
        Image.new("RGB", (4, 4)).save(root / "test" / "bird" / "1.png")
        with pytest.raises(DataError, match="test has images of the class bird, but train has none"):
            plan(str(root))

    def test_several_labels_an_image(self, tmp_path: Path) -> None:
        Image.new("RGB", (4, 4)).save(tmp_path / "1.png")
        rows = [
            "path,label,split",
            *(f"1.png,{label},{split}" for split in ("train", "test") for label in ("a;b", "b")),
        ]
        (tmp_path / "many.csv").write_text("\n".join(rows))
        with pytest.raises(EvaluationError, match="several labels per image"):
            plan(str(tmp_path / "many.csv"))


def test_the_best_rate() -> None:
    assert best_lr({0.1: 0.5, 0.2: 0.7, 0.4: 0.7}, where="here") == 0.2  # the lowest of equals
    assert best_lr({0.4: 0.7, 0.2: 0.7, 0.1: None}, where="here") == 0.2


def test_a_summary_by_hand() -> None:
    metric = summary([1.0, 2.0, 6.0])
    assert (metric.value, metric.count) == (3.0, 3)
    assert metric.spread == pytest.approx(math.sqrt((4 + 1 + 9) / 2))


class TestAggregate:
    def test_all_nineteen(self) -> None:
        """Natural .7 and .9, specialised .4, structured .5, for two seeds: (7 * .7 + 4 * .4 + 8 * .5) / 19, ..."""
        values = {"natural": (0.7, 0.9), "specialised": (0.4, 0.4), "structured": (0.5, 0.5)}
        metrics = transfer.aggregate({name: values[task.group] for name, task in TASKS.items()})
        assert list(metrics)[:4] == ["mean", "natural", "specialised", "structured"]
        first, second = (4.9 + 1.6 + 4.0) / 19, (6.3 + 1.6 + 4.0) / 19
        assert metrics["mean"].value == pytest.approx((first + second) / 2)
        assert metrics["mean"].spread == pytest.approx((second - first) / math.sqrt(2))  # of two values
        assert metrics["natural"].value == pytest.approx(0.8)
        assert metrics["natural"].spread == pytest.approx(0.2 / math.sqrt(2))
        assert metrics["structured"].spread == 0
        assert metrics["cifar"].value == pytest.approx(0.8)
        assert len(metrics) == 1 + 3 + 19

    def test_a_group_counts_its_tasks_not_their_images(self) -> None:
        values = {name: (i / 100,) for i, name in enumerate(TASKS)}
        metrics = transfer.aggregate(values)
        assert metrics["mean"].value == pytest.approx(0.09)
        assert metrics["natural"].value == pytest.approx(0.03)  # 0 to 6
        assert metrics["specialised"].value == pytest.approx(0.085)  # 7 to 10
        assert metrics["structured"].value == pytest.approx(0.145)  # 11 to 18
        assert metrics["mean"].spread is None

    def test_with_one_missing_there_is_no_mean(self) -> None:
        metrics = transfer.aggregate({name: (0.5,) for name in TASKS if name != "dmlab"})
        assert set(metrics) == {"natural", "specialised", *TASKS} - {"dmlab"}


class TestVtab:
    def run(self, model: str, root: Path, tmp_path: Path, **options: Any) -> tuple[Result, list[Recipe]]:
        table = Table({0.1: 0.9, 0.2: 0.3}, {(lr, seed): lr + seed / 10 for lr in (0.01, 0.1, 0.2) for seed in (0, 1)})
        result = transfer.vtab(model, root, tmp_path / "grid", train=table, **options)
        return result, table.recipes

    def test_missing_tasks_are_named(self, model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        for name, num_classes in (("KITTI", 4), ("pcam", 2)):
            make_task(tmp_path / "vtab", name, num_classes)
        result, recipes = self.run(model, tmp_path / "vtab", tmp_path)
        assert list(result.metrics) == ["patch_camelyon", "kitti"]
        assert result.details["missing"] == [name for name in TASKS if name not in ("kitti", "patch_camelyon")]
        assert "no mean, for 17 of the 19 tasks are not in" in caplog.text
        assert "caltech101, cifar, dtd" in caplog.text
        assert result.counts == {
            "patch_camelyon train": 6,
            "patch_camelyon test": 2,
            "kitti train": 12,
            "kitti test": 4,
        }
        assert [recipe.augmentation.crop for recipe in recipes] == ["paper", "resize"]
        assert [recipe.augmentation.flip for recipe in recipes] == [0.5, 0.0]
        for recipe in recipes:
            assert recipe.schedule.total == "2500 steps"
            assert recipe.schedule.warmup == "500 steps"
            assert recipe.batch_size == 512
            assert recipe.model.image_size == 384
            assert recipe.optimizer.lr == 0.01
            assert recipe.optimizer.name == "sgd"
        assert [{part: len(split) for part, split in open_parts(recipe).splits.items()} for recipe in recipes] == [
            {"train": 6, "test": 2},
            {"train": 12, "test": 4},
        ]

    def test_all_tasks(self, model: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        """With the rate chosen on the 200: the lower on val, the higher on test."""
        for task in TASKS.values():
            make_task(tmp_path / "vtab", task.name, task.num_classes)
        result, recipes = self.run(model, tmp_path / "vtab", tmp_path, lrs=(0.1, 0.2), seeds=(0, 1))
        assert len(recipes) == 19 * 4
        assert result.metrics["mean"].value == pytest.approx(0.15)  # .1 and .2
        assert next(iter(result.metrics)) == "mean"
        assert result.selected["lr of cifar"] == {
            "value": 0.1,
            "on": "val200.txt",
            "scores": {"0.1": 0.9, "0.2": 0.3},
        }
        assert len(result.selected) == 19
        assert result.details["missing"] == []
        assert caplog.text == ""
        assert result.cost["runs"] == 76

    def test_some_tasks(self, model: str, tmp_path: Path) -> None:
        for name, num_classes in (("kitti", 4), ("dmlab", 6), ("patch_camelyon", 2)):
            make_task(tmp_path / "vtab", name, num_classes)
        result, _ = self.run(model, tmp_path / "vtab", tmp_path, tasks=("kitti", "specialised"))
        assert list(result.metrics) == ["patch_camelyon", "kitti"]
        assert result.details["left out"] == ["dmlab"]
        with pytest.raises(
            EvaluationError, match="The task cifar is not in .*, which holds patch_camelyon, dmlab, kitti"
        ):
            self.run(model, tmp_path / "vtab", tmp_path, tasks=("cifar100",))
        with pytest.raises(UnknownNameError, match="no task or group named 'kity'. Did you mean kitti"):
            self.run(model, tmp_path / "vtab", tmp_path, tasks=("kity",))
        with pytest.raises(EvaluationError, match="No task of natural is in"):
            self.run(model, tmp_path / "vtab", tmp_path, tasks=("natural",))

    def test_a_damaged_task_is_found_before_anything_is_trained(self, model: str, tmp_path: Path) -> None:
        make_task(tmp_path / "vtab", "patch_camelyon", 2)
        (make_task(tmp_path / "vtab", "kitti", 4) / "test.txt").unlink()
        with pytest.raises(DataError, match=r"There is no .*kitti/test\.txt"):
            self.run(model, tmp_path / "vtab", tmp_path)
        assert not (tmp_path / "grid").exists()

    def test_the_row_is_the_papers(self) -> None:
        assert (ROWS["vtab"].steps, ROWS["vtab"].lrs) == (2500, (0.01,))
