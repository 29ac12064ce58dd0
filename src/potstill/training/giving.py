"""What a student and a teacher cannot give of what a method asks for, and what to write instead: one line for each reason."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet
from potstill.data.task import DataTask
from potstill.data.tokens import Tokens
from potstill.errors import InputError
from potstill.models.anatomy import architecture_name, has_layers, width
from potstill.models.builder import Student
from potstill.models.heads import DESCRIPTIONS
from potstill.models.hooks import listen
from potstill.models.inference import device_of, without_dropout
from potstill.signals import View, Wants
from potstill.training.method import Method
from potstill.training.teacher.teacher import Teacher

ONLY_LOGITS = "use 'soft_targets' or 'logit_regression'"
TRIED = 16  # tokens
TOKENS, SEQUENCES = "use 'soft_targets'", "use 'patient' or 'soft_targets'"


class Problem(NamedTuple):
    reason: str  # it follows "method 'patient'"
    instead: str


def problem_of_task(method: Method, task: DataTask) -> Problem | None:
    if task.outcome in method.outcomes:
        return None
    return Problem("cannot train this task", TOKENS if task.generates else SEQUENCES)


def problem_of_model(model: PreTrainedModel, wants: Wants, task: DataTask) -> Problem | None:
    """Why a student, or a teacher that is a model, cannot give these signals on this task."""
    layers = bool(wants.layers)
    generative = ONLY_LOGITS if task.two_stacks else f"{ONLY_LOGITS}, or 'hints'"
    two_stacks = "compares the layers of one stack, and a translation model has an encoder and a decoder"
    reasons = [
        (wants.cls and task.generates, "compares the state of [CLS], and a generative model has none", generative),
        (layers and task.two_stacks, two_stacks, ONLY_LOGITS),
        (layers and not has_layers(model), f"compares layers, and a {architecture_name(model)} has none", ONLY_LOGITS),
        (layers and task.images, "compares layers, and image networks do not give theirs", ONLY_LOGITS),
    ]
    for applies, reason, instead in reasons:
        if applies:
            return Problem(reason, instead)
    return problem_of_attention(model, wants) if wants.probabilities or wants.projections else None


def problem_of_attention(model: PreTrainedModel, wants: Wants) -> Problem | None:
    """Whether an architecture gives its attention is tried out on a few tokens."""
    ids = torch.ones(1, TRIED, dtype=torch.long, device=device_of(model))
    view = View({"input_ids": ids, "attention_mask": ids}, ids.bool(), torch.zeros(1, 2, dtype=torch.long))
    try:
        with torch.no_grad(), without_dropout(model):  # which would draw random numbers
            listen(model, view, Wants(heads=tuple(wants.probabilities), values=tuple(wants.projections)))
    except InputError as error:
        reason, _, instead = str(error).rpartition("; ")
        return Problem(f"compares attention, and {reason}", instead)
    return None


def problem_of_head(teacher: Student | None, wants: Wants, task: DataTask) -> Problem | None:
    """An encoder with a new head for the task may teach by its states alone."""
    if teacher is None or not teacher.new_head or not wants.logits:
        return None
    reason = "asks the teacher for predictions, and the teacher is an encoder without a head for this task"
    return Problem(reason, f"use 'relations' with labels = 0.0, or give {DESCRIPTIONS[task.head]} as the teacher")


def problem_of_teacher(teacher: Teacher, there: bool, wants: Wants, task: DataTask, changing: bool) -> Problem | None:
    """Why a teacher cannot give these signals. `there`: it is a model or a file of answers. `changing`: so are the examples."""
    if teacher.model is not None:
        return problem_of_model(teacher.model, wants, task)
    if not there:
        instead = "give one with --teacher, or write method = 'hard_labels'"
        return Problem("needs a teacher", instead) if wants != Wants() else None
    if wants.layers:
        return Problem("compares layers, and the teacher is a file of answers", ONLY_LOGITS)
    if changing and wants != Wants():
        reason = "asks the teacher about examples that change in every epoch, and the teacher is a file of answers"
        return Problem(reason, "give a model as the teacher, or omit that data maker")
    return None


def problem_of_widths(teachers: Iterable[Teacher], wants: Iterable[Wants]) -> Problem | None:
    """One projection of the student's states serves all teachers."""
    widths = {width(teacher.model) for teacher in teachers if teacher.model is not None}
    if len(widths) < 2 or not any(asked.cls or asked.hidden for asked in wants):
        return None
    return Problem(f"compares states, and the teachers have different widths {sorted(widths)}", ONLY_LOGITS)


def problem_of_tokens(source: TokenisedSet, wants: Wants) -> Problem | None:
    """Why student and teacher cannot be compared token by token: they tokenise the texts differently."""
    task = source.task
    spans = task.outcome == "span"
    by_token = wants.per_token or (wants.logits and (spans or task.vocabulary))
    if not by_token or same_tokens(source.student, source.teacher, compare_ids=task.vocabulary):
        return None
    instead = "start the student from the teacher" if spans else SEQUENCES
    if task.vocabulary:
        texts = ", or train on its texts: stage.data = 'teacher_outputs'" if task.generates else ""
        instead = f"give the student the teacher's tokenizer{texts}"
    return Problem("compares token by token, but student and teacher tokenise texts differently", instead)


def same_tokens(ours: Tokens, theirs: Tokens, compare_ids: bool) -> bool:
    return (
        np.array_equal(ours.offsets, theirs.offsets)
        and (not compare_ids or np.array_equal(ours.ids, theirs.ids))
        and (ours.characters is None or theirs.characters is None or np.array_equal(ours.characters, theirs.characters))
    )
