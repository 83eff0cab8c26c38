import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from vitlab import cli
from vitlab.cli.terminal import say
from vitlab.core.errors import Error
from vitlab.training.run import StoppedError

THE_VERBS = f"The verbs are {', '.join(cli.VERBS)}."


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "vitlab", *arguments], capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"], ["help"]])
def test_help_names_every_verb(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    for verb, (_, summary) in cli.VERBS.items():
        assert f"  {verb}" in printed.out
        assert summary in printed.out


def test_the_home_directory_is_found_where_a_shell_leaves_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cli.main(["report", "~/run"]) == 2
    assert f"There is no folder {tmp_path}/run:" in capsys.readouterr().err
    assert cli.main(["models", "~", "--json"]) == 2  # no path
    (tmp_path / "there.csv").mkdir()
    assert cli.main(["data", "digits", "--csv=~/there.csv"]) == 2
    assert f"{tmp_path}/there.csv is a folder" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_and_version_import_nothing_heavy(argument: str) -> None:
    code = (
        f"import sys; from vitlab.cli import main; assert main(['{argument}']) == 0;"
        "heavy = {'torch', 'tyro', 'rich', 'numpy', 'PIL'} & set(sys.modules); assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "vitlab" in done.stdout


def test_help_of_the_verbs_is_in_paragraphs_and_imports_no_torch() -> None:
    code = (
        "import sys; from vitlab.cli import VERBS, main;"
        "statuses = [main([verb, '--help']) for verb in VERBS]; assert not any(statuses), statuses;"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\n\n\n" not in done.stdout
    assert [line for line in done.stdout.splitlines() if line[:1] in ("(", "-", "`")] == []  # the parser breaks there
    assert "{None}" not in done.stdout


def test_a_recipe_is_shown_without_the_compiler() -> None:
    """Torch's compiler is slow to import: only what compiles does."""
    code = (
        "import sys; from vitlab.cli import main; assert main(['train', 'digits', '--help']) == 0;"
        "assert 'torch._dynamo' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("verb", cli.VERBS)
def test_help_of_a_verb_shows_examples_and_defaults(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb, "--help"]) == 0
    text = capsys.readouterr().out
    assert f"usage: vitlab {verb}" in text
    assert f"\n  vitlab {verb}" in text.split("Examples:")[1]
    assert "default:" in text


@pytest.mark.parametrize(
    ("verb", "sentence"),
    [
        ("predit", "vitlab: There is no verb 'predit'. Did you mean predict?\n"),
        ("zzz", f"vitlab: There is no verb 'zzz'. {THE_VERBS}\n"),
        (
            "--hlep",
            f"vitlab: There is no verb '--hlep'. {THE_VERBS}\n",
        ),
        (
            "a\x1b[31m",
            f"vitlab: There is no verb 'a\\x1b[31m'. {THE_VERBS}\n",
        ),
    ],
)
def test_an_unknown_verb_is_one_sentence(verb: str, sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([verb]) == 2
    assert capsys.readouterr() == ("", sentence)


@pytest.mark.parametrize(
    ("error", "status", "said"),
    [
        (Error("What was wrong."), 2, "vitlab: What was wrong.\n"),
        (StoppedError("Stopped.", signal.SIGTERM), 143, "vitlab: Stopped.\n"),
        (PermissionError(13, "Permission denied", "/a b"), 2, "vitlab: /a b: Permission denied.\n"),
        (OSError("disk on fire"), 2, "vitlab: disk on fire.\n"),
        (MemoryError(), 2, "vitlab: There is not enough memory for this.\n"),
        (KeyboardInterrupt(), 130, ""),
        (SystemExit(2), 2, ""),
        (SystemExit(None), 0, ""),
    ],
)
def test_errors_become_a_sentence_and_a_status(
    error: BaseException, status: int, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: object) -> int:
        raise error

    monkeypatch.setattr("vitlab.cli.models.main", fail)
    assert cli.main(["models"]) == status
    assert capsys.readouterr() == ("", said)


def test_a_defect_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: object) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr("vitlab.cli.models.main", fail)
    with pytest.raises(ZeroDivisionError):
        cli.main(["models"])


def test_a_reader_that_goes_away_is_no_error() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-m", "vitlab", "--help"], stdout=closed, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_the_package_runs_as_a_module() -> None:
    done = run("--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("vitlab ")


def test_a_name_with_line_breaks_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither a complaint nor what the library logs can be made to look like several."""
    assert cli.main(["predict", "x.png", "--model", "no\nvitlab: all is well\x1b[2J"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert r"no\nvitlab: all is well\x1b[2J" in line
    say("a\nb")
    assert capsys.readouterr().err == "a\\nb\n"
