"""Translate lines of text, block by block."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

from potstill.errors import InputError
from potstill.models.generation.decoding import decoder_of
from potstill.models.generation.languages import language_prefix
from potstill.models.loading import load_tokenizer
from potstill.system.paths import expand_user, unreadable


def translate(
    model: str,
    lines: Iterable[str],
    beam: int = 5,
    batch: int = 512,
    longest: int | None = None,
    language: str | None = None,
) -> Iterator[str]:
    """Yield the best hypothesis for each line, on one line, in order. `batch` lines are read and translated together."""
    if beam < 1 or batch < 1:
        raise InputError(f"--beam {beam} --batch {batch}: both must be at least 1; write --beam 5 --batch 512")
    rest = iter(lines)
    with decoder_of(model, longest or 256) as decode:
        prefix = language_prefix(language, load_tokenizer(model), model) if language else ""
        while block := list(islice(rest, batch)):
            texts = {place: prefix + line for place, line in enumerate(block) if line.strip()}  # a prefix is no text
            translations = [""] * len(block)
            for place, hypotheses in zip(texts, decode(list(texts.values()), beam, 1), strict=True):
                translations[place] = " ".join(hypotheses[0].text.splitlines())
            yield from translations


def lines_of(files: list[str]) -> Iterator[str]:
    """Yield the lines of files, or of standard input. Invalid UTF-8 is replaced silently so that line counts stay equal."""
    for file in files or [""]:
        try:
            with open(expand_user(file), "rb") if file else nullcontext(sys.stdin.buffer) as opened:
                for line in opened:
                    yield line.decode("utf-8", "replace").rstrip("\r\n").replace("\x00", "\ufffd")
        except OSError as error:
            raise unreadable(file, error) from None
