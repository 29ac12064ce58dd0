"""Tokenize texts, and shorten texts that are much longer than what the model reads before the tokenizer sees them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from potstill.data.task import Tokenizer
from potstill.models.tokenizers.long_texts import FAR_TOO_LONG, beginnings, pair_beginnings


def encode_texts(tokenizer: Tokenizer, texts: list[str], pairs: list[str] | None, length: int, **options: Any) -> Any:
    defaults = {"truncation": True, "return_token_type_ids": True, "return_attention_mask": False}
    return tokenizer(texts, pairs, max_length=length, **{**defaults, **options})


def shorten_pairs(
    tokenizer: Tokenizer, texts: list[str], pairs: list[str] | None, length: int
) -> tuple[list[str], list[str] | None]:
    """Return the texts; where both of a pair are far too long, reduced to about twice what is read of them.

    The tokenizers library keeps what it truncates from a pair in every combination: two texts of 100,000 characters
    would need 22 GB.
    """
    if pairs is None:
        return beginnings(tokenizer, texts, length), None
    texts, pairs = pair_beginnings(tokenizer, texts, pairs, length)
    limit = FAR_TOO_LONG * length
    rows = [row for row, pair in enumerate(pairs) if min(len(pair), len(texts[row])) > limit]
    if not rows:
        return texts, pairs
    sides = [
        encode_texts(tokenizer, [side[row] for row in rows], None, 2 * length, add_special_tokens=False).encodings
        for side in (texts, pairs)
    ]
    for row, *both in zip(rows, *sides, strict=True):
        sizes = [len(side.ids) + sum(len(rest.ids) for rest in side.overflowing) for side in both]
        for side, encoding, tokens in zip((texts, pairs), both, sizes, strict=True):
            # the longer text must stay the longer one, since it gives up its tokens first
            kept = encoding.offsets[: len(encoding.offsets) - (tokens < max(sizes))]
            if tokenizer.truncation_side == "left":
                kept = encoding.offsets[len(encoding.offsets) - len(kept) :]
            if encoding.overflowing:
                side[row] = side[row][kept[0][0] : kept[-1][1]]
    return texts, pairs


@contextmanager
def truncated_on_the_right(tokenizer: Tokenizer) -> Iterator[None]:
    """Words and windows are counted from the start of a text, whichever side the tokenizer truncates by default."""
    before, tokenizer.truncation_side = tokenizer.truncation_side, "right"
    try:
        yield
    finally:
        tokenizer.truncation_side = before
