"""The one door for models of others: each config and tokenizer that is read comes in here, and weights from a folder that did.

The folder is looked at before anything of it is loaded (`foreign`), code that comes with a model is never run, and nobody
is asked whether it may. Whatever transformers makes of a broken folder is an `InputError`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from potstill.data.pixel_reader import PixelReader
from potstill.data.tokens import explain_panics
from potstill.errors import InputError
from potstill.models.folders import first_line, model_folder, onnx_file
from potstill.models.heads import head_named
from potstill.models.safety import refuse_unsafe_files, refuse_unsafe_settings
from potstill.models.tokenizers.safety import refuse_growing, refuse_unusable

NO_CODE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


def safe_folder(folder: str | Path) -> Path:
    """Where a model lies, once it is known that only plain weights and stock code will be opened there."""
    path = model_folder(folder)
    _refuse_unsafe(path)
    if not any(path.glob("*.safetensors")) and not any(path.glob("*.onnx")):
        pickled = any(path.glob("*.bin")) or any(path.glob("*.pt"))
        raise InputError(
            f"{folder} has {'only pickled weights, which can run code' if pickled else 'no weights'}; "
            "potstill reads safetensors only: write it with `model.save_pretrained(folder)` of a recent transformers"
        )
    refuse_unsafe_settings(path)
    return path


def load_config(model: str | Path) -> PreTrainedConfig:
    """Of a model's folder, of an exported one or its .onnx file, or of a name on the hub."""
    file = onnx_file(model)
    place = safe_folder(file.parent if file else model)
    try:
        with quiet_transformers():
            config: PreTrainedConfig = AutoConfig.from_pretrained(place, **NO_CODE)
    except Exception as error:  # a broken config fails in many ways inside transformers
        raise InputError(
            f"{model} has a config.json that cannot be read ({first_line(error)}); use the model's original folder"
        ) from error
    names = config.architectures
    if names is not None and not (isinstance(names, list) and all(isinstance(name, str) for name in names)):
        raise InputError(
            f"{place}: architectures in config.json is no list of names; write the name of one class in brackets"
        )
    return config


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """Of a model's folder, or of one that holds nothing else; weights are not looked at."""
    path = model_folder(folder)
    _refuse_unsafe(path)
    refuse_unsafe_settings(path, needed="tokenizer_config.json")
    return _tokenizer(path, folder)


def reader_of(config: PreTrainedConfig, folder: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a model's folder; of a network that reads pixels, what it has in its place."""
    if head_named(str((config.architectures or [""])[0])) != "ImageClassification":
        return _tokenizer(folder, folder)
    if config.model_type != "potstill-mlp":  # others have images scaled and normalised in ways of their own
        raise InputError(f"{folder} is an image model of type {config.model_type!r}; use one that was made by mlp")
    return PixelReader(config.shape)


def _tokenizer(path: Path, folder: str | Path) -> PreTrainedTokenizerBase:
    refuse_growing(path)
    try:
        with quiet_transformers(), explain_panics(folder=folder):
            found: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(path, **NO_CODE)
    except InputError:
        raise
    except Exception as error:  # files that are missing or broken fail in many ways inside transformers
        raise InputError(
            f"{folder} holds no tokenizer that can be read ({first_line(error)}); "
            "give a folder that `tokenizer.save_pretrained(folder)` of transformers has written"
        ) from error
    refuse_unusable(found, path)
    return found


def refuse_odd_labels(config: PreTrainedConfig, folder: str | Path) -> None:
    """An error unless the classes of a trained head are numbered from 0, and each has a name of its own."""
    names = config.id2label or {}
    if not names or sorted(names) != list(range(len(names))):
        numbers = ", ".join(map(str, list(names)[:5])) or "none"
        raise InputError(f"{folder}: the classes of id2label in config.json are {numbers}; number them 0, 1, …")
    for name in names.values():
        if str(name) != str(name).encode("utf-8", "replace").decode():
            raise InputError(
                f"{folder}: the class {str(name)!a} in config.json is no text; write another name in id2label"
            )
    twice = [name for name, count in Counter(map(str, names.values())).items() if count > 1]
    if twice:
        raise InputError(
            f"{folder}: two classes in config.json have the name {twice[0]!r}; write two names in id2label"
        )


def read_again(tokenizer: PreTrainedTokenizerBase, folder: str | Path) -> PreTrainedTokenizerBase:
    """A tokenizer of the same class, out of a folder that we have written."""
    again: PreTrainedTokenizerBase = type(tokenizer).from_pretrained(folder, **NO_CODE)
    return again


def _refuse_unsafe(path: Path) -> None:
    try:
        refuse_unsafe_files(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); check the path and its permissions") from None


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No load report, warning or progress bar: what they would tell is checked here, and said once as an error."""
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
