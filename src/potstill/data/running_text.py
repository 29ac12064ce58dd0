"""Running text as windows: consecutive sentences of a document, as many as a model reads at once.

A document is a row of a table; in text files it ends at an empty line, in WikiText's files at the heading of an article. Texts
are read and written in parts, so memory does not grow with them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import xxhash

from potstill.data.examples import Examples, ExampleWriter, folder_of
from potstill.data.formats.reading import TEXT_LINES, Record, Records
from potstill.data.pools import Say, files_to_read, joined
from potstill.data.rows import Columns, Table, open_table
from potstill.data.sentences import sentences_of
from potstill.data.sources import is_saved_data_set
from potstill.data.task import Tokenizer
from potstill.data.tokens import tokenizer_fingerprint, with_mask_token
from potstill.errors import InputError
from potstill.system.column_files import ColumnFiles, write_once

FORMAT = 1  # of the windows; raise it to have texts cut again
SPECIAL = {1: 2, 2: 3}  # special tokens around one text and around two


class Piece(NamedTuple):
    """A sentence, or a part of one that is longer than a window."""

    text: str
    tokens: int


def open_running_text(source: str, columns: Columns, say: Say = lambda words: None) -> Table:
    """Open a file, a data set, or a folder of files of one format as texts; the end of a file ends a document."""
    folder = Path(os.path.expanduser(source))
    if not folder.is_dir() or is_saved_data_set(folder):
        return open_table(source, columns, form="text")
    tables = [open_table(str(file), columns, form="text") for file in files_to_read(source, folder, say)]
    kinds = sorted({f"{table.kind} ({table.columns.text})" for table in tables})
    if len(kinds) > 1:
        raise InputError(
            f"{source}: the files in the folder are of several kinds, {', '.join(kinds)}; give one of them"
        )
    every = joined(source, tables)
    if every.kind not in TEXT_LINES:
        return every

    def records() -> Records:
        for table in tables:
            yield Record(0, {str(every.columns.text): ""}, table.source)
            for record in table.records():
                yield record._replace(place=record.where(table.source))

    def apart(digest: str) -> str:
        """Another one than that of the same files as a pool, in which no document ends with its file."""
        return xxhash.xxh3_128_hexdigest(f"documents {digest}".encode())

    fingerprint = apart(every.fingerprint)
    return replace(every, records=records, fingerprint=fingerprint, digest=lambda: apart(every.digest()))


def in_windows(examples: Examples, tokenizer: Tokenizer, length: int, pairs: bool = False) -> Examples:
    """Return the sentences of the examples' documents, joined to texts of at most `length` tokens with the special ones.

    `pairs`: to two texts, of which the second is the next in the document, each of at most half of the tokens.
    """
    parts = 2 if pairs else 1
    room = (length - SPECIAL[parts]) // parts
    if room < 1:
        least = SPECIAL[parts] + parts
        raise InputError(f"length = {length} leaves no room for a token of each text; write length = {least} or more")

    def write(columns: ColumnFiles) -> None:
        writer = ExampleWriter(columns, 1)
        document, tokens = -1, 0
        waiting, texts = list[str](), list[str]()  # of the open document: sentences, and whole texts
        rows: list[tuple[str, str | None]] = []
        numbers: list[int] = []

        def close_text() -> None:
            nonlocal tokens
            if waiting:
                texts.append(" ".join(waiting))
                waiting.clear()
                tokens = 0
            if len(texts) == parts:
                rows.append((texts[0], texts[1] if pairs else None))
                numbers.append(document)
                texts.clear()

        for part in examples.parts():
            for number, piece in pieces_of(part, tokenizer, room):
                if number != document:
                    close_text()
                    texts.clear()  # a text that nothing follows is no pair
                    document = number
                if tokens + piece.tokens > room:
                    close_text()
                waiting.append(piece.text)
                tokens += piece.tokens
            add(writer, rows, numbers)
        close_text()
        add(writer, rows, numbers)
        writer.finish()

    cut = [version("sentencex"), tokenizer_fingerprint(tokenizer), room, parts]
    folder = folder_of("windows", FORMAT, examples.folder.name, examples.index_hash, *cut)
    windows = Examples(examples.source, folder, np.arange(write_once(folder, write)["rows"]))
    if pairs and (not len(windows) or windows.documents[0] == windows.documents[-1]):
        problem = "two documents of several sentences are needed, for second texts that do not follow"
        raise InputError(f"{examples.source}: {problem}; give more text, or write task = 'mask'")
    return windows


def add(writer: ExampleWriter, rows: list[tuple[str, str | None]], documents: list[int]) -> None:
    """Write rows of the windows, and forget them."""
    if rows:
        labelled = np.ones(len(rows), np.bool_)
        writer.add(rows, np.zeros((len(rows), 1)), labelled, documents=np.array(documents, np.int64))
        rows.clear()
        documents.clear()


def pieces_of(part: Examples, tokenizer: Tokenizer, room: int) -> Iterator[tuple[int, Piece]]:
    """The sentences of some rows with the number of their document; those over `room` tokens are cut between words."""
    sentences: list[str] = []
    documents: list[int] = []
    for row, (text, _) in zip(part.index, part.texts(), strict=True):
        found = list(sentences_of(text))
        sentences += found
        documents += [int(part.documents[row])] * len(found)
    if not sentences:
        return
    sentences = with_mask_token(sentences, tokenizer)
    encoded = tokenizer(sentences, add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False)
    for document, sentence, encoding in zip(documents, sentences, encoded.encodings, strict=True):
        for piece in cut_sentence(sentence, encoding.offsets, encoding.word_ids, room):
            yield document, piece


def cut_sentence(
    sentence: str, offsets: list[tuple[int, int]], words: Iterable[int | None], room: int
) -> Iterator[Piece]:
    """The sentence, or parts of at most `room` tokens that end where a word does; a word that is longer is cut too."""
    if len(offsets) <= room:
        yield Piece(sentence, len(offsets))
        return
    word, begin = list(words), 0
    while begin < len(offsets):
        end = min(begin + room, len(offsets))
        ends = [place for place in range(end, begin, -1) if place == len(offsets) or word[place] != word[place - 1]]
        end = ends[0] if ends else end
        yield Piece(sentence[offsets[begin][0] : offsets[end - 1][1]], end - begin)
        begin = end
