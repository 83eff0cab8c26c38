"""The command line: one file per verb, each imported when its verb is run."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import TextIO

# verb: its module, which has `main(arguments) -> exit status`, and a line for the help
VERBS: dict[str, tuple[str, str]] = {
    "demo": ("vitlab.cli.demo", "train on digits, then try the packaged model on two photos; two minutes on two cores"),
    "explore": ("vitlab.cli.explore", "walk a picture through the model in the browser"),
    "models": ("vitlab.cli.models", "list the zoo: sizes, parameters, cost"),
    "data": ("vitlab.cli.data", "check a data set: classes, copies, leaks between splits, likely wrong labels"),
    "predict": ("vitlab.cli.predict", "predict the top classes of images"),
    "train": ("vitlab.cli.train", "train a model from a recipe; --resume resumes a run"),
    "pretrain": ("vitlab.cli.pretrain", "train a model on your own photos without labels"),
    "finetune": ("vitlab.cli.finetune", "fine-tune a trained model on your own images"),
    "evaluate": ("vitlab.cli.evaluate", "measure accuracy, few-shot, linear, kNN, transfer, cost; compare results"),
    "study": ("vitlab.cli.study", "make a table or figure of the paper from a grid of runs, at a chosen scale"),
    "embed": ("vitlab.cli.embed", "write the features of images to .npz or .parquet"),
    "sample": ("vitlab.cli.sample", "generate pictures with a run's generator"),
    "serve": ("vitlab.cli.serve", "serve a model over HTTP, in batches"),
    "inspect": ("vitlab.cli.inspect", "show what a model learned and where it looks, as figures and a page"),
    "report": ("vitlab.cli.report", "write a run's report.html again, also while it is running"),
    "convert": ("vitlab.cli.convert", "convert a checkpoint from one format to another"),
    "export": ("vitlab.cli.export", "export a model as an ONNX or torch.export program, checked; optionally in 8 bits"),
    "push": ("vitlab.cli.push", "upload a run's model, with its card, to the Hugging Face hub"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a verb. Exit status 0: done; 1: some images could not be read; 2: a mistake of the caller's."""
    arguments = [_from_home(text) for text in (sys.argv[1:] if argv is None else argv)]
    for stream in (sys.stdout, sys.stderr):
        _print_anything(stream)
    try:
        status = _dispatch(arguments)
        sys.stdout.flush()
        return status
    except BrokenPipeError:
        _forget_stdout()
        return 141  # what a shell reports for a program that SIGPIPE ended
    except KeyboardInterrupt:
        return 130


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return 0
    verb, *rest = arguments
    if verb in ("-V", "--version"):
        import vitlab

        print(f"vitlab {vitlab.__version__}")
        return 0
    from vitlab.core.errors import Error, near_matches

    try:
        if verb not in VERBS:
            hint = near_matches(verb, VERBS) or f" The verbs are {', '.join(VERBS)}."
            raise Error(f"There is no verb '{verb}'.{hint}")
        _permit(rest)
        with _log_on_stderr():
            return import_module(VERBS[verb][0]).main(rest)
    except Error as error:
        return _complain(str(error), error.status)
    except SystemExit as error:  # tyro's, after its help or its own complaint
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BrokenPipeError:
        raise
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        return _complain(f"{name}{error.strerror or error}.")
    except MemoryError:
        return _complain("There is not enough memory for this.")


def _from_home(text: str) -> str:
    """An argument with the home directory in the place of ~/, which shells leave in quotes and in --out=~/runs."""
    option, equals, value = text.partition("=") if text.startswith("--") else ("", "", text)
    return f"{option}{equals}{os.path.expanduser(value)}" if value.startswith("~/") else text  # noqa: PTH111  as text


def _permit(arguments: Sequence[str]) -> None:
    """Let what is named as FILE.py:NAME in this call be loaded."""
    named = [text.rpartition("=")[2] for text in arguments if ".py:" in text]
    if named:
        from vitlab.core.registry import permit

        permit(*named)


def _help() -> str:
    width = max(map(len, VERBS))
    return "\n".join(
        [
            "usage: vitlab VERB [arguments]",
            "",
            "The Vision Transformer, end to end.",
            "",
            *(f"  {verb:<{width}}  {summary}" for verb, (_, summary) in VERBS.items()),
            "",
            "  vitlab VERB --help  shows a verb's arguments, their defaults and examples",
            "  vitlab --version    shows the version",
        ]
    )


@contextlib.contextmanager
def _log_on_stderr() -> Iterator[None]:
    """What the library logs (a checkpoint's head that was replaced) as lines on standard error."""
    import logging

    from vitlab.cli.terminal import say
    from vitlab.cli.together import first_to_say
    from vitlab.core.words import one_line

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if first_to_say(record.getMessage()):
                say(one_line(f"vitlab: {record.getMessage()}"))

    def ours_to_say(record: logging.LogRecord) -> bool:
        """All but the tracebacks that torch logs of a damaged checkpoint, besides its error."""
        return record.module != "state_dict_loader"

    root, logger, handler = logging.getLogger(), logging.getLogger("vitlab"), Handler(logging.WARNING)
    root.addFilter(ours_to_say)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        root.removeFilter(ours_to_say)


def _complain(sentence: str, status: int = 2) -> int:
    from vitlab.cli.terminal import say
    from vitlab.cli.together import first_to_say
    from vitlab.core.words import one_line

    if first_to_say(sentence):
        say(one_line(f"vitlab: {sentence}"))
    return status


def _print_anything(stream: TextIO) -> None:
    """Characters that a stream's encoding lacks (a file name that is not UTF-8) are escaped instead of refused."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """Nobody reads on: what is left in the buffer must not fail once more when Python exits."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
