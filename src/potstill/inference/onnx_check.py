"""Compare an ONNX file with the PyTorch model that it was exported from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from potstill.data.batches import view
from potstill.data.row import split_parts
from potstill.data.tokens import tokenise_texts
from potstill.inference.export_types import Checked, Rows
from potstill.models.anatomy import longest_input
from potstill.models.inference import onnx_forward, torch_forward
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import Student
from potstill.signals import View
from potstill.tasks.label_matching import make_task
from potstill.tasks.registry import form_of


def compare(student: Student, file: Path, rows: Rows) -> Checked:
    """Return the largest difference of a logit and the share of equal predictions, on rows, or on random ids without rows."""
    theirs, ours = torch_forward(student.model), onnx_forward(file)
    longest = longest_input(student.model, student.tokenizer)
    if rows:
        views = _views(student, rows, longest)
        pairs = [[view.predictions(torch.from_numpy(run(view.inputs))) for run in (theirs, ours)] for view in views]
    else:
        shapes = [(1, 2), (1, 9), (2, min(33, longest)), (5, min(longest, 128))]
        batches = [sample_inputs(student, *shape, seed) for seed, shape in enumerate(shapes)]
        pairs = [[_real(run(batch), batch) for run in (theirs, ours)] for batch in batches]
    apart = max(float((a - b)[a > -torch.inf].abs().max()) for a, b in pairs)
    same = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs]).float().mean()
    return Checked(file, apart, float(same))


def _views(student: Student, rows: Rows, length: int) -> Iterator[View]:
    config = student.model.config
    candidates = len(split_parts(str(rows[0][1])))
    task, _ = make_task(None, config, [], None, "rows", form_of(config), candidates)
    tokens = tokenise_texts(task, rows, student.tokenizer, length)
    for begin in range(0, len(rows), 32):
        yield view(task, tokens, np.arange(begin, min(begin + 32, len(rows))))


def _real(heads: np.ndarray, batch: dict[str, Tensor]) -> Tensor:
    """Leave out the outputs at padding, where the head has an output for every token."""
    return torch.from_numpy(heads if heads.ndim == 2 else heads[batch["attention_mask"].bool().numpy()])
