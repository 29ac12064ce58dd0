"""Texts that are far longer than what is read of them, cut before a tokenizer sees them.

A tokenizer splits the whole of a text before it cuts, and needs 270 bytes for each letter: a text of 9 MB needs 2.4 GB
though 128 tokens are read.
"""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

LONG = 2**16  # letters: shorter texts need less memory than the model
FAR_TOO_LONG = 20  # letters for each token that is read


def beginnings(tokenizer: PreTrainedTokenizerBase, texts: list[str], length: int, side: str | None = None) -> list[str]:
    """Each text with at least twice the tokens that are read, so that what is read lies far from the cut and stays as it was.

    `side` is where tokens are cut off, "right" or "left"; None: where the tokenizer cuts.
    """
    left = (side or tokenizer.truncation_side) == "left"
    return [_enough(tokenizer, text, length, 1, left) for text in texts]


def both_beginnings(
    tokenizer: PreTrainedTokenizerBase, firsts: list[str], seconds: list[str], length: int
) -> tuple[list[str], list[str]]:
    """The same for pairs. Of two, the one with more tokens gives up the odd one: of two that are cut here it is taken to be
    the one with more letters, and stays the longer one."""
    left = tokenizer.truncation_side == "left"
    sides = [
        [
            _enough(tokenizer, text, length, 4 if len(text) > len(other) else 2, left)
            for text, other in zip(texts, others, strict=True)
        ]
        for texts, others in ((firsts, seconds), (seconds, firsts))
    ]
    return sides[0], sides[1]


def _enough(tokenizer: PreTrainedTokenizerBase, text: str, length: int, times: int, left: bool) -> str:
    """The text, or `times` as many letters as are certainly enough for most, or more."""
    letters = times * max(LONG, FAR_TOO_LONG * length)
    while letters < len(text):
        part = text[-letters:].lstrip(text[-letters]) if left else text[:letters]  # no run of spaces is cut in two
        asked = {"add_special_tokens": False, "return_attention_mask": False}
        if len(tokenizer(part, truncation=True, max_length=2 * length, **asked)["input_ids"]) >= 2 * length:
            return part
        letters *= 4  # words without end, or nothing but spaces
    return text
