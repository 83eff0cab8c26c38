"""What stands out in a run, and what to do with it: sentences and commands that fit this run."""

from collections.abc import Sequence
from dataclasses import dataclass

from vitlab.data.contract import DataSet
from vitlab.reporting.measure import Measured, confused
from vitlab.reporting.purpose import Purpose
from vitlab.reporting.record import RunRecord
from vitlab.reporting.words import command, count, percent, short
from vitlab.tasks.sections import Tested

UNEVEN = 4.0  # times as many images in the largest class as in the smallest, from which it is said
WIDE = 0.03  # half of an interval, from which more test pictures are advised
OFF = 0.1  # calibration error, from which it is said
WORSE = 0.02  # what the score may fall after its best without a word


@dataclass(frozen=True)
class Note:
    """A sentence or two, and a command where one helps."""

    text: str
    command: str | None = None


def notes(
    record: RunRecord, dataset: DataSet | None, measured: Measured | None, *, scores_are_shares: bool = True
) -> list[Note]:
    """What a careful reader would notice, the most important first."""
    found = [*_learning(record, scores_are_shares=scores_are_shares)]
    if measured is not None and dataset is not None:
        found = [*_answers(measured, dataset), *found]
    if dataset is not None:
        found += _data(record, dataset)
    return found


def next_steps(
    record: RunRecord, measured: Measured | Tested | None, *, has_model: bool, purpose: Purpose | None = None
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
    if measured is not None and not measured.whole:
        again = command("vitlab", "report", run, "--images", str(measured.of), *purpose.given)
        steps.append(Note("Make this report again, from all held-out pictures:", again))
    return steps


def _asked(run: str, model: str, source: str, purpose: Purpose) -> list[Note]:
    """How to get answers and scores of the model; of one without a head, features and a start for others."""
    if purpose.headless:
        return [
            Note("Transfer it to pictures with labels:", f"vitlab finetune PICTURES {command('--model', run)}"),
            Note("Get the features of pictures:", f"vitlab embed PICTURES {command('--model', run)} features.npz"),
        ]
    protocol, given = "accuracy" if purpose.tells_classes else "score", purpose.given
    return [
        Note("Ask it about your own pictures:", f"vitlab predict PICTURE.jpg {command('--model', model, *given)}"),
        Note(
            "Measure it on other data, or again:",
            command("vitlab", "evaluate", protocol, "--model", run, "--data", source, *given),
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


def _answers(measured: Measured, dataset: DataSet) -> list[Note]:
    found: list[Note] = []
    right = measured.numbers.get("accuracy")
    if right is not None and measured.guess is not None and right.low is not None and right.low <= measured.guess:
        found.append(
            Note(
                f"It is hardly better than one and the same answer for all pictures ({percent(measured.guess)}): it has"
                " learned little. Train for longer, raise or lower the learning rate, or start from trained weights"
                " (vitlab finetune)."
            )
        )
    worst = confused(measured.confusion, measured.per_class_counts, 1)
    if worst and worst[0][2] >= 3:
        truth, said, amount, share = worst[0]
        names = dataset.classes
        found.append(
            Note(
                f"Its commonest mistake is to take “{short(names[truth], 40)}” for “{short(names[said], 40)}”:"
                f" {count(amount, 'time')}, {percent(share)} of those pictures. More pictures of the two help most;"
                " look also whether some are labelled wrongly."
            )
        )
    number = right or measured.numbers.get("mAP")
    if number is not None and number.low is not None and number.high is not None:
        half = (number.high - number.low) / 2
        if half > WIDE:
            found.append(
                Note(
                    f"With {count(measured.num, 'picture')} looked at, the result is uncertain by about"
                    f" {100 * half:.0f} percentage points either way: two models that differ by less cannot be told"
                    " apart here. Hold out more pictures to be surer."
                )
            )
    off = measured.numbers.get("calibration error")
    if off is not None and off.value > OFF:
        sure = sum(confidence * amount for confidence, _, amount in measured.reliability) / measured.num
        way = "surer than it should be" if sure > measured.numbers["accuracy"].value else "less sure than it could be"
        found.append(
            Note(
                f"It is {way}: on average it says {percent(sure)} and is right {percent(right.value if right else 0)}"
                " of the time. Do not take its percentages at their word."
            )
        )
    return found


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


def _data(record: RunRecord, dataset: DataSet) -> list[Note]:
    train = dataset.splits.get("train")
    if train is None or not len(train):
        return []
    counts = train.counts(dataset.num_classes)
    there = counts[counts > 0]
    times = float(there.max() / there.min())
    if times < UNEVEN or record.field("data.balanced") or record.field("loss.class_weights"):
        return []
    words = record.command
    again = command(*with_option(words, "--out", None), "--data.balanced") if words[1:2] == ["train"] else None
    return [
        Note(
            f"The classes are uneven: “{short(dataset.classes[int(counts.argmax())], 40)}” has {times:.0f} times as"
            " many training pictures as the rarest class. Rare classes are learned worse; drawing all equally often may"
            " help.",
            again,
        )
    ]


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
