"""How often a classifier is right at each level of a hierarchy of its classes."""

from typing import final

import torch
from torch import Tensor

from vitlab.data.hierarchy import Hierarchy, Level
from vitlab.evaluation.contract import Metric, Outcome
from vitlab.evaluation.labeled_features import share


@final
class SemanticAccuracy:
    """Counts of logits [B, K] against labels [B]: by level, and over all levels, each by the images that it has.

    At a level whose nodes are all classes of the model, its answer is the largest of their logits, as ImageNet-21K-P's
    authors count. At others a node is as probable as the classes below it are together.
    """

    def __init__(self, hierarchy: Hierarchy) -> None:
        self.num_classes = hierarchy.num_classes
        self.levels = {depth: level for depth, level in enumerate(hierarchy.levels()) if len(level.nodes) > 1}
        self._places = {depth: torch.tensor(level.of_class) for depth, level in self.levels.items()}
        self.right = dict.fromkeys(self.levels, 0)
        self.there = dict.fromkeys(self.levels, 0)
        self.images = 0

    def add(self, logits: Tensor, labels: Tensor) -> None:
        self.images += len(labels)
        for depth, level in self.levels.items():
            places = self._places[depth]
            sought, said = places[labels], self._scores(logits.float(), level, places).argmax(dim=1)
            self.right[depth] += int((said == sought).sum())
            self.there[depth] += int((sought >= 0).sum())

    def _scores(self, logits: Tensor, level: Level, places: Tensor) -> Tensor:
        if max(level.nodes) < self.num_classes:
            return logits[:, list(level.nodes)]
        below, scores = places >= 0, torch.zeros(len(logits), len(level.nodes))
        return scores.index_add(1, places[below], logits.softmax(dim=1)[:, below])

    def outcome(self) -> Outcome:
        metrics: dict[str, Metric] = {"semantic": share(sum(self.right.values()), sum(self.there.values()))}
        for depth in self.levels:
            if self.there[depth]:
                metrics[f"level {depth}"] = share(self.right[depth], self.there[depth])
        sizes = {str(depth): len(level.nodes) for depth, level in self.levels.items()}
        return Outcome(metrics=metrics, counts={"images": self.images}, details={"nodes of levels": sizes})
