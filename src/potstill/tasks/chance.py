"""Whether a teacher has learned the task: its predictions are compared with random ones and with a decent teacher's.

It has if its predictions agree with the labels better than the same predictions assigned to the rows at random, or if its
probabilities rank the rows better. If it has not, and is also worse than a decent teacher would be on the same rows, it is
refused. If there are too few rows for either, the result is "unsure".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from potstill.tasks.metrics.labels import ranks
from potstill.tasks.task import Task

DRAWS = 999
UNLIKELY = 0.025  # a share of the draws
FAR_WORSE = 0.005  # the same, for being worse than a decent teacher: a good teacher must not be refused
MOST_WORDS = 5000
LEAST = 0.1  # of the possible improvement over chance: many rows show less than that, but it is too little to teach
LEAST_RANKED = 0.3  # the same for ranks, where untrained weights reach 0.1 and 0.2
DECENT = 0.5  # the share of rows that a decent teacher knows; it guesses the others

Kind = Literal["knows", "chance", "unsure"]
Predictions = Sequence[tuple[np.ndarray, np.ndarray]]  # targets and outputs of some rows, as `Task.score` takes them
Ranking = tuple[float, np.ndarray, float]
"""How well the probabilities rank the rows, how well at random (DRAWS,), and the best possible value."""
Measured = tuple[float, np.ndarray, np.ndarray, Ranking | None]
"""How well the predictions agree with the labels; if they are assigned at random (DRAWS,); a decent teacher's (DRAWS,)."""


@dataclass(frozen=True)
class Judgement:
    kind: Kind
    correlation: float  # 0 at chance, 1 at best
    rows: int
    against: bool = False  # the predictions contradict the labels
    metric: str = "Matthews correlation"

    def __str__(self) -> str:
        return f"{self.metric} {self.correlation:.2f} over {self.rows} {'row' if self.rows == 1 else 'rows'}"


def judge(task: Task, predictions: Predictions) -> Judgement:
    rows = sum(len(targets) for targets, _ in predictions)
    if shares := [share for _, outputs in predictions if (share := task.share_right(outputs)) is not None]:
        return _by_share(shares, rows)
    random = np.random.default_rng(0)
    gold, predicted = map(np.concatenate, zip(*(task.compared(*part) for part in predictions), strict=True))
    if task.outcome == "value":
        return _verdict(_of_values(gold, predicted, random), rows, "Pearson correlation")
    if not task.ranks_rows:  # many predictions in each row
        words = random.permutation(len(gold))[:MOST_WORDS]
        return _verdict(_of_classes(gold[words], predicted[words], None, random), rows)
    columns = np.concatenate([task.probabilities(outputs) for _, outputs in predictions]).T
    # (n, classes) the rank of each probability in its column, from 0 to 1
    ranked = np.stack([(ranks(column) - 0.5) / rows for column in columns], 1).astype(np.float32)
    measure = _of_sets if task.outcome == "classes" else _of_classes
    return _verdict(measure(gold, predicted, ranked, random), rows)


def near_chance(judgement: Judgement) -> str | None:
    """Return why a teacher cannot teach; None if it can, or if the rows are too few to tell."""
    if judgement.kind != "chance":
        return None
    turned = " Its predictions contradict the labels, which are probably in the wrong order; write --labels in the right one."
    return (
        f"the teacher is near chance on this data ({judgement}).{turned if judgement.against else ''} Fine-tune it first "
        "with `potstill finetune`, check the labels, or write --force to use it anyway"
    )


def _verdict(measured: Measured, rows: int, metric: str = "Matthews correlation") -> Judgement:
    observed, guesses, decent, ranking = measured
    effect = _effect(observed, guesses, 1.0)
    against = effect <= -LEAST and _share(guesses <= observed) <= UNLIKELY
    knows = effect >= LEAST and _share(guesses >= observed) <= UNLIKELY
    if ranking is not None and not knows and not against:
        knows = _effect(*ranking) >= LEAST_RANKED and _share(ranking[1] >= ranking[0]) <= UNLIKELY
    worse = _share(decent <= observed) <= FAR_WORSE
    return Judgement("knows" if knows else "chance" if worse else "unsure", effect, rows, against, metric)


def _effect(observed: float, guesses: np.ndarray, best: float) -> float:
    """The share of the possible improvement over guesses."""
    guess = float(guesses.mean())
    return (observed - guess) / (best - guess) if guess < best else 0.0


def _share(drawn: np.ndarray) -> float:
    return float((1 + drawn.sum()) / (1 + len(drawn)))


def _shuffles(rows: int, random: np.random.Generator) -> np.ndarray:
    """(DRAWS, rows) random permutations of the rows."""
    return random.permuted(np.tile(np.arange(rows), (DRAWS, 1)), axis=1)


def _decent_rows(rows: int, random: np.random.Generator) -> np.ndarray:
    """(DRAWS, rows) the row whose gold a decent teacher predicts for each row: its own, or a random one."""
    every = (DRAWS, rows)
    return np.where(random.random(every) < DECENT, np.arange(rows), random.integers(0, rows, every))


def _correlation(covariance: np.ndarray, spread: np.ndarray) -> np.ndarray:
    return np.asarray(covariance / np.sqrt(np.where(spread > 0, spread, np.inf)))


def _of_classes(
    gold: np.ndarray, predicted: np.ndarray, ranked: np.ndarray | None, random: np.random.Generator
) -> Measured:
    count, classes = len(gold), int(max(gold.max(), predicted.max())) + 1
    shuffles, decent = _shuffles(count, random), gold[_decent_rows(count, random)]
    true = np.bincount(gold, minlength=classes).astype(float)

    def matthews(predictions: np.ndarray) -> np.ndarray:
        """(draws,) of (draws, rows) predictions."""
        cells = np.arange(len(predictions))[:, None] * classes + predictions
        claimed = np.bincount(cells.ravel(), minlength=len(predictions) * classes).reshape(-1, classes).astype(float)
        spread = (count**2 - true @ true) * (count**2 - (claimed * claimed).sum(1))
        return _correlation((gold == predictions).sum(1) * float(count) - claimed @ true, spread)

    ranking = None
    if ranked is not None:
        place, shares = np.arange(count), true / count
        by_chance = ranked[place, gold[shuffles]].mean(1)
        ranking = float(ranked[place, gold].mean()), by_chance, 1 - float(shares @ shares) / 2
    return float(matthews(predicted[None])[0]), matthews(predicted[shuffles]), matthews(decent), ranking


def _of_sets(gold: np.ndarray, predicted: np.ndarray, ranked: np.ndarray, random: np.random.Generator) -> Measured:
    """Over every yes and no of all rows and labels together, so that a rare label weighs little."""
    place, held = np.arange(len(gold)), gold.T.astype(np.float32)
    sizes, cells = gold.sum(1).astype(float), float(gold.size)
    true, claimed = float(sizes.sum()), float(predicted.sum())
    shuffles, by_decent = _shuffles(len(gold), random), _decent_rows(len(gold), random)

    def matthews(right: np.ndarray, claimed: np.ndarray | float) -> np.ndarray:
        return _correlation(
            right * cells - true * claimed, np.asarray(true * (cells - true) * claimed * (cells - claimed))
        )

    ours, theirs = predicted.astype(np.float32) @ held, gold.astype(np.float32) @ held  # (rows, rows) labels in common
    decent = matthews(theirs[place, by_decent].sum(1), sizes[by_decent].sum(1))
    ranking = None
    if true:
        weights, shares = ranked @ held / true, gold.mean(0)
        best = 1 - float(shares @ shares / shares.sum()) / 2
        ranking = float(weights[place, place].sum()), weights[place, shuffles].sum(1), best
    observed, guesses = (matthews(ours[place, rows].sum(-1), claimed) for rows in (place, shuffles))
    return float(observed), guesses, decent, ranking


def _of_values(gold: np.ndarray, predicted: np.ndarray, random: np.random.Generator) -> Measured:
    shuffles = _shuffles(len(gold), random)

    def pearson(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, np.ndarray]:
        """Pearson's correlation, and that of the same numbers in random order."""
        ours, theirs = _standard(ours), _standard(theirs)
        return float(ours @ theirs), ours[shuffles] @ theirs

    labels = _standard(gold)
    by_decent = _standard(DECENT * labels + math.sqrt(1 - DECENT**2) * labels[shuffles])
    ranking = (*pearson(ranks(gold), ranks(predicted)), 1.0)
    return *pearson(gold, predicted), by_decent @ labels, ranking


def _standard(numbers: np.ndarray) -> np.ndarray:
    """The numbers with mean 0 and length 1 along the last axis; zeros if all are the same."""
    centred = np.asarray(numbers, float) - np.mean(numbers, -1, keepdims=True)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    return np.asarray(centred / np.where(length > 0, length, np.inf))


def _by_share(shares: Sequence[tuple[float, float, str]], rows: int) -> Judgement:
    """Spans and tokens are hardly ever right by chance, so the share that is right decides."""
    right, total = sum(share[0] for share in shares), sum(share[1] for share in shares)
    share = right / max(total, 1.0)
    trials = int(min(total, 1000))
    tail = sum(math.comb(trials, k) * DECENT**k * (1 - DECENT) ** (trials - k) for k in range(int(share * trials) + 1))
    kind: Kind = "knows" if share >= LEAST else "chance" if tail <= FAR_WORSE else "unsure"
    return Judgement(kind, share, rows, metric=shares[0][2])
