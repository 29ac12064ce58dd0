"""A model that maps token ids or pixels to logits: a PyTorch model, or a file that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import all_parameters, is_spread, longest_input
from potstill.models.folders import onnx_file, refuse_odd_labels, trained_length
from potstill.models.hooks import head_outputs
from potstill.models.loading import load_config, load_reader
from potstill.models.onnx.exported import (
    EXPORT_AGAIN,
    OnnxModel,
    bytes_on_disk,
    open_onnx,
    open_streams,
    refuse_infinite,
)
from potstill.models.precision import FASTER, autocast, bfloat16_gain, in_bfloat16
from potstill.models.safety import refuse_other_vocabulary
from potstill.models.student import load_student
from potstill.system.paths import expand_user

Forward = Callable[[dict[str, Tensor]], np.ndarray]
"""(batch, tokens) inputs by name -> float32 (batch, outputs), or (batch, tokens, outputs) for heads over tokens."""


@dataclass(frozen=True)
class Network:
    """A model in any form, ready to run."""

    forward: Forward
    engine: Literal["pytorch", "onnx"]
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    longest: int  # tokens that it can read
    trained_length: int  # tokens that it was trained to read, if its folder says so; else as many as it can
    parameters: int | None
    bytes: int  # on disk
    bfloat16: Callable[[], Forward | None] = lambda: None  # makes that form, see `bfloat16_forward`
    in_streams: Callable[[], Forward | None] = lambda: None  # of an ONNX file, see `streams_forward`


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """Run in eval mode, and restore the mode afterwards, also after an error."""
    if not model.training:  # walking over all modules would take longer than a short text
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


def device_of(model: PreTrainedModel) -> torch.device:
    """Return where inputs go; Accelerate moves them on from the CPU if the model is spread over devices."""
    return torch.device("cpu") if is_spread(model) else model.device


def torch_forward(model: PreTrainedModel, precision: str = "float32") -> Forward:
    """Run a PyTorch model without dropout; its mode stays as it is. With bfloat16 the weights of now are copied."""
    asked = in_bfloat16(model) if precision == "bfloat16" else model

    def forward(inputs: dict[str, Tensor]) -> np.ndarray:
        device = device_of(model)
        with torch.inference_mode(), without_dropout(asked), autocast(asked, device, precision):
            (outputs, *_), _ = head_outputs(asked, {name: tensor.to(device) for name, tensor in inputs.items()})
        return np.asarray(outputs.float().cpu())

    return forward


def onnx_forward(file: Path, streams: bool = False) -> Forward:
    """Run an ONNX file on as many threads as PyTorch has, so that the two can be compared. `streams`: see `open_onnx`."""
    return _of_tensors(open_onnx(file, torch.get_num_threads(), streams))


def streams_forward(file: Path) -> Forward | None:
    """The same in streams; None where that is nothing new."""
    model = open_streams(file, torch.get_num_threads())
    return refuse_infinite(_of_tensors(model), file) if model else None


def _of_tensors(model: OnnxModel) -> Forward:
    return lambda inputs: model.forward({name: inputs[name].cpu().numpy() for name in model.input_names})


def bytes_of(folder: str | Path, parameters: int) -> int:
    """Return the size of the weights' files; for a model of the hub, that of a float32 file."""
    return sum(file.stat().st_size for file in expand_user(folder).glob("*.safetensors")) or 4 * parameters


def load_network(path: str | Path) -> Network:
    """Load a folder with safetensors or model.onnx, an .onnx file with its config and tokenizer, or a hub name."""
    file = onnx_file(path)
    if file is not None:
        return _load_onnx(file)
    student = load_student(path)
    model = student.model.to(Accelerator().device)
    parameters = all_parameters(model)
    longest = longest_input(model, student.tokenizer)
    length = trained_length(getattr(model.config, "potstill_length", None), longest, path)
    forward, size = refuse_infinite(torch_forward(model), path), bytes_of(path, parameters)
    faster = partial(bfloat16_forward, model)
    return Network(forward, "pytorch", model.config, student.tokenizer, longest, length, parameters, size, faster)


def bfloat16_forward(model: PreTrainedModel) -> Forward | None:
    """The model in bfloat16, if that is worth timing: the device multiplies faster in it, and the network has products."""
    has_products = any(type(module) is nn.Linear for module in model.modules())
    if not has_products or is_spread(model) or bfloat16_gain(model.device) < FASTER:
        return None
    return torch_forward(model, "bfloat16")


def _load_onnx(file: Path) -> Network:
    folder = file.parent
    try:
        config = load_config(file)
        tokenizer = load_reader(config, folder)
        longest, parameters = int(config.potstill_longest), int(config.potstill_parameters)
        length = trained_length(getattr(config, "potstill_length", None), longest, folder)
        refuse_odd_labels(config, folder)
        if rows := getattr(config, "vocab_size", None):
            refuse_other_vocabulary(tokenizer.get_vocab(), int(rows), folder)
    except Exception as error:
        raise InputError(f"{folder} cannot be used ({error}); {EXPORT_AGAIN}") from None
    forward = refuse_infinite(onnx_forward(file), file)
    size, streams = bytes_on_disk(file), partial(streams_forward, file)
    return Network(forward, "onnx", config, tokenizer, longest, length, parameters, size, in_streams=streams)
