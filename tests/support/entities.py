"""Scores of entities as the task of tagging reports them, from tags as files have them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from potstill.tasks.tag import ABSENT, TokenClassification


def entity_scores(gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict[str, float]:
    labels = tuple(sorted({"O", *(tag for side in (gold, predicted) for tags in side for tag in tags)}))
    classes, outputs = (np.full((len(gold), max(map(len, gold))), ABSENT, np.float32) for _ in range(2))
    for side, array in ((gold, classes), (predicted, outputs)):
        for row, tags in zip(array, side, strict=True):
            row[: len(tags)] = [labels.index(tag) for tag in tags]
    return TokenClassification(labels).score(classes, np.stack([outputs, np.ones_like(outputs)], -1))
