import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.metrics import accuracy_score, confusion_matrix
from sklearn.neighbors import KNeighborsClassifier

import vitlab
import vitlab.api
from tiny_vits import colours_vit
from vitlab.cli import main
from vitlab.data.open import open_data
from vitlab.studies import PROTOCOLS
from vitlab.studies.grid import GridStopped


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vitlab" / "features"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small random model for the digits; what it answers does not matter, that it is counted right does."""
    torch.manual_seed(0)
    model = vitlab.create("vit-digits")
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    model.labels = tuple("0123456789")
    path = tmp_path_factory.mktemp("a model") / "digits"
    vitlab.save(model, path)
    return str(path)


@pytest.fixture(scope="module")
def colors(tmp_path_factory: pytest.TempPathFactory) -> str:
    model = colours_vit()
    path = tmp_path_factory.mktemp("a model") / "colours"
    vitlab.save(model, path)
    return str(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A test part in which 5 of 6 pictures have the colour of their folder, for classes in another order."""
    folder = tmp_path / "my photos"
    shades = {"blue": (10, 10, 250), "green": (10, 250, 10), "red": (250, 10, 10)}
    for split in ("train", "test"):
        for name, shade in shades.items():
            (folder / split / name).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (9 + i, 10), shade).save(folder / split / name / f"{i}.png")
    Image.new("RGB", (9, 9), shades["red"]).save(folder / "test" / "green" / "0.png")
    return folder


def evaluated(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["evaluate", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def sentence(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["evaluate", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("vitlab: ")
    assert printed.err.count("\n") == 1
    return printed.err


def predictions(source: str) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """The test labels of digits, and what the model says when it is called by hand."""
    model, split = vitlab.load(source), open_data("digits").splits["test"]
    images = [np.asarray(split.images.read(i)) for i in range(len(split))]
    with torch.no_grad():
        return split.labels, model(model.preprocess(images)).argmax(dim=1).numpy()


def test_accuracy_is_scikit_learns(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, "accuracy", "--model", source, "--data", "digits")
    truth, predicted = predictions(source)
    assert found["metrics"]["top-1"]["value"] == pytest.approx(accuracy_score(truth, predicted))
    assert found["details"]["confusion"] == confusion_matrix(truth, predicted, labels=range(10)).tolist()
    assert found["counts"]["test"] == 400
    assert found["settings"]["split"] == "test"
    assert found["settings"]["classes_matched"] == "by name"
    assert found["cost"]["parameters"] == 136650


def test_the_table_can_be_pasted_and_the_result_is_written(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "result.json"
    assert main(["evaluate", "accuracy", "--model", source, "--data", "digits", "--out", str(out)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[2].split("|")[1].strip() == "metric"
    value = json.loads(out.read_text())["metrics"]["top-1"]["value"]
    assert f"{100 * value:.2f} ± " in lines[4]
    assert json.loads(out.read_text())["environment"]["command"][0] == "vitlab"


def test_classes_in_another_order_are_matched_by_name(
    colors: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluated(capsys, "accuracy", "--model", colors, "--data", str(photos))
    assert found["metrics"]["top-1"]["value"] == pytest.approx(5 / 6)
    assert found["details"]["classes"] == ["blue", "green", "red"]
    assert found["details"]["confusion"] == [[2, 0, 0], [0, 1, 1], [0, 0, 2]]


def test_what_a_result_is_over_is_told_below_the_table(
    colors: str, photos: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for split in ("train", "test"):
        shutil.rmtree(photos / split / "green")
    shutil.rmtree(photos / "test" / "blue")
    (photos / "test" / "red").rename(photos / "test" / "pictures")
    for file in (photos / "test" / "pictures").iterdir():
        file.rename(photos / "test" / file.name)
    (photos / "test" / "pictures").rmdir()
    assert main(["evaluate", "accuracy", "--model", colors, "--data", str(photos), "--split", "val"]) == 0
    text = capsys.readouterr().out
    assert "Classes were matched by name, 2 of the model's 3." in text
    assert f"{photos / 'test'} has no class folders, so no labels: it was left out." in text
    assert "Of 4 images 2 are val: of each class about 10% each" in text
    assert "Read as" not in text


def test_views_are_averaged_by_option(colors: str, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--crops", "5", "--flip", "--resize", "12")
    found = evaluated(capsys, "accuracy", "--model", colors, "--data", str(photos), *more)
    assert found["metrics"]["top-1"]["value"] == pytest.approx(5 / 6)
    assert found["settings"]["views"] == {"crops": 5, "flip": True, "resize": 12}


def test_protocols_share_features_and_knn_is_scikit_learns(
    source: str, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = evaluated(capsys, "knn", "--model", source, "--data", "digits", "--ks", "5", "--weights", "uniform")
    kept = {file.name: file.stat().st_mtime_ns for file in cache.iterdir()}
    assert len(kept) == 4  # train and test, each with what is said about it
    data = open_data("digits")
    features = {
        name: vitlab.embed(source, [np.asarray(split.images.read(i)) for i in range(len(split))]).features
        for name, split in data.splits.items()
    }
    theirs = KNeighborsClassifier(5, metric="cosine").fit(features["train"], data.splits["train"].labels)
    score = theirs.score(features["test"], data.splits["test"].labels)
    assert found["metrics"]["top-1"]["value"] == pytest.approx(score, abs=2 / 400)  # ties
    fewshot = evaluated(capsys, "fewshot", "--model", source, "--data", "digits", "--shots", "1", "5")
    assert fewshot["seeds"] == [0, 1, 2]
    assert {file.name: file.stat().st_mtime_ns for file in cache.iterdir()} == kept


def test_without_a_cache_the_numbers_are_the_same(source: str, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("linear", "--model", source, "--data", "digits", "--l2s", "0.01", "1")
    bare = evaluated(capsys, *arguments, "--no-cache", "--batch-size", "64")
    assert not cache.exists()
    assert evaluated(capsys, *arguments, "--batch-size", "64")["metrics"] == bare["metrics"]
    assert bare["selected"]["l2"]["value"] in (0.01, 1)
    assert "held out of train" in bare["selected"]["l2"]["on"]


def test_another_resolution_is_measured(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, "accuracy", "--model", source, "--data", "digits", "--image-size", "16")
    assert found["settings"]["resolution"] == [16, 16]


def test_cost_of_a_zoo_model_without_running_it(capsys: pytest.CaptureFixture[str]) -> None:
    found = evaluated(capsys, "cost", "--model", "vit-b16-224", "--count-only", "--images", "2121e6")
    assert found["metrics"]["exaFLOPs to train"]["value"] == pytest.approx(224, rel=0.05)
    assert found["metrics"]["parameters (M)"]["value"] == pytest.approx(86.57, abs=0.01)


def test_the_cost_of_a_recipe_before_it_starts(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    more = ("--recipe", "vit-b16-imagenet", "--train-images", "1281167", "--count-only")
    found = evaluated(capsys, "cost", "--model", "vit-b16-224", *more)
    assert found["settings"]["images"] == pytest.approx(300 * 1281167, rel=1e-4)
    del source


def test_results_are_compared_side_by_side(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = []
    for name in ("one", "two"):
        files.append(str(tmp_path / f"{name}.json"))
        more = ("--name", name, "--out", files[-1])
        assert main(["evaluate", "accuracy", "--model", source, "--data", "digits", *more]) == 0
    capsys.readouterr()
    figure = tmp_path / "figure.png"
    assert main(["evaluate", "compare", *files, "--published", "v2", "--figure", str(figure)]) == 0
    text = capsys.readouterr().out
    assert [name.strip() for name in text.splitlines()[0].split("|")[2:4]] == ["one", "two"]
    assert "ViT-H/14 (JFT), published" in text
    assert "88.55 ± 0.04" in text
    assert figure.stat().st_size > 10_000
    assert main(["evaluate", "compare", *files, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["models"] == ["one", "two"]
    assert document["rows"][0]["one"] == document["rows"][0]["two"]
    assert "Two results" in sentence(capsys, "compare", files[0], files[0])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["acuracy"], "There is no protocol named 'acuracy'. Did you mean accuracy?"),
        (["--model", "x"], "Name a protocol before '--model'"),
        (["accuracy", "--model", "SOURCE"], "needs a data set"),
        (["accuracy", "--model", "SOURCE", "--data", "digits", "--split", "val"], "digits has no split 'val'"),
        (["accuracy", "--model", "nothing", "--data", "digits"], "'nothing' is no file"),
        (["knn", "--model", "SOURCE", "--data", "digits", "--split", "train"], "cannot be measured on train"),
        (["fewshot", "--model", "SOURCE", "--data", "digits", "--shots", "900"], "fewer than the 900 shots"),
        (["real", "--model", "SOURCE", "--data", "digits", "--labels", "gone.json"], "Cannot read gone.json"),
        (["accuracy", "--model", "SOURCE", "--data", "PHOTOS"], "tells 10 classes and the data has 3"),
        (["compare"], "Give at least one result"),
        (["compare", "gone.json"], "There is no file gone.json"),
        (["cost", "--model", "SOURCE", "--run", "PHOTOS", "--count-only"], "is not a run's folder"),
        (["cost", "--model", "SOURCE", "--images", "-5"], "images must be a number above 0, not -5"),
        (["cost", "--model", "SOURCE", "--images", "nan"], "images must be a number above 0, not nan"),
        (["cost", "--model", "SOURCE", "--devices", "0"], "devices must be a number above 0, not 0"),
        (["cost", "--model", "SOURCE", "--seconds", "-1"], "seconds must be a number above 0, not -1"),
        (["cost", "--model", "SOURCE", "--train-images", "0"], "train_images must be a number above 0, not 0"),
        (["accuracy", "--model", "SOURCE", "--data", "digits", "--batch-size", "0"], "must be at least 1, not 0"),
        (["accuracy", "--model", "x", "--data", "digits", "--out", "PHOTOS"], "is a folder; give the name of a file"),
        (["accuracy", "--model", "x", "--data", "digits", "--out", "/dev/null/a.json"], "Cannot write /dev/null/a"),
        (["accuracy", "--model", "x", "--data", "FILE", "--out", "FILE"], "is read here and would be written over"),
        (["cost", "--model", "SOURCE", "--batch-size", "-1"], "must be at least 1, not -1"),
    ],
)
def test_mistakes_are_one_sentence(
    source: str, photos: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    known = {"SOURCE": source, "PHOTOS": str(photos), "FILE": __file__}
    assert words in sentence(capsys, *(known.get(item, item) for item in arguments))


@pytest.mark.parametrize(
    ("protocol", "option"),
    [("finetune", "--split"), ("finetune", "--flip"), ("vtab", "--crops"), ("cost", "--data"), ("cost", "--workers")],
)
def test_an_option_that_would_do_nothing_is_refused(
    protocol: str, option: str, source: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", protocol, "--model", source, option, "5"]) == 2
    assert option in capsys.readouterr().err


@pytest.mark.parametrize("protocol", [*PROTOCOLS.names(), "compare"])
def test_every_protocols_help_has_examples(protocol: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", protocol, "--help"]) == 0
    assert f"  vitlab evaluate {protocol} " in capsys.readouterr().out


def test_fine_tuning_tells_its_choice_and_its_cost(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    few = (
        "--own-size",
        "--steps",
        "2",
        "--batch-size",
        "8",
        "--lrs",
        "0.01",
        "0.03",
        "--seeds",
        "0",
        "--workers",
        "0",
    )
    arguments = ("finetune", "--model", source, "--data", "digits", "--device", "cpu", *few)
    found = evaluated(capsys, *arguments)
    assert found["cost"]["parameters"] == 136650
    assert found["cost"]["flops"] > 0
    assert main(["evaluate", *arguments]) == 0  # goes on with what is there, to its end at once
    text = capsys.readouterr().out
    assert f"Chosen on 10% of train, held out: lr {found['selected']['lr']['value']}." in text


@pytest.mark.parametrize("status", [130, 143])
def test_a_grid_that_a_signal_ended_says_so(
    source: str, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise GridStopped(status)

    monkeypatch.setattr(vitlab.api, "evaluate", stopped)
    assert main(["evaluate", "finetune", "--model", source, "--data", "digits"]) == status
    assert "the same command resumes" in capsys.readouterr().err


def test_the_examples_of_finetune_name_data_with_a_test_part() -> None:
    named = [example.split("--data ")[1].split()[0] for example in PROTOCOLS.find("finetune").examples]
    assert named == ["pets", "digits"]
    assert {"train", "test"} <= set(open_data("digits").splits)


def test_an_unknown_option_in_python_is_refused(source: str) -> None:
    with pytest.raises(vitlab.Error, match="The protocol fewshot has no option 'shot'. Did you mean shots"):
        vitlab.evaluate("fewshot", source, "digits", shot=(1,))


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in ("accuracy", "knn"):
        one = evaluated(capsys, protocol, "--model", source, "--data", "digits", "--no-cache")
        out = tmp_path / f"{protocol}.json"
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "vitlab"]
        arguments = [
            "evaluate",
            protocol,
            "--model",
            source,
            "--data",
            "digits",
            "--batch-size",
            "30",
            "--out",
            str(out),
        ]
        run = subprocess.run(
            [sys.executable, *launcher, *arguments, "--out", str(out)], capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, run.stderr[-2000:]
        two = json.loads(out.read_text())
        assert two["settings"]["processes"] == 2
        assert two["counts"] == one["counts"]
        for name, metric in one["metrics"].items():
            assert two["metrics"][name]["value"] == pytest.approx(metric["value"], rel=1e-5)
        assert run.stdout.count("| metric") == 1  # one of them speaks


def test_a_run_is_scored_on_what_it_held_out(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i in range(2, 12):
        for name in ("blue", "green", "red"):
            shutil.copy(photos / "train" / name / "0.png", photos / "train" / name / f"{i}.png")
    shutil.rmtree(photos / "test")
    options = ("--data.source", str(photos), "--schedule.total", "1 step", "--batch-size", "4", "--model.source")
    small = ("vit-digits", "--model.image-size", "8", "--augmentation.policy", "none", "--data.workers", "0")
    for fraction in ("0.4", "0"):
        run = str(tmp_path / fraction)
        assert main(["train", "digits", *options, *small, "--data.val-fraction", fraction, "--out", run]) == 0
    capsys.readouterr()
    found = evaluated(capsys, "accuracy", "--model", str(tmp_path / "0.4"), "--data", str(photos))
    assert found["counts"]["test"] == 15  # of 12 images per class 5 select, and 5 chose nothing
    assert main(["evaluate", "accuracy", "--model", str(tmp_path / "0"), "--data", str(photos)]) == 2
    assert "neither a test nor a val part" in capsys.readouterr().err


def test_few_shots_of_the_models_own_classes_are_told(source: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "fewshot", "--model", source, "--data", "digits", "--shots", "1", "--seeds", "0"]) == 0
    assert "This is no few-shot finding: the model was trained to tell these classes" in capsys.readouterr().out


def test_the_papers_own_table_needs_no_result(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "compare", "--published", "v2"]) == 0
    assert "| ImageNet " in capsys.readouterr().out


def test_fresh_photos_without_parts_are_all_measured(
    colors: str, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fresh = tmp_path / "fresh"
    shutil.copytree(photos / "test", fresh)  # of its 6 pictures 5 have the colour of their folder
    found = evaluated(capsys, "accuracy", "--model", colors, "--data", str(fresh))
    assert found["counts"]["all"] == 6
    assert found["metrics"]["top-1"]["value"] == pytest.approx(5 / 6)
    assert any("All 6 images are measured" in note for note in found["settings"]["notes"])
    assert evaluated(capsys, "accuracy", "--model", colors, "--data", str(fresh), "--split", "val")["counts"]["val"] < 6
    assert evaluated(capsys, "accuracy", "--model", colors, "--data", str(photos))["counts"]["test"] == 6
    assert (
        evaluated(capsys, "accuracy", "--model", colors, "--data", str(photos), "--split", "all")["counts"]["all"] == 12
    )
    assert "has no split 'all'" in sentence(capsys, "knn", "--model", colors, "--data", str(photos), "--split", "all")


def test_what_a_run_learned_from_is_not_fresh_wherever_it_lies(
    photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, mine, moved, fresh = tmp_path / "run", tmp_path / "mine", tmp_path / "moved", tmp_path / "fresh"
    shutil.copytree(photos / "train", mine)
    options = ("--data.source", str(mine), "--schedule.total", "1 step", "--batch-size", "2", "--model.source")
    small = ("vit-digits", "--model.image-size", "8", "--augmentation.policy", "none", "--data.workers", "0")
    assert main(["train", "digits", *options, *small, "--out", str(run)]) == 0
    capsys.readouterr()
    mine.rename(moved)
    shutil.copytree(photos / "test", fresh)
    shutil.copy(fresh / "red" / "0.png", fresh / "red" / "another.png")
    for model in (run, run / "model"):
        assert "val" in evaluated(capsys, "accuracy", "--model", str(model), "--data", str(moved))["counts"]
        assert evaluated(capsys, "accuracy", "--model", str(model), "--data", str(fresh))["counts"]["all"] == 7
        assert evaluated(capsys, "score", "--model", str(model), "--data", str(fresh))["counts"]["all"] == 7
