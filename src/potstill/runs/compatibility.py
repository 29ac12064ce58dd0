"""Refuse a method that needs what the task, the student or the teacher does not have. `RULES` is the list."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet
from potstill.errors import InputError
from potstill.models.anatomy import has_layers, kind, layer_count, width
from potstill.runs.data_set import DataSet
from potstill.signals import Wants
from potstill.training.method import Method
from potstill.training.setup import teacher_layers

ONLY_LOGITS = "use 'soft_targets' or 'logit_regression'"


@dataclass(frozen=True)
class Combination:
    """A method with the student, the data set and the teacher that it is used on."""

    name: str  # of the method
    method: Method
    model: PreTrainedModel
    data: DataSet
    changing: bool  # True if the examples change in every epoch
    wants: Wants  # of the student or the teacher

    @property
    def compares_layers(self) -> bool:
        return bool(self.wants.cls or self.wants.per_token)


@dataclass(frozen=True)
class Rule:
    needed: Callable[[Combination], bool]
    given: Callable[[Combination], bool]
    problem: str  # continues "method '…' "
    instead: Callable[[Combination], str]


RULES = (
    Rule(
        lambda used: True,
        lambda used: used.data.task.outcome in getattr(used.method, "outcomes", (used.data.task.outcome,)),
        "cannot train this task",
        lambda used: "use 'soft_targets'" if used.data.task.generates else "use 'patient' or 'soft_targets'",
    ),
    Rule(
        lambda used: bool(used.wants.cls),
        lambda used: not used.data.task.generates,
        "compares the state of [CLS], and a generative model has no [CLS]",
        lambda used: f"{ONLY_LOGITS}, or 'hints'" if used.data.task.head == "CausalLM" else ONLY_LOGITS,
    ),
    Rule(
        lambda used: used.compares_layers,
        lambda used: used.data.task.head != "Seq2SeqLM",
        "compares the layers of one stack, and a translation model has two, the encoder and the decoder",
        lambda used: ONLY_LOGITS,
    ),
    Rule(
        lambda used: used.compares_layers,
        lambda used: used.data.task.form != "pixels",
        "compares layers, and image networks do not give theirs",
        lambda used: "use 'soft_targets'",
    ),
    Rule(
        lambda used: used.compares_layers,
        lambda used: used.data.teacher.model is not None or not used.data.has_teacher,
        "compares layers, and the teacher is a file of answers",
        lambda used: "use a method that compares only logits, such as 'soft_targets'",
    ),
)
TEACHER_RULES = (
    Rule(
        lambda used: used.wants != Wants(),
        lambda used: used.data.has_teacher,
        "needs a teacher",
        lambda used: "give one with --teacher, or write method = 'hard_labels'",
    ),
    Rule(
        lambda used: used.changing and used.wants != Wants(),
        lambda used: used.data.teacher.model is not None,
        "asks the teacher about examples that change in every epoch, and the teacher is a file of answers",
        lambda used: "give a model as the teacher, or omit that data maker",
    ),
)


def check_method(name: str, method: Method, model: PreTrainedModel, data: DataSet, changing: bool = False) -> Wants:
    """Refuse a method that cannot be used here; return what it asks of the teacher."""
    flat = next((part for part in (model, data.teacher.model) if part is not None and not has_layers(part)), None)
    no_layers = (
        InputError(f"method '{name}' compares layers, and a {kind(flat)} has none; {ONLY_LOGITS}") if flat else None
    )
    try:
        of_student, of_teacher = method.wants(layer_count(model), teacher_layers(data.teacher, model))
    except InputError as error:  # its layer map does not fit
        raise no_layers or error from None
    used = Combination(name, method, model, data, changing, of_student)
    for rule in RULES:
        _apply(rule, used)
    if no_layers and used.compares_layers:
        raise no_layers
    for rule in TEACHER_RULES:
        _apply(rule, Combination(name, method, model, data, changing, of_teacher))
    return of_teacher


def _apply(rule: Rule, used: Combination) -> None:
    if rule.needed(used) and not rule.given(used):
        raise InputError(f"method '{used.name}' {rule.problem}; {rule.instead(used)}")


def check_widths(data_sets: list[DataSet], wants: list[Wants]) -> None:
    """Refuse teachers of different widths: one projection serves them all."""
    widths = {width(data.teacher.model) for data in data_sets if data.teacher.model is not None}
    if len(widths) > 1 and any(asked.cls or asked.per_token for asked in wants):
        raise InputError(
            f"the teachers have different widths {sorted(widths)}; "
            "use a method that compares only logits, such as 'soft_targets'"
        )


def check_tokens(name: str, data: DataSet, source: TokenisedSet, wants: Wants) -> None:
    """Refuse a comparison token by token where student and teacher tokenise the texts differently."""
    generates, spans = data.task.generates, data.task.outcome == "span"
    by_token = wants.per_token or (wants.logits and (spans or generates))
    if not by_token or same_tokens(source, data.task.generates):
        return
    if generates:
        instead = "give the student the teacher's tokenizer, or train on its texts: stage.data = 'teacher_outputs'"
    else:
        instead = "start the student from the teacher" if spans else "use 'patient' or 'soft_targets'"
    raise InputError(
        f"method '{name}' compares token by token, but student and teacher tokenise texts differently; {instead}"
    )


def same_tokens(source: TokenisedSet, compare_ids: bool) -> bool:
    ours, theirs = source.student, source.teacher
    if not np.array_equal(ours.offsets, theirs.offsets):
        return False
    if compare_ids and not np.array_equal(ours.ids, theirs.ids):
        return False
    if ours.characters is None or theirs.characters is None:
        return True
    return np.array_equal(ours.characters, theirs.characters)
