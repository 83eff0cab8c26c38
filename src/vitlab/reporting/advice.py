"""What stands out in a run, and what to do with it: sentences and commands that fit this run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.core.words import command, count
from vitlab.reporting.learning import Course, coarse, findings
from vitlab.reporting.purpose import Purpose
from vitlab.reporting.record import RunRecord
from vitlab.tasks.results import Tested
from vitlab.tasks.sections import Remark


@dataclass(frozen=True)
class Note:
    """A sentence or two, and a command where one helps."""

    text: str
    command: str | None = None


def notes(
    record: RunRecord,
    remarks: Sequence[Remark],
    *,
    tested: Tested | None = None,
    mixed: int | None = None,
    scores_are_shares: bool = True,
) -> list[Note]:
    """What the task remarks, then what a careful reader would notice in how the run learned.

    `mixed` is the step from which on pictures were not mixed any more.
    """
    words = _anew(record)
    own = [Note(each.text, command(*words, *each.again) if words and each.again else None) for each in remarks]
    return [*own, *_on_resolution(record, tested), *_learning(record, mixed=mixed, scores_are_shares=scores_are_shares)]


def next_steps(
    record: RunRecord, tested: Tested | None, *, has_model: bool, purpose: Purpose | None = None
) -> list[Note]:
    """Commands with the paths of this run."""
    purpose = purpose or Purpose()
    run, source = str(record.folder), str(record.field("data.source", "DATA"))
    steps: list[Note] = []
    if record.state == "unfinished":
        steps.append(Note("Resume the run where it stopped:", command("vitlab", "train", "--resume", run)))
    if record.state == "under way":
        steps.append(Note("See how far it is, later:", command("vitlab", "report", run)))
    own = () if purpose.headless else purpose.task.commands(run, source)
    if has_model and own:
        steps += [Note(text, command(*words)) for text, words in own]
    elif has_model:
        model = str(record.folder / "model")
        steps += _asked(run, model, source, purpose, again=tested is not None)
        steps += [
            Note(
                "See where it looks, layer by layer:",
                f"vitlab inspect PICTURE.jpg {command('--model', run, '--data', source)} --out inside",
            ),
            Note(
                "Let programs and browsers ask it, over HTTP:",
                command("vitlab", "serve", "--model", run, *purpose.given),
            ),
            Note("Hand it to other programs, as ONNX:", command("vitlab", "export", model, "model.onnx")),
        ]
    if tested is not None and not tested.complete:
        again = command("vitlab", "report", run, "--images", str(tested.of), *purpose.given)
        steps.append(Note("Make this report again, from all held-out pictures:", again))
    return steps


def _asked(run: str, model: str, source: str, purpose: Purpose, *, again: bool) -> list[Note]:
    """How to get answers and scores of the model; of one without a head, features and a start for others.

    It is measured on the run's own data again where that has a held-out part.
    """
    if purpose.headless:
        return [
            Note("Transfer it to pictures with labels:", f"vitlab finetune PICTURES {command('--model', run)}"),
            Note(
                "Measure its features on pictures with labels:",
                command("vitlab", "evaluate", "linear", "--model", run, "--data", source),
            ),
            Note("Get the features of pictures:", f"vitlab embed PICTURES {command('--model', run)} features.npz"),
        ]
    given = purpose.given
    return [
        Note("Ask it about your own pictures:", f"vitlab predict PICTURE.jpg {command('--model', model, *given)}"),
        Note(
            f"Measure it on other data{', or again' * again}:",
            command(
                *("vitlab", "evaluate", purpose.task.protocol, "--model", run),
                *("--data", source if again else "DATA", *given),
            ),
        ),
    ]


def with_option(words: Sequence[str], option: str, value: str | None) -> list[str]:
    """A command with an option set to another value, or taken out."""
    kept: list[str] = []
    skip = False
    for word in words:
        if skip:
            skip = False
        elif word == option:
            skip = True
        elif not word.startswith(f"{option}="):
            kept.append(word)
    return kept if value is None else [*kept, option, value]


def _learning(record: RunRecord, *, mixed: int | None, scores_are_shares: bool) -> list[Note]:
    found: list[Note] = []
    if record.result.get("skipped"):
        found.append(
            Note(
                f"{count(int(record.result['skipped']), 'step was', 'steps were')} left out because numbers overflowed:"
                " a lower learning rate is steadier."
            )
        )
    measured = [line for line in record.lines if "val loss" in line]
    if lost := sum(line["val loss"] is None for line in measured):
        found.append(
            Note(
                f"On validation pictures the loss was no number in {lost} of {count(len(measured), 'evaluation')}:"
                " numbers overflowed, and a lower learning rate or --precision float32 may help.",
                _steadier(record),
            )
        )
    if record.result.get("unreadable"):
        found.append(
            Note(
                f"{count(int(record.result['unreadable']), 'training picture')} could not be read, and others took"
                " their places: the run's messages name them."
            )
        )
    course = _course(record, mixed) if scores_are_shares else None  # how much is much is not known of others
    if course is not None:
        cures = {"longer": _longer, "steadier": _steadier}
        found += [Note(text, None if cure is None else cures[cure](record)) for text, cure in findings(course)]
    return found


def _course(record: RunRecord, mixed: int | None) -> Course | None:
    """The curves of a run that made all its steps and looked at validation pictures often enough."""
    scores = record.series("val score")
    if record.state != "done" or len(scores) < 3:
        return None
    names = dict.fromkeys(name for line in record.lines for name in line if f"val {name}" != "val score")
    same = next((name for name in names if record.series(f"val {name}") == scores), "score")
    counts = record.series("val count")
    return Course(
        steps=record.step,
        scores=scores,
        num=round(counts[-1][1]) if counts else 0,
        losses=record.series("val loss"),
        train=[(step, value) for step, value in record.series(same) if not record.mixes or step > (mixed or math.inf)],
        mixed=mixed,
        pretrained=record.pretrained,
    )


def _on_resolution(record: RunRecord, tested: Tested | None) -> list[Note]:
    shown = () if tested is None else (*tested.best, *tested.worst)
    if not shown:
        return []
    seen, picture = shown[0].pixels.shape[:2], shown[0].picture.shape[:2]  # the picture shrunk to what a page shows
    text = coarse((seen[0], seen[1]), (picture[0], picture[1]))
    return [] if text is None else [Note(text, _again(record, image_size=str(4 * max(seen))))]


def _longer(record: RunRecord) -> str | None:
    """The command of the run for twice as long, in a new folder."""
    amount, _, unit = str(record.field("schedule.total", "")).partition(" ")
    if not amount.isdigit():
        return None
    if record.command[1:2] == ["train"]:
        return _again(record, total=f"{2 * int(amount)} {unit}".strip())
    return _again(record, total=str(2 * int(amount))) if unit.startswith("step") else None


def _steadier(record: RunRecord) -> str | None:
    """The command of the run with a third of its learning rate."""
    lr = record.field("optimizer.lr")
    return _again(record, lr=f"{lr / 3:.2g}") if isinstance(lr, int | float) else None


SHORT = {
    "total": ("--steps", "--epochs", "--schedule.total"),
    "lr": ("--lr", "--optimizer.lr"),
    "image_size": ("--image-size", "--image_size", "--model.image-size", "--model.image_size"),
}
OPTIONS = {  # what an option is called by each verb that trains; the first of each is what is written
    "train": {
        "total": ("--schedule.total", "--epochs"),
        "lr": ("--optimizer.lr", "--lr"),
        "image_size": ("--model.image-size", "--model.image_size"),
    },
    "finetune": SHORT,
    "pretrain": SHORT,
}


def _anew(record: RunRecord) -> list[str]:
    """The command of the run for a new folder; none where it was another command's, or resumed a run."""
    words = with_option(record.command, "--out", None)
    resumed = any(word.startswith("--resume") for word in words)
    return words if len(words) > 1 and words[1] in OPTIONS and not resumed else []


def _again(record: RunRecord, **changes: str) -> str | None:
    """The command of the run with other values, in a new folder."""
    words = _anew(record)
    if not words:
        return None
    options = OPTIONS[words[1]]
    for name, value in changes.items():
        for option in options[name]:
            words = with_option(words, option, None)
        words = with_option(words, options[name][0], value)
    return command(*words)
