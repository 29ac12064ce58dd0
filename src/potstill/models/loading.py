"""The only door for configs and tokenizers of others; weights are loaded from folders that passed `safe_folder`.

A folder is checked before anything in it is loaded, code that comes with a model is never run, and the user is never
asked to allow it. Whatever transformers raises for a broken folder becomes an `InputError`.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from potstill.data.pixel_reader import PixelReader
from potstill.data.tokens import explain_panics
from potstill.errors import InputError
from potstill.models.architectures.configs import PixelConfig
from potstill.models.config_file import SHORTEST, read_config
from potstill.models.folders import first_line, model_folder
from potstill.models.heads import head_of
from potstill.models.safety import refuse_unsafe_files, refuse_unsafe_settings
from potstill.models.tokenizers.safety import refuse_growing

NO_CODE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def load_config(model: str | Path) -> PreTrainedConfig:
    """Load the config of a model's folder, of an exported folder or its .onnx file, or of a name on the hub."""
    folder = read_config(model).folder
    try:
        with quiet_transformers():
            config: PreTrainedConfig = AutoConfig.from_pretrained(folder, **NO_CODE)
    except Exception as error:  # a broken config fails in many ways inside transformers
        raise InputError(
            f"{model} has a config.json that cannot be read ({first_line(error)}); use the model's original folder"
        ) from error
    return config


def load_tokenizer(model: str | Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model's folder, or of a folder that holds nothing else."""
    folder = model_folder(model)
    refuse_unsafe_files(folder)
    refuse_unsafe_settings(folder, needed="tokenizer_config.json")
    return _tokenizer(folder, model)


def load_reader(config: PreTrainedConfig, folder: Path) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer; for a network that reads pixels, return its stand-in."""
    if head_of(config) != "ImageClassification":
        return _tokenizer(folder, folder)
    if not isinstance(config, PixelConfig):  # other image models need scaling and normalisation of their own
        raise InputError(f"{folder} is an image model of type {config.model_type!r}; use one that mlp made")
    return PixelReader(config.shape)


def _tokenizer(folder: Path, model: str | Path) -> PreTrainedTokenizerBase:
    refuse_growing(folder)
    try:
        with quiet_transformers(), explain_panics(folder=model):
            tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **NO_CODE)
    except InputError:
        raise
    except Exception as error:  # missing or broken files fail in many ways inside transformers
        raise InputError(
            f"{model} holds no tokenizer that can be read ({first_line(error)}); "
            "give a folder that `tokenizer.save_pretrained(folder)` of transformers has written"
        ) from error
    _refuse_unusable(tokenizer, folder)
    return tokenizer


def _refuse_unusable(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Refuse a tokenizer without a vocabulary file, or with a limit that leaves no room for a text."""
    files = set(tokenizer.vocab_files_names.values()) | {"tokenizer.json"}
    if tokenizer.vocab_files_names and not any((folder / name).exists() for name in files):
        raise InputError(
            f"{folder} has no vocabulary ({' or '.join(sorted(files))}); put the model's tokenizer there, as "
            "`tokenizer.save_pretrained(folder)` writes it"
        )
    limit = tokenizer.model_max_length
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not SHORTEST <= limit < sys.float_info.max:
        raise InputError(
            f"{folder / 'tokenizer_config.json'} says model_max_length = {limit!r:.80}; write how many tokens the "
            f"model reads, at least {SHORTEST}, or remove it"
        )


def reload_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer of the same class from a folder that potstill has written."""
    reloaded: PreTrainedTokenizerBase = type(tokenizer).from_pretrained(folder, **NO_CODE)
    return reloaded


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Silence load reports, warnings and progress bars: what they would say is checked here and raised as an error."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
