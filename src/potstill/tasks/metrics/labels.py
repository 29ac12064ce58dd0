"""How good predictions are: what GLUE, SQuAD v1.1 and CoNLL-2003 measure. Plain sequences in, floats out."""

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
"""A model's score over some rows, given by their positions; a row may be drawn more than once."""
MOST_IN_MATRIX = 100  # classes


def accuracy(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Share of examples that are right, 0..1; with several labels each (rows of 0 and 1), right in all of them."""
    labels, predictions = np.asarray(labels), np.asarray(predictions)
    labels, predictions = _pair(labels, predictions, dimensions=2 if labels.ndim == 2 else 1)
    return float(np.mean((labels == predictions).reshape(len(labels), -1).all(axis=1)))


def precision_recall(labels: ArrayLike, predictions: ArrayLike) -> tuple[float, float]:
    """Precision and recall of class 1; 0.0 where nothing was predicted, or nothing was there."""
    labels, predictions = _pair(labels, predictions, dimensions=1)
    correct = int(np.sum((labels == 1) & (predictions == 1)))
    return _ratio(correct, np.sum(predictions == 1)), _ratio(correct, np.sum(labels == 1))


def f1(labels: ArrayLike, predictions: ArrayLike, average: Average = "binary") -> float:
    """Harmonic mean of precision and recall, 0..1; a class that is nowhere counts 0.0.

    binary: of class 1. macro: mean over the classes that occur in either. micro: from counts summed over classes.
    Rows of 0 and 1, one column per label, are multi-label: then macro is the mean over columns.
    """
    if average not in ("binary", "macro", "micro"):
        raise ValueError(f"average = '{average}' is unknown; write 'binary', 'macro' or 'micro'")
    there, said = np.asarray(labels), np.asarray(predictions)
    if there.ndim == 1:
        there, said = _pair(there, said, dimensions=1)
        if average == "binary":
            correct, claimed, true = (
                np.asarray([one.sum()]) for one in ((there == 1) & (said == 1), said == 1, there == 1)
            )
        else:  # by class; (examples, classes) would not fit where there are thousands
            _, place = np.unique(np.concatenate([there, said]), return_inverse=True)
            several = int(place.max(initial=0)) + 1
            ours, theirs = np.split(place, 2)
            sides = (ours[ours == theirs], theirs, ours)
            correct, claimed, true = (np.bincount(side, minlength=several) for side in sides)
    else:
        if average == "binary":
            raise ValueError("several labels per example have no single positive class; write 'macro' or 'micro'")
        there, said = (side == 1 for side in _pair(there, said, dimensions=2))
        correct, claimed, true = (there & said).sum(axis=0), said.sum(axis=0), there.sum(axis=0)  # (classes,)
    if average == "micro":
        return _ratio(2 * correct.sum(), claimed.sum() + true.sum())
    return float(np.mean([_ratio(2 * c, p + t) for c, p, t in zip(correct, claimed, true, strict=True)]))


def matthews(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Matthews correlation, -1..1, for any number of classes (Gorodkin, 2004).

    0.0 where one side is constant: there it is undefined, and 0 by convention, as in scikit-learn and GLUE.
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
    """How far stated probabilities are from the share that is right, 0..1: mean over bins of equal width, each weighing as
    many answers as it holds (Guo et al., 2017, arXiv:1706.04599)."""
    stated, held = _pair(np.asarray(confidences, float), np.asarray(right, float), dimensions=1)
    place = np.clip(np.ceil(stated * bins).astype(int) - 1, 0, bins - 1)  # a bin holds its upper edge
    gaps = np.bincount(place, stated - held, minlength=bins)
    return float(np.abs(gaps).sum() / len(stated))


def pearson(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Linear correlation, -1..1; NaN where one side is constant: it is undefined, as in scipy."""
    ours, theirs = (_centred(side) for side in _pair(labels, predictions, dimensions=1))
    return float(np.clip(ours @ theirs, -1.0, 1.0)) if ours.any() and theirs.any() else float("nan")


def rmse(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Root of the mean squared error, in the unit of the labels."""
    labels, predictions = _pair(labels, predictions, dimensions=1)
    return float(np.sqrt(np.square(labels.astype(np.float64) - predictions).mean()))


def spearman(labels: ArrayLike, predictions: ArrayLike) -> float:
    """Correlation of ranks, ties at their mean rank, -1..1; NaN where one side is constant: it is undefined."""
    ours, theirs = (_ranks(side) for side in _pair(labels, predictions, dimensions=1))
    return pearson(ours, theirs)


def answer_scores(items: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """SQuAD v1.1 (Rajpurkar et al., 2016): exact match and token F1 of the best answer, mean over questions, 0..100.

    An item is {"prediction": text, "answers": [text, …]}; without a prediction, or with None, it scores 0 as in the
    official script. per_question is on the scale 0..1, in the order of the items.
    """
    if not items:
        raise ValueError("there are no answers to score")
    questions: list[dict[str, Any]] = []
    for item in items:
        given = item.get("prediction")
        golds = [_normalized(answer) for answer in item["answers"]]
        if not golds:
            raise InputError(f"the question answered with {given!r} has no answers; leave it out")
        if given is None:
            questions.append({"exact": 0, "f1": 0.0, "normalized": ""})
            continue
        said = _normalized(given)
        f1_best = max(_token_f1(said.split(), gold.split()) for gold in golds)
        questions.append({"exact": int(said in golds), "f1": f1_best, "normalized": said})
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
    correct = there = said = 0
    for ours, theirs in zip(gold, predicted, strict=True):
        true, claimed = set(entities(ours, scheme)), set(entities(theirs, scheme))
        correct, there, said = correct + len(true & claimed), there + len(true), said + len(claimed)
    return {
        "precision": _ratio(correct, said),
        "recall": _ratio(correct, there),
        "f1": _ratio(2 * correct, said + there),
        "correct": correct,
        "predicted": said,
        "gold": there,
    }


# scheme: prefixes that may come before the last token of an entity, prefixes that may come after the first,
# prefixes it may start with, prefixes it may end with. An entity is a longest run of tags of one type in which each
# follows the one before it by the first two.
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
    found = []
    first = 0
    for last, (prefix, kind) in enumerate(parts):
        follower = parts[last + 1] if last + 1 < len(parts) else ("O", "")
        if prefix in before and follower[0] in after and follower[1] == kind:
            continue  # the next token belongs to the same run
        run, first = (first, last), last + 1
        if scheme == "IOB1" and parts[run[0]][0] == "B" and not _touches(parts, run[0]):
            run = (run[0] + 1, last)  # a B- that separates nothing does not belong here; what follows it does
            if run[0] > last:
                continue
        if scheme == "IOB1" and prefix == "B" and follower[0] == "B" and follower[1] != kind:
            continue
        if parts[run[0]][0] in starts and prefix in ends:
            found.append((kind, *run))
    return found


def _touches(parts: list[tuple[str, str]], place: int) -> bool:
    """Whether the token before is of the same type: the only place where IOB1 writes B-."""
    return place > 0 and parts[place - 1][0] != "O" and parts[place - 1][1] == parts[place][1]


def _prefix_and_type(tag: str, allowed: set[str], scheme: str | None) -> tuple[str, str]:
    prefix, dash, kind = tag.partition("-")
    if tag == "O" or (prefix in allowed and (kind or not dash)):
        return prefix, kind or "_"
    raise InputError(
        f"'{tag}' is no tag of {scheme or 'IOB or IOBES'}: write O or one of "
        f"{', '.join(sorted(allowed))} before a dash and the type, such as {min(allowed)}-PER"
    )


def _pair(labels: ArrayLike, predictions: ArrayLike, dimensions: int) -> tuple[NDArray[Any], NDArray[Any]]:
    ours, theirs = np.asarray(labels), np.asarray(predictions)
    if ours.shape != theirs.shape:
        raise ValueError(f"labels {ours.shape} and predictions {theirs.shape} differ in shape")
    if ours.ndim != dimensions:
        hint = "several labels per example go to accuracy and f1" if ours.ndim == 2 else "give one row per example"
        raise ValueError(f"labels have {ours.ndim} dimensions where {dimensions} are needed; {hint}")
    if ours.size == 0:
        raise ValueError("there are no predictions to score")
    return ours, theirs


def _ratio(part: Any, whole: Any) -> float:
    return float(part) / float(whole) if whole else 0.0


def _centred(values: NDArray[Any]) -> NDArray[np.float64]:
    """Minus the mean, length 1; all zeros for a constant."""
    values = values.astype(np.float64)
    if not np.isfinite(values).all():
        raise ValueError("correlations need finite numbers")
    # scaled first, so that squares neither overflow nor vanish
    centred: NDArray[np.float64] = values - values[0]
    centred /= float(np.abs(centred).max()) or 1.0
    centred -= centred.mean()
    centred /= float(np.linalg.norm(centred)) or 1.0
    return centred


def _ranks(values: NDArray[Any]) -> NDArray[np.float64]:
    """1 for the smallest; equal values share the mean of their ranks."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    ranks: NDArray[np.float64] = ((last - count + 1 + last) / 2)[place]
    return ranks


def _normalized(text: str) -> str:
    """Lower case, without punctuation, articles and extra spaces."""
    text = "".join(letter for letter in text.lower() if letter not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _token_f1(said: list[str], gold: list[str]) -> float:
    common = sum((Counter(said) & Counter(gold)).values())
    return _ratio(2 * common, len(said) + len(gold))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    shifted = np.exp(logits - logits.max(-1, keepdims=True))
    return np.asarray(shifted / shifted.sum(-1, keepdims=True))


def by_class(
    labels: Sequence[str], gold: np.ndarray, said: np.ndarray, probabilities: np.ndarray | None
) -> dict[str, Any]:
    """Of single classes, (n,) twice, and perhaps (n, classes) of probabilities.

    A square of very many classes would be larger than the model: then it is of those with the most rows.
    """
    there, claimed = (np.bincount(one, minlength=len(labels)) for one in (gold, said))
    right = np.bincount(gold[gold == said], minlength=len(labels))
    kept = np.sort(np.argsort(-there, kind="stable")[:MOST_IN_MATRIX])
    place = np.full(len(labels), -1)
    place[kept] = np.arange(len(kept))

    def square(rows: list[list[float]]) -> Any:
        return rows if len(kept) == len(labels) else {"classes": kept.tolist(), "rows": rows}

    matrix = np.zeros((len(kept), len(kept)), int)
    both = (place[gold] >= 0) & (place[said] >= 0)
    np.add.at(matrix, (place[gold[both]], place[said[both]]), 1)
    found: dict[str, Any] = {"confusion": square(matrix.tolist())}
    if probabilities is not None:
        mean = [probabilities[gold == one].mean(0)[kept] if there[one] else np.zeros(len(kept)) for one in kept]
        found["mean_probabilities"] = square(np.round(mean, 6).tolist())
    counts = (right, there, claimed)
    return {**found, "per_class": {label: of_class(*each) for label, *each in zip(labels, *counts, strict=True)}}


def of_class(right: int, there: int, said: int) -> dict[str, float]:
    return {
        "precision": float(right / said) if said else 0.0,
        "recall": float(right / there) if there else 0.0,
        "f1": float(2 * right / (there + said)) if there + said else 0.0,
        "rows": int(there),
    }
