"""Compare an exported folder, of ONNX or of PyTorch, with the student that it was written from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from potstill.data.batches import view
from potstill.data.examples import key_of
from potstill.data.tokens import tokenise_texts
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


class _Batch(NamedTuple):
    inputs: dict[str, Tensor]
    read: Callable[[np.ndarray], Tensor]  # what a network answers -> (predictions, classes)


def compare(student: Student, file: Path, rows: Rows, beside: Mapping[str, Path] | None = None) -> Checked:
    """Return the largest difference of a logit, the share of equal predictions, and the time that a text takes.

    On rows, or on random ids without rows. `beside`: other ONNX files of the student, which are only timed.
    """
    task, batches, together, alone = _of_rows(student, rows) if rows else _random(student)
    plain, exported = torch_forward(student.model), load_network(file.parent).forward
    pairs = [[batch.read(run(batch.inputs)) for run in (plain, exported)] for batch in batches]
    apart = max(float((a - b)[a > -torch.inf].abs().max()) for a, b in pairs)
    forms: dict[str, Forward] = {"this form": exported, "PyTorch": plain}
    forms |= {name: onnx_forward(other) for name, other in (beside or {}).items()}
    seconds = form_seconds(forms, [batch.inputs for batch in alone], together.inputs)
    return Checked(file, apart, _agreement(task, pairs), seconds=seconds)


def inputs_of(student: Student, rows: Rows) -> list[dict[str, np.ndarray]]:
    """Return the inputs of a network for some rows, in batches of 32, by name."""
    _, batches, _, _ = _of_rows(student, rows)
    return [{name: tensor.numpy() for name, tensor in batch.inputs.items()} for batch in batches]


def _agreement(task: Task, pairs: list[list[Tensor]]) -> float | None:
    if task.outcome == "value":
        return None
    if task.outcome == "classes":
        return float(torch.cat([((a > 0) == (b > 0)).all(-1) for a, b in pairs]).float().mean())
    return float(torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs]).float().mean())


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
    return task, [batch(part) for part in parts], batch(together), [batch(row) for row in alone[:, None]]


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
