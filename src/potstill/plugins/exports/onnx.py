"""ONNX in float32, any batch and any length, for ONNX Runtime."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.batches import view
from potstill.data.rows import BETWEEN
from potstill.data.tokens import tokenise_texts
from potstill.errors import InputError, TrainingError
from potstill.inference.export_types import Checked, Rows, sample_inputs
from potstill.models.anatomy import all_parameters, longest_input
from potstill.models.architectures.word_vectors import OverWords
from potstill.models.inference import onnx_run, torch_run
from potstill.models.student import Student
from potstill.signals import View
from potstill.tasks.label_matching import make_task
from potstill.tasks.registry import kind_of

LARGEST_DIFFERENCE = 1e-5


@dataclass(frozen=True)
class Onnx:
    """The same numbers as PyTorch, to 1e-5."""

    def export(self, student: Student, out: Path, rows: Rows) -> Checked:
        file = write(student, out)
        checked = compare(student, file, rows)
        if checked.difference > LARGEST_DIFFERENCE:
            raise TrainingError(
                f"as ONNX the model differs from PyTorch by {checked.difference:.1e}, more than {LARGEST_DIFFERENCE:.0e}; "
                "nothing is written, use the student's own folder"
            )
        return checked


class Positional(nn.Module):
    """The exporter names inputs by their order."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        said = self.model(**dict(zip(self.names, values, strict=True)))
        return said.logits if "logits" in said else (said.start_logits, said.end_logits)


def write(student: Student, out: Path) -> Path:
    """out/model.onnx, with config and tokenizer beside it."""
    if student.model.can_generate():
        raise InputError(
            f"a {student.model.config.model_type} writes texts token by token, which a file of ONNX does not; write --to ctranslate2"
        )
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("exporting needs onnx and onnxscript; write pip install 'potstill[onnx]'") from None
    out.mkdir(parents=True, exist_ok=True)
    model = student.model.cpu().eval()
    if isinstance(model, OverWords):
        from potstill.models.onnx.word_vectors import write_graph

        write_graph(model, out / "model.onnx")
    else:
        _traced(student, model, out / "model.onnx")
    describe(student, out)
    return out / "model.onnx"


def _traced(student: Student, model: PreTrainedModel, file: Path) -> None:
    """By PyTorch's exporter."""
    inputs = sample_inputs(student, rows=3, tokens=min(16, longest_input(model, student.tokenizer)))
    several = type(model).__name__.endswith("ForMultipleChoice")
    if several:  # (questions, candidates, tokens), as everywhere
        inputs = {name: tensor[:, None].repeat(1, 2, 1) for name, tensor in inputs.items()}
    axes = 1 if "pixel_values" in inputs else 3 if several else 2
    free = {axis: torch.export.Dim.DYNAMIC for axis in range(axes)}
    spans = type(model).__name__.endswith("ForQuestionAnswering")
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # of operators of torchvision, which no text model has
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                Positional(model, list(inputs)),
                tuple(inputs.values()),
                input_names=list(inputs),
                output_names=["start_logits", "end_logits"] if spans else ["logits"],
                dynamic_shapes={"values": tuple(free for _ in inputs)},
                dynamo=True,
                verbose=False,
            )
    finally:
        logging.disable(before)
    assert program is not None
    program.save(str(file))


def describe(student: Student, out: Path) -> None:
    """The config, with what a reader without the weights cannot count, and the tokenizer."""
    config = type(student.model.config).from_dict(student.model.config.to_dict())
    config.architectures = [type(student.model).__name__]
    config.potstill_longest = longest_input(student.model, student.tokenizer)
    config.potstill_parameters = all_parameters(student.model)
    config.save_pretrained(out)
    student.tokenizer.save_pretrained(out)


def compare(student: Student, file: Path, rows: Rows) -> Checked:
    """Largest difference of a logit and share of like predictions, on rows, or on random ids of several shapes without them."""
    theirs, ours = torch_run(student.model), onnx_run(file)
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
    candidates = len(str(rows[0][1]).split(BETWEEN))
    task, _ = make_task(None, config, [], None, "rows", kind_of(config).form, candidates)
    tokens = tokenise_texts(task, rows, student.tokenizer, length)
    for begin in range(0, len(rows), 32):
        yield view(task, tokens, np.arange(begin, min(begin + 32, len(rows))))


def _real(heads: np.ndarray, batch: dict[str, Tensor]) -> Tensor:
    """Of a head that reads every token, what it gives for padding is nobody's answer."""
    return torch.from_numpy(heads if heads.ndim == 2 else heads[batch["attention_mask"].bool().numpy()])
