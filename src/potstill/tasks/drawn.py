"""Tasks that draw what is predicted from the rows themselves: their outputs say what was right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from potstill.data.examples import Examples
from potstill.data.row import Label
from potstill.tasks.generate import text_hashes
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics import texts as text_metrics
from potstill.tasks.metrics.labels import Score
from potstill.tasks.task import Task

NAME, PROBABILITY, LOSS, RIGHT = range(4)  # of an output; the name is a number that tells predictions apart
LIKELIHOODS = ("likelihood", "perplexity")


@dataclass(frozen=True)
class DrawnPredictions(Task):
    """`outputs` are (n, predictions, 4): a name of what is predicted, its probability, the loss of the right one, and whether
    it is predicted; -1 fills short rows. `targets` are (n, 2) length and hash of the text.
    """

    labels_are_classes = False
    own_targets = True
    draws = True

    @classmethod
    def without_labels(cls, choices: int, where: str) -> tuple[Task, str]:
        return cls(()), cls.predicted

    predicted = "masked tokens are predicted"  # said before a run

    def encode(self, label: Label, where: str) -> list[float]:
        return [0.0]  # the text is its own label

    def golds(self, examples: Examples) -> np.ndarray:
        return text_hashes(examples, (text + (pair or "") for text, pair in examples.texts()))

    def decode(self, outputs: np.ndarray) -> np.ndarray:
        """(n, predictions) names."""
        return outputs[..., NAME]

    def describe_gold(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        return "all right"

    def places_of(self, metric: str, outputs: np.ndarray) -> np.ndarray:
        """(n, predictions) bool: those that a metric is about."""
        return np.asarray(outputs[..., RIGHT] >= 0)

    def scorer(self, metric: str, targets: np.ndarray, outputs: np.ndarray) -> Score:
        """The sums of each row are computed once, so that any sample of rows is scored quickly."""
        there = self.places_of(metric, outputs)
        count = there.sum(1)
        sums = np.where(there, outputs[..., LOSS if metric in LIKELIHOODS else RIGHT], 0.0).sum(1, dtype=np.float64)
        if metric not in LIKELIHOODS:
            return lambda rows: float(sums[rows].sum() / max(count[rows].sum(), 1))
        sign = 1 if metric == "perplexity" else -1

        def score(rows: np.ndarray) -> float:
            predictions = int(count[rows].sum())
            return text_metrics.perplexity(float(sums[rows].sum()), predictions) ** sign if predictions else math.nan

        return score

    def is_correct(self, targets: np.ndarray, outputs: np.ndarray) -> np.ndarray:
        """(n,) bool: all predictions of the row."""
        return np.asarray((outputs[..., RIGHT] != 0).all(1))

    def share_right(self, outputs: np.ndarray) -> tuple[float, float, str]:
        right = outputs[..., RIGHT]
        return float((right == 1).sum()), float((right >= 0).sum()), "share of right tokens"

    def calibration_error(self, targets: np.ndarray, outputs: np.ndarray) -> float | None:
        """Over all predictions."""
        predicted = outputs[outputs[..., RIGHT] >= 0]
        return (
            metrics.calibration_error(predicted[:, PROBABILITY], predicted[:, RIGHT] == 1) if len(predicted) else None
        )

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float | None:
        """Share of places where both predict the same; None if their tokenizers split the texts differently."""
        if not _alike(ours, theirs):
            return None
        there = theirs[..., RIGHT] >= 0
        return float((self.decode(ours) == self.decode(theirs))[there].mean()) if there.any() else None

    def disagreement(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        if not _alike(ours, theirs):
            return np.zeros(len(ours))
        differ = (self.decode(ours) != self.decode(theirs)) & (theirs[..., RIGHT] >= 0)
        return np.asarray((differ * theirs[..., PROBABILITY]).max(1, initial=0.0))


def scored(logits: np.ndarray, gold: np.ndarray, names: Any) -> np.ndarray:
    """(predictions, classes) logits and (predictions,) right classes -> (predictions, 4). `names`: (predictions,) best -> names."""
    best, every = logits.argmax(-1), np.arange(len(logits))
    surprise = np.log(np.exp(logits - logits[every, best][:, None]).sum(-1))  # -log p of the best
    losses = surprise + logits[every, best] - logits[every, gold]
    return np.stack([names(best), np.exp(-surprise), losses, best == gold], 1)


def _alike(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Whether both have the same number of predictions in every row."""
    return ours.shape == theirs.shape and bool(((ours[..., RIGHT] < 0) == (theirs[..., RIGHT] < 0)).all())
