"""What is predicted: label names and numbers, how logits are read, how answers are scored."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from potstill import metrics
from potstill.errors import InputError
from potstill.signals import Outcome
from potstill.significance import Score

TaskName = Literal["classify", "multilabel", "regress"]
OUTCOMES: dict[str, Outcome] = {"classify": "class", "multilabel": "classes", "regress": "value"}
Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
PROBLEMS: dict[Outcome, Problem] = {
    "class": "single_label_classification",
    "classes": "multi_label_classification",
    "value": "regression",
}
LOOKS_LIKE_A_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")


@dataclass(frozen=True)
class Task:
    """One data set's question: what a row of logits means and which label is which class."""

    outcome: Outcome
    labels: tuple[str, ...]  # class names in the order of the logits; one name for a value
    numbers: dict[str, int] = field(default_factory=dict, compare=False)  # label as written, lower case -> class

    @property
    def problem(self) -> Problem:
        """Hugging Face's `problem_type`."""
        return PROBLEMS[self.outcome]

    @property
    def classes(self) -> int:
        return len(self.labels)

    def encode(self, label: str | tuple[str, ...], where: str) -> list[float]:
        """The target of one row: [class], [value], or a 0/1 per class. `where` is file:line for the message."""
        if self.outcome == "value":
            if isinstance(label, tuple) or not LOOKS_LIKE_A_NUMBER.match(label) or not math.isfinite(float(label)):
                raise InputError(
                    f"{where}: '{label}' is not a number; write a value such as 3.5, or leave the cell empty"
                )
            return [float(label)]
        if self.outcome == "class":
            if isinstance(label, tuple):
                raise InputError(f"{where}: several labels {list(label)} in one row; write one, or task = 'multilabel'")
            return [float(self._number(label, where))]
        target = [0.0] * self.classes
        for one in label if isinstance(label, tuple) else (label,):
            target[self._number(one, where)] = 1.0
        return target

    def _number(self, label: str, where: str) -> int:
        try:
            return self.numbers[as_written(label).lower()]
        except KeyError:
            known = ", ".join(self.labels[:20])
            raise InputError(
                f"{where}: unknown label '{label}'; write one of {known}, or give all names with --labels"
            ) from None

    def decode(self, logits: np.ndarray) -> np.ndarray:
        """(n, classes) logits -> (n,) classes, (n, classes) 0/1, or (n,) values."""
        if self.outcome == "class":
            return logits.argmax(-1)
        return (logits > 0).astype(np.int64) if self.outcome == "classes" else logits[:, 0]

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """(n, classes) -> probabilities; values stay as they are."""
        if self.outcome == "class":
            shifted = np.exp(logits - logits.max(-1, keepdims=True))
            return shifted / shifted.sum(-1, keepdims=True)
        return 1.0 / (1.0 + np.exp(-logits)) if self.outcome == "classes" else logits

    def score(self, targets: np.ndarray, logits: np.ndarray) -> dict[str, float]:
        """Every metric of the task, as fractions, over labelled rows; the first is the one that dev is chosen by."""
        answers = self.decode(logits)
        if self.outcome == "value":
            both = {"pearson": metrics.pearson(targets, answers), "spearman": metrics.spearman(targets, answers)}
            return {**both, "mean_of_both": (both["pearson"] + both["spearman"]) / 2}
        if self.outcome == "classes":
            kinds = {
                f"f1_{average}": metrics.f1(targets.astype(int), answers, average) for average in ("micro", "macro")
            }
            return {**kinds, "exact": metrics.accuracy(targets.astype(int), answers)}
        targets = targets.astype(int)
        scores = {"accuracy": metrics.accuracy(targets, answers)}
        if self.classes == 2:
            scores["f1"] = metrics.f1(targets, answers, "binary")
        else:
            scores["f1_macro"] = metrics.f1(targets, answers, "macro")
            scores["f1_micro"] = metrics.f1(targets, answers, "micro")
        return {**scores, "matthews": metrics.matthews(targets, answers)}

    def scorer(self, metric: str, targets: np.ndarray, logits: np.ndarray) -> Score:
        """One metric as a function of the rows it is taken over: what intervals and paired tests draw again and again."""
        if metric in ("accuracy", "exact"):
            right = self.right(targets, logits)
            return lambda rows: float(right[rows].mean())
        return lambda rows: self.score(targets[rows], logits[rows])[metric]

    def right(self, targets: np.ndarray, logits: np.ndarray) -> np.ndarray:
        """(n,) bool: rows whose answer is right, in all classes where there are several. Not for values."""
        same = self.decode(logits) == targets.astype(int)
        return same if same.ndim == 1 else same.all(1)

    def calibration_error(self, targets: np.ndarray, logits: np.ndarray) -> float:
        """Of the answers' probabilities; of every yes and no where any number of classes may hold. Not for values."""
        probabilities = self.probabilities(logits)
        if self.outcome == "class":
            return metrics.calibration_error(probabilities.max(-1), self.right(targets, logits))
        said = np.maximum(probabilities, 1 - probabilities).ravel()
        return metrics.calibration_error(said, (self.decode(logits) == targets.astype(int)).ravel())

    @property
    def metrics(self) -> list[str]:
        """Names of what `score` gives, in its order."""
        two = np.zeros((2, self.classes))
        return list(self.score(two if self.outcome == "classes" else two[:, 0], two))

    def correlation(self, targets: np.ndarray, logits: np.ndarray) -> float:
        """A number that is 0 at chance, whatever the balance of the labels: Matthews, or Pearson for values."""
        answers = self.decode(logits)
        if self.outcome == "value":
            return metrics.pearson(targets, answers)
        if self.outcome == "class":
            return metrics.matthews(targets.astype(int), answers)
        columns = [
            metrics.matthews(targets[:, c].astype(int), answers[:, c])
            for c in range(self.classes)
            if targets[:, c].any()
        ]
        return float(np.mean(columns)) if columns else 0.0


def as_written(label: str) -> str:
    """1.0 is 1: so whole numbers are written by those who keep missing ones beside them."""
    return str(int(float(label))) if LOOKS_LIKE_A_NUMBER.match(label) and float(label).is_integer() else label


def is_placeholder(names: Sequence[str]) -> bool:
    """True for the LABEL_0, LABEL_1 … that Hugging Face writes where nobody gave names."""
    return all(name == f"LABEL_{number}" for number, name in enumerate(names))


def make_task(
    name: TaskName | None,
    model_config: Any | None,
    found: Iterable[str | tuple[str, ...]],
    labels: Sequence[str] | None,
    source: str,
) -> tuple[Task, str]:
    """The task, and one sentence that says how labels were matched to classes.

    Where a model has a head (`model_config`), its `id2label` rules: names match by name, integers by index. Where none
    has (fine-tuning), the labels found in the training rows are the classes. `labels` overrides both.
    """
    found = list(found)
    outcome = OUTCOMES[name] if name else _outcome(model_config, found)
    if outcome == "value":
        return Task("value", ("value",)), "numbers are predicted"
    each = {one for label in found for one in (label if isinstance(label, tuple) else (label,))}
    seen = sorted({as_written(label) for label in each}, key=_numerically)
    if model_config is not None:
        given = tuple(str(model_config.id2label[i]) for i in range(model_config.num_labels))
        names = _checked(labels, given) if labels else given
    else:
        names = tuple(labels) if labels else tuple(seen)
        if len(names) < 2:
            raise InputError(
                f"{source}: the labels are {list(names)}; at least two different ones are needed to learn from"
            )
    numbers = {label.lower(): number for number, label in enumerate(names)}
    by_index = [label for label in seen if label.lower() not in numbers]
    if by_index and all(label.isdigit() and int(label) < len(names) for label in seen):
        numbers |= {str(number): number for number in range(len(names))}
        shown = ", ".join(f"{number} = {label}" for number, label in enumerate(names))
        return Task(outcome, names, numbers), f"labels matched by number: {shown}"
    if by_index and is_placeholder(names):
        raise InputError(
            f"{source}: the labels {by_index[:5]} are names, but the teacher's classes have none; write them in the order of its "
            f"outputs, as in --labels {','.join(seen[: len(names)])}"
        )
    return Task(outcome, names, numbers), f"labels matched by name: {', '.join(names[:12])}"


def _checked(labels: Sequence[str], given: tuple[str, ...]) -> tuple[str, ...]:
    if len(labels) != len(given):
        raise InputError(
            f"--labels names {len(labels)} classes, but the teacher has {len(given)}: {', '.join(given)}; write one name for each, in that order"
        )
    theirs = {name.lower() for name in given}
    if {name.lower() for name in labels} == theirs and tuple(name.lower() for name in labels) != tuple(
        name.lower() for name in given
    ):
        raise InputError(
            f"--labels has the teacher's names in another order; its order is {','.join(given)}: write that, or leave --labels away"
        )
    return tuple(labels)


def _outcome(model_config: Any | None, found: Sequence[str | tuple[str, ...]]) -> Outcome:
    if model_config is not None:
        for outcome, problem in PROBLEMS.items():
            if model_config.problem_type == problem:
                return outcome
        return "value" if model_config.num_labels == 1 else "class"
    if any(isinstance(label, tuple) for label in found):
        return "classes"
    numbers = [label for label in found if isinstance(label, str) and LOOKS_LIKE_A_NUMBER.match(label)]
    whole = all(float(label).is_integer() for label in numbers)
    # 3.8 is a value and 3 a class; whole numbers of many kinds are counts or ratings, which are values too
    return "value" if len(numbers) == len(found) and found and (not whole or len(found) > 30) else "class"


def _numerically(label: str) -> tuple[int, float, str]:
    return (0, float(label), label) if LOOKS_LIKE_A_NUMBER.match(label) else (1, 0.0, label)


def near_chance(task: Task, targets: np.ndarray, logits: np.ndarray) -> str | None:
    """Why a teacher with these answers cannot teach, or None where it beats chance."""
    correlation = task.correlation(targets, logits)
    bound = max(0.1, 2.0 / math.sqrt(max(len(targets), 1)))
    if correlation >= bound:
        return None
    kind = "Pearson" if task.outcome == "value" else "Matthews"
    turned = (
        " Its answers run against the labels: they are probably in the wrong order; give the right one with --labels."
        if correlation <= -bound
        else ""
    )
    return (
        f"the teacher is near chance on this data ({kind} correlation {correlation:.2f} over {len(targets)} rows; at least {bound:.2f} is asked)."
        f"{turned} Fine-tune it first with `potstill finetune`, check the labels, or write --force to use it all the same"
    )
