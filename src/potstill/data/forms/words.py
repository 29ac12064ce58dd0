"""Words with a tag each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from potstill.data.columns import TEXTS, Columns, Names, first_of, names_by_lower_case, text_columns
from potstill.data.formats.reading import clean_text, short_repr
from potstill.data.forms.base import FirstValues, RowForm
from potstill.data.records import Parts, Values, canonical, label_value
from potstill.data.row import join_parts
from potstill.errors import InputError

WORDS = ("tokens", "words")
CERTAIN_TAGS = ("tags", "ner_tags", "ner", "pos_tags")  # no other form has columns of these names
TAGS = ("tags", "ner_tags", "ner", "labels", "label", "pos_tags")


class Words(RowForm):
    """text: words, joined; label: one tag per word"""

    order = 3
    deciding = WORDS
    also_deciding = TAGS
    needed = (("text", "words"),)
    one_text = True
    questions = True

    def is_form_of(self, columns: Sequence[str], names: Names, wanted: Columns, first: FirstValues) -> bool:
        names = names_by_lower_case(columns, wanted.label_columns)
        text = wanted.text or first_of(names, WORDS)
        if text is None or wanted.pair or isinstance(wanted.label, tuple):
            return False
        tags = wanted.label or first_of(names, TAGS, (text,))
        words, tag_values = first.get(text), first.get(tags or "")
        if wanted.text:
            if isinstance(words, str) and text.lower() in WORDS and isinstance(tag_values, str):
                as_many = words.count(" ") == tag_values.strip().count(" ")
                return as_many and (" " in words or str(tags).lower() in CERTAIN_TAGS)
            return isinstance(words, list)
        plain = text_columns(names, wanted)
        if isinstance(first.get(plain.text or ""), str):  # a label belongs to this text, a list of tags to the words
            tag_values = first.get(first_of(names, CERTAIN_TAGS) or "")
            as_many = isinstance(words, list) and isinstance(tag_values, list) and len(words) == len(tag_values)
            return as_many and plain.label is None
        return isinstance(words, list | str)

    def find(self, names: Names, wanted: Columns) -> Columns:
        text = wanted.text or first_of(names, WORDS + TEXTS)
        return replace(wanted, text=text, label=wanted.label or first_of(names, TAGS, (text,)))

    def read(self, values: Values, columns: Columns) -> Parts:
        """Read a list of words, or a text that is split at its spaces, and one tag per word."""
        value = values.get(str(columns.text))
        words = value.split(" ") if isinstance(value, str) and value else value or []
        if not isinstance(words, list):
            raise InputError(f"{columns.text!r} is {short_repr(value)}, not words; write a list of them")
        if not words:
            raise InputError(f"there are no words in {columns.text!r}; write at least one, or delete the row")
        for number, word in enumerate(words, 1):
            if not isinstance(word, str):
                raise InputError(f"word {number} is {short_repr(word)}, not a text; write it in quotes")
            if not word.strip():
                todo = "write one space between words" if isinstance(value, str) else "write it, or omit it"
                raise InputError(f"word {number} of {len(words)} is empty; {todo}")
        return join_parts(map(clean_text, words)), None, read_tags(values, columns, len(words))


def read_tags(values: Values, columns: Columns, words: int) -> tuple[str, ...] | None:
    value = label_value(values, columns)
    tags = value.strip().split(" ") if isinstance(value, str) and value.strip() else value
    if tags is None or isinstance(tags, str):
        return None
    if not isinstance(tags, list):
        raise InputError(f"{columns.label!r} is {short_repr(value)}, not tags; write a list of one tag per word")
    if all(tag is None for tag in tags):  # a data set has -1 for every word of a row without tags
        return None
    if len(tags) != words:
        count = f"{words} {'word' if words == 1 else 'words'}"
        raise InputError(f"there are {count}, but {len(tags)} in {columns.label!r}; write one tag per word")
    texts = tuple("" if tag is None else canonical(tag) for tag in tags)
    if "" in texts:
        raise InputError(f"word {texts.index('') + 1} has no tag; write one, or none for the whole row")
    return texts
