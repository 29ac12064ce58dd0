"""Write a model as ONNX: `model.onnx` with its config and tokenizer."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.anatomy import all_parameters, longest_input
from potstill.models.architectures.own_model import OwnModel
from potstill.models.student import Student


def write_onnx(student: Student, out: Path) -> Path:
    """Write out/model.onnx with config and tokenizer beside it; return the file."""
    if student.model.can_generate():
        raise InputError(
            f"a {student.model.config.model_type} generates texts token by token, which one ONNX file cannot do; "
            "write --to ctranslate2"
        )
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError:
        raise InputError("exporting needs onnx and onnxscript; write pip install 'potstill[onnx]'") from None
    out.mkdir(parents=True, exist_ok=True)
    model = student.model.cpu().eval()
    if isinstance(model, OwnModel) and (graph := model.onnx_graph()) is not None:
        onnx.save(graph, str(out / "model.onnx"))
    else:
        _trace(student, model, out / "model.onnx")
    write_config_and_tokenizer(student, out)
    return out / "model.onnx"


def _trace(student: Student, model: PreTrainedModel, file: Path) -> None:
    """Export with PyTorch's exporter, for any batch size and length."""
    inputs = sample_inputs(student, rows=3, tokens=min(16, longest_input(model, student.tokenizer)))
    multiple_choice = type(model).__name__.endswith("ForMultipleChoice")
    if multiple_choice:  # (questions, candidates, tokens)
        inputs = {name: tensor[:, None].repeat(1, 2, 1) for name, tensor in inputs.items()}
    axes = 1 if "pixel_values" in inputs else 3 if multiple_choice else 2
    dynamic = {axis: torch.export.Dim.DYNAMIC for axis in range(axes)}
    spans = type(model).__name__.endswith("ForQuestionAnswering")
    with without_warnings():
        program = torch.onnx.export(
            PositionalInputs(model, list(inputs)),
            tuple(inputs.values()),
            input_names=list(inputs),
            output_names=["start_logits", "end_logits"] if spans else ["logits"],
            dynamic_shapes={"values": tuple(dynamic for _ in inputs)},
            dynamo=True,
            verbose=False,
        )
    assert program is not None
    program.save(str(file))


class PositionalInputs(nn.Module):
    """A model that takes its inputs by position, because the exporter names inputs by their order."""

    def __init__(self, model: PreTrainedModel, names: Sequence[str]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *values: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        output = self.model(**dict(zip(self.names, values, strict=True)))
        return output.logits if "logits" in output else (output.start_logits, output.end_logits)


@contextmanager
def without_warnings() -> Iterator[None]:
    """Silence the exporters' advice about torchvision operators and image preprocessing."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def write_config_and_tokenizer(student: Student, out: Path) -> None:
    """Write the tokenizer and the config; the config also says what a reader without the weights cannot count."""
    config = type(student.model.config).from_dict(student.model.config.to_dict())
    config.architectures = [type(student.model).__name__]
    config.potstill_longest = longest_input(student.model, student.tokenizer)
    config.potstill_parameters = all_parameters(student.model)
    config.save_pretrained(out)
    student.tokenizer.save_pretrained(out)


def sample_inputs(student: Student, rows: int, tokens: int, seed: int = 0) -> dict[str, Tensor]:
    """Draw random ids (rows, tokens) with padding of many lengths, or random images, to trace or compare a model."""
    random = np.random.default_rng(seed)
    if isinstance(student.tokenizer, PixelReader):
        pixels = random.integers(0, 256, (rows, *student.tokenizer.shape))
        return {"pixel_values": torch.from_numpy(pixels).float() / 255}
    ids = torch.from_numpy(random.integers(0, len(student.tokenizer), (rows, tokens)))
    lengths = torch.from_numpy(random.integers(2, tokens + 1, rows))
    lengths[0] = tokens
    real = torch.arange(tokens)[None] < lengths[:, None]
    padding = int(student.tokenizer.pad_token_id or 0)
    ids = torch.where(ids == padding, (padding + 1) % len(student.tokenizer), ids)
    second = torch.zeros_like(ids)
    if getattr(student.model.config, "pairs", False):  # a network that separates the two texts by their token types
        second = (torch.arange(tokens)[None] >= torch.from_numpy(random.integers(0, tokens + 1, (rows, 1)))).long()
    inputs = {
        "input_ids": torch.where(real, ids, padding),
        "attention_mask": real.long(),
        "token_type_ids": torch.where(real, second, 0),
    }
    return {name: tensor for name, tensor in inputs.items() if name in student.tokenizer.model_input_names}
