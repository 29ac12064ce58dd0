"""Compare an exported folder, of ONNX or of PyTorch, with the student that it was written from, and time both."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from potstill.data.batches import view
from potstill.data.examples import key_of
from potstill.data.tokens import split_by_tokens, tokenise_texts
from potstill.inference.export_types import Checked, Rows
from potstill.inference.form_speed import ALONE, TOGETHER, form_seconds
from potstill.models.anatomy import longest_input
from potstill.models.inference import Forward, load_network, onnx_forward, torch_forward
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import Student
from potstill.tasks.label_matching import make_task
from potstill.tasks.registry import task_of
from potstill.tasks.task import Task

SHORT, USUAL = 9, 33  # tokens of random texts
GENERATED, AT_ONCE = 200, 1024  # rows that a generative model is compared on; padded tokens of a batch of them


class _Batch(NamedTuple):
    inputs: dict[str, Tensor]
    read: Callable[[np.ndarray], Tensor]  # what a network answers -> (predictions, classes)


def compare(student: Student, file: Path, rows: Rows, beside: Mapping[str, Path] | None = None) -> Checked:
    """Return the largest difference of a logit, the share of equal predictions, and the time that a text takes.

    On rows, or on random ids without rows. Of a generative model every token of the second texts is a prediction, given
    those before it; how long generating takes is not measured. `beside`: other ONNX files of the student, only timed.
    """
    kind = task_of(student.model.config)
    if kind.generates:
        rows = [row for row in rows if row[1]][:GENERATED]
        task, batches, together, alone = _of_rows(student, rows or _random_texts(student))
    else:
        rows = () if kind.two_heads else rows  # the first head is compared, on any tokens
        task, batches, together, alone = _of_rows(student, rows) if rows else _random(student)
    network = load_network(file.parent)
    plain, exported = torch_forward(student.model), network.forward
    apart, same = [], []
    for batch in batches:  # one by one: the logits of a vocabulary are large
        ours, theirs = (batch.read(run(batch.inputs)) for run in (plain, exported))
        apart.append(float((ours - theirs)[ours > -torch.inf].abs().max()))
        same.append(_same(task, ours, theirs))
    agreement = None if task.outcome == "value" else float(torch.cat(same).float().mean())
    if kind.generates:
        return Checked(file, max(apart), agreement, rows=len(rows))
    forms: dict[str, Forward] = {"this form": exported}
    if network.engine != "pytorch":
        forms["PyTorch"] = plain
    forms |= {name: onnx_forward(other) for name, other in (beside or {}).items()}
    seconds = form_seconds(
        forms, [batch.inputs for batch in alone], together.inputs, len(next(iter(together.inputs.values())))
    )
    return Checked(file, max(apart), agreement, rows=len(rows), seconds=seconds)


def inputs_of(student: Student, rows: Rows) -> list[dict[str, np.ndarray]]:
    """Return the inputs of a network for some rows, in batches of 32, by name."""
    _, batches, _, _ = _of_rows(student, rows)
    return [{name: tensor.numpy() for name, tensor in batch.inputs.items()} for batch in batches]


def _same(task: Task, ours: Tensor, theirs: Tensor) -> Tensor:
    """(predictions,) bool, of logits (predictions, classes)"""
    if task.outcome == "classes":
        return ((ours > 0) == (theirs > 0)).all(-1)
    return ours.argmax(-1) == theirs.argmax(-1)


def _of_rows(student: Student, rows: Rows) -> tuple[Task, list[_Batch], _Batch, list[_Batch]]:
    """The task, all rows in batches, and some rows as one batch and alone."""
    longest = longest_input(student.model, student.tokenizer)
    kind = task_of(config := student.model.config)
    task, _ = make_task(None, config, [], None, "rows", kind.form, kind.choices_of(rows))
    keys = np.array([key_of(*row) for row in rows], np.int64)
    tokens = tokenise_texts(task, rows, student.tokenizer, longest, keys)

    def batch(positions: np.ndarray) -> _Batch:
        made = view(task, tokens, positions)
        return _Batch(made.inputs, lambda logits: made.predictions(torch.from_numpy(logits)))

    every = np.arange(len(rows))
    together, alone = (every[:: -(-len(rows) // count)] for count in (TOGETHER, ALONE))
    parts = np.split(every, every[TOGETHER::TOGETHER])
    if task.generates:
        parts = split_by_tokens(every, tokens.lengths(every), AT_ONCE)
    return task, [batch(part) for part in parts], batch(together), [batch(row) for row in alone[:, None]]


def _random_texts(student: Student) -> Rows:
    """Pairs of texts of random tokens, to translate; for a language model, texts that follow no prompt."""
    random = np.random.default_rng(0)
    ids = random.integers(0, len(student.tokenizer), (2 * ALONE, SHORT))
    texts = student.tokenizer.batch_decode(ids, skip_special_tokens=True)
    prompts = texts[ALONE:] if student.model.config.is_encoder_decoder else [""] * ALONE
    return [(prompt, text or ".") for prompt, text in zip(prompts, texts[:ALONE], strict=True)]


def _random(student: Student) -> tuple[Task, list[_Batch], _Batch, list[_Batch]]:
    """The same with random ids, or images."""
    kind = task_of(config := student.model.config)
    task, _ = make_task(None, config, [], None, "random rows", kind.form, 2)
    longest = longest_input(student.model, student.tokenizer)

    def batch(seed: int, rows: int, tokens: int) -> _Batch:
        inputs = sample_inputs(student, rows, tokens, seed)

        def read(outputs: np.ndarray) -> Tensor:
            if outputs.ndim > 2:  # the head has an output for every token; those at padding do not count
                outputs = outputs[inputs["attention_mask"].bool().numpy()]
            return torch.from_numpy(outputs)

        return _Batch(inputs, read)

    shapes = [(1, 2), (1, SHORT), (2, min(USUAL, longest)), (5, min(longest, 128))]
    batches = [batch(seed, *shape) for seed, shape in enumerate(shapes)]
    return task, batches, batch(4, TOGETHER, min(USUAL, longest)), [batch(seed, 1, SHORT) for seed in range(ALONE)]
