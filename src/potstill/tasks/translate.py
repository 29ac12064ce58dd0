"""Translation and other text-to-text tasks, by a model with an encoder and a decoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from potstill.data.task import Texts, Tokenizer
from potstill.data.tokens import Encoded, Tokens
from potstill.tasks.generate import TARGET, Generation


@dataclass(frozen=True)
class Translation(Generation):
    """A sequence is the tokens of the source, then those of the target; each ends as the tokenizer ends a text."""

    name = "translate"
    decodes = True
    two_stacks = True
    metrics = ("bleu", "bleu_beam", "chrf", "mode", "likelihood", "token_accuracy", "perplexity")

    def tokenize(self, texts: Texts, tokenizer: Tokenizer, length: int) -> Encoded:
        """At most `length` tokens of the source, and as many of the target."""
        sources, source_cut = _token_ids(tokenizer, length, text=[text for text, _ in texts])
        targets, target_cut = _token_ids(tokenizer, length, text_target=[str(pair or "") for _, pair in texts])
        ids = [[*source, *target] for source, target in zip(sources, targets, strict=True)]
        types = [[0] * len(source) + [TARGET] * len(target) for source, target in zip(sources, targets, strict=True)]
        return Encoded(ids, types, sum(a or b for a, b in zip(source_cut, target_cut, strict=True)))

    def impossible_classes(self, tokens: Tokens) -> tuple[int, ...]:
        """Padding is never generated; many decoders begin with it."""
        return (tokens.padding,)

    def places(self, tokens: Tokens, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        _, counts = self.target_tokens(tokens, rows)
        positions = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        return np.stack([np.repeat(np.arange(len(rows)), counts), positions], 1), None

    def inputs(
        self, arrays: dict[str, np.ndarray], real: np.ndarray, tokens: Tokens, rows: np.ndarray
    ) -> dict[str, np.ndarray]:
        """The source for the encoder, and the target, from which the model makes the decoder's input by shifting it."""
        ids, target = arrays["input_ids"], (arrays["token_type_ids"] == TARGET) & real
        source = real & ~target
        lengths, sizes = source.sum(1), target.sum(1)
        longest, columns = int(lengths.max()), np.arange(int(sizes.max()))
        behind = np.minimum(lengths[:, None] + columns, ids.shape[1] - 1)
        return {
            "input_ids": np.where(source[:, :longest], ids[:, :longest], tokens.padding),
            "attention_mask": source[:, :longest].astype(np.int64),
            "decoder_targets": np.where(columns < sizes[:, None], np.take_along_axis(ids, behind, 1), tokens.padding),
        }


def _token_ids(tokenizer: Tokenizer, length: int, **texts: list[str]) -> tuple[list[list[int]], list[bool]]:
    """Token ids, at most `length` each and ended as the tokenizer ends a text, and whether each text was truncated.

    Some tokenizers, such as Marian's, treat `text` and `text_target` differently.
    """
    encoded = tokenizer(**texts, truncation=True, max_length=length, return_attention_mask=False)
    ids: list[list[int]] = encoded["input_ids"]
    if encoded.encodings is not None:
        return ids, [bool(encoding.overflowing) for encoding in encoded.encodings]
    return ids, [len(tokens) >= length for tokens in ids]  # a slow tokenizer does not say what it truncated
