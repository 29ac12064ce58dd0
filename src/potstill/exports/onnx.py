"""ONNX in float32, any batch and any length, for ONNX Runtime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.anatomy import longest_input
from potstill.errors import InputError, TrainingError
from potstill.exports import Checked, sample_inputs
from potstill.networks import onnx_run, torch_run
from potstill.students import Student

LARGEST_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class Onnx:
    """The same numbers as PyTorch, to 1e-5."""

    def export(self, student: Student, out: Path, texts: Sequence[str]) -> Checked:
        file = write(student, out)
        checked = compare(student, file, texts)
        if checked.difference > LARGEST_DIFFERENCE:
            raise TrainingError(
                f"{file} differs from PyTorch by {checked.difference:.1e}, more than {LARGEST_DIFFERENCE:.0e}; it is not to be used"
            )
        return checked


class Positional(nn.Module):
    """The exporter names inputs by their order."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Tensor:
        logits: Tensor = self.model(**dict(zip(self.names, values, strict=True))).logits
        return logits


def write(student: Student, out: Path) -> Path:
    """out/model.onnx, with config and tokenizer beside it."""
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("exporting needs onnx and onnxscript; write pip install 'potstill[onnx]'") from None
    out.mkdir(parents=True, exist_ok=True)
    model = student.model.cpu().eval()
    inputs = sample_inputs(student, rows=3, tokens=min(16, longest_input(model, student.tokenizer)))
    free = {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # of operators of torchvision, which no text model has
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                Positional(model, list(inputs)),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=["logits"],
                dynamic_shapes={"values": tuple(free for _ in inputs)},
                dynamo=True,
                verbose=False,
            )
    finally:
        logging.disable(before)
    assert program is not None
    program.save(str(out / "model.onnx"))
    describe(student, out)
    return out / "model.onnx"


def describe(student: Student, out: Path) -> None:
    """The config, with what a reader without the weights cannot count, and the tokenizer."""
    config = type(student.model.config).from_dict(student.model.config.to_dict())
    config.potstill_longest = longest_input(student.model, student.tokenizer)
    config.potstill_parameters = sum(parameter.numel() for parameter in student.model.parameters())
    config.save_pretrained(out)
    student.tokenizer.save_pretrained(out)


def compare(student: Student, file: Path, texts: Sequence[str]) -> Checked:
    """Largest difference of a logit and share of like answers, on texts, or on random ids of several shapes where there are none."""
    theirs, ours = torch_run(student.model), onnx_run(file)
    longest = longest_input(student.model, student.tokenizer)
    if texts:
        batches = [
            dict(
                student.tokenizer(
                    list(texts[i : i + 32]), truncation=True, max_length=longest, padding=True, return_tensors="pt"
                )
            )
            for i in range(0, len(texts), 32)
        ]
    else:
        shapes = [(1, 2), (1, 9), (2, min(33, longest)), (5, min(longest, 128))]
        batches = [sample_inputs(student, rows, tokens, seed) for seed, (rows, tokens) in enumerate(shapes)]
    expected, found = (np.concatenate([run(batch) for batch in batches]) for run in (theirs, ours))
    same = (expected.argmax(-1) == found.argmax(-1)).mean() if expected.shape[1] > 1 else 1.0
    return Checked(file, float(np.abs(expected - found).max()), float(same))
