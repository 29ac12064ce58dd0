"""Load and run exports to onnx or int8 without torch and transformers, which take seconds to import."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.architectures.registration import PREFIX
from potstill.models.folders import ConfigFile, explain_errors, read_config, refuse_odd_labels, trained_length
from potstill.models.heads import head_of
from potstill.models.safety import refuse_other_vocabulary
from potstill.models.tokenizers.json_tokenizer import JsonTokenizer

ArrayForward = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""(batch, tokens) inputs by name -> float32 (batch, outputs), or (batch, tokens, outputs) for heads over tokens."""

Inputs = TypeVar("Inputs")
SEQUENTIAL = "potstill.sequential"  # metadata of graphs whose steps wait for each other, such as LSTMs
EXPORT_AGAIN = "write it again with potstill export"
ROWS_PER_THREAD = 4  # with fewer rows for each thread, one thread takes all


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file ready to run."""

    forward: ArrayForward
    input_names: tuple[str, ...]
    sequential: bool = False


def open_onnx(file: Path, threads: int, streams: bool = False) -> OnnxModel:
    """Load an ONNX file to run on so many threads.

    `streams`: the rows of a batch are shared among the threads, each of which runs the whole network on its own, instead
    of every operation. The steps of an LSTM cannot run in parallel, but its texts can: such a file always has streams.
    """
    session = _session(file, 1 if streams else threads)
    names = tuple(node.name for node in session.get_inputs())
    sequential = SEQUENTIAL in session.get_modelmeta().custom_metadata_map
    if threads == 1 or not (streams or sequential):
        return OnnxModel(_forward(session), names, sequential)
    alone, pool = _forward(session if streams else _session(file, 1)), ThreadPoolExecutor(threads)

    def forward(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = np.array_split(np.arange(len(next(iter(inputs.values())))), threads)
        if len(parts[-1]) < (ROWS_PER_THREAD if sequential else 1):
            return alone(inputs)
        batches = ({name: values[part] for name, values in inputs.items()} for part in parts)
        return np.concatenate(list(pool.map(alone, batches)))

    return OnnxModel(forward, names, sequential)


def open_streams(file: Path, threads: int) -> OnnxModel | None:
    """The file in streams; None where that is nothing new: on one thread, and for an LSTM."""
    model = open_onnx(file, threads, streams=True) if threads > 1 else None
    return None if model is None or model.sequential else model


def _forward(session: Any) -> ArrayForward:
    axes = {node.name: len(node.shape) for node in session.get_inputs()}

    def forward(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        # multiple choice takes (questions, candidates, tokens): each candidate is given as the only one of a question
        fed = {name: inputs[name][:, None] if count == 3 else inputs[name] for name, count in axes.items()}
        outputs = session.run(None, fed)
        return np.asarray(outputs[0] if len(outputs) == 1 else np.stack(outputs, -1))

    return forward


def _session(file: Path, threads: int) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise InputError("ONNX Runtime is not installed; write pip install 'potstill[onnx]'") from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    with explain_errors(f"{file} cannot be run", EXPORT_AGAIN):
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])


def refuse_infinite(forward: Callable[[Inputs], np.ndarray], model: str | Path) -> Callable[[Inputs], np.ndarray]:
    """Return the same function, with an error if a logit is not finite."""

    def checked(inputs: Inputs) -> np.ndarray:
        logits = forward(inputs)
        if not np.isfinite(logits).all():
            raise InputError(f"{model} gives logits that are not finite; use a model whose training did not diverge")
        return logits

    return checked


def bytes_on_disk(file: Path) -> int:
    """Return the size of an ONNX file, including weights that are stored beside it."""
    return sum(part.stat().st_size for part in (file, *file.parent.glob(f"{file.name}.data")))


@dataclass(frozen=True)
class ExportedModel:
    """An exported model, ready to run; the same checks as `models.inference.load_network` makes."""

    forward: ArrayForward
    config: ConfigFile
    tokenizer: JsonTokenizer | PixelReader
    longest: int  # tokens that it can read
    trained_length: int  # tokens that it was trained to read
    parameters: int
    bytes: int  # on disk
    in_streams: Callable[[], ArrayForward | None]  # see `open_streams`


def can_load_light(file: Path) -> bool:
    """Whether an export can be loaded here: its tokenizer is a tokenizer.json, or it reads images as they are."""
    config = read_config(file)
    if head_of(config) == "ImageClassification":
        return config.model_type.startswith(PREFIX)  # others scale and normalise images
    return (file.parent / "tokenizer.json").is_file()


def load_exported(file: Path, threads: int | None = None) -> ExportedModel:
    """Load an .onnx file with config.json and tokenizer.json beside it; `threads` defaults to `default_threads`."""
    config, folder, threads = read_config(file), file.parent, threads or default_threads()
    model = open_onnx(file, threads)
    longest, parameters = (_exported_number(config, name) for name in ("potstill_longest", "potstill_parameters"))
    reads_images = head_of(config) == "ImageClassification"
    with explain_errors(f"{folder} cannot be used", EXPORT_AGAIN):
        tokenizer = PixelReader(config.shape) if reads_images else JsonTokenizer(folder, model.input_names, longest)
        refuse_odd_labels(config, folder)
        if rows := config.fields.get("vocab_size"):
            refuse_other_vocabulary(tokenizer.get_vocab(), rows, folder)
        length = trained_length(config.fields.get("potstill_length"), longest, folder)

    def in_streams() -> ArrayForward | None:
        streams = open_streams(file, threads)
        return refuse_infinite(streams.forward, file) if streams else None

    forward = refuse_infinite(model.forward, file)
    return ExportedModel(forward, config, tokenizer, longest, length, parameters, bytes_on_disk(file), in_streams)


def _exported_number(config: ConfigFile, name: str) -> int:
    """Return a number that an export writes into its config.json."""
    value = config.fields.get(name)
    if type(value) is not int:
        raise InputError(f"{config.folder}: config.json has no {name}; {EXPORT_AGAIN}")
    return value


def default_threads() -> int:
    """Return OMP_NUM_THREADS, or the number of cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
