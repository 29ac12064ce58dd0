"""Texts as words with part-of-speech tags: cut and tagged once, on disk beside the examples, memory-mapped ever after."""

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

from potstill.data.examples import CHUNK, Examples
from potstill.errors import InputError
from potstill.recipe.user_functions import user_function
from potstill.system import interrupts
from potstill.system.column_files import ColumnFiles, column, made_once

Tagger = Callable[[list[str]], Sequence[str]]

# what stands between spaces, with the quotes and brackets before it and the marks behind it as words of their own
WORD = re.compile(r'["“(\[{]+|[.,;:!?)\]}"”…]+|[^\s"“(\[{](?:\S*[^\s.,;:!?)\]}"”…])?')
FORMAT = 1  # of the folders below
INSTALL = {
    "textblob": "pip install 'potstill[text]'",
    "spacy": "pip install spacy and python -m spacy download en_core_web_sm",
}


@dataclass(frozen=True)
class TaggedTexts:
    """The texts and pairs of examples: text number 2i is the text of example i, 2i + 1 its pair."""

    pieces: np.ndarray  # flat int32: twice the word's number, plus one where a space stands before it
    tags: np.ndarray  # flat int32
    offsets: np.ndarray  # (2 · examples + 1,)
    words: list[str]  # that occur
    tag_names: list[str]


def tag_examples(examples: Examples, tagger: str, progress: Callable[[int], None]) -> TaggedTexts:
    """Every example once by this tagger; a second call reads what the first wrote."""
    what = f"{tagger_fingerprint(tagger)} {xxhash.xxh3_128_hexdigest(examples.index.tobytes())}"
    folder = examples.folder / f"words-{xxhash.xxh3_128_hexdigest(what.encode())}"
    meta = made_once(folder, lambda columns: _write(examples, load_tagger(tagger), tagger, columns, progress))
    names = meta["tags"]
    words = bytes(column(folder, "words", np.uint8)).decode().split("\n")
    pieces, tags = column(folder, "pieces", np.int32), column(folder, "tags", np.int32)
    return TaggedTexts(pieces, tags, column(folder, "offsets", np.int64), words, names)


def _write(examples: Examples, tag: Tagger, name: str, columns: ColumnFiles, progress: Callable[[int], None]) -> None:
    words: dict[str, int] = {}
    tags: dict[str, int] = {}
    end = 0
    columns.add("offsets", np.zeros(1, np.int64))
    for begin in range(0, len(examples), CHUNK):
        part = examples.take(np.arange(begin, min(begin + CHUNK, len(examples))))
        pieces: list[int] = []
        numbers: list[int] = []
        ends: list[int] = []
        for text in (text or "" for both in part.texts() for text in both):
            found = list(WORD.finditer(text))
            each = [one[0] for one in found]
            for word, one in zip(each, found, strict=True):
                spaced = one.start() > 0 and text[one.start() - 1].isspace()
                pieces.append(2 * words.setdefault(word, len(words)) + spaced)
            said = tag(each) if each else []
            if len(said) != len(each):
                raise InputError(
                    f"{examples.source}: the tagger '{name}' gives {len(said)} tags for the {len(each)} words of "
                    f"{text[:60]!r}; name one that gives a tag for each word"
                )
            numbers += [tags.setdefault(str(one), len(tags)) for one in said]
            ends.append(end + len(pieces))
        columns.add("pieces", np.array(pieces, np.int32))
        columns.add("tags", np.array(numbers, np.int32))
        columns.add("offsets", np.array(ends, np.int64))
        end += len(pieces)
        progress(len(part))
        if asked := interrupts.asked():
            raise interrupts.Interrupted(asked)
    columns.add("words", np.frombuffer("\n".join(words).encode(), np.uint8))  # a word has no line break in it
    columns.finish({"tags": list(tags)})


def load_tagger(name: str) -> Tagger:
    """textblob, spacy, or "module:function" of a module that is installed: words of a text -> a tag for each."""
    if name == "textblob":
        return _textblob()
    if name == "spacy":
        return _spacy()
    found: Tagger = user_function("tagger", name, '"textblob", "spacy" or "module:function" of your own')
    return found


def tagger_fingerprint(name: str) -> str:
    """What decides words and tags: how texts are cut, and the library's version or the function's own source."""
    cut = f"{FORMAT} {WORD.pattern} {name}"
    if name in INSTALL:  # not imported, since the tags may be known already
        try:
            return f"{cut} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            raise _missing(name) from None
    try:
        return f"{cut} {inspect.getsource(load_tagger(name))}"
    except (OSError, TypeError):
        return cut


def _textblob() -> Tagger:
    try:
        import textblob.en
    except ImportError:
        raise _missing("textblob") from None
    tag: Any = textblob.en.tag
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # its word lists, read with the first text, are left open
        tag("one", tokenize=False)
    return lambda words: [one for _, one in tag(" ".join(words), tokenize=False)]


def _spacy() -> Tagger:
    try:
        import spacy

        language = spacy.load("en_core_web_sm", exclude=["parser", "ner", "lemmatizer"])
    except (ImportError, OSError):
        raise _missing("spacy") from None
    return lambda words: [token.tag_ for token in language(spacy.tokens.Doc(language.vocab, words=words))]


def _missing(name: str) -> InputError:
    return InputError(
        f"the tagger '{name}' is not installed; write {INSTALL[name]}, or name another as tagger = \"module:function\""
    )
