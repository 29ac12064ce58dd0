"""One data set of a recipe, ready for training: its task, its splits and its teacher."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from potstill.data.batches import TokenisedSet
from potstill.data.examples import Examples
from potstill.data.row import split_parts
from potstill.data.tokens import tokenise, tokenizer_fingerprint
from potstill.errors import InputError
from potstill.inference.answers import Ask, answers, model_answers
from potstill.measuring.measurements import LOWER_IS_BETTER
from potstill.models.student import Student
from potstill.recipe.schema import Recipe
from potstill.signals import Wants
from potstill.tasks.classify import F1_OF
from potstill.tasks.generate import BY_BEAM
from potstill.tasks.task import Task
from potstill.training.teacher.teacher import Teacher


@dataclass(frozen=True)
class DataSet:
    name: str
    task: Task
    train: Examples
    dev: Examples
    tests: dict[str, Examples]
    teacher: Teacher
    loaded_teacher: Student | None  # None: the teacher is a file of answers, or there is none
    class_weights: Tensor | None
    length: int  # tokens of a text that are read at most
    # split -> (rows of its folder,) bool: the rows that a file of answers covers
    answered: dict[str, np.ndarray] = field(default_factory=dict)
    leaks: list[dict[str, Any]] = field(default_factory=list)  # texts that occur in two splits

    @property
    def has_teacher(self) -> bool:
        return self.loaded_teacher is not None or "train" in self.answered

    @property
    def predicting_teacher(self) -> Student | None:
        """The teacher, unless it is an encoder without a head for this task, which gives its states alone."""
        return None if self.loaded_teacher is None or self.loaded_teacher.new_head else self.loaded_teacher

    @property
    def evaluation_splits(self) -> dict[str, Examples]:
        return {"dev": self.dev, **self.tests}

    @property
    def has_pairs(self) -> bool:
        return bool(self.train.meta["pairs"])

    def tokenised(self, examples: Examples, tokenizer: PreTrainedTokenizerBase, split: str) -> TokenisedSet[Task]:
        """Tokenise the examples for a student with this tokenizer and for the teacher."""
        for_student = for_teacher = tokenise(self.task, examples, tokenizer, self.length)
        if self.loaded_teacher is not None:
            teachers = self.loaded_teacher.tokenizer
            if tokenizer_fingerprint(teachers) != tokenizer_fingerprint(tokenizer):
                for_teacher = tokenise(self.task, examples, teachers, self.length)
        answered = self.answered.get(split)
        if answered is not None and split == "train" and examples.folder != self.train.folder:
            answered = np.isin(
                examples.keys, self.train.keys[answered]
            )  # a data maker wrote its rows to another folder
        return TokenisedSet(self.task, examples, for_student, for_teacher, answered, self.class_weights)

    def for_scoring(self, examples: Examples, tokenizer: PreTrainedTokenizerBase) -> TokenisedSet[Task]:
        """Tokenise the examples for one model only."""
        tokens = tokenise(self.task, examples, tokenizer, self.length)
        return TokenisedSet(self.task, examples, tokens, tokens)


def texts_of(splits: Iterable[Examples]) -> Iterator[str]:
    """Every text and pair of these splits."""
    for examples in splits:
        for text, pair in examples.texts():
            for part in (text,) if pair is None else (text, *split_parts(pair)):
                yield " ".join(split_parts(part))


def teacher_predictions(data: DataSet, source: TokenisedSet[Task]) -> np.ndarray:
    """(n, …) predictions of the teacher, from its memory; one that predicts tokens is asked again."""
    if data.task.vocabulary:
        assert data.loaded_teacher is not None
        return model_answers(data.loaded_teacher, source, beam=True)
    return answers(teacher_logits(data, source), source)


def teacher_logits(data: DataSet, source: TokenisedSet[Task]) -> Ask:
    """Return a function from batches to the teacher's logits, in memory; where memory cannot hold them, it is asked live."""
    wants = Wants(logits=True)
    data.teacher.remember(source, wants)
    live = source.needs_live_teacher(wants)
    return lambda batch: data.teacher.signals(batch, wants, live).logits.cpu().numpy()


def selection_metric(recipe: Recipe, data: DataSet) -> str:
    """The metric that chooses among epochs and grid cells on dev: the recipe's, or the first one of the task."""
    metrics = data.task.metrics
    if recipe.metric == "f1" and (of_class := [name for name in metrics if name.startswith(F1_OF)]):
        return of_class[0]
    if recipe.metric and recipe.metric not in metrics:
        raise InputError(f"metric '{recipe.metric}' does not exist for this task; write one of {', '.join(metrics)}")
    if recipe.metric in BY_BEAM:
        problem = "needs beam search, but dev is decoded without it after every epoch"
        raise InputError(f"metric '{recipe.metric}' {problem}; write metric = 'bleu'")
    if recipe.metric in LOWER_IS_BETTER:
        instead = "'likelihood', which is 1 / perplexity" if "likelihood" in metrics else f"'{metrics[0]}'"
        problem = "is better when lower, but the highest score on dev is chosen"
        raise InputError(f"metric '{recipe.metric}' {problem}; write metric = {instead}")
    return recipe.metric or metrics[0]
