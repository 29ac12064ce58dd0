"""The teacher of a data set with its memory, in the form in which it is asked, and the answers of a file in place of one."""

from __future__ import annotations

import numpy as np
import torch
import xxhash

from potstill.data.batches import TokenisedSet, window_keys
from potstill.data.examples import Examples
from potstill.data.running_text import in_windows
from potstill.data.tokens import tokenise, tokenizer_fingerprint
from potstill.errors import InputError
from potstill.models.anatomy import is_spread, layer_count, longest_input
from potstill.models.fingerprints import fingerprint
from potstill.models.student import Student
from potstill.recipe import short_forms
from potstill.recipe.schema import Data, Recipe
from potstill.runs.tables import cut_in_windows
from potstill.signals import Wants
from potstill.system import paths, ranks
from potstill.tasks.task import Task
from potstill.training.teacher.forms import MANY_ROWS, Comparison, compared, head_in
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.teacher import Form, Teacher, missing_examples


def make_teacher(
    recipe: Recipe,
    loaded: Student | None,
    splits: dict[str, Examples],
    task: Task,
    length: int,
    device: torch.device,
) -> tuple[Teacher, dict[str, np.ndarray]]:
    """The teacher with its memory, and for a file of answers the rows of each split that it covers."""
    if loaded is not None:
        name = fingerprint(loaded.model, tokenizer_fingerprint(loaded.tokenizer), length)
        assert recipe.teacher_precision != "auto", "it is settled before the first teacher is made"
        form: Form = recipe.teacher_precision if has_forms(loaded) else "float32"
        memory = Memory(paths.memory(recipe.memory) / (name if form == "float32" else f"{name}-{form}"))
        head = ranks.first_before_others(head_in)(form, loaded, task.vocabulary)
        return Teacher(loaded.model, memory, device, form, head), {}
    with_answers = {name: examples for name, examples in splits.items() if examples.meta["answers"]}
    if "train" not in with_answers:
        return Teacher(None, None, device), {}
    folders = sorted(str(examples.folder) for examples in with_answers.values())
    name = xxhash.xxh3_128_hexdigest(repr(folders).encode())
    memory = Memory(paths.memory(recipe.memory) / f"file-{name}")
    with memory.lock():
        answered = {name: _remember_answers(memory, examples, task) for name, examples in with_answers.items()}
    return Teacher(None, memory, device), answered


def has_forms(loaded: Student) -> bool:
    """False for a teacher that gives states alone, or that is spread over devices: it is asked in float32."""
    return not loaded.new_head and not is_spread(loaded.model)


def how_forms_compare(
    recipe: Recipe, data: Data, loaded: Student, train: Examples, task: Task, device: torch.device
) -> tuple[int, Comparison]:
    """How many rows of train this teacher will be asked, and the forms that come into question for it."""
    length = min(recipe.length, longest_input(loaded.model, loaded.tokenizer))
    if cut_in_windows(data, task):
        train = ranks.first_before_others(in_windows)(train, loaded.tokenizer, length, pairs=task.follows)
    tokens = ranks.first_before_others(tokenise)(task, train, loaded.tokenizer, length)
    source = TokenisedSet(task, train, tokens, tokens)
    name = fingerprint(loaded.model, tokenizer_fingerprint(loaded.tokenizer), length)
    wants = asked_of(recipe, data, layer_count(loaded.model))
    memory = Memory(paths.memory(recipe.memory) / name)
    return ranks.on_first(_how_forms_compare)(loaded, source, wants, memory, device)


def _how_forms_compare(
    loaded: Student, source: TokenisedSet, wants: Wants, memory: Memory, device: torch.device
) -> tuple[int, Comparison]:
    rows = len(source.examples) if wants != Wants() else 0
    if not source.needs_live_teacher(wants):  # what float32 has answered already is not asked again
        rows = min(rows, len(missing_examples(memory.missing, source, wants.head)))
    if rows <= MANY_ROWS:
        return rows, {}
    return rows, compared(loaded, source, rows, wants, device, memory.folder.name)


def asked_of(recipe: Recipe, data: Data, layers: int) -> Wants:
    """What the methods of all stages ask of the teacher of a data set, as far as is known before there is a student."""
    every = Wants()
    for stage in recipe.stage:
        if any(each.teacher == data.teacher for each in recipe.data_of(stage)):
            if short_forms.is_open([stage.method]):  # it is not chosen yet, and may ask for states
                every |= Wants(logits=True, cls=(layers,))
                continue
            method = short_forms.make_plugin("methods", stage.method)
            try:
                every |= method.wants(layers, layers)[1]
            except InputError:  # its layers are those of a shallower student: it asks for states
                every |= Wants(logits=True, cls=(layers,))
    return every


def _remember_answers(memory: Memory, examples: Examples, task: Task) -> np.ndarray:
    """Write the answers of a file into the memory; returns (rows,) bool, the rows that have one."""
    answered = ~np.isnan(examples.answers).any(1)
    rows = np.flatnonzero(answered)
    rows = rows[memory.missing(np.asarray(examples.keys[rows]), ["logits"])] if len(rows) else rows
    if len(rows):
        # of multiple choice, each candidate is a sequence with one logit, in a file as in a model
        sequences = task.classes if not task.names_outputs else 1
        keys = window_keys(np.asarray(examples.keys[rows]), np.full(len(rows), sequences))
        memory.write(keys, {"logits": examples.answers[rows].reshape(len(keys), -1)})
    return answered
