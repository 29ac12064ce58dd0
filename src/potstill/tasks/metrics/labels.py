"""Metrics of labels, spans and entities, as GLUE, SQuAD v1.1 and CoNLL-2003 define them: sequences in, floats out."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from potstill.errors import InputError

Average = Literal["binary", "macro", "micro"]
Entity = tuple[str, int, int]  # type, first and last token
Score = Callable[[np.ndarray], float]
"""A model's score over some rows, given by their positions; a row may occur more than once."""
MOST_IN_MATRIX = 100  # classes of a confusion matrix


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Share of examples that are right, 0..1; multi-label examples (rows of 0 and 1) must be right in all labels."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    labels, predictions = _pair(labels, predictions, dimensions=2 if labels.ndim == 2 else 1)
    return float(np.mean((labels == predictions).reshape(len(labels), -1).all(axis=1)))


def precision_recall(labels: ArrayLike, predictions: ArrayLike) -> tuple[float, float]:
    """Precision and recall of class 1; 0.0 if it is never predicted, or never occurs."""
    labels, predictions = _pair(labels, predictions, dimensions=1)
    correct = int(np.sum((labels == 1) & (predictions == 1)))
    return _ratio(correct, np.sum(predictions == 1)), _ratio(correct, np.sum(labels == 1))


def f1(labels: ArrayLike, predictions: ArrayLike, average: Average = "binary") -> float:
    """Harmonic mean of precision and recall, 0..1; a class that never occurs counts 0.0.

    binary: of class 1. macro: mean over the classes that occur in labels or predictions. micro: from counts summed over
    classes. Multi-label examples are rows of 0 and 1, one column per label; macro is then the mean over columns.
    """
    if average not in ("binary", "macro", "micro"):
        raise ValueError(f"average = '{average}' is unknown; write 'binary', 'macro' or 'micro'")
    gold, predicted = np.asarray(labels), np.asarray(predictions)
    if gold.ndim == 1:
        gold, predicted = _pair(gold, predicted, dimensions=1)
        if average == "binary":
            sides = ((gold == 1) & (predicted == 1), predicted == 1, gold == 1)
            correct, claimed, true = (np.asarray([side.sum()]) for side in sides)
        else:  # by class; (examples, classes) would not fit into memory with thousands of classes
            _, classes = np.unique(np.concatenate([gold, predicted]), return_inverse=True)
            number = int(classes.max(initial=0)) + 1
            ours, theirs = np.split(classes, 2)
            correct, claimed, true = (
                np.bincount(side, minlength=number) for side in (ours[ours == theirs], theirs, ours)
            )
    else:
        if average == "binary":
            raise ValueError("multi-label examples have no single positive class; write 'macro' or 'micro'")
        gold, predicted = (side == 1 for side in _pair(gold, predicted, dimensions=2))
        correct, claimed, true = (gold & predicted).sum(axis=0), predicted.sum(axis=0), gold.sum(axis=0)  # (classes,)
    if average == "micro":
        return _ratio(2 * correct.sum(), claimed.sum() + true.sum())
    return float(np.mean([_ratio(2 * c, p + t) for c, p, t in zip(correct, claimed, true, strict=True)]))


def matthews(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Matthews correlation, -1..1, for any number of classes (Gorodkin, 2004).

    It is undefined if one side is constant, and 0.0 then by convention, as in scikit-learn and GLUE.
    """
    labels, predictions = _pair(labels, predictions, dimensions=1)
    total = float(len(labels))
    _, classes = np.unique(np.concatenate([labels, predictions]), return_inverse=True)
    several = int(classes.max(initial=0)) + 1
    true, claimed = (np.bincount(part, minlength=several).astype(float) for part in np.split(classes, 2))
    covariance = float((labels == predictions).sum()) * total - float(true @ claimed)
    spread = (total**2 - float(true @ true)) * (total**2 - float(claimed @ claimed))
    return covariance / float(np.sqrt(spread)) if spread > 0 else 0.0


def calibration_error(confidences: ArrayLike, right: ArrayLike, bins: int = 15) -> float:
    """Expected calibration error, 0..1 (Guo et al., 2017, arXiv:1706.04599).

    How far stated probabilities are from the share that is right, over bins of equal width, weighted by their size.
    """
    stated, correct = _pair(np.asarray(confidences, float), np.asarray(right, float), dimensions=1)
    place = np.clip(np.ceil(stated * bins).astype(int) - 1, 0, bins - 1)  # a bin includes its upper edge
    gaps = np.bincount(place, stated - correct, minlength=bins)
    return float(np.abs(gaps).sum() / len(stated))


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Linear correlation, -1..1; NaN if one side is constant, as in scipy."""
    ours, theirs = (_centred(side) for side in _pair(labels, predictions, dimensions=1))
    return float(np.clip(ours @ theirs, -1.0, 1.0)) if ours.any() and theirs.any() else float("nan")


def rmse(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Root mean squared error, in the unit of the labels."""
    labels, predictions = _pair(labels, predictions, dimensions=1)
    return float(np.sqrt(np.square(labels.astype(np.float64) - predictions).mean()))


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Correlation of ranks, -1..1, with ties at their mean rank; NaN if one side is constant."""
    ours, theirs = (ranks(side) for side in _pair(labels, predictions, dimensions=1))
    return pearson(ours, theirs)


def answer_scores(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """SQuAD v1.1 (Rajpurkar et al., 2016): exact match and token F1 of the best answer, mean over questions, 0..100.

    An item is {"prediction": text, "answers": [text, …]}; without a prediction it scores 0, as in the official script.
    per_question is on the scale 0..1, in the order of the items.
    """
    if not items:
        raise ValueError("there are no answers to score")
    questions: list[dict[str, Any]] = []
    for item in items:
        prediction = item.get("prediction")
        golds = [_normalized(answer) for answer in item["answers"]]
        if not golds:
            raise InputError(f"the question answered with {prediction!r} has no gold answers; omit it")
        if prediction is None:
            questions.append({"exact": 0, "f1": 0.0, "normalized": ""})
            continue
        answer = _normalized(prediction)
        f1_best = max(_token_f1(answer.split(), gold.split()) for gold in golds)
        questions.append({"exact": int(answer in golds), "f1": f1_best, "normalized": answer})
    return {
        "exact_match": 100.0 * sum(question["exact"] for question in questions) / len(questions),
        "f1": 100.0 * sum(question["f1"] for question in questions) / len(questions),
        "per_question": questions,
    }


def entity_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], scheme: str | None = None
) -> dict[str, float]:
    """Precision, recall and F1 over all entities (micro), 0..1, and their counts; type and both ends must match.

    Without a scheme, tags are read as conlleval reads them; with one, an entity that breaks its rules does not count.
    """
    if [len(tags) for tags in gold] != [len(tags) for tags in predicted]:
        raise ValueError("gold and predicted sentences differ in number or length")
    correct = claimed = true = 0
    for ours, theirs in zip(gold, predicted, strict=True):
        in_gold, in_predicted = set(entities(ours, scheme)), set(entities(theirs, scheme))
        correct += len(in_gold & in_predicted)
        claimed += len(in_predicted)
        true += len(in_gold)
    return {
        "precision": _ratio(correct, claimed),
        "recall": _ratio(correct, true),
        "f1": _ratio(2 * correct, claimed + true),
        "correct": correct,
        "predicted": claimed,
        "gold": true,
    }


# scheme: prefixes before the last token of an entity, prefixes after the first, prefixes that it may start with, prefixes
# that it may end with. An entity is a longest run of tags of one type in which each may follow the one before it.
SCHEMES = {
    None: ("BI", "IE", "BIES", "BIES"),
    "IOB1": ("BI", "I", "BI", "BI"),
    "IOB2": ("BI", "I", "B", "BI"),
    "IOE2": ("I", "IE", "IE", "E"),
    "IOBES": ("BI", "IE", "BS", "ES"),
    "BILOU": ("BI", "IL", "BU", "LU"),
}


def entities(tags: Sequence[str], scheme: str | None = None) -> list[Entity]:
    """Type, first and last token of each entity in one sentence."""
    if scheme not in SCHEMES:
        raise InputError(f"scheme '{scheme}' is unknown; write one of {', '.join(name for name in SCHEMES if name)}")
    before, after, starts, ends = SCHEMES[scheme]
    allowed = {*before, *after, *starts, *ends}
    parts = [_prefix_and_type(tag, allowed, scheme) for tag in tags]
    spans = []
    first = 0
    for last, (prefix, kind) in enumerate(parts):
        follower = parts[last + 1] if last + 1 < len(parts) else ("O", "")
        if prefix in before and follower[0] in after and follower[1] == kind:
            continue  # the next token belongs to the same run
        run, first = (first, last), last + 1
        if scheme == "IOB1" and parts[run[0]][0] == "B" and not _touches(parts, run[0]):
            run = (run[0] + 1, last)  # a B- that separates nothing is wrong in IOB1; what follows it counts
            if run[0] > last:
                continue
        if scheme == "IOB1" and prefix == "B" and follower[0] == "B" and follower[1] != kind:
            continue
        if parts[run[0]][0] in starts and prefix in ends:
            spans.append((kind, *run))
    return spans


def _touches(parts: list[tuple[str, str]], place: int) -> bool:
    """Whether the token before is of the same type: only there IOB1 writes B-."""
    return place > 0 and parts[place - 1][0] != "O" and parts[place - 1][1] == parts[place][1]


def _prefix_and_type(tag: str, allowed: set[str], scheme: str | None) -> tuple[str, str]:
    prefix, dash, kind = tag.partition("-")
    if tag == "O" or (prefix in allowed and (kind or not dash)):
        return prefix, kind or "_"
    raise InputError(
        f"'{tag}' is not a tag of {scheme or 'IOB or IOBES'}; write O, or one of "
        f"{', '.join(sorted(allowed))} before a dash and the type, such as {min(allowed)}-PER"
    )


def _pair(labels: ArrayLike, predictions: ArrayLike, dimensions: int) -> tuple[NDArray[Any], NDArray[Any]]:
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


def _token_f1(predicted: list[str], gold: list[str]) -> float:
    common = sum((Counter(predicted) & Counter(gold)).values())
    return _ratio(2 * common, len(predicted) + len(gold))


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
    true, claimed = (np.bincount(side, minlength=len(labels)) for side in (gold, predicted))
    right = np.bincount(gold[gold == predicted], minlength=len(labels))
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
    return {
        "precision": float(right / claimed) if claimed else 0.0,
        "recall": float(right / true) if true else 0.0,
        "f1": float(2 * right / (true + claimed)) if true + claimed else 0.0,
        "rows": int(true),
    }
