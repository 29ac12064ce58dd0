"""What is predicted of a whole text: one class, any number of them, or a value. Every other task begins from this one."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from potstill.data.examples import Examples
from potstill.data.label_names import match_spellings
from potstill.data.row import Form, Label
from potstill.data.tokens import Encoded, Tokens, with_mask_token
from potstill.errors import InputError
from potstill.signals import Outcome
from potstill.tasks.metrics import labels as metrics
from potstill.tasks.metrics.labels import Score, by_class, of_class, softmax
from potstill.tasks.truncation import both_cut, encoded

TaskName = Literal["classify", "multilabel", "regress", "tag", "answer", "choose", "translate", "write"]
Problem = Literal["single_label_classification", "multi_label_classification", "regression"]
PROBLEMS: dict[Outcome, Problem] = {
    "class": "single_label_classification",
    "classes": "multi_label_classification",
    "value": "regression",
}
NAMES: dict[Outcome, TaskName] = {"class": "classify", "classes": "multilabel", "value": "regress"}
F1_OF = "f1 of "  # before the name of a class, in the name of its metric
LOOKS_LIKE_A_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?$")


class Rows(Protocol):
    """Texts with their targets, if there are any."""

    def text(self, row: int) -> tuple[str, str | None]: ...

    def gold(self, row: int) -> np.ndarray | None: ...


@dataclass(frozen=True)
class Task:
    """One data set's question: what a row of logits means, which label is which class, how answers are scored.

    An *answer* is what a model says of one row, as an array: here the logits, (classes,). `targets` and `answers` below
    are those of several rows, the rows first; subclasses say what theirs look like.
    """

    outcome: Outcome
    labels: tuple[str, ...]  # class names in the order of the logits; one name for a value
    numbers: dict[str, int] = field(default_factory=dict, compare=False)  # label as written -> class

    positive: int = 1  # of two classes, the one whose F1 is shown

    form: ClassVar[Form] = "text"  # of the rows it reads
    head: ClassVar[str] = "SequenceClassification"  # of the model that answers, as transformers calls it
    chance: ClassVar[str] = "Matthews correlation"  # by which a teacher is told from chance

    @property
    def name(self) -> TaskName:
        return NAMES[self.outcome]

    @property
    def problem(self) -> Problem | None:
        """Hugging Face's `problem_type`."""
        return PROBLEMS.get(self.outcome)

    @property
    def classes(self) -> int:
        return len(self.labels)

    @property
    def names_outputs(self) -> bool:
        """Whether the labels are the names of the head's outputs."""
        return True

    @property
    def generates(self) -> bool:
        """Whether texts are written: then the classes of a prediction are the vocabulary, too many to be remembered."""
        return False

    @property
    def decodes(self) -> bool:
        """Whether what a model writes by itself is scored too."""
        return False

    # from rows to batches

    @property
    def target_width(self) -> int:
        """Numbers that `encode` gives; 0: as many as the row has."""
        return self.classes if self.outcome == "classes" else 1

    def encode(self, label: Label, where: str) -> list[float]:
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
            return [float(self.number(label, where))]
        target = [0.0] * self.classes
        for one in label if isinstance(label, tuple) else (label,):
            target[self.number(one, where)] = 1.0
        return target

    def number(self, label: Any, where: str) -> int:
        try:
            return self.numbers[str(label)]
        except KeyError:
            known = ", ".join(self.labels[:20])
            raise InputError(
                f"{where}: unknown label '{label}'; write one of {known}, or give all names with --labels"
            ) from None

    def knowing(self, labels: Iterable[Label]) -> Self:
        """The same task for a file with these labels, which may be spelt otherwise than those of train."""
        each = {str(one) for label in labels for one in (label if isinstance(label, tuple) else (label,))}
        return replace(self, numbers=self.numbers | match_spellings(each, self.numbers))

    def split(
        self, texts: Sequence[tuple[str, str | None]], tokenizer: PreTrainedTokenizerBase, length: int
    ) -> Encoded:
        """Rows as sequences of at most `length` tokens."""
        firsts, seconds = zip(*texts, strict=True)
        pairs = None if seconds[0] is None else with_mask_token(seconds, tokenizer)
        made = encoded(tokenizer, *both_cut(tokenizer, with_mask_token(firsts, tokenizer), pairs, length), length)
        shortened = sum(bool(one.overflowing) for one in made.encodings or ())
        return Encoded(made["input_ids"], made["token_type_ids"], shortened)

    def aligned(self, student: Tokens, teacher: Tokens) -> tuple[Tokens, Tokens]:
        """Two readings of the same rows, changed where needed so that both make the same predictions."""
        return student, teacher

    def predictions(self, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """(n,) how many each row gives."""
        return np.ones(len(rows), np.int64)

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """`at` and `layout` of a view of these rows; the view's own rows are their sequences, in order."""
        sequences = int(tokens.counts(rows).sum())
        return np.stack([np.arange(sequences), np.zeros(sequences, np.int64)], 1), None

    def inputs(self, made: dict[str, Tensor], real: Tensor, tokens: Tokens) -> dict[str, Tensor]:
        """Arguments of forward, out of (sequences, tokens) ids, mask, segments, and pixels where there are any."""
        return {name: made[name] for name in tokens.names}

    def targets(self, examples: Examples, tokens: Tokens, rows: np.ndarray) -> np.ndarray:
        """(predictions,) or (predictions, classes); anything where there is no label."""
        return np.asarray(examples.targets[rows])

    def never(self, tokens: Tokens) -> tuple[int, ...]:
        """Classes that can never be chosen, whatever a network says."""
        return ()

    # from logits to answers

    def read(self, logits: np.ndarray, tokens: Tokens, rows: np.ndarray, source: Rows) -> list[np.ndarray]:
        """(predictions, classes) of these rows -> an answer for each."""
        return list(logits)

    def golds(self, examples: Examples) -> np.ndarray:
        """The targets of all examples as `score` takes them, NaN for those without a label."""
        targets = np.array(examples.targets[examples.index], np.float32)
        targets[~np.asarray(examples.labelled[examples.index])] = np.nan
        return targets

    def decode(self, answers: np.ndarray) -> np.ndarray:
        """(n, classes) logits -> (n,) classes, (n, classes) 0/1, or (n,) values."""
        if self.outcome == "class":
            return answers.argmax(-1)
        return (answers > 0).astype(np.int64) if self.outcome == "classes" else answers[:, 0]

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """(n, classes) -> probabilities; values stay as they are."""
        if self.outcome == "class":
            return softmax(logits)
        return 1.0 / (1.0 + np.exp(-logits)) if self.outcome == "classes" else logits

    def picture(self, text: str) -> str | None:
        """What a page shows instead of the text; None where it is a text."""
        return None

    def told(self, answer: np.ndarray, text: str, pair: str | None) -> dict[str, Any]:
        """One answer in words: {"label", "probability", "probabilities"}, {"labels", "probabilities"} or {"value"}."""
        probabilities = self.probabilities(answer[None])[0]
        if self.outcome == "value":
            return {"value": float(probabilities[0])}
        named = {label: round(float(p), 6) for label, p in zip(self.labels, probabilities, strict=True)}
        if self.outcome == "classes":
            held = [label for label, logit in zip(self.labels, answer, strict=True) if logit > 0]
            return {"labels": held, "probabilities": named}
        best = int(answer.argmax())
        return {"label": self.labels[best], "probability": named[self.labels[best]], "probabilities": named}

    def in_words(self, answer: np.ndarray, text: str, pair: str | None) -> tuple[str, float | None]:
        """An answer and its probability, for a table."""
        said = self.told(answer, text, pair)
        if self.outcome == "class":
            return said["label"], said["probability"]
        return f"{said['value']:.2f}" if self.outcome == "value" else ", ".join(said["labels"]) or "none", None

    def gold_in_words(self, gold: np.ndarray, text: str, pair: str | None) -> str:
        if self.outcome == "value":
            return f"{float(gold):.2f}"
        if self.outcome == "class":
            return self.labels[int(gold)]
        return ", ".join(label for label, held in zip(self.labels, gold, strict=True) if held) or "none"

    # scoring

    @property
    def metrics(self) -> list[str]:
        """Names of what `score` gives, in its order."""
        two = np.zeros((2, self.classes))
        return list(self.score(two if self.outcome == "classes" else two[:, 0], two))

    def score(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, float]:
        """Every metric of the task, as fractions, over labelled rows; the first is the one that dev is chosen by."""
        said = self.decode(answers)
        if self.outcome == "value":
            both = {"pearson": metrics.pearson(targets, said), "spearman": metrics.spearman(targets, said)}
            errors = {"rmse": metrics.rmse(targets, said), "rmse_constant": float(np.std(targets, dtype=np.float64))}
            return {**both, "mean_of_both": (both["pearson"] + both["spearman"]) / 2, **errors}
        if self.outcome == "classes":
            kinds = {f"f1_{average}": metrics.f1(targets.astype(int), said, average) for average in ("micro", "macro")}
            return {**kinds, "exact": metrics.accuracy(targets.astype(int), said)}
        targets = targets.astype(int)
        scores = {"accuracy": metrics.accuracy(targets, said)}
        if self.classes == 2:
            scores[f"{F1_OF}{self.labels[self.positive]}"] = self.f1_of(self.positive, targets, said)
        else:
            scores["f1_macro"] = metrics.f1(targets, said, "macro")
            scores["f1_micro"] = metrics.f1(targets, said, "micro")
        return {**scores, "matthews": metrics.matthews(targets, said)}

    def f1_of(self, number: int, targets: np.ndarray, said: np.ndarray) -> float:
        """Of one class against all others."""
        return metrics.f1((targets == number).astype(int), (said == number).astype(int), "binary")

    def scorer(self, metric: str, targets: np.ndarray, answers: np.ndarray) -> Score:
        """One metric as a function of the rows it is taken over: what intervals and paired tests draw again and again."""
        if self.is_share(metric):
            right = self.right(targets, answers)
            return lambda rows: float(right[rows].mean())
        if metric.startswith(F1_OF) and (label := metric.removeprefix(F1_OF)) in self.labels:
            number, said = self.labels.index(label), self.decode(answers)
            return lambda rows: self.f1_of(number, targets[rows], said[rows])
        return lambda rows: self.score(targets[rows], answers[rows])[metric]

    def is_share(self, metric: str) -> bool:
        """Whether the metric is the share of rows that are right."""
        return metric in ("accuracy", "exact")

    def right(self, targets: np.ndarray, answers: np.ndarray) -> np.ndarray:
        """(n,) bool: rows whose answer is right, in all classes where there are several. Not for values."""
        same = self.decode(answers) == targets.astype(int)
        return same if same.ndim == 1 else same.all(1)

    def calibration_error(self, targets: np.ndarray, answers: np.ndarray) -> float | None:
        """Of the answers' probabilities; of every yes and no where any number of classes may hold; None for values."""
        if self.outcome == "value":
            return None
        probabilities = self.probabilities(answers)
        if self.outcome == "class":
            return metrics.calibration_error(probabilities.max(-1), self.right(targets, answers))
        said = np.maximum(probabilities, 1 - probabilities).ravel()
        return metrics.calibration_error(said, (self.decode(answers) == targets.astype(int)).ravel())

    def agreement(self, ours: np.ndarray, theirs: np.ndarray) -> float | None:
        """Share of like answers; for values, Pearson's correlation."""
        if self.outcome == "value":
            return metrics.pearson(theirs[:, 0], ours[:, 0])
        same = self.decode(ours) == self.decode(theirs)
        return float(same.mean() if same.ndim == 1 else same.all(1).mean())

    def dissent(self, ours: np.ndarray, theirs: np.ndarray) -> np.ndarray:
        """(n,) how much two models differ on each row, weighed by how sure `theirs` are; 0 or less where they agree."""
        if self.outcome == "value":
            return np.abs(theirs[:, 0] - ours[:, 0])
        same = self.decode(theirs) == self.decode(ours)
        surest = self.probabilities(theirs)
        surest = surest.max(-1) if self.outcome == "class" else np.abs(surest - 0.5).max(-1)
        return np.where(same if same.ndim == 1 else same.all(1), -1.0, surest)

    def details(self, targets: np.ndarray, answers: np.ndarray) -> dict[str, Any]:
        """For classes each one's quality, the confusion matrix (gold, answer) and the mean probabilities (gold, class)."""
        if self.outcome == "class":
            return by_class(self.labels, targets.astype(int), self.decode(answers), self.probabilities(answers))
        if self.outcome == "value":
            return {}
        gold, held = targets.astype(bool), self.decode(answers).astype(bool)
        counts = ((gold & held).sum(0), gold.sum(0), held.sum(0))
        return {"per_class": {label: of_class(*each) for label, *each in zip(self.labels, *counts, strict=True)}}
