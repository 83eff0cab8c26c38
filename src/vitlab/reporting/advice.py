"""What stands out in a run, and what to do with it: sentences and commands that fit this run."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.core.words import command, count
from vitlab.reporting.purpose import Purpose
from vitlab.reporting.record import RunRecord
from vitlab.tasks.results import Tested
from vitlab.tasks.sections import Remark

WORSE = 0.02  # what the score may fall after its best without a word


@dataclass(frozen=True)
class Note:
    """A sentence or two, and a command where one helps."""

    text: str
    command: str | None = None


def notes(record: RunRecord, remarks: Sequence[Remark], *, scores_are_shares: bool = True) -> list[Note]:
    """What the task remarks, then what a careful reader would notice in how the run learned."""
    words, own = record.command, list[Note]()
    for remark in remarks:
        can = remark.again and words[1:2] == ["train"]
        own.append(Note(remark.text, command(*with_option(words, "--out", None), *remark.again) if can else None))
    return [*own, *_learning(record, scores_are_shares=scores_are_shares)]


def next_steps(
    record: RunRecord, tested: Tested | None, *, has_model: bool, purpose: Purpose | None = None
) -> list[Note]:
    """Commands with the paths of this run."""
    purpose = purpose or Purpose()
    run, source = str(record.folder), str(record.field("data.source", "DATA"))
    steps: list[Note] = []
    if record.state == "unfinished":
        steps.append(Note("Go on with the run where it stopped:", command("vitlab", "train", "--resume", run)))
    if record.state == "under way":
        steps.append(Note("See how far it is, later:", command("vitlab", "report", run)))
    if has_model:
        model = str(record.folder / "model")
        steps += _asked(run, model, source, purpose)
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
    if tested is not None and not tested.whole:
        again = command("vitlab", "report", run, "--images", str(tested.of), *purpose.given)
        steps.append(Note("Make this report again, from all held-out pictures:", again))
    return steps


def _asked(run: str, model: str, source: str, purpose: Purpose) -> list[Note]:
    """How to get answers and scores of the model; of one without a head, features and a start for others."""
    if purpose.headless:
        return [
            Note("Transfer it to pictures with labels:", f"vitlab finetune PICTURES {command('--model', run)}"),
            Note("Get the features of pictures:", f"vitlab embed PICTURES {command('--model', run)} features.npz"),
        ]
    given = purpose.given
    return [
        Note("Ask it about your own pictures:", f"vitlab predict PICTURE.jpg {command('--model', model, *given)}"),
        Note(
            "Measure it on other data, or again:",
            command("vitlab", "evaluate", purpose.task.protocol, "--model", run, "--data", source, *given),
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


def _learning(record: RunRecord, *, scores_are_shares: bool) -> list[Note]:
    scores = record.series("val score")
    found: list[Note] = []
    if record.result.get("skipped"):
        found.append(
            Note(
                f"{count(int(record.result['skipped']), 'step was', 'steps were')} left out because numbers overflowed:"
                " a lower learning rate is steadier."
            )
        )
    if record.result.get("unreadable"):
        found.append(
            Note(
                f"{count(int(record.result['unreadable']), 'training picture')} could not be read, and others took"
                " their places: the run's messages name them."
            )
        )
    if record.state != "done" or len(scores) < 3 or not scores_are_shares:  # how much is much is not known of others
        return found
    best_step, best = max(scores, key=lambda point: point[1])
    last = scores[-1][1]
    late = [value for step, value in scores if step <= 2 * record.step / 3]
    if best - last > WORSE and best_step < 0.8 * record.step:
        found.append(
            Note(
                f"It was best at step {best_step:,} and got worse afterwards: it began to learn the training pictures"
                " by heart. The state that was kept is the best one; more pictures, or pictures varied more"
                " (augmentation), would help."
            )
        )
    elif late and max(late) < best - WORSE / 2 and best_step > 0.8 * record.step:
        found.append(Note("It was still getting better towards the end: training for longer may pay.", _longer(record)))
    return found


def _longer(record: RunRecord) -> str | None:
    """The command of the run for twice as long, in a new folder."""
    words = record.command
    total = str(record.field("schedule.total", ""))
    amount, _, unit = total.partition(" ")
    if words[1:2] == ["train"] and "--resume" not in words and amount.isdigit():
        twice = f"{2 * int(amount)} {unit}".strip()
        return command(*with_option(with_option(words, "--out", None), "--schedule.total", twice))
    if words[1:2] == ["finetune"] and amount.isdigit() and unit.startswith("step"):
        return command(*with_option(with_option(words, "--out", None), "--steps", str(2 * int(amount))))
    return None
