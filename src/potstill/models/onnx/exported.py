"""Load an export to onnx or int8 without torch and transformers, which take seconds to import."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from potstill.data.pixel_reader import PixelReader
from potstill.errors import InputError
from potstill.models.architectures.registration import PREFIX
from potstill.models.config_file import ConfigFile, read_config, refuse_odd_labels, trained_length
from potstill.models.folders import first_line
from potstill.models.heads import WITH_LABELS, head_of
from potstill.models.onnx.session import ArrayForward, OnnxModel, bytes_on_disk, open_onnx, refuse_infinite
from potstill.models.tokenizers.json_tokenizer import JsonTokenizer
from potstill.models.tokenizers.safety import refuse_other_vocabulary


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


def can_load_light(file: Path) -> bool:
    """Whether an export can be loaded here: its tokenizer is a tokenizer.json, or it reads images as they are."""
    config = read_config(file)
    if head_of(config) == "ImageClassification":
        return config.model_type.startswith(PREFIX)  # others scale and normalise images
    return (file.parent / "tokenizer.json").is_file()


def load_exported(file: Path, threads: int | None = None) -> ExportedModel:
    """Load an .onnx file with config.json and tokenizer.json beside it; `threads` defaults to `default_threads`."""
    config = read_config(file)
    model = open_onnx(file, threads or default_threads())
    try:
        return _checked(file, config, model)
    except InputError:
        raise
    except Exception as error:  # values of a wrong type, in files that anybody may have written
        raise InputError(
            f"{file}: its config.json and tokenizer.json cannot be used ({first_line(error)}); "
            "write it again with potstill export"
        ) from None


def _checked(file: Path, config: ConfigFile, model: OnnxModel) -> ExportedModel:
    longest, parameters = (config.exported_number(f"potstill_{name}") for name in ("longest", "parameters"))
    reads_images = head_of(config) == "ImageClassification"
    tokenizer = PixelReader(config.shape) if reads_images else JsonTokenizer(file.parent, model.input_names, longest)
    if head_of(config) in WITH_LABELS:
        refuse_odd_labels(config.id2label, file.parent)
    if config.vocab_size and not reads_images:
        refuse_other_vocabulary(tokenizer.get_vocab(), config.vocab_size, file.parent)
    length = trained_length(config.fields.get("potstill_length"), longest, file.parent)
    forward = refuse_infinite(model.forward, file)
    return ExportedModel(forward, config, tokenizer, longest, length, parameters, bytes_on_disk(file))


def default_threads() -> int:
    """Return OMP_NUM_THREADS, or the number of cores that this process may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
