"""Held-out features of a run that no task scores: measured at each evaluation, and said when they collapse."""

from collections.abc import Callable
from typing import final

import numpy as np
import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from vitlab.data.contract import Array, Split, Values
from vitlab.data.loading.resident import Pixels, load_inputs
from vitlab.data.places import evenly
from vitlab.evaluation.knn import knn_accuracy
from vitlab.objectives.collapse import CHANCE, KNN, RANK, STD, alarms, effective_rank, feature_std
from vitlab.tasks.scoring import Scores
from vitlab.training.distribution import World
from vitlab.training.learner import Learner
from vitlab.training.loop import Hook, Moment
from vitlab.training.plan import Parts
from vitlab.training.scoring import in_evaluation
from vitlab.training.step import Autocast

HELD, BANK = 1024, 2048  # images whose features are looked at: held-out ones, and training ones for neighbours
NEIGHBOURS = 20
BATCH = 128


@final
class CollapseAlarm(Hook):
    """Adds what held-out features are like to an evaluation's scores, and says when they tell images apart no more.

    The features are those of the module that becomes the run's model, of images that stay the same over the run. Their
    nearest neighbours among training images are asked where all have one label.
    """

    def __init__(
        self,
        parts: Parts,
        learner: Learner,
        *,
        target: str,
        num_classes: int,
        world: World,
        autocast: Autocast,
        max_unreadable: float,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.parts, self.learner, self.target, self.num_classes = parts, learner, target, num_classes
        self.world, self.autocast, self.max_unreadable, self.say = world, autocast, max_unreadable, say
        self._read: dict[str, tuple[Pixels, Array | None]] = {}
        self._found, self._said = dict[str, str](), frozenset[str]()

    def watched(self, scores: Scores) -> Scores:
        """The scores of an evaluation, with what the features are like."""
        assert self.parts.val is not None
        held, labels = self._features("val", self.parts.val, HELD)
        if not held.isfinite().all():  # which ends the run by another rule
            return scores
        measured = {STD: feature_std(held), RANK: effective_rank(held)}
        if labels is not None:
            bank, known = self._features("train", self.parts.neighbours, BANK)
            assert known is not None
            ks, classes = [min(NEIGHBOURS, len(known))], self.num_classes
            [right] = knn_accuracy(bank.numpy(), known, held.numpy(), labels, ks=ks, num_classes=classes).tolist()
            measured |= {KNN: right, CHANCE: float(np.bincount(labels).max() / len(labels))}
        scores = {**scores, **measured}
        self._found = alarms({**scores, "count": float(len(held))})
        return scores

    def begin(self, moment: Moment) -> None:
        self.after_step(moment)

    def after_step(self, moment: Moment) -> None:
        for measure, sentence in self._found.items():
            if measure not in self._said:
                self.say(f"step {moment.step}: {sentence}")
        if self._said and not self._found:
            self.say(f"step {moment.step}: The features tell images apart again.")
        self._said = frozenset(self._found)

    def _features(self, name: str, whole: Split, limit: int) -> tuple[Tensor, Array | None]:
        """The features of readable images of a part, and their labels where each has one.

        All processes compute them: sharded models are called together.
        """
        learner = self.learner
        preprocess = learner.model.preprocess
        if name not in self._read:
            places = evenly(len(whole), limit)
            split = whole.take(places)
            pixels = load_inputs(split, preprocess, self.max_unreadable)
            self._read[name] = pixels, _labels(split, self.target)
        pixels, labels = self._read[name]
        called = learner if isinstance(learner, FSDPModule) else learner.objective.product(learner.model)
        with torch.no_grad(), self.autocast(), in_evaluation(called):
            found = [
                called(preprocess.normalize(part.to(self.world.device))).flatten(1).float().cpu()
                for part in pixels.values.split(BATCH)
            ]
        features, readable = torch.cat(found), pixels.readable
        if readable is not None:
            features, labels = features[readable], None if labels is None else labels[readable.numpy()]
        return features, labels


def _labels(split: Split, target: str) -> Array | None:
    """Class numbers, where each image has one."""
    found = split.targets.get(target)
    return found.values if isinstance(found, Values) and found.kind == "class" else None
