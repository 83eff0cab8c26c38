import dataclasses
import json
import re
import shlex
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from tyro._docstrings import get_field_docstring

from changing import changed
from processes import torchrun
from short_runs import short, small_set
from vitlab import api
from vitlab.cli import main
from vitlab.cli.choices import current_names
from vitlab.cli.train import report
from vitlab.core.errors import Error
from vitlab.data.augmentation import Augmentation
from vitlab.models.create import create
from vitlab.objectives.cross_entropy import Loss
from vitlab.objectives.distillation import DistillationOptions
from vitlab.recipes import RECIPES
from vitlab.training.finish import RunOutcome
from vitlab.training.optimizers import Optimizer
from vitlab.training.recipe import DataChoice, ModelChoice, Recipe
from vitlab.training.schedules import Schedule
from vitlab.weights.load import save

__all__ = ["short", "small_set"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ("--batch-size 0", "batch_size must be at least 1, not 0."),
        ("--optimizer.lr nan", "optimizer.lr must be above 0 and finite, not nan."),
        ("--optimizer.betas 0.9 1", "optimizer.betas must be at least 0 and below 1, not 1.0."),
        ("--data.workers -1", "data.workers must be at least 0, not -1."),
        ("--seed -1", "seed must be a whole number from 0 to 2^64 - 1, not -1."),
        ("--schedule.total '0 steps'", "A run of '0 steps' has no steps: make it longer."),
        ("--device tpu", "This machine has no device 'tpu': choose cpu"),
    ],
)
def test_nonsense_is_one_sentence_and_leaves_nothing(
    options: str, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "digits", "--out", str(tmp_path / "run"), *shlex.split(options)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith(f"vitlab: {sentence}")
    assert len(printed.err.splitlines()) == 1
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--steps", "0"], "A run of '0 steps' has no steps: make it longer."),
        (["--batch-size", "0"], "batch_size must be at least 1, not 0."),
        (["--batch-size", "-3"], "batch_size must be at least 1, not -3."),
        (["--lr", "0"], "optimizer.lr must be above 0 and finite, not 0.0."),
        (["--patience", "0"], "patience must be at least 1, not 0."),
        (["--val-fraction", "1"], "data.val_fraction must be at least 0 and below 1, not 1.0."),
        (["--device", "foo"], "This machine has no device 'foo': choose cpu"),
    ],
)
def test_finetune_takes_what_it_is_given(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And refuses it before it looks for the data and the model, which are not there."""
    assert main(["finetune", "--data", "gone/", "--model", "gone", *options]) == 2
    assert capsys.readouterr().err.startswith(f"vitlab: {sentence}")


@pytest.mark.parametrize(
    "verb",
    [
        *("evaluate accuracy --data digits", "embed pictures out.npz", "predict pictures", "inspect pictures"),
        *("report run", "serve"),
    ],
)
def test_one_rule_for_devices(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    save(create("vit-digits"), "model")
    (tmp_path / "pictures").mkdir()
    (tmp_path / "pictures" / "a.png").write_bytes(b"")
    model = [] if verb == "report run" else ["--model", "model"]
    assert main([*verb.split(), *model, "--device", "tpu"]) == 2
    assert capsys.readouterr().err.startswith("vitlab: This machine has no device 'tpu': choose cpu")


def test_a_size_that_patches_do_not_divide(small_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(create("vit-digits"), tmp_path / "model")
    arguments = ["--data", str(small_set), "--model", str(tmp_path / "model"), "--out", str(tmp_path / "run")]
    assert main(["finetune", *arguments, "--steps", "1", "--image-size", "9", "--device", "cpu"]) == 2
    sentence = "choose sides that are multiples of 2, or a model with indivisible='pad'."
    assert capsys.readouterr().err.endswith(f"do not divide an image of 9 x 9 px: {sentence}\n")


def test_recipes_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in rows] == list(RECIPES)
    assert all(row["summary"] for row in rows)
    assert main(["train", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["recipe", *RECIPES]
    assert main(["train", "--list", "digits"]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "'digits' is one word too many" in printed.err


@pytest.mark.parametrize("as_json", [True, False])
def test_one_process_speaks_for_all(
    as_json: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = RunOutcome(tmp_path, "signal", 143, 7, {})
    monkeypatch.setenv("RANK", "1")
    assert report(outcome, as_json=as_json) == 143
    assert capsys.readouterr().out == ""
    monkeypatch.setenv("RANK", "0")
    assert report(outcome, as_json=as_json) == 143
    assert "7" in capsys.readouterr().out


@pytest.mark.slow
def test_two_processes_print_one_document(small_set: Path, tmp_path: Path) -> None:
    train = ("-m", "vitlab", "train", "digits", "--data.source", small_set, "--batch-size", "16", "--device", "cpu")
    ended = torchrun(*train, "--schedule.total", "2 steps", "--out", tmp_path / "run", "--json")
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert json.loads(ended.stdout)["step"] == 2


@pytest.mark.slow
def test_two_processes_say_one_sentence(tmp_path: Path) -> None:
    ended = torchrun("-m", "vitlab", "train", "digits", "--model.set", "depht=3", "--out", tmp_path / "run")
    assert ended.returncode != 0
    assert ended.stderr.count("there is no field 'depht'. Did you mean depth?") == 1


def test_a_damaged_checkpoint_is_one_sentence(
    short: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    folder = api.train(short, out=tmp_path / "run", device="cpu").folder
    for path in folder.glob("checkpoints/*/.metadata"):
        path.unlink()
    assert main(["train", "--resume", str(folder), "--device", "cpu"]) == 2
    assert "the checkpoint cannot be read" in capsys.readouterr().err.splitlines()[-1]
    assert "root" not in {record.name for record in caplog.records}  # what Python prints by itself


def test_a_run_is_resumed_with_what_may_change_alone(
    short: Recipe, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = api.train(changed(short, **{"schedule.total": "4 steps"}), out=tmp_path / "run", device="cpu").folder
    resume = ["train", "--resume", str(folder), "--device", "cpu"]
    assert main([*resume, "--optimizer.lr", "1", "--batch-size", "8"]) == 2
    assert "optimizer.lr: 0.003, now 1.0; batch_size: 16, now 8." in capsys.readouterr().err
    assert main(["train", "digits", *resume[1:]]) == 2
    assert "keep: 'best', now 'last'." in capsys.readouterr().err
    assert main([*resume, "--out", str(tmp_path / "other")]) == 2
    assert "not both" in capsys.readouterr().err
    assert main(["train", "--resume"]) == 2
    assert "Name the run's folder" in capsys.readouterr().err
    assert main(["train", "--resume", "--help"]) == 0
    assert "data.source (where the same data are now)" in " ".join(capsys.readouterr().out.split())
    assert main([*resume, "--data.workers", "0", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4
    assert main(["train", "--json", f"--resume={folder}", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["step"] == 4


def test_help_explains_every_option_of_a_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--objective", "mae", "--help"]) == 0
    box = capsys.readouterr().out.partition("-h, --help")[2]
    lines = [line.strip("│ ") for line in box.splitlines()]
    blocks = re.split(r"^(?=--\w)", "\n".join(lines), flags=re.MULTILINE)[1:]
    shown = {block.split()[0].rstrip(","): block.partition("\n")[2].split("(default:")[0].strip() for block in blocks}
    assert {"--batch-size", "--model.source", "--objective.decoder-width"} <= set(shown)
    assert [name for name, words in shown.items() if not words] == []
    assert main(["train", "digits", "--help"]) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "--objective supervised, distillation, masked-patches" in told
    assert "(default: classification)" in told
    assert '--epochs short for --schedule.total "N epochs"' in told
    assert "Hardware and time: an AMD EPYC, one thread, 80 s. Score: 98.75%" in told


OPTIONS = [Recipe, ModelChoice, DataChoice, Augmentation, Loss, DistillationOptions, Optimizer, Schedule]


@pytest.mark.parametrize("kind", OPTIONS)
def test_every_option_has_a_text_of_its_own(kind: type[Any]) -> None:
    """As tyro reads it off the source; a comment above a field would be that of the next ones too."""
    texts = {
        field.name: get_field_docstring(kind, field.name, ())
        for field in dataclasses.fields(kind)
        if not dataclasses.is_dataclass(field.type)  # whose own text is its class's
    }
    assert [name for name, text in texts.items() if not text] == []
    assert len(set(texts.values())) == len(texts)


def added() -> Recipe:
    """A recipe of another package's.

    With more words.
    """
    return Recipe(name="added")


def test_the_list_has_recipes_of_installed_packages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point = EntryPoint("added", f"{__name__}:added", "vitlab.recipes")
    monkeypatch.setattr("vitlab.recipes.entry_points", lambda group: [point] if group == "vitlab.recipes" else [])
    assert main(["train", "--list", "--json"]) == 0
    listed = {row["name"]: row["summary"] for row in json.loads(capsys.readouterr().out)}
    assert listed["added"] == "A recipe of another package's."
    assert "digits" in listed


def test_short_and_old_names_of_options(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["--epochs", "20", "--lr=0.01", "--optimiser.rate", "1", "--optimiser.head-rate=2", "--spread", "shard"]
    expected = ["--schedule.total", "20 epochs", "--optimizer.lr", "0.01", "--optimizer.lr", "1"]
    expected += ["--optimizer.head-lr-scale=2", "--strategy", "shard"]
    assert current_names(given) == expected
    said = capsys.readouterr().err
    for old, new in (("--optimiser.rate", "--optimizer.lr"), ("--spread", "--strategy")):
        assert f"{old} is now {new}." in said
    assert current_names(["--optimiser.weight-decay", "0.1"]) == ["--optimizer.weight-decay", "0.1"]
    same = ["--optimizer.lr", "1", "--data.source", "digits", "--batch-size", "3"]
    assert current_names(same) == same
    with pytest.raises(Error, match="--epochs needs a value"):
        current_names(["--epochs", "--lr", "3"])


@pytest.mark.parametrize("recipe", ["vit-b16-jft", "coatnet-7-jft", "vmoe-15b-jft"])
def test_jft_is_said_to_be_private_before_anything_is_made(
    recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", recipe, "--device", "cpu"]) == 2
    (sentence,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitlab: ")]
    assert sentence.startswith("vitlab: JFT-300M is private to Google: train on images of your own with --data.source")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_trained_weights_keep_their_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a recipe sets is for its own fresh model, but where the command says so too."""
    save(create("vit-digits", depth=3), tmp_path / "model")
    made: list[tuple[str, ...]] = []

    def train(recipe: Recipe, **_: object) -> RunOutcome:
        made.append(recipe.model.set)
        raise Error("seen")

    monkeypatch.setattr(api, "train", train)
    own = RECIPES["fixmatch-digits"]().model.set
    assert "depth=2" in own
    trained = f"--model.source {tmp_path / 'model'} --model.pretrained"
    for words, expected, is_said in (
        ("", own, False),
        ("--model.source vit-ti4-32", own, False),
        (trained, (), True),
        (f"{trained} --model.set", (), False),
        (f"{trained} --model.set pool=mean", ("pool=mean",), False),
    ):
        assert main(["train", "fixmatch-digits", *words.split()]) == 2
        assert made.pop() == expected
        assert (f"Left out: the recipe's --model.set {' '.join(own)}," in capsys.readouterr().err) == is_said
