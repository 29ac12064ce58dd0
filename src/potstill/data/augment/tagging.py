"""Texts as words with part-of-speech tags: stored beside the examples once, memory-mapped afterwards."""

from __future__ import annotations

import importlib
import importlib.metadata
import inspect
import re
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from potstill.data.examples import Examples
from potstill.errors import InputError
from potstill.recipe.user_functions import user_function
from potstill.system import interrupts
from potstill.system.column_files import ColumnFiles, column, write_once

Tagger = Callable[[list[str]], Sequence[str]]

# text between spaces; opening quotes and brackets before it and punctuation after it are words of their own
WORD = re.compile(r'["“(\[{]+|[.,;:!?)\]}"”…]+|[^\s"“(\[{](?:\S*[^\s.,;:!?)\]}"”…])?')
FORMAT = 2  # of the folders; raise it to have texts tagged again
INSTALL = {
    "textblob": "pip install 'potstill[text]'",
    "spacy": "pip install spacy and python -m spacy download en_core_web_sm",
}


@dataclass(frozen=True)
class TaggedTexts:
    """The texts and pairs of examples: text number 2i is the text of example i, 2i + 1 its pair."""

    words: np.ndarray  # flat int32: twice the index of the word in `vocabulary`, plus one if a space precedes it
    tags: np.ndarray  # flat int32
    offsets: np.ndarray  # (2 · examples + 1,)
    vocabulary: list[str]
    tag_names: list[str]


def tag_examples(examples: Examples, tagger: str, progress: Callable[[int], None]) -> TaggedTexts:
    """Tag the texts of all examples. A second call reads what the first wrote."""
    what = f"{tagger_fingerprint(tagger)} {examples.index_hash}"
    folder = examples.folder / f"words-{xxhash.xxh3_128_hexdigest(what.encode())}"
    meta = write_once(folder, lambda columns: _write(examples, load_tagger(tagger), tagger, columns, progress))
    vocabulary = bytes(column(folder, "vocabulary", np.uint8)).decode().split("\n")
    words, tags = column(folder, "words", np.int32), column(folder, "tags", np.int32)
    return TaggedTexts(words, tags, column(folder, "offsets", np.int64), vocabulary, meta["tags"])


def _write(examples: Examples, tag: Tagger, name: str, columns: ColumnFiles, progress: Callable[[int], None]) -> None:
    vocabulary: dict[str, int] = {}
    tag_names: dict[str, int] = {}
    for part in examples.parts():
        words: list[int] = []
        tags: list[int] = []
        sizes: list[int] = []
        for text in (text or "" for pair in part.texts() for text in pair):
            matches = list(WORD.finditer(text))
            for match in matches:
                spaced = match.start() > 0 and text[match.start() - 1].isspace()
                words.append(2 * vocabulary.setdefault(match[0], len(vocabulary)) + spaced)
            tags_of_text = tag([match[0] for match in matches]) if matches else []
            if len(tags_of_text) != len(matches):
                reason = f"gives {len(tags_of_text)} tags for the {len(matches)} words of {text[:60]!r}"
                raise InputError(
                    f"{examples.source}: the tagger '{name}' {reason}; use one that gives one tag per word"
                )
            tags += [tag_names.setdefault(str(each), len(tag_names)) for each in tags_of_text]
            sizes.append(len(matches))
        columns.add("words", np.array(words, np.int32))
        columns.add("tags", np.array(tags, np.int32))
        columns.add_offsets("offsets", sizes)
        progress(len(part))
        interrupts.stop_if_asked()
    columns.add("vocabulary", np.frombuffer("\n".join(vocabulary).encode(), np.uint8))  # no word contains a line break
    columns.finish({"tags": list(tag_names)})


def load_tagger(name: str) -> Tagger:
    """Return the tagger "textblob", "spacy", or "module:function" of an installed module: words of a text -> one tag per word."""
    try:
        if name == "textblob":
            return _textblob()
        if name == "spacy":
            return _spacy()
    except (ImportError, OSError):
        raise _missing(name) from None
    tagger: Tagger = user_function("tagger", name, '"textblob", "spacy" or "module:function" of your own')
    return tagger


def tagger_fingerprint(name: str) -> str:
    """Return what decides words and tags: the pattern of words, and the library's version or the function's source."""
    pattern = f"{FORMAT} {WORD.pattern} {name}"
    if name in INSTALL:  # the library is not imported, because the texts may be tagged already
        try:
            return f"{pattern} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            raise _missing(name) from None
    try:
        return f"{pattern} {inspect.getsource(load_tagger(name))}"
    except (OSError, TypeError):
        return pattern


def _textblob() -> Tagger:
    import textblob.en

    tag: Any = textblob.en.tag
    with warnings.catch_warnings():
        # textblob reads its word lists with the first text and leaves them open
        warnings.simplefilter("ignore", ResourceWarning)
        tag("one", tokenize=False)
    return lambda words: [each for _, each in tag(" ".join(words), tokenize=False)]


def _spacy() -> Tagger:
    import spacy

    language = spacy.load("en_core_web_sm", exclude=["parser", "ner", "lemmatizer"])
    return lambda words: [token.tag_ for token in language(spacy.tokens.Doc(language.vocab, words=words))]


def _missing(name: str) -> InputError:
    todo = f'run {INSTALL[name]}, or use another tagger = "module:function"'
    return InputError(f"the tagger '{name}' is not installed; {todo}")
