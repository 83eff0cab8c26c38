"""What is no option, no path or a word too many is named, with the nearest that exists."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitlab.cli import main
from vitlab.cli.choices import parse_recipe
from vitlab.models.create import create
from vitlab.training.recipe import Recipe
from vitlab.weights.load import save


def said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that a mistake is answered with."""
    assert main(arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert len(printed.err.splitlines()) == 1
    return printed.err


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ("finetune photos --epoch 5", "There is no option '--epoch'. Did you mean --epochs?"),
        ("finetune photos --augmnt strong", "Did you mean --augment"),
        ("finetune photos --optimizer.weight-deacy 1", "Did you mean --optimizer.weight-decay"),
        ("finetune photos --weight_decay=1", "There is no option '--weight_decay'. Did you mean --optimizer.weight-d"),
        ("finetune photos --ema 0.9", "Did you mean --optimizer.ema?"),
        ("train digits --epoch 5", "Did you mean --epochs?"),
        ("train digits --optimizer.lrr 3", "There is no option '--optimizer.lrr'. Did you mean --optimizer.lr"),
        ("train digits --objective.temprature 3", "There is no option '--objective.temprature'."),
        ("train digits --objective distillation --objective.techer x", "Did you mean --objective.teacher"),
        ("train digits --rezume runs/x", "Did you mean --resume?"),
        ("train --list --jsn", "Did you mean --json?"),
        ("data photos --csvv x", "Did you mean --csv?"),
        ("evaluate knn --model m --data d --neighbours 3", "There is no option '--neighbours'."),
        ("report runs/x --imges 3", "Did you mean --images?"),
        ("models --jsno", "Did you mean --json?"),
        ("convert a b --formt timm", "Did you mean --format?"),
        ("models --no-json", "--no-json is so by default: leave it out."),
        ("train digits --compile --qqqq", "There is no option '--qqqq'."),  # a recipe's flags can be said both ways
        ("train digits --no-compile --qqqq", "There is no option '--qqqq'."),
        ("train digits --qqqq", "There is no option '--qqqq'. `vitlab train digits --help` shows them all."),
    ],
)
def test_an_option_that_does_not_exist_is_answered_with_the_nearest(
    arguments: str, nearest: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nearest in said(arguments.split(), capsys)


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ("finetune photos extra", "'extra' is one word too many for `vitlab finetune photos`."),
        ("finetune --data photos extra --epochs 3", "'extra' is one word too many for `vitlab finetune photos`."),
        ("finetune photos epochs 3", "'epochs' is one word too many for `vitlab finetune photos`. Did you mean --ep"),
        ("train digits extra", "'extra' is one word too many for `vitlab train digits`."),
        ("train --list digits", "'digits' is one word too many for `vitlab train --list`."),
        ("data photos extra", "'extra' is one word too many for `vitlab data`."),
    ],
)
def test_a_stray_word_is_named(arguments: str, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert word in said(arguments.split(), capsys)


def test_a_stray_model_is_answered_with_its_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "too many" in said(["serve", str(tmp_path)], capsys)
    (tmp_path / "recipe.json").touch()
    assert f"many for `vitlab serve`. A model is named by --model {tmp_path}." in said(["serve", str(tmp_path)], capsys)


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        ("finetune phtos --model model", "Did you mean photos, pets?"),
        ("finetune photos/tarin --model model", "There is no file or folder photos/tarin. Did you mean photos/train?"),
        ("finetune phots/train --model model", "Did you mean photos/train?"),
        ("finetune photos --model vit-b16-224.augreg-in21", "Did you mean vit-b16-224.augreg-in21k"),
        ("train digts", "There is no recipe named 'digts'. Did you mean digits"),
        ("train digits --data.source phtos", "Did you mean photos, pets?"),
        ("train digits --model.source vit-digit", "Did you mean vit-digits"),
        ("train --resume run/first", "recipe.json is missing. Did you mean runs/first?"),
    ],
)
def test_a_path_or_name_that_does_not_exist_is_answered_with_the_nearest(
    arguments: str,
    nearest: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("photos/train", "runs/first"):
        (tmp_path / folder).mkdir(parents=True)
    save(create("vit-digits", depth=1), tmp_path / "model")
    assert nearest in said([*arguments.split(), "--device", "cpu"], capsys)


@pytest.mark.parametrize(
    "arguments", ["gone", "--seed 1 gone", "--data gone", "--optimizer.momentum 0.5 gone --seed 1"]
)
def test_the_folder_may_stand_anywhere(arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(create("vit-digits", depth=1), tmp_path / "model")
    given = ["finetune", *arguments.split(), "--model", str(tmp_path / "model")]
    assert "There is no data set named 'gone'" in said(given, capsys)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("train digits --batch-size many", "--batch-size takes a whole number, not 'many'."),
        ("train digits --batch-size", "--batch-size needs a whole number."),
        ("train digits --batch_size=many", "--batch-size takes a whole number, not 'many'."),
        ("train digits --patience 3.5", "--patience takes a whole number, not '3.5'."),
        ("train digits --augmentation.crop-area 1 x", "takes 2 values, each a number, not '1' 'x'."),
        ("train digits --augmentation.crop-area 1", "--augmentation.crop-area needs 2 values, each a number."),
        ("train digits --optimizer.name admw", "lion, muon or adafactor, not 'admw'. Did you mean adamw?"),
        ("finetune photos --lr fast", "--lr takes a number or auto, not 'fast'."),
        ("finetune photos --augment stron", "takes none, light or strong, not 'stron'. Did you mean strong?"),
        ("finetune photos --steps", "--steps needs a whole number."),
        ("pretrain photos --epochs ten", "--epochs takes a number, not 'ten'."),
        ("data photos --near=x", "--near takes a number, not 'x'."),
        ("predict cat.jpg --csv", "--csv needs a path."),
        ("evaluate fewshot --model m --data d --shots a b", "--shots takes values, each a whole number, not 'a' 'b'."),
        ("evaluate accuracy --model m --data d --crops 3", "--crops takes 1 or 5, not '3'."),
        ("embed photos out.npz --crops 3", "--crops takes 1 or 5, not '3'."),
        ("embed --precision bf61 photos out.npz", "--precision takes float32 or bf16, not 'bf61'. Did you mean bf16?"),
        ("evaluate accuracy", "`vitlab evaluate accuracy` needs --model SOURCE: `vitlab evaluate accuracy --help` exp"),
        ("convert", "`vitlab convert` needs SOURCE and DEST: `vitlab convert --help` explains them."),
        ("report", "`vitlab report` needs RUN: `vitlab report --help` explains it."),
    ],
)
def test_a_value_that_is_wrong_or_missing_is_told_in_a_sentence(
    arguments: str, sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sentence in said(arguments.split(), capsys)


@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])  # by which tyro draws its boxes with hyphens or with lines
def test_the_sentence_is_the_same_in_any_terminal(encoding: str) -> None:
    command = [sys.executable, "-m", "vitlab", "report"]
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, env=os.environ | {"PYTHONIOENCODING": encoding}
    )
    assert ended.returncode == 2
    assert ended.stderr == "vitlab: `vitlab report` needs RUN: `vitlab report --help` explains it.\n"


def test_none_is_a_value_of_a_recipe_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """Whose fields may be something else; of what is None by itself, help does not speak."""
    assert main(["finetune", "--help"]) == 0
    assert "{None}" not in capsys.readouterr().out
    recipe, rest = parse_recipe(Recipe(patience=3), ["--patience", "None"], prog="vitlab train x")
    assert (recipe.patience, rest) == (None, [])


def test_a_folder_has_to_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert "Name a folder with one folder of photos per class: vitlab finetune DIR." in said(["finetune"], capsys)
