"""Whatever answers token ids or pixels with logits: a PyTorch model, or a file that ONNX Runtime runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.anatomy import all_parameters, longest_input
from potstill.models.architectures.recurrent_configs import BilstmConfig
from potstill.models.folders import onnx_file
from potstill.models.hooks import ask
from potstill.models.loading import load_config, reader_of, refuse_odd_labels
from potstill.models.student import NAMED, head_of, is_spread, load_student
from potstill.models.tokenizers.safety import SHORTEST, refuse_other_vocabulary
from potstill.system.paths import expand_user

Run = Callable[[dict[str, Tensor]], np.ndarray]
"""(batch, tokens) inputs by name -> float32 (batch, outputs), or (batch, tokens, outputs) where every token is read."""


SHARED = 4  # texts for each thread, or one thread takes all


@dataclass(frozen=True)
class Network:
    """A model in any form, ready to answer."""

    run: Run
    engine: Literal["pytorch", "onnx"]
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    longest: int  # tokens it can read
    usual: int  # tokens it was trained to read, where its folder says so; else as many as it can
    parameters: int | None
    bytes: int  # on disk


@contextmanager
def without_dropout(model: torch.nn.Module) -> Iterator[None]:
    """The mode is left as it was, also where something fails."""
    if not model.training:  # to walk over all its parts would take longer than a short text
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


def device_of(model: PreTrainedModel) -> torch.device:
    """Where inputs go; of a model that is spread over several, Accelerate takes them on from the CPU."""
    return torch.device("cpu") if is_spread(model) else model.device


def torch_run(model: PreTrainedModel) -> Run:
    """Without dropout, whatever mode the model is in; the mode is left as it was."""

    def run(inputs: dict[str, Tensor]) -> np.ndarray:
        place = device_of(model)
        with torch.inference_mode(), without_dropout(model):
            logits, _ = ask(model, {name: tensor.to(place) for name, tensor in inputs.items()})
        found: np.ndarray = logits.float().cpu().numpy()
        return found

    return run


def onnx_run(file: Path) -> Run:
    """ONNX Runtime on as many threads as PyTorch has, so that the two can be compared."""
    threads = torch.get_num_threads()
    session = _session(file, threads)
    if threads == 1 or session.get_modelmeta().graph_name != BilstmConfig.model_type:
        return _asking(session)
    # the steps of an LSTM wait for one another, but texts do not: each thread takes its own
    alone, pool = _asking(_session(file, 1)), ThreadPoolExecutor(threads)

    def run(inputs: dict[str, Tensor]) -> np.ndarray:
        parts = torch.arange(len(inputs["input_ids"])).tensor_split(threads)
        if len(parts[-1]) < SHARED:
            return alone(inputs)
        return np.concatenate(
            list(pool.map(alone, ({name: one[part] for name, one in inputs.items()} for part in parts)))
        )

    return run


def _asking(session: Any) -> Run:
    wanted = {one.name: len(one.shape) for one in session.get_inputs()}

    def run(inputs: dict[str, Tensor]) -> np.ndarray:
        expand_user = {name: inputs[name].cpu().numpy() for name in wanted}
        # a file for multiple choice takes (questions, candidates, tokens): each candidate is asked as the only one
        said = session.run(
            None, {name: one[:, None] if wanted[name] == 3 else one for name, one in expand_user.items()}
        )
        return np.asarray(said[0] if len(said) == 1 else np.stack(said, -1))

    return run


def _session(file: Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError("ONNX Runtime is not installed; write pip install 'potstill[onnx]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has a class of its own for every kind of broken file
        raise InputError(
            f"{file} cannot be run ({str(error).splitlines()[0]}); make it anew with potstill export"
        ) from None


def usual_length(config: PreTrainedConfig, longest: int, folder: str | Path) -> int:
    """Positions that no text of the training had were never learned."""
    said = getattr(config, "potstill_length", None)
    if said is None:
        return longest
    if type(said) is not int or said < SHORTEST:
        raise InputError(
            f"{folder}: potstill_length in config.json is {said!r:.80}; write a number of tokens, or take it out"
        )
    return min(said, longest)


def finite(run: Run, name: str | Path) -> Run:
    """The same, with an error where what is answered is no number."""

    def checked(inputs: dict[str, Tensor]) -> np.ndarray:
        said = run(inputs)
        if not np.isfinite(said).all():
            raise InputError(
                f"{name} answers with logits that are not finite; use weights of a training that went well"
            )
        return said

    return checked


def bytes_of(folder: str | Path, parameters: int) -> int:
    """Of the weights' files; of a hub's model, as many as a float32 file would have."""
    return sum(one.stat().st_size for one in expand_user(folder).glob("*.safetensors")) or 4 * parameters


def load_network(path: str | Path) -> Network:
    """A folder with safetensors or with model.onnx, an .onnx file with config and tokenizer beside it, or a hub name."""
    file = onnx_file(path)
    if file is None:
        student = load_student(path)
        model = student.model.to(Accelerator().device)
        parameters = all_parameters(model)
        longest = longest_input(model, student.tokenizer)
        return Network(
            finite(torch_run(model), path),
            "pytorch",
            model.config,
            student.tokenizer,
            longest,
            usual_length(model.config, longest, path),
            parameters,
            bytes_of(path, parameters),
        )
    try:
        config = load_config(file)
        tokenizer = reader_of(config, file.parent)
        longest, parameters = int(config.potstill_longest), int(config.potstill_parameters)
        usual = usual_length(config, longest, file.parent)
        if head_of(config) in NAMED:
            refuse_odd_labels(config, file.parent)
        if (rows := getattr(config, "vocab_size", None)) and not isinstance(tokenizer, PixelReader):
            refuse_other_vocabulary(tokenizer, int(rows), file.parent)
    except Exception as error:
        raise InputError(
            f"{file}: its config.json and tokenizer.json cannot be used ({error}); make it anew with potstill export"
        ) from None
    on_disk = file.stat().st_size + sum(one.stat().st_size for one in file.parent.glob(f"{file.name}.data"))
    return Network(finite(onnx_run(file), file), "onnx", config, tokenizer, longest, usual, parameters, on_disk)
