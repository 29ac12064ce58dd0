"""Generative models as folders of CTranslate2: `model.bin`, its own `config.json`, the vocabulary, and the tokenizer.

The stock converter assumes that Marian's last token is padding and that its embedding is zero, which need not hold if
the output layer shares that embedding. Here every row is kept, and the decoder starts with the token that transformers
starts with. A conversion does not change the model.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import all_parameters
from potstill.models.builder import Student
from potstill.models.loading import quiet_transformers
from potstill.signals import NEVER
from potstill.system.paths import expand_user

Weights = Literal["int8", "float32"]
TRANSLATORS = {"marian": "BartLoader", "bart": "BartLoader", "t5": "T5Loader", "m2m_100": "M2M100Loader"}
LOADERS = {**TRANSLATORS, "gpt2": "GPT2Loader", "llama": "LlamaLoader"}
CLASSES = ("MTModel", "ForConditionalGeneration", "LMHeadModel", "ForCausalLM")  # ends of their names
# whether there is a norm before each layer, and one after the embeddings
NORMS = {"marian": (False, False), "bart": (False, True), "m2m_100": (True, False)}
ABOUT = "student.json"  # what potstill must know and CTranslate2 need not


class SpecialTokens(NamedTuple):
    """Ids of the tokens that decoding needs."""

    start: int | None  # of the decoder; None for causal language models
    forced: int | None  # must come first, such as the target language
    ends: list[int]
    padding: int
    never: list[int]  # must not be generated, and have no probability


def special_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> SpecialTokens:
    """Read them from the model's generation config, or from its config where that says nothing."""
    generation_config = getattr(model, "generation_config", None)

    def setting(name: str) -> Any:
        value = getattr(generation_config, name, None)
        return getattr(model.config, name, None) if value is None else value

    end = setting("eos_token_id")
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise InputError(f"a {model.config.model_type} without an end token cannot be decoded; name its eos_token_id")
    ends = list(end) if isinstance(end, list | tuple) else [int(end)]
    padding = next((id for id in (setting("pad_token_id"), tokenizer.pad_token_id) if id is not None), ends[0])
    start = setting("decoder_start_token_id") if model.config.is_encoder_decoder else None
    if model.config.is_encoder_decoder and start is None:
        start = padding
    never = [ids[0] for ids in setting("bad_words_ids") or [] if len(ids) == 1]
    never += [int(id) for id in setting("suppress_tokens") or []]
    return SpecialTokens(start, setting("forced_bos_token_id"), ends, int(padding), sorted(set(never)))


def is_exported(folder: str | Path) -> bool:
    """Whether a folder was written by `potstill export --to ctranslate2`."""
    place = expand_user(folder)
    return os.path.isfile(place / "model.bin") and not any(place.glob("*.safetensors"))


def import_ctranslate2() -> Any:
    try:
        import ctranslate2
    except ImportError:
        raise InputError("CTranslate2 is not installed; write pip install 'potstill[translate]'") from None
    return ctranslate2


def why_unsupported(model: PreTrainedModel) -> str | None:
    """Return why CTranslate2 cannot run a model; None if it can."""
    config = model.config
    if config.model_type not in LOADERS or not type(model).__name__.endswith(CLASSES):
        return f"a {type(model).__name__} is not a generative model of type {', '.join(LOADERS)}"
    heads = [getattr(config, f"{side}_attention_heads", 0) for side in ("encoder", "decoder")]
    if config.model_type in NORMS and heads[0] != heads[1]:
        return f"encoder and decoder have {heads[0]} and {heads[1]} heads"
    if config.model_type == "m2m_100" and (config.pad_token_id != 1 or config.decoder_start_token_id == 1):
        return "its padding is not token 1, or starts the decoder: its positions depend on that"
    if not getattr(config, "share_encoder_decoder_embeddings", True):
        return "encoder and decoder have different vocabularies"
    return None


def convert(student: Student, folder: Path, weights: Weights = "int8") -> None:
    """Write a model for CTranslate2 into a folder; files of an earlier conversion are replaced."""
    import_ctranslate2()
    if why := why_unsupported(student.model):
        raise InputError(f"CTranslate2 cannot run it: {why}; use the model as it is, `potstill translate` runs it too")
    folder.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(student.model).cpu()  # the converter changes its config and rounds its weights in place
    with torch.no_grad():
        spec = _specification(model, student.tokenizer)
        spec.validate()
        spec.optimize(weights)
        spec.save(str(folder))
    with quiet_transformers():
        student.tokenizer.save_pretrained(folder)
    about = {
        "model_type": model.config.model_type,
        "parameters": all_parameters(student.model),
        "longest": longest_text(student),
        "pieces": special_tokens(student.model, student.tokenizer)._asdict(),
    }
    (folder / ABOUT).write_text(json.dumps(about, indent=1), encoding="utf-8")


def _specification(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Any:
    from ctranslate2.converters import transformers as stock

    if model.config.model_type in NORMS:
        model.config.normalize_before, model.config.normalize_embedding = NORMS[model.config.model_type]
    loader = getattr(stock, LOADERS[model.config.model_type])()
    spec = loader.get_model_spec(model)
    special, names = special_tokens(model, tokenizer), output_tokens(model, tokenizer)
    loader.set_vocabulary(spec, names)
    spec.config.eos_token = names[special.ends[0]]
    spec.config.unk_token = tokenizer.unk_token or spec.config.eos_token  # no token is unknown, but it must be a text
    spec.config.bos_token = tokenizer.bos_token or spec.config.eos_token
    if special.start is not None:
        spec.config.decoder_start_token = names[special.start]
    spec.config.layer_norm_epsilon = getattr(model.config, "rms_norm_eps", None)
    if special.never:
        own_bias = getattr(model, "final_logits_bias", None)
        bias = np.zeros(len(names), np.float32) if own_bias is None else own_bias.numpy().reshape(-1).copy()
        bias[special.never] = NEVER
        spec.decoder.projection.bias = bias
    return spec


def output_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return a token for every row of the output layer; rows that the tokenizer does not know get made-up names."""
    rows = int(model.get_output_embeddings().weight.shape[0])
    tokens = {id: token for token, id in tokenizer.get_vocab().items()}
    return [tokens.get(id, f"<unused {id}>") for id in range(rows)]


def longest_text(student: Student) -> int:
    """Return the most tokens that the model has positions for; a million if it needs none."""
    positions = getattr(student.model.config, "max_position_embeddings", None) or 10**6
    return int(min(positions, student.tokenizer.model_max_length, 10**6))
