"""Compare an exported folder, of ONNX or of PyTorch, with the student that it was written from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from potstill.data.batches import view
from potstill.data.examples import key_of
from potstill.data.tokens import tokenise_texts
from potstill.inference.export_types import Checked, Rows
from potstill.models.anatomy import longest_input
from potstill.models.inference import load_network, torch_forward
from potstill.models.onnx.writing import sample_inputs
from potstill.models.student import Student
from potstill.tasks.label_matching import make_task
from potstill.tasks.registry import task_of


def compare(student: Student, file: Path, rows: Rows) -> Checked:
    """Return the largest difference of a logit and the share of equal predictions, on rows, or on random ids without rows."""
    runs = torch_forward(student.model), load_network(file.parent).forward
    longest = longest_input(student.model, student.tokenizer)
    pairs: list[list[Tensor]] = []  # logits of both
    if rows:
        kind = task_of(config := student.model.config)
        task, _ = make_task(None, config, [], None, "rows", kind.form, kind.choices_of(rows))
        keys = np.array([key_of(*row) for row in rows], np.int64)
        tokens = tokenise_texts(task, rows, student.tokenizer, longest, keys)
        for positions in np.split(np.arange(len(rows)), range(32, len(rows), 32)):
            batch = view(task, tokens, positions)
            pairs.append([batch.predictions(torch.from_numpy(run(batch.inputs))) for run in runs])
    else:
        for seed, shape in enumerate([(1, 2), (1, 9), (2, min(33, longest)), (5, min(longest, 128))]):
            inputs = sample_inputs(student, *shape, seed)
            outputs = [run(inputs) for run in runs]
            if outputs[0].ndim > 2:  # the head has an output for every token; those at padding do not count
                outputs = [output[inputs["attention_mask"].bool().numpy()] for output in outputs]
            pairs.append([torch.from_numpy(output) for output in outputs])
    apart = max(float((a - b)[a > -torch.inf].abs().max()) for a, b in pairs)
    same = torch.cat([a.argmax(-1) == b.argmax(-1) for a, b in pairs]).float().mean()
    return Checked(file, apart, float(same))
