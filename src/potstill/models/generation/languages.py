"""Tokens such as >>de<< in front of a text, by which multilingual translation models are told the target language."""

from __future__ import annotations

import re
from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase

from potstill.errors import InputError

LANGUAGE_TOKEN = re.compile(r">>([\w-]+)<< ")


def languages(texts: Iterable[str]) -> list[str]:
    """Return the languages that texts begin with, sorted."""
    return sorted({match[1] for text in texts if (match := LANGUAGE_TOKEN.match(text))})


def language_prefix(language: str | None, tokenizer: PreTrainedTokenizerBase, model_name: str) -> str:
    """Return what to put in front of every text to ask for a language; an empty text without one."""
    if language is None:
        return ""
    if not knows_language(tokenizer, language):
        known = languages(f"{token} " for token in tokenizer.get_vocab())
        todo = f"write one of {', '.join(known)}" if known else "omit --language"
        raise InputError(f"{model_name} has no token >>{language}<<; {todo}")
    return f">>{language}<< "


def knows_language(tokenizer: PreTrainedTokenizerBase, language: str) -> bool:
    """Whether the tokenizer reads >>de<< as one token, as multilingual Marian models do, and not in parts."""
    token = f">>{language}<<"
    number = tokenizer.convert_tokens_to_ids(token)
    return number not in (None, tokenizer.unk_token_id) and number in tokenizer(f"{token} a")["input_ids"]
