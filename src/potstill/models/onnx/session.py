"""Run an ONNX file with ONNX Runtime, from NumPy arrays to NumPy arrays. Loads neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from potstill.errors import InputError

ArrayForward = Callable[[Mapping[str, np.ndarray]], np.ndarray]
"""(batch, tokens) inputs by name -> float32 (batch, outputs), or (batch, tokens, outputs) for heads over tokens."""

Inputs = TypeVar("Inputs")
SEQUENTIAL = "potstill.sequential"  # metadata of graphs whose steps wait for each other, such as LSTMs
ROWS_PER_THREAD = 4  # with fewer rows for each thread, one thread takes all


@dataclass(frozen=True)
class OnnxModel:
    """An ONNX file ready to run."""

    forward: ArrayForward
    input_names: tuple[str, ...]


def open_onnx(file: Path, threads: int) -> OnnxModel:
    """Load an ONNX file to run on so many threads.

    The steps of an LSTM cannot run in parallel, but its texts can: there each thread takes its own rows of a batch.
    """
    session = _session(file, threads)
    names = tuple(node.name for node in session.get_inputs())
    if threads == 1 or SEQUENTIAL not in session.get_modelmeta().custom_metadata_map:
        return OnnxModel(_forward(session), names)
    single, pool = _forward(_session(file, 1)), ThreadPoolExecutor(threads)

    def forward(inputs: Mapping[str, np.ndarray]) -> np.ndarray:
        parts = np.array_split(np.arange(len(inputs["input_ids"])), threads)
        if len(parts[-1]) < ROWS_PER_THREAD:
            return single(inputs)
        batches = ({name: values[part] for name, values in inputs.items()} for part in parts)
        return np.concatenate(list(pool.map(single, batches)))

    return OnnxModel(forward, names)


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
    try:
        return onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime has its own exception class for every kind of broken file
        raise InputError(
            f"{file} cannot be run ({str(error).splitlines()[0]}); write it again with potstill export"
        ) from None


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
