"""Models that write, as folders of CTranslate2: `model.bin`, its own `config.json`, the vocabulary, and the tokenizer.

Its stock converter takes it that Marian's last piece is padding and that this piece's vector is zero. Of a model
whose output layer shares that vector it need not be: so every row is kept, and the decoder begins with the piece that
transformers begins with. A conversion leaves the model as it was.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import all_parameters
from potstill.models.folders import is_there
from potstill.models.loading import quiet_transformers
from potstill.models.student import Student
from potstill.system.paths import expand_user

Weights = Literal["int8", "float32"]
TRANSLATORS = {"marian": "BartLoader", "bart": "BartLoader", "t5": "T5Loader", "m2m_100": "M2M100Loader"}
LANGUAGE_MODELS = {"gpt2": "GPT2Loader", "llama": "LlamaLoader"}
NORMS = {
    "marian": (False, False),
    "bart": (False, True),
    "m2m_100": (True, False),
}  # before a layer, after the embedding
ABOUT = "student.json"  # what CTranslate2 need not know
NEVER = -1e9  # of a logit; infinity would be no number in a sum


class Pieces(NamedTuple):
    """Numbers of the pieces that have a part in decoding."""

    start: int | None  # of a decoder beside an encoder
    forced: int | None  # that must come first, such as the language to be written
    ends: list[int]
    padding: int
    never: list[int]  # that may not be written, and have no probability


def pieces(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Pieces:
    """As the model's own settings for generation say, and where they do not, its config."""

    own = getattr(model, "generation_config", None)

    def said(name: str) -> Any:
        found = getattr(own, name, None)
        return getattr(model.config, name, None) if found is None else found

    end = said("eos_token_id")
    end = tokenizer.eos_token_id if end is None else end
    if end is None:
        raise InputError(f"a {model.config.model_type} without an end token cannot be decoded; name its eos_token_id")
    ends = list(end) if isinstance(end, list | tuple) else [int(end)]
    padding = next((one for one in (said("pad_token_id"), tokenizer.pad_token_id) if one is not None), ends[0])
    start = said("decoder_start_token_id") if model.config.is_encoder_decoder else None
    if model.config.is_encoder_decoder and start is None:
        start = padding
    never = [one[0] for one in said("bad_words_ids") or [] if len(one) == 1]
    never += [int(one) for one in said("suppress_tokens") or []]
    return Pieces(start, said("forced_bos_token_id"), ends, int(padding), sorted(set(never)))


def is_exported(folder: str | Path) -> bool:
    """Whether a folder holds what `potstill export --to ctranslate2` writes, and no student."""
    place = expand_user(folder)
    return is_there(place / "model.bin", "file") and not any(place.glob("*.safetensors"))


def library() -> Any:
    try:
        import ctranslate2
    except ImportError:
        raise InputError("CTranslate2 is not installed; write pip install 'potstill[translate]'") from None
    return ctranslate2


def refusal(model: PreTrainedModel) -> str | None:
    """Why a model cannot be written for CTranslate2; None where it can."""
    config = model.config
    known = {**TRANSLATORS, **LANGUAGE_MODELS}
    if config.model_type not in known or not type(model).__name__.endswith(
        ("MTModel", "ForConditionalGeneration", "LMHeadModel", "ForCausalLM")
    ):
        return f"a {type(model).__name__} is none of {', '.join(known)} that write texts"
    heads = [getattr(config, f"{side}_attention_heads", 0) for side in ("encoder", "decoder")]
    if config.model_type in NORMS and heads[0] != heads[1]:
        return f"encoder and decoder have {heads[0]} and {heads[1]} heads"
    if config.model_type == "m2m_100" and (config.pad_token_id != 1 or config.decoder_start_token_id == 1):
        return "its padding is not token 1, or starts the decoder: its positions are counted by it"
    if not getattr(config, "share_encoder_decoder_embeddings", True):
        return "encoder and decoder have vocabularies of their own"
    return None


def convert(student: Student, folder: Path, weights: Weights = "int8") -> None:
    """The folder is made, or its earlier files are replaced."""
    library()
    if why := refusal(student.model):
        raise InputError(
            f"CTranslate2 cannot run it: {why}; leave the model as it is, `potstill translate` runs it too"
        )
    folder.mkdir(parents=True, exist_ok=True)
    model = copy.deepcopy(student.model).cpu()  # the converter writes into its config, and rounds its weights in place
    with torch.no_grad():
        spec = _specification(model, student.tokenizer)
        spec.validate()
        spec.optimize(weights)
        spec.save(str(folder))
    with quiet_transformers():
        student.tokenizer.save_pretrained(folder)
    (folder / ABOUT).write_text(json.dumps(_about(student), indent=1), encoding="utf-8")


def _specification(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Any:
    from ctranslate2.converters import transformers as stock

    kind = model.config.model_type
    if kind in NORMS:
        model.config.normalize_before, model.config.normalize_embedding = NORMS[kind]
    loader = getattr(stock, {**TRANSLATORS, **LANGUAGE_MODELS}[kind])()
    spec = loader.get_model_spec(model)
    known = pieces(model, tokenizer)
    written = vocabulary(model, tokenizer)
    loader.set_vocabulary(spec, written)
    spec.config.eos_token = written[known.ends[0]]
    spec.config.unk_token = tokenizer.unk_token or spec.config.eos_token  # all pieces are known, but it must be a text
    spec.config.bos_token = tokenizer.bos_token or spec.config.eos_token
    if known.start is not None:
        spec.config.decoder_start_token = written[known.start]
    spec.config.layer_norm_epsilon = getattr(model.config, "rms_norm_eps", None)
    if known.never:
        projection = spec.decoder.projection
        final_bias = getattr(model, "final_logits_bias", None)
        bias = np.zeros(len(written), np.float32) if final_bias is None else final_bias.numpy().reshape(-1).copy()
        bias[known.never] = NEVER
        projection.bias = bias
    return spec


def vocabulary(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """A piece for every row of the output layer; rows that the tokenizer does not know have names of their own."""
    rows = int(model.get_output_embeddings().weight.shape[0])
    known = {number: piece for piece, number in tokenizer.get_vocab().items()}
    return [known.get(number, f"<unused {number}>") for number in range(rows)]


def _about(student: Student) -> dict[str, Any]:
    model = student.model
    known = pieces(model, student.tokenizer)
    return {
        "model_type": model.config.model_type,
        "parameters": all_parameters(model),
        "longest": longest_text(student),
        "pieces": known._asdict(),
    }


def longest_text(student: Student) -> int:
    """Most tokens that the model has positions for; a million where it needs none."""
    positions = getattr(student.model.config, "max_position_embeddings", None) or 10**6
    return int(min(positions, student.tokenizer.model_max_length, 10**6))
