"""Students over word vectors: how they split texts, and where their vectors come from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

Words = Literal["pieces", "words"]
SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}  # where the start's tokenizer names none


def by_pieces(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The same pieces with the same ids, without [CLS] and [SEP] around them."""
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    return _plain(backend, tokenizer, {name: getattr(tokenizer, name) for name in SPECIAL if getattr(tokenizer, name)})


def by_words(tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], most: int) -> PreTrainedTokenizerBase:
    """The `most` frequent words of the texts: split at spaces and signs, in lower case where the tokenizer writes so."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    special = {name: getattr(tokenizer, name) or token for name, token in SPECIAL.items()}
    backend = Tokenizer(models.WordLevel(unk_token=special["unk_token"]))
    lower = normalizer is not None and normalizer.normalize_str("A") == "a"
    backend.normalizer = normalizers.BertNormalizer(lowercase=lower)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordLevelTrainer(
        vocab_size=most + len(special), special_tokens=list(special.values()), show_progress=False
    )
    # half a character (a lone surrogate) cannot be handed over: it is read as a question mark
    backend.train_from_iterator((text.encode("utf-8", "replace").decode("utf-8") for text in texts), trainer)
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


def rows_of(tokenizer: PreTrainedTokenizerBase) -> int:
    """Of a table that has one for every id."""
    return 1 + max(tokenizer.get_vocab().values())
