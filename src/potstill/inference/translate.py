"""Lines of text in, what a model makes of them out, block by block."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice

from potstill.errors import InputError
from potstill.models.generation.decoding import decoder_of
from potstill.models.generation.languages import language_prefix
from potstill.models.loading import load_tokenizer
from potstill.system.paths import given, unreadable


def translate(
    model: str,
    lines: Iterable[str],
    beam: int = 5,
    batch: int = 512,
    longest: int | None = None,
    language: str | None = None,
) -> Iterator[str]:
    """The best hypothesis of each line, on one line, in their order. `batch` lines are held at a time."""
    if beam < 1 or batch < 1:
        raise InputError(f"--beam {beam} --batch {batch}: both are at least 1; write for example --beam 5 --batch 512")
    rest = iter(lines)
    with decoder_of(model, longest or 256) as decode:
        before = language_prefix(language, load_tokenizer(model), model) if language else ""
        while block := list(islice(rest, batch)):
            full = [place for place, line in enumerate(block) if line.strip()]  # to ask for a language is no text
            said = [""] * len(block)
            for place, hypotheses in zip(full, decode([before + block[one] for one in full], beam, 1), strict=True):
                said[place] = " ".join(hypotheses[0].text.splitlines())
            yield from said


def lines_of(files: list[str]) -> Iterator[str]:
    """Of files one after the other, or of standard input. What is no UTF-8 is replaced, and told by nobody: a line stays a line."""
    for file in files or [""]:
        try:
            with open(given(file), "rb") if file else nullcontext(sys.stdin.buffer) as opened:
                for line in opened:
                    yield line.decode("utf-8", "replace").rstrip("\r\n").replace("\x00", "\ufffd")
        except OSError as error:
            raise unreadable(file, error) from None
