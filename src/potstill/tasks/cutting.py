"""Texts that are longer than what is read of them, cut before or by the tokenizer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedTokenizerBase

FAR_TOO_LONG = 20  # letters for each token that is read
ENORMOUS = 100_000  # letters


def encoded(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], pairs: list[str] | None, length: int, **more: Any
) -> Any:
    settings = {"truncation": True, "return_token_type_ids": True, "return_attention_mask": False, **more}
    return tokenizer(texts, pairs, max_length=length, **settings)


def both_cut(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], pairs: list[str] | None, length: int
) -> tuple[list[str], list[str] | None]:
    """The rows whose texts are both far too long, each cut to twice what is read of it; enormous ones also alone.

    What is cut off of a pair is kept by tokenizers in every combination: two texts of 100,000 letters need 22 GB.
    """
    given, others = texts, pairs or [""] * len(texts)  # of two enormous ones the longer one stays the longer one
    texts = [enough_of(tokenizer, a, length * (4 + (len(a) > len(b)))) for a, b in zip(given, others, strict=True)]
    if pairs is not None:
        pairs = [enough_of(tokenizer, b, length * (4 + (len(b) > len(a)))) for a, b in zip(given, others, strict=True)]
    limit = FAR_TOO_LONG * length
    rows = [] if pairs is None else [row for row, pair in enumerate(pairs) if min(len(pair), len(texts[row])) > limit]
    if pairs is None or not rows:
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


def enough_of(tokenizer: PreTrainedTokenizerBase, text: str, tokens: int) -> str:
    """So much of an enormous text, up to a space, that it has so many tokens: a tokenizer takes hundreds of bytes for
    each letter, also of what is cut off."""
    left, size = tokenizer.truncation_side == "left", max(ENORMOUS, FAR_TOO_LONG * tokens)
    while size < len(text):
        gap = text.find(" ", len(text) - size) if left else text.rfind(" ", 0, size)
        part = text[gap:] if left else text[:gap]
        made = encoded(tokenizer, [part], None, tokens, add_special_tokens=False) if gap > 0 else None
        if made is not None and len(made["input_ids"][0]) >= tokens:
            return part
        size *= 4
    return text


@contextmanager
def cut_at_the_end(tokenizer: PreTrainedTokenizerBase) -> Iterator[None]:
    """Whatever side the tokenizer cuts by itself: where words or windows are counted, they are counted from the first."""
    before, tokenizer.truncation_side = tokenizer.truncation_side, "right"
    try:
        yield
    finally:
        tokenizer.truncation_side = before
