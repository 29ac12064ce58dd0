"""Documents as sentences, for tasks whose rows are sentences themselves."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Literal

import numpy as np

from potstill.data.examples import Examples, ExampleWriter, folder_of
from potstill.errors import InputError
from potstill.system.column_files import ColumnFiles, write_once

FORMAT = 1  # of the folders; raise it to have texts cut again
MUCH_LONGER = 3  # times the words of long rows: such texts are documents
SAMPLE = 1000  # documents whose length decides
LANGUAGE = "en"  # whose abbreviations are known
AT_ONCE = 20_000  # characters that are cut together; of a quote that is never closed, the time grows with the square
BREAK = re.compile(r"(?:<br\s*/?>\s*)+|\n+", re.IGNORECASE)


def cut_documents(
    pool: Examples, rows: Examples, sentences: Literal["auto"] | bool, say: Callable[[str], None]
) -> Examples:
    """Return the sentences of the pool's texts that are as long as rows are: from the 1st to the 99th percentile of words.

    "auto" cuts only if the texts are much longer than the rows: the median of a sample over 3 times the 95th percentile.
    """
    long, *bounds = (int(np.percentile(word_counts(rows), share)) for share in (95, 1, 99))
    sample = pool.take(np.unique(np.linspace(0, len(pool) - 1, SAMPLE).astype(np.int64)))
    median = int(np.median(word_counts(sample)))
    if sentences == "auto" and median <= MUCH_LONGER * long:
        return pool
    least, most = max(bounds[0], 1), max(bounds[1], 1)

    def write(columns: ColumnFiles) -> None:
        writer = ExampleWriter(columns, 1)
        for places in pool.chunks():
            every = (sentence for place in places for sentence in sentences_of(pool.text(place)[0]))
            kept: list[tuple[str, str | None]] = [(text, None) for text in every if least <= len(text.split()) <= most]
            writer.add(kept, np.zeros((len(kept), 1)), np.zeros(len(kept), np.bool_))
        writer.finish()

    folder = folder_of("sentences", FORMAT, version("sentencex"), pool.folder.name, least, most)
    kept = write_once(folder, write)["rows"]
    if not kept:
        problem = f"no sentence of its long texts has {least} to {most} words, as the rows have"
        raise InputError(f"{pool.source}: {problem}; give other texts, or write sentences = false in [data]")
    cut = Examples(pool.source, folder, np.arange(kept))
    why = f"its texts (half of them over {median} words) are longer than the rows ({long} words or less, all but 5 %)"
    say(f"{pool.source}: {why}; they are cut into sentences, and the {kept:,} of {least} to {most} words are used")
    return cut


def word_counts(examples: Examples) -> np.ndarray:
    """(n,) words of each text."""
    return np.array([len(text.split()) for text, _ in examples.texts()], np.int64)


def sentences_of(text: str) -> Iterator[str]:
    """The sentences of a text, with single spaces between words. A line break ends a sentence."""
    from sentencex import segment

    for paragraph in BREAK.split(text):
        for begin in range(0, len(paragraph), AT_ONCE):
            for sentence in segment(LANGUAGE, paragraph[begin : begin + AT_ONCE]):
                if tidy := " ".join(sentence.split()):
                    yield tidy
