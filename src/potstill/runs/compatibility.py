"""Refuse a method that needs what the task, the student or the teacher does not have."""

from __future__ import annotations

import numpy as np
from transformers import PreTrainedModel

from potstill.data.batches import TokenisedSet
from potstill.data.tokens import Tokens
from potstill.errors import InputError
from potstill.models.anatomy import architecture_name, has_layers, layer_count, width
from potstill.runs.data_set import DataSet
from potstill.signals import Wants
from potstill.training.method import Method
from potstill.training.setup import teacher_layers

ONLY_LOGITS = "use 'soft_targets' or 'logit_regression'"
TOKENS, SEQUENCES = "use 'soft_targets'", "use 'patient' or 'soft_targets'"


def check_method(name: str, method: Method, model: PreTrainedModel, data: DataSet, changing: bool = False) -> Wants:
    """Refuse a method that cannot be used here; return what it asks of the teacher.

    `changing`: the examples change in every epoch.
    """
    task, teacher = data.task, data.teacher.model
    flat = next((part for part in (model, teacher) if part is not None and not has_layers(part)), None)
    no_layers = f"compares layers, and a {architecture_name(flat)} has none" if flat is not None else ""
    try:
        of_student, of_teacher = method.wants(layer_count(model), teacher_layers(data.teacher, model))
    except InputError as error:  # its layer map does not fit
        raise InputError(f"method '{name}' {no_layers}; {ONLY_LOGITS}") if no_layers else error from None
    layers, asks = bool(of_student.cls or of_student.per_token), of_teacher != Wants()
    from_file = data.has_teacher and teacher is None
    generative = f"{ONLY_LOGITS}, or 'hints'" if task.head == "CausalLM" else ONLY_LOGITS
    two_stacks = "compares the layers of one stack, and a translation model has an encoder and a decoder"
    changing_file = "asks the teacher about examples that change in every epoch, and the teacher is a file of answers"
    problems = [  # whether the method has it here, the problem, what to write instead
        (task.outcome not in method.outcomes, "cannot train this task", TOKENS if task.generates else SEQUENCES),
        (of_student.cls and task.generates, "compares the state of [CLS], and a generative model has none", generative),
        (layers and task.head == "Seq2SeqLM", two_stacks, ONLY_LOGITS),
        (layers and flat is not None, no_layers, ONLY_LOGITS),
        (layers and task.form == "pixels", "compares layers, and image networks do not give theirs", ONLY_LOGITS),
        (layers and from_file, "compares layers, and the teacher is a file of answers", ONLY_LOGITS),
        (asks and not data.has_teacher, "needs a teacher", "give one with --teacher, or write method = 'hard_labels'"),
        (asks and changing and from_file, changing_file, "give a model as the teacher, or omit that data maker"),
    ]
    for applies, problem, instead in problems:
        if applies:
            raise InputError(f"method '{name}' {problem}; {instead}")
    return of_teacher


def check_widths(data_sets: list[DataSet], wants: list[Wants]) -> None:
    """Refuse teachers of different widths: one projection serves them all."""
    widths = {width(data.teacher.model) for data in data_sets if data.teacher.model is not None}
    if len(widths) > 1 and any(asked.cls or asked.per_token for asked in wants):
        raise InputError(f"the teachers have different widths {sorted(widths)}; {ONLY_LOGITS}")


def check_tokens(name: str, data: DataSet, source: TokenisedSet, wants: Wants) -> None:
    """Refuse a comparison token by token where student and teacher tokenise the texts differently."""
    generates, spans = data.task.generates, data.task.outcome == "span"
    by_token = wants.per_token or (wants.logits and (spans or generates))
    if not by_token or same_tokens(source.student, source.teacher, compare_ids=generates):
        return
    instead = "start the student from the teacher" if spans else SEQUENCES
    if generates:
        instead = "give the student the teacher's tokenizer, or train on its texts: stage.data = 'teacher_outputs'"
    problem = "compares token by token, but student and teacher tokenise texts differently"
    raise InputError(f"method '{name}' {problem}; {instead}")


def same_tokens(ours: Tokens, theirs: Tokens, compare_ids: bool) -> bool:
    return (
        np.array_equal(ours.offsets, theirs.offsets)
        and (not compare_ids or np.array_equal(ours.ids, theirs.ids))
        and (ours.characters is None or theirs.characters is None or np.array_equal(ours.characters, theirs.characters))
    )
