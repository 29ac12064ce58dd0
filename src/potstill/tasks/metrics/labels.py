"""Metrics of labels, spans and entities, as GLUE, SQuAD v1.1 and CoNLL-2003 define them: sequences in, floats out."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Average = Literal["binary", "macro", "micro"]
Entity = tuple[str, int, int]  # type, first and last token
Counts = tuple[NDArray[Any], NDArray[Any], NDArray[Any]]
"""(classes,) each: rows that are right, rows of the class, rows predicted to be of the class."""
Score = Callable[[np.ndarray], float]
"""A model's score over some rows, given by their positions; a row may occur more than once."""
MOST_IN_MATRIX = 100  # classes of a confusion matrix


def f1(labels: ArrayLike, predictions: ArrayLike, average: Average = "binary") -> float:
    """Harmonic mean of precision and recall, 0..1; a class that never occurs counts 0.0.

    binary: of class 1. macro: mean over the classes that occur in labels or predictions. micro: from counts summed over
    classes. Multi-label examples are rows of 0 and 1, one column per label; macro is then the mean over columns.
    """
    if average not in ("binary", "macro", "micro"):
        raise ValueError(f"average = '{average}' is unknown; write 'binary', 'macro' or 'micro'")
    gold, predicted = _pair(labels, predictions, dimensions=2 if np.ndim(labels) == 2 else 1)
    if average == "binary":
        if gold.ndim > 1:
            raise ValueError("multi-label examples have no single positive class; write 'macro' or 'micro'")
        gold, predicted = gold[:, None], predicted[:, None]  # class 1 is the only label
    right, true, claimed = class_counts(gold, predicted) if gold.ndim == 1 else set_counts(gold, predicted)
    if average == "micro":
        return _ratio(2 * right.sum(), claimed.sum() + true.sum())
    return float(np.mean([_ratio(2 * r, c + t) for r, c, t in zip(right, claimed, true, strict=True)]))


def matthews(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Matthews correlation, -1..1, for any number of classes (Gorodkin, 2004).

    It is undefined if one side is constant, and 0.0 then by convention, as in scikit-learn and GLUE.
    """
    right, true, claimed = (count.astype(float) for count in class_counts(*_pair(labels, predictions)))
    total = float(true.sum())
    covariance = float(right.sum()) * total - float(true @ claimed)
    spread = (total**2 - float(true @ true)) * (total**2 - float(claimed @ claimed))
    return covariance / float(np.sqrt(spread)) if spread > 0 else 0.0


def class_counts(gold: NDArray[Any], predicted: NDArray[Any]) -> Counts:
    """Return the counts of the classes that occur in (n,) classes; (n, classes) would not fit into memory if they are many."""
    _, classes = np.unique(np.concatenate([gold, predicted]), return_inverse=True)
    ours, theirs = np.split(classes, 2)
    number = int(classes.max(initial=0)) + 1
    right, true, claimed = (np.bincount(side, minlength=number) for side in (ours[ours == theirs], ours, theirs))
    return right, true, claimed


def set_counts(gold: NDArray[Any], predicted: NDArray[Any]) -> Counts:
    """Return the counts of each column of (n, classes) sets of classes, of 0 and 1."""
    gold, predicted = gold == 1, predicted == 1
    return (gold & predicted).sum(0), gold.sum(0), predicted.sum(0)


def calibration_error(confidences: ArrayLike, right: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error, 0..1 (Guo et al., 2017, arXiv:1706.04599).

    How far stated probabilities are from the share that is right, over bins of equal width, weighted by their size.
    """
    stated, correct = _pair(np.asarray(confidences, float), np.asarray(right, float))
    place = np.clip(np.ceil(stated * bins).astype(int) - 1, 0, bins - 1)  # a bin includes its upper edge
    gaps = np.bincount(place, stated - correct, minlength=bins)
    return float(np.abs(gaps).sum() / len(stated))


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Linear correlation, -1..1; NaN if one side is constant, as in scipy."""
    ours, theirs = (_centred(side) for side in _pair(labels, predictions))
    return float(np.clip(ours @ theirs, -1.0, 1.0)) if ours.any() and theirs.any() else float("nan")


def rmse(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Root mean squared error, in the unit of the labels."""
    labels, predictions = _pair(labels, predictions)
    return float(np.sqrt(np.square(labels.astype(np.float64) - predictions).mean()))


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Correlation of ranks, -1..1, with ties at their mean rank; NaN if one side is constant."""
    return pearson(ranks(np.asarray(labels)), ranks(np.asarray(predictions)))


def answer_score(answer: str, golds: Sequence[str]) -> tuple[bool, float]:
    """SQuAD v1.1 (Rajpurkar et al., 2016): exact match, and token F1 with the gold answer that is most like it, 0..1."""
    words, *gold_words = (_normalized(text).split() for text in (answer, *golds))
    common = [sum((Counter(words) & Counter(gold)).values()) for gold in gold_words]
    overlaps = [_ratio(2 * c, len(words) + len(gold)) for c, gold in zip(common, gold_words, strict=True)]
    return words in gold_words, max(overlaps)


def entities(tags: Sequence[str]) -> list[Entity]:
    """Type, first and last token of each entity in one sentence of IOB or IOBES tags, as conlleval reads them.

    An entity is a longest run of tags of one type in which I or E follows B or I.
    """
    parts = [tag.partition("-")[::2] for tag in tags]  # prefix and type
    spans = []
    first = 0
    for last, ((prefix, kind), (next_prefix, next_kind)) in enumerate(pairwise([*parts, ("O", "")])):
        if prefix in ("B", "I") and next_prefix in ("I", "E") and kind == next_kind:
            continue
        if prefix != "O":
            spans.append((kind or "_", first, last))
        first = last + 1
    return spans


def _pair(labels: ArrayLike, predictions: ArrayLike, dimensions: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
    ours, theirs = np.asarray(labels), np.asarray(predictions)
    if ours.shape != theirs.shape:
        raise ValueError(f"labels {ours.shape} and predictions {theirs.shape} differ in shape")
    if ours.ndim != dimensions:
        hint = "give one value per example; multi-label examples need f1"
        raise ValueError(f"labels have {ours.ndim} dimensions instead of {dimensions}; {hint}")
    if ours.size == 0:
        raise ValueError("there are no predictions to score")
    return ours, theirs


def _ratio(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0


def _centred(values: NDArray[Any]) -> NDArray[np.float64]:
    """The values minus their mean, scaled to length 1; all zeros for a constant."""
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("correlations need finite numbers")
    # scaled first, so that squares neither overflow nor underflow
    centred: NDArray[np.float64] = values - values[0]
    centred /= float(np.abs(centred).max()) or 1.0
    centred -= centred.mean()
    centred /= float(np.linalg.norm(centred)) or 1.0
    return centred


def ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """1 for the smallest value; equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = ((last - count + 1 + last) / 2)[place]
    return ranks


def _normalized(text: str) -> str:
    """The text in lower case, without punctuation, articles and extra spaces."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities from logits, over the last axis."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def by_class(
    labels: Sequence[str], gold: np.ndarray, predicted: np.ndarray, probabilities: np.ndarray | None
) -> dict[str, Any]:
    """Return the confusion matrix, the mean (n, classes) probabilities by gold class, and the quality of each class.

    `gold` and `predicted` are (n,) classes. With very many classes, matrices cover only those with the most rows.
    """
    sides = (gold[gold == predicted], gold, predicted)
    right, true, claimed = (np.bincount(side, minlength=len(labels)) for side in sides)
    kept = np.sort(np.argsort(-true, kind="stable")[:MOST_IN_MATRIX])
    place = np.full(len(labels), -1)
    place[kept] = np.arange(len(kept))

    def square(rows: list[list[float]]) -> Any:
        return rows if len(kept) == len(labels) else {"classes": kept.tolist(), "rows": rows}

    matrix = np.zeros((len(kept), len(kept)), int)
    inside = (place[gold] >= 0) & (place[predicted] >= 0)
    np.add.at(matrix, (place[gold[inside]], place[predicted[inside]]), 1)
    details: dict[str, Any] = {"confusion": square(matrix.tolist())}
    if probabilities is not None:
        means = [probabilities[gold == i].mean(0)[kept] if true[i] else np.zeros(len(kept)) for i in kept]
        details["mean_probabilities"] = square(np.round(means, 6).tolist())
    counts = zip(labels, right, true, claimed, strict=True)
    return {**details, "per_class": {label: of_class(*each) for label, *each in counts}}


def of_class(right: int, true: int, claimed: int) -> dict[str, float]:
    """The quality of one class, from the rows that are right, of this class, and predicted to be of it."""
    f1 = _ratio(2 * right, true + claimed)
    return {"precision": _ratio(right, claimed), "recall": _ratio(right, true), "f1": f1, "rows": int(true)}
