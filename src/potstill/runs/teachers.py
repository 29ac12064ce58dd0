"""The teacher of a data set with its memory, and the answers that a file gives in place of one."""

from __future__ import annotations

import numpy as np
import torch
import xxhash

from potstill.data.batches import TokenisedSet, window_keys
from potstill.data.examples import Examples
from potstill.data.tokens import tokenise, tokenizer_fingerprint
from potstill.models.fingerprints import fingerprint
from potstill.models.student import Student
from potstill.recipe.schema import Recipe
from potstill.system import paths, ranks
from potstill.system.display import Display
from potstill.tasks.task import Task
from potstill.training.teacher.memory import Memory
from potstill.training.teacher.precision import in_faster_form
from potstill.training.teacher.teacher import Teacher


def make_teacher(
    recipe: Recipe,
    loaded: Student | None,
    splits: dict[str, Examples],
    task: Task,
    length: int,
    device: torch.device,
    display: Display,
) -> tuple[Teacher, dict[str, np.ndarray]]:
    """The teacher with its memory, and for a file of answers the rows of each split that it covers."""
    if loaded is not None:
        name = fingerprint(loaded.model, tokenizer_fingerprint(loaded.tokenizer), length)
        teacher = Teacher(loaded.model, Memory(paths.memory(recipe.memory) / name), device)
        if recipe.teacher_precision != "bfloat16" or loaded.new_head:
            return teacher, {}
        tokens = ranks.first_before_others(tokenise)(task, splits["train"], loaded.tokenizer, length)
        source = TokenisedSet(task, splits["train"], tokens, tokens)
        return in_faster_form(teacher, source, name, display.say), {}
    with_answers = {name: examples for name, examples in splits.items() if examples.meta["answers"]}
    if "train" not in with_answers:
        return Teacher(None, None, device), {}
    folders = sorted(str(examples.folder) for examples in with_answers.values())
    name = xxhash.xxh3_128_hexdigest(repr(folders).encode())
    memory = Memory(paths.memory(recipe.memory) / f"file-{name}")
    with memory.lock():
        answered = {name: _remember_answers(memory, examples, task) for name, examples in with_answers.items()}
    return Teacher(None, memory, device), answered


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
