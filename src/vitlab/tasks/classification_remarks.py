"""What stands out in a classifier's answers and data, in sentences."""

from vitlab.core.words import count, percent, short
from vitlab.tasks.classification_report import details, mean_confidence
from vitlab.tasks.classification_results import ClassesTested, Number, confused
from vitlab.tasks.results import ReportContext
from vitlab.tasks.sections import Remark

UNEVEN = 4.0  # times as many images in the largest class as in the smallest, from which it is said
WIDE = 0.03  # half of an interval, from which more test pictures are advised
OFF = 0.1  # calibration error, from which it is said


def remarks(context: ReportContext) -> list[Remark]:
    """On the answers, then on the data."""
    found = details(context)
    return [*([] if found is None else _on_answers(context, found)), *_on_data(context)]


def _on_answers(context: ReportContext, found: ClassesTested) -> list[Remark]:
    assert context.tested is not None
    made: list[Remark] = []
    right, num = found.numbers.get("accuracy"), context.tested.num
    number = right or found.numbers.get("mAP")
    if number is not None and number.low is not None and number.high is not None:
        half = (number.high - number.low) / 2
        if half > WIDE:
            made.append(
                Remark(
                    f"With {count(num, 'picture')} looked at, the result is uncertain by about"
                    f" {100 * half:.0f} percentage points either way: two models that differ by less cannot be told"
                    " apart here. Hold out more pictures to be surer."
                )
            )
    low, guess = None if right is None else right.low, found.guess
    if low is None or guess is None or low > guess:
        guess = None  # it does better
    if guess is not None and right is not None and right.value > guess + WIDE:
        made.append(
            Remark(
                f"Whether it is better than one and the same answer for all pictures ({percent(guess)}) cannot be told"
                " from so few."
            )
        )
    elif guess is not None:
        cures = "Train for longer, raise or lower the learning rate, or start from trained weights (vitlab finetune)."
        if context.pretrained:
            cures = "Train for longer, or raise or lower the learning rate."
        made.append(
            Remark(
                f"It is hardly better than one and the same answer for all pictures ({percent(guess)}): it has"
                f" learned little. {cures}"
            )
        )
    worst = confused(found.confusion, found.per_class_counts, 1)
    if worst and worst[0][2] >= 3 and guess is None:  # whose commonest mistake is its commonest answer
        truth, said, amount, share = worst[0]
        names = context.classes
        made.append(
            Remark(
                f"Its commonest mistake is to take “{short(names[truth], 40)}” for “{short(names[said], 40)}”:"
                f" {count(amount, 'time')}, {percent(share)} of those pictures. More pictures of the two help most;"
                " look also whether some are labelled wrongly."
            )
        )
    off = found.numbers.get("calibration error")
    if off is not None and right is not None and off.value > OFF:
        sure = mean_confidence(found)
        way = "surer than it should be" if sure > right.value else "less sure than it could be"
        if not _may_be(sure, right):
            made.append(
                Remark(
                    f"It is {way}: on average it says {percent(sure)} and is right {percent(right.value)} of the time."
                    " Do not take its percentages at their word."
                )
            )
    return made


def _may_be(value: float, found: Number) -> bool:
    """Whether a value lies in the interval of what was measured."""
    return found.low is not None and found.high is not None and found.low <= value <= found.high


def _on_data(context: ReportContext) -> list[Remark]:
    dataset = context.dataset
    train = None if dataset is None else dataset.splits.get("train")
    if dataset is None or train is None or not len(train):
        return []
    counts = train.counts(dataset.num_classes)
    there = counts[counts > 0]
    times = float(there.max() / there.min())
    if times < UNEVEN or context.balanced or context.loss.class_weights:
        return []
    return [
        Remark(
            f"The classes are uneven: “{short(dataset.classes[int(counts.argmax())], 40)}” has {times:.0f} times as"
            " many training pictures as the rarest class. Rare classes are learned worse; drawing all equally often may"
            " help.",
            ("--data.balanced",),
        )
    ]
