"""Leave out the pieces that the task's texts never use: a smaller embedding table, the same answers on those texts."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from potstill.errors import InputError
from potstill.models.anatomy import position_offset, word_embeddings
from potstill.models.heads import WHAT, head_of
from potstill.models.loading import quiet_transformers
from potstill.models.student import Context, Student, stock_model
from potstill.models.tokenizers.trimming import ids_of, pieces_to_keep, read_settings, rebuilt, renumbered, split

CHECKED = 1000  # texts that are split once more with the new tokenizer


@dataclass(frozen=True)
class TrimVocabulary:
    """`minimum`: how often a piece must occur. Letters, digits and signs stay, so unseen words are spelled out."""

    minimum: int = 1

    def build(self, current: Student, context: Context) -> Student:
        model, tokenizer = current.model, current.tokenizer
        if (head := head_of(model.config)) in ("Seq2SeqLM", "CausalLM"):
            raise InputError(
                f"trim_vocabulary: {WHAT[head]} writes with its pieces, and its outputs would go with them; "
                "leave trim_vocabulary out and take layers instead, as in student = 'keep_layers:3'"
            )
        settings = read_settings(tokenizer)
        counts = Counter(number for numbers in split(tokenizer, context.texts()) for number in numbers)
        if not counts:
            raise InputError("trim_vocabulary: there is no text to see which pieces are used; give rows with text")
        kept = pieces_to_keep(settings, counts, self.minimum)
        named = _token_ids(model.config)
        # RoBERTa and MPNet count positions from the padding's id, so nothing before it may go
        first = position_offset(model)
        kept |= {piece for piece, number in ids_of(settings).items() if number in named.values() or number < first}

        settings, new_ids = renumbered(settings, kept)
        with quiet_transformers():
            trimmed = rebuilt(tokenizer, settings)
        _check(tokenizer, trimmed, new_ids, list(islice(context.texts(), CHECKED)))

        config = copy.deepcopy(model.config)
        config.vocab_size = len(new_ids)
        for name, number in named.items():
            setattr(config, name, new_ids.get(number))
        table = word_embeddings(model).weight
        table_name = next(name for name, parameter in model.named_parameters() if parameter is table)
        rows = sorted(new_ids, key=new_ids.__getitem__)
        weights = model.state_dict() | {table_name: table.detach()[rows]}
        return Student(stock_model(current.model, config, weights), trimmed)


def _token_ids(config: PreTrainedConfig) -> dict[str, int]:
    """The fields of a config that name a piece, such as pad_token_id."""
    return {
        name: value for name, value in config.to_dict().items() if name.endswith("_token_id") and isinstance(value, int)
    }


def _check(
    tokenizer: PreTrainedTokenizerBase, trimmed: PreTrainedTokenizerBase, new_ids: dict[int, int], texts: list[str]
) -> None:
    for text, before, after in zip(texts, split(tokenizer, texts), split(trimmed, texts), strict=True):
        expected = [new_ids.get(number) for number in before]
        # a rare piece that went (minimum > 1) is meant to be spelled otherwise
        if None not in expected and expected != after:
            raise InputError(
                f"trim_vocabulary: the trimmed tokenizer would split {text[:80]!r} in another way than before; "
                "this kind of tokenizer cannot be trimmed: leave trim_vocabulary out"
            )
