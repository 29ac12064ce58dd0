"""Tokenizers of students over word vectors: no special tokens; token types separate the texts of a pair."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from potstill.models.tokenizers.trimming import replace_surrogates

Words = Literal["pieces", "words"]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}  # if the start's tokenizer names none


def subword_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """Return a tokenizer with the same tokens and ids, without [CLS] and [SEP] around a text."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    return _plain(backend, tokenizer, {name: getattr(tokenizer, name) for name in SPECIAL if getattr(tokenizer, name)})


def word_tokenizer(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], most: int) -> PreTrainedTokenizerBase:
    """Train a tokenizer of the `most` frequent words, split at spaces and punctuation, lower-case if `tokenizer` is."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    special = {name: getattr(tokenizer, name) or token for name, token in SPECIAL.items()}
    backend = Tokenizer(models.WordLevel(unk_token=special["unk_token"]))
    lower = normalizer is not None and normalizer.normalize_str("A") == "a"
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(
        vocab_size=most + len(special), special_tokens=list(special.values()), show_progress=False
    )
    backend.train_from_iterator(map(replace_surrogates, texts), trainer)
    return _plain(backend, tokenizer, special)


def _plain(backend: Tokenizer, like: PreTrainedTokenizerBase, special: dict[str, str]) -> PreTrainedTokenizerBase:
    backend.no_padding()
    backend.no_truncation()
    backend.post_processor = processors.TemplateProcessing(single="$A:0", pair="$A:0 $B:1", special_tokens=[])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        model_max_length=like.model_max_length,
        padding_side="right",
        truncation_side=like.truncation_side,
        model_input_names=["input_ids", "attention_mask", "token_type_ids"],
        **special,
    )


def table_rows(tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the rows of an embedding table that has one for every token id."""
    return 1 + max(tokenizer.get_vocab().values())
