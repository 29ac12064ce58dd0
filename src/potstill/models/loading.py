"""The only door for configs and tokenizers of others, and the checks of weights from folders that passed `safe_folder`.

A folder is checked before anything in it is loaded, code that comes with a model is never run, and the user is never
asked to allow it. Errors of transformers about a broken folder become an `InputError`.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor
from transformers import AutoConfig, AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from potstill.data.pixel_reader import PixelReader
from potstill.data.tokens import explain_panics
from potstill.errors import InputError
from potstill.models.anatomy import TESTED, architecture_name, has_layers, in_head, is_spread, layers_path
from potstill.models.architectures.own_model import PixelConfig
from potstill.models.folders import SHORTEST, explain_errors, model_folder, read_config
from potstill.models.heads import head_of
from potstill.models.safety import refuse_growing, refuse_unsafe_files, refuse_unsafe_settings

NO_CODE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
PADDED_TEXTS = (  # of many lengths
    "good",
    "it was not what they had hoped for, and nobody stayed to the end of it",
    "one two three",
    "why ?",
)
PADDING_EFFECT = 0.1  # tolerated, relative to how far the logits of these texts differ from each other


def load_config(model: str | Path) -> PreTrainedConfig:
    """Load the config of a model's folder, of an exported folder or its .onnx file, or of a name on the hub."""
    folder = read_config(model).folder
    problem = f"{model} has a config.json that cannot be read"
    with explain_errors(problem, "use the model's original folder"), quiet_transformers():
        config: PreTrainedConfig = AutoConfig.from_pretrained(folder, **NO_CODE)
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
    todo = "give a folder that `tokenizer.save_pretrained(folder)` of transformers has written"
    with (
        explain_errors(f"{model} holds no tokenizer that can be read", todo),
        quiet_transformers(),
        explain_panics(folder=model),
    ):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(folder, **NO_CODE)
    files = set(tokenizer.vocab_files_names.values()) | {"tokenizer.json"}
    if tokenizer.vocab_files_names and not any((folder / name).exists() for name in files):
        raise InputError(f"{folder} has no vocabulary ({' or '.join(sorted(files))}); put the model's tokenizer there")
    limit = tokenizer.model_max_length
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not SHORTEST <= limit < sys.float_info.max:
        raise InputError(
            f"{folder / 'tokenizer_config.json'} says model_max_length = {limit!r:.80}; write how many tokens the "
            f"model reads, at least {SHORTEST}, or remove it"
        )
    return tokenizer


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


def missing_weights(info: dict[str, Any]) -> set[str]:
    """Return the weights that the file lacks or has in another shape; `info` is transformers' load report."""
    return set(info["missing_keys"]) | {name for name, *_ in info["mismatched_keys"]}


def refuse_bad_weights(folder: str | Path, model: PreTrainedModel, info: dict[str, Any], may_make_head: bool) -> None:
    """Refuse missing, non-finite and surplus weights; with `may_make_head` the head may be missing."""
    missing = sorted(missing_weights(info))
    if encoder := [name for name in missing if not in_head(model, name)]:
        raise InputError(
            f"{folder} lacks {len(encoder)} weights of the encoder, or has them in another shape, "
            f"such as {encoder[0]}; use a folder whose config.json and model.safetensors belong together"
        )
    if missing and not may_make_head:
        raise InputError(f"{folder} has no trained head ({', '.join(missing)}); use a model fine-tuned on this task")
    saved = set()
    for name, weight in _stored_weights(model_folder(folder)) if is_spread(model) else model.state_dict().items():
        saved.add(name)
        if weight.is_floating_point() and not bool(torch.isfinite(weight).all()):
            raise InputError(f"{folder}: {name} is not finite; use a model whose training did not diverge")
    saved |= set(getattr(model, "all_tied_weights_keys", None) or {})  # stored under the name of another weight
    if lost := [name for name, weight in model.named_parameters() if weight.is_meta and name not in saved]:
        raise InputError(f"{folder}: {lost[0]} is in no file and cannot be offloaded; write teacher_devices = 'one'")
    if has_layers(model):
        layer = re.compile(re.escape(layers_path(model).partition(".")[2]) + r"\.(\d+)\.")
        numbers = {name: int(match[1]) for name in info["unexpected_keys"] if (match := layer.search(name))}
        count = model.config.num_hidden_layers
        if surplus := sorted(name for name, number in numbers.items() if number >= count):
            raise InputError(
                f"{folder} has layers that its config.json does not name, such as {surplus[0]}; "
                f"write the right number of layers into config.json, which now says {count}"
            )


def _stored_weights(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield weights one by one: a model that is spread over devices may not fit into memory."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is not a dictionary)
                yield name, tensors.get_tensor(name)


def refuse_padding_effect(folder: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Refuse a classifier whose predictions change when a text is padded on the right, as texts of a batch are.

    XLNet reads its state at the end of the batch, and FNet mixes padding with words: their predictions would depend on
    which texts share a batch.
    """
    try:
        rows = [tokenizer(text)["input_ids"] or [0] for text in PADDED_TEXTS]
        alone = torch.cat([_logits(model, tokenizer, [row]) for row in rows])
        together = _logits(model, tokenizer, rows)
    except Exception:  # a model that cannot run at all fails where it is used, with its own reason
        return
    spread = (alone - alone.mean(0)).norm()
    if bool((together - alone).norm() > PADDING_EFFECT * spread + 1e-3):
        raise InputError(
            f"{folder}: the predictions of a {architecture_name(model)} change when texts are padded on the right, "
            f"as in batches; use an encoder such as {', '.join(TESTED)}"
        )


def _logits(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, rows: list[list[int]]) -> Tensor:
    """(rows, classes)"""
    lengths = torch.tensor([len(row) for row in rows])
    real = torch.arange(max(map(len, rows))) < lengths[:, None]
    ids = torch.full(real.shape, tokenizer.pad_token_id or 0)
    ids[real] = torch.tensor([token for row in rows for token in row])
    inputs = {"input_ids": ids, "attention_mask": real.long(), "token_type_ids": torch.zeros_like(ids)}
    with torch.inference_mode():
        logits: Tensor = model(**{name: inputs[name] for name in tokenizer.model_input_names if name in inputs}).logits
    return logits
