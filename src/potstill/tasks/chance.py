"""Whether a teacher knows the task: its answers are compared with blind guesses, and with those of a decent teacher.

It knows the task if it agrees with the labels better than the same answers dealt out to the rows at random, or if its
probabilities rank the rows so. If it does not, and is worse than a decent teacher would be on these very rows, it is
refused. Where the rows are too few for either, they say nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from potstill.tasks.answer import F1, Answering
from potstill.tasks.generate import Generating
from potstill.tasks.tag import ABSENT, Tagging
from potstill.tasks.task import Task

DRAWS = 999
UNLIKELY = 0.025  # a share of the draws
FAR_WORSE = 0.005  # the same, for being worse than a decent teacher: a good one must not be refused
MOST_WORDS = 5000
LEAST = (
    0.1  # of all that a teacher can be better than chance; of many rows less than that can be seen, but not learnt from
)
LEAST_RANKED = 0.3  # the same of its ranks: weights that nobody trained reach 0.1 and 0.2 there
DECENT = 0.5  # share of the rows that a decent teacher knows; it guesses the others

Asked = Sequence[tuple[np.ndarray, np.ndarray]]  # targets and answers of some rows, as `Task.score` takes them


@dataclass(frozen=True)
class Judgement:
    kind: Literal["knows", "chance", "unsure"]
    correlation: float  # 0 at chance, 1 at best
    rows: int
    against: bool = False  # its answers run against the labels
    called: str = "Matthews correlation"

    def __str__(self) -> str:
        return f"{self.called} {self.correlation:.2f} over {self.rows} {'row' if self.rows == 1 else 'rows'}"


def judge(task: Task, asked: Asked) -> Judgement:
    if isinstance(task, Answering | Generating):
        return _by_share(task, asked)
    random = np.random.default_rng(0)
    rows = sum(len(targets) for targets, _ in asked)
    gold, said = (np.concatenate(parts) for parts in zip(*(_beside(task, *one) for one in asked), strict=True))
    if isinstance(task, Tagging):
        words = random.permutation(len(gold))[:MOST_WORDS]
        return _of_classes(gold[words], said[words], None, rows, random)
    if task.outcome == "value":
        return _of_values(gold, said, rows, random)
    ranked = _ranked(np.concatenate([task.probabilities(answers) for _, answers in asked]))
    return (_of_sets if task.outcome == "classes" else _of_classes)(gold, said, ranked, rows, random)


def near_chance(told: Judgement) -> str | None:
    """Why a teacher cannot teach, or None where it knows the task or nothing can be told."""
    if told.kind != "chance":
        return None
    turned = (
        " Its answers run against the labels: they are probably in the wrong order; give the right one with --labels."
        if told.against
        else ""
    )
    return (
        f"the teacher is near chance on this data ({told}).{turned} Fine-tune it first with `potstill finetune`, "
        "check the labels, or write --force to use it all the same"
    )


def _beside(task: Task, targets: np.ndarray, answers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Gold and answer, of words where words are tagged."""
    if isinstance(task, Tagging):
        there = targets != ABSENT
        return targets[there].astype(int), task.decode(task.fitted(targets, answers)[there])
    return targets if task.outcome == "value" else targets.astype(int), task.decode(answers)


def _verdict(
    observed: float,
    of_guesses: np.ndarray,
    of_decent: np.ndarray,
    ranks: tuple[float, np.ndarray, float] | None,
    rows: int,
    called: str,
) -> Judgement:
    """`ranks`: how well the rows are ranked, how well by chance, and the best that can be."""
    guess = float(of_guesses.mean())
    effect = (observed - guess) / (1 - guess) if guess < 1 else 0.0
    against = effect <= -LEAST and _share(of_guesses <= observed) <= UNLIKELY
    knows = effect >= LEAST and _share(of_guesses >= observed) <= UNLIKELY
    if ranks is not None and not knows and not against:
        ranked, by_chance, best = ranks
        room = best - float(by_chance.mean())
        good = room > 0 and (ranked - float(by_chance.mean())) / room >= LEAST_RANKED
        knows = good and _share(by_chance >= ranked) <= UNLIKELY
    worse = _share(of_decent <= observed) <= FAR_WORSE
    return Judgement("knows" if knows else "chance" if worse else "unsure", effect, rows, against, called)


def _share(drawn: np.ndarray) -> float:
    return float((1 + drawn.sum()) / (1 + len(drawn)))


def _shuffles(rows: int, random: np.random.Generator) -> np.ndarray:
    """(DRAWS, rows) the rows in any order."""
    return random.permuted(np.tile(np.arange(rows), (DRAWS, 1)), axis=1)


def _known_in_part(rows: int, random: np.random.Generator) -> np.ndarray:
    """(DRAWS, rows) which row's gold a decent teacher says of each: its own, or any."""
    every = (DRAWS, rows)
    return np.where(random.random(every) < DECENT, np.arange(rows), random.integers(0, rows, every))


def _of_classes(
    gold: np.ndarray, said: np.ndarray, ranked: np.ndarray | None, rows: int, random: np.random.Generator
) -> Judgement:
    count, classes = len(gold), int(max(gold.max(), said.max())) + 1
    shuffles, known = _shuffles(count, random), gold[_known_in_part(count, random)]
    true = np.bincount(gold, minlength=classes).astype(float)

    def matthews(right: np.ndarray, claimed: np.ndarray) -> np.ndarray:
        """(draws,) of the rows that are right and (draws, classes) of those that each class is said of."""
        spread = (count**2 - true @ true) * (count**2 - (claimed * claimed).sum(1))
        return (right * float(count) - claimed @ true) / np.sqrt(np.where(spread > 0, spread, np.inf))

    ours = np.bincount(said, minlength=classes)[None].astype(float)
    guesses = matthews((gold == said[shuffles]).sum(1), ours)
    cells = (np.arange(DRAWS)[:, None] * classes + known).ravel()
    theirs = np.bincount(cells, minlength=DRAWS * classes).reshape(DRAWS, classes).astype(float)
    decent = matthews((gold == known).sum(1), theirs)
    ranks = None
    if ranked is not None:
        place, shares = np.arange(count), true / count
        by_chance = ranked[place, gold[shuffles]].mean(1)
        ranks = float(ranked[place, gold].mean()), by_chance, 1 - float(shares @ shares) / 2
    observed = float(matthews(np.array([(gold == said).sum()]), ours)[0])
    return _verdict(observed, guesses, decent, ranks, rows, "Matthews correlation")


def _of_sets(
    gold: np.ndarray, said: np.ndarray, ranked: np.ndarray, rows: int, random: np.random.Generator
) -> Judgement:
    """Every yes and no of all rows and labels together: a label that is rare weighs as little as it is seen."""
    place, held = np.arange(rows), gold.T.astype(np.float32)
    sizes, cells = gold.sum(1).astype(float), float(gold.size)
    true = float(sizes.sum())
    shuffles, known = _shuffles(rows, random), _known_in_part(rows, random)

    def matthews(right: np.ndarray, claimed: np.ndarray | float) -> np.ndarray:
        spread = true * (cells - true) * claimed * (cells - claimed)
        return (right * cells - true * claimed) / np.sqrt(np.where(spread > 0, spread, np.inf))

    ours, theirs = said.astype(np.float32) @ held, gold.astype(np.float32) @ held  # (rows, rows) labels in common
    guesses = matthews(ours[place, shuffles].sum(1), float(said.sum()))
    decent = matthews(theirs[place, known].sum(1), sizes[known].sum(1))
    ranks = None
    if true:
        weights, shares = ranked @ held / true, gold.mean(0)
        best = 1 - float(shares @ shares / shares.sum()) / 2
        ranks = float(weights[place, place].sum()), weights[place, shuffles].sum(1), best
    observed = float(matthews(np.array(ours[place, place].sum()), float(said.sum())))
    return _verdict(observed, guesses, decent, ranks, rows, "Matthews correlation")


def _of_values(gold: np.ndarray, said: np.ndarray, rows: int, random: np.random.Generator) -> Judgement:
    shuffles = _shuffles(rows, random)

    def of_pairs(ours: np.ndarray, theirs: np.ndarray) -> tuple[float, np.ndarray]:
        """Pearson's correlation, and that of the same numbers in any order."""
        ours, theirs = (_standard(one) for one in (ours, theirs))
        return float(ours @ theirs), ours[shuffles] @ theirs

    known = _standard(DECENT * _standard(gold) + math.sqrt(1 - DECENT**2) * _standard(gold)[shuffles])
    observed, guesses = of_pairs(gold, said)
    both = [_ranked(one[:, None])[:, 0] for one in (gold, said)]
    ranks = (*of_pairs(*both), 1.0)
    return _verdict(observed, guesses, known @ _standard(gold), ranks, rows, "Pearson correlation")


def _standard(numbers: np.ndarray) -> np.ndarray:
    """Of mean 0 and length 1 along the last axis; zeros where all are the same."""
    centred = np.asarray(numbers, float) - np.mean(numbers, -1, keepdims=True)
    length = np.linalg.norm(centred, axis=-1, keepdims=True)
    return np.asarray(centred / np.where(length > 0, length, np.inf))


def _ranked(columns: np.ndarray) -> np.ndarray:
    """(n, classes) numbers -> where each stands in its column, from 0 to 1; equal ones share their place."""
    found = np.empty(columns.shape, np.float32)
    for number, column in enumerate(columns.T):
        _, place, counts = np.unique(column, return_inverse=True, return_counts=True)
        found[:, number] = ((np.cumsum(counts) - counts / 2)[place.ravel()]) / len(column)
    return found


def _by_share(task: Task, asked: Asked) -> Judgement:
    """Of answers in a context and of texts nothing is right by chance: the share that is right tells."""
    rows = sum(len(targets) for targets, _ in asked)
    if isinstance(task, Generating):
        right = sum(float(answers[:, 1, 0].sum()) for _, answers in asked)
        total = sum(float(answers[:, 0, 1].sum()) for _, answers in asked)
    else:
        right, total = sum(float(answers[:, 0, F1].sum()) for _, answers in asked), float(rows)
    share = right / max(total, 1.0)
    trials = int(min(total, 1000))
    tail = sum(math.comb(trials, k) * DECENT**k * (1 - DECENT) ** (trials - k) for k in range(int(share * trials) + 1))
    kind: Literal["knows", "chance", "unsure"] = (
        "knows" if share >= LEAST else "chance" if tail <= FAR_WORSE else "unsure"
    )
    return Judgement(kind, share, rows, called=task.chance)
