"""Remove the tokens that the task's texts never or rarely use: a smaller embedding table; other tokens spell them."""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from potstill.api import BuildContext, Builder, Count, InputError, Student, anatomy, heads, loading, networks, trimming

CHECKED = 1000  # texts that are tokenised again with the new tokenizer


@dataclass(frozen=True)
class TrimVocabulary(Builder):
    """minimum: how often a token must occur. Characters stay, so that unseen words are spelled out.
    tokens: how many stay besides characters: the most frequent ones of the texts, then those with the lowest ids, which are
    the most frequent in general. None: all that occur `minimum` times.
    """

    minimum: int = 1
    tokens: Count | None = None

    def kept(self, layers: int) -> list[int]:
        return list(range(1, layers + 1))

    def build(self, current: Student, context: BuildContext) -> Student:
        model, tokenizer = current.model, current.tokenizer
        if (head := heads.head_of(model.config)) in heads.OVER_VOCABULARY:
            raise InputError(
                f"trim_vocabulary: {heads.DESCRIPTIONS[head]} would lose tokens that it predicts; "
                "omit trim_vocabulary and keep fewer layers instead, as in student = 'keep_layers:3'"
            )
        settings = trimming.read_settings(tokenizer)
        counts = Counter(number for numbers in trimming.token_ids(tokenizer, context.texts()) for number in numbers)
        if not counts:
            raise InputError("trim_vocabulary: there is no text to count tokens in; give rows with text")
        ids = trimming.vocabulary_ids(settings)
        if self.tokens is None:
            wanted = {token for token, number in ids.items() if counts[number] >= self.minimum}
        else:
            wanted = trimming.most_frequent(settings, counts, self.tokens)
        kept = trimming.tokens_to_keep(settings, wanted)
        fields = model.config.to_dict().items()
        named = {name: id for name, id in fields if name.endswith("_token_id") and isinstance(id, int)}
        # RoBERTa and MPNet count positions from the padding's id, so that no token before it may be removed
        first = anatomy.position_offset(model)
        kept |= {token for token, number in ids.items() if number in named.values() or number < first}

        settings, new_ids = trimming.renumber(settings, kept)
        with loading.quiet_transformers():
            trimmed = trimming.rebuild(tokenizer, settings)
        texts = list(islice(context.texts(), CHECKED))
        before, after = trimming.token_ids(tokenizer, texts), trimming.token_ids(trimmed, texts)
        for text, numbers, trimmed_numbers in zip(texts, before, after, strict=True):
            expected = [new_ids.get(number) for number in numbers]
            # a rare token that was removed (by minimum or tokens) is meant to be spelled in another way
            if None not in expected and expected != trimmed_numbers:
                raise InputError(
                    f"trim_vocabulary: the trimmed tokenizer would split {text[:80]!r} differently from before; "
                    "this kind of tokenizer cannot be trimmed: omit trim_vocabulary"
                )

        config = copy.deepcopy(model.config)
        config.vocab_size = len(new_ids)
        for name, number in named.items():
            setattr(config, name, new_ids.get(number))
        table = anatomy.word_embeddings(model).weight
        table_name = next(name for name, parameter in model.named_parameters() if parameter is table)
        rows = sorted(new_ids, key=new_ids.__getitem__)
        weights = model.state_dict() | {table_name: table.detach()[rows]}
        return Student(networks.stock_model(current.model, config, weights), trimmed)
