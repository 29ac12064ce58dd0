"""Texts that are longer than what is read of them, cut before or by the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedTokenizerBase

from potstill.models.tokenizers.long_texts import FAR_TOO_LONG, beginnings, pair_beginnings


def encoded(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], pairs: list[str] | None, length: int, **more: Any
) -> Any:
    settings = {"truncation": True, "return_token_type_ids": True, "return_attention_mask": False, **more}
    return tokenizer(texts, pairs, max_length=length, **settings)


def both_cut(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], pairs: list[str] | None, length: int
) -> tuple[list[str], list[str] | None]:
    """The rows with a text that is far too long, or with two, each cut to twice what is read of it.

    What is cut off of a pair is kept by tokenizers in every combination: two texts of 100,000 letters need 22 GB.
    """
    if pairs is None:
        return beginnings(tokenizer, texts, length), None
    texts, pairs = pair_beginnings(tokenizer, texts, pairs, length)
    limit = FAR_TOO_LONG * length
    rows = [row for row, pair in enumerate(pairs) if min(len(pair), len(texts[row])) > limit]
    if not rows:
        return texts, pairs
    sides = [
        encoded(tokenizer, [side[row] for row in rows], None, 2 * length, add_special_tokens=False).encodings
        for side in (texts, pairs)
    ]
    for row, *both in zip(rows, *sides, strict=True):
        whole = [len(one.ids) + sum(len(rest.ids) for rest in one.overflowing) for one in both]
        for side, one, tokens in zip((texts, pairs), both, whole, strict=True):
            # the longer one stays the longer one: it gives up its tokens first
            kept = one.offsets[: len(one.offsets) - (tokens < max(whole))]
            if tokenizer.truncation_side == "left":
                kept = one.offsets[len(one.offsets) - len(kept) :]
            if one.overflowing:
                side[row] = side[row][kept[0][0] : kept[-1][1]]
    return texts, pairs


@contextmanager
def cut_at_the_end(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Whatever side the tokenizer cuts by itself: where words or windows are counted, they are counted from the first."""
    before, tokenizer.truncation_side = tokenizer.truncation_side, "right"
    try:
        yield
    finally:
        tokenizer.truncation_side = before
