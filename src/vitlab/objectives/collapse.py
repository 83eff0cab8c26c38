"""Whether features still tell images apart: what a self-supervised run is watched by, and what is said of it.

A run without labels may find a way to a low loss that is worth nothing: the same features for every image. Pure
functions; `training/collapse.py` measures held-out images with them, and the report draws what was logged.
"""

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from vitlab.objectives.contract import Metrics

STD, RANK = "feature std", "feature rank"
KNN, CHANCE = "kNN accuracy", "kNN chance"
ENTROPY, DIVERSITY = "teacher entropy", "teacher diversity"
SHARES = frozenset({KNN, "color accuracy"})  # what is shown as a percentage
TITLES = {  # of curves
    STD: "How far apart pictures are (std of features)",
    RANK: "In how many directions pictures differ (rank)",
    KNN: "Right by the nearest training pictures (kNN)",
    ENTROPY: "How unsure the teacher is (entropy)",
    DIVERSITY: "How varied the teacher's answers are",
    "color accuracy": "Colours of hidden patches that are right",
}

SAME = 0.05  # a std of features below which all images have the same ones
ONE_DIRECTION = 2.0  # a rank below which images differ in one direction only
FEW = 8  # images below which they cannot differ in many
UNSURE = 0.995  # an entropy, as a part of the largest, above which a teacher says nothing
ONE_ANSWER = 0.05  # a diversity below which a teacher says the same of all images
Z = 3.0  # standard errors above chance from which neighbours know something


def feature_std(features: Float[Tensor, "n d"]) -> float:
    """The standard deviation of features of unit length, over images and all channels together, sqrt(1 - |mean|^2).

    0 where all images have the same features, 1 where they point in all directions: the mean squared distance of two
    images is twice its square.
    """
    mean = F.normalize(features.double(), dim=1).mean(dim=0)
    return math.sqrt(max(1.0 - mean.square().sum().item(), 0.0))


def effective_rank(features: Float[Tensor, "n d"]) -> float:
    """exp of the entropy of the singular values' shares (Roy and Vetterli, 2007), of centred features.

    It is k for features that vary alike in k directions, between 1 and the width otherwise, and 0 where they do not
    vary at all.
    """
    values = features.double()
    centred = values - values.mean(dim=0)
    singular = torch.linalg.svdvals(centred)
    if singular.sum() <= 1e-9 * values.norm():  # rounding is no direction
        return 0.0
    share = singular / singular.sum()
    return torch.exp(-(share * share.clamp(min=1e-300).log()).sum()).item()


def teacher_entropy(probabilities: Float[Tensor, "b k"]) -> Metrics:
    """The entropy of a teacher's answers and that of their mean over the images, as parts of the largest, ln K.

    The first is 1 where it says nothing of any image; the second is 0 where it says the same of all. An objective with
    a teacher returns these with its metrics.
    """

    def part(p: Float[Tensor, "*b k"]) -> Float[Tensor, ""]:
        return -(p * p.clamp(min=1e-30).log()).sum(dim=-1).mean() / math.log(p.shape[-1])

    answers = probabilities.detach().float()
    return {ENTROPY: part(answers), DIVERSITY: part(answers.mean(dim=0))}


def alarms(scores: Mapping[str, float]) -> dict[str, str]:
    """What is wrong with features or teacher, a sentence for each measure that tells; none where nothing is."""
    found: dict[str, str] = {}
    if (std := scores.get(STD)) is not None and std < SAME and scores.get("count", FEW) > 1:
        found[STD] = (
            f"The features collapsed: those of all held-out images are nearly the same (their standard deviation is"
            f" {std:.2g} of 1), so that they say nothing of an image."
        )
    elif (rank := scores.get(RANK)) is not None and rank < ONE_DIRECTION and scores.get("count", FEW) >= FEW:
        found[RANK] = (
            f"The features collapsed: held-out images differ in a single direction (effective rank {rank:.2g})."
        )
    if (diversity := scores.get(DIVERSITY)) is not None and diversity < ONE_ANSWER:
        found[DIVERSITY] = (
            f"The teacher says the same of every image (diversity {diversity:.2g} of 1): centre its answers, or raise"
            " its temperature."
        )
    if (entropy := scores.get(ENTROPY)) is not None and entropy > UNSURE:
        found[ENTROPY] = (
            f"The teacher says nothing of any image, all its answers being equally likely (entropy {entropy:.3f} of 1):"
            " lower its temperature."
        )
    accuracy, chance = scores.get(KNN), scores.get(CHANCE)
    if accuracy is not None and chance is not None and accuracy <= _no_more_than_chance(chance, scores):
        found[KNN] = (
            f"Nearest neighbours are right on {accuracy:.1%} of held-out images, no more than chance ({chance:.1%}):"
            " the features know nothing of the classes."
        )
    return found


def words(scores: Mapping[str, float]) -> str:
    """The measures that there are, in a line of the log."""
    forms = (
        (STD, "feature std {:.2f}"),
        (RANK, "rank {:.1f}"),
        (KNN, "kNN {:.1%}"),
        (ENTROPY, "teacher entropy {:.2f}"),
    )
    return ", ".join(form.format(scores[name]) for name, form in forms if name in scores)


def described(scores: Mapping[str, float]) -> list[str]:
    """The measures in sentences for whoever does not know them."""
    found: list[str] = []
    if STD in scores:
        found.append(
            f"The standard deviation of its features is {scores[STD]:.2f}: 0 would mean the same features for every"
            " picture, 1 that they point in all directions."
        )
    if RANK in scores:
        found.append(f"Pictures differ in about {scores[RANK]:.0f} directions (the effective rank of the features).")
    if KNN in scores and CHANCE in scores:
        found.append(
            f"The classes of the nearest training pictures name the class of {scores[KNN]:.1%} of held-out pictures, by"
            f" features that never saw these labels; guessing would name {scores[CHANCE]:.1%}."
        )
    if DIVERSITY in scores:
        found.append(f"Its teacher's answers use {scores[DIVERSITY]:.0%} of the variety that they could.")
    return found


def _no_more_than_chance(chance: float, scores: Mapping[str, float]) -> float:
    """What may still be chance over as many images as were held out; below all where so few of them cannot tell."""
    limit = chance + Z * math.sqrt(chance * (1 - chance) / max(scores.get("count", 1.0), 1.0))
    return limit if limit < (1 + chance) / 2 else -math.inf
