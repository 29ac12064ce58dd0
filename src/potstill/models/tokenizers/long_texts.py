"""Shorten texts that are far longer than what the model reads before a tokenizer sees them.

A tokenizer splits a whole text before it truncates, and needs 270 bytes per character: a text of 9 MB needs 2.4 GB even
if only 128 tokens are read.
"""

from __future__ import annotations

from potstill.data.task import Tokenizer

LONG = 2**16  # characters: shorter texts need less memory than the model
FAR_TOO_LONG = 20  # characters for each token that is read


def beginnings(tokenizer: Tokenizer, texts: list[str], length: int, side: str | None = None) -> list[str]:
    """Shorten each text to at least twice the tokens that are read, so that the cut is far from them and changes none.

    `side` is where tokens are truncated, "right" or "left"; None: where the tokenizer truncates.
    """
    left = (side or tokenizer.truncation_side) == "left"
    return [_enough(tokenizer, text, length, 1, left) for text in texts]


def pair_beginnings(
    tokenizer: Tokenizer, firsts: list[str], seconds: list[str], length: int
) -> tuple[list[str], list[str]]:
    """Shorten pairs. Of two texts, the one with more characters stays longer, as truncation starts with the longer."""
    left = tokenizer.truncation_side == "left"
    sides = [
        [
            _enough(tokenizer, text, length, 4 if len(text) > len(other) else 2, left)
            for text, other in zip(texts, others, strict=True)
        ]
        for texts, others in ((firsts, seconds), (seconds, firsts))
    ]
    return sides[0], sides[1]


def _enough(tokenizer: Tokenizer, text: str, length: int, factor: int, left: bool) -> str:
    """Return the text, or a part of it with at least 2 * length tokens, `factor` times longer than usual."""
    size = factor * max(LONG, FAR_TOO_LONG * length)
    while size < len(text):
        part = text[-size:].lstrip(text[-size]) if left else text[:size]  # a run of spaces is not cut in two
        options = {"add_special_tokens": False, "return_attention_mask": False}
        if len(tokenizer(part, truncation=True, max_length=2 * length, **options)["input_ids"]) >= 2 * length:
            return part
        size *= 4  # endless words, or nothing but spaces
    return text
