"""Rows of text, label and perhaps a teacher's answer, out of text files, Parquet and Hugging Face data sets.

Strict: "NA" and "null" are texts, nothing is skipped or repaired in silence, an error names file and line. Streaming:
a file is never held in memory, whatever its length. Only what cannot be text is replaced: NUL and lone surrogates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, get_args

from potstill.data.columns import (
    BESIDE_GOLD,
    BETWEEN,
    GENERATED,
    LABELS,
    AnswerColumns,
    Columns,
    Form,
    Label,
    Span,
    find_form,
    first_of,
    resolve,
    usual_names,
    worth_a_look,
)
from potstill.data.formats.images import Shape
from potstill.data.formats.text import PLACE, Records
from potstill.data.records import (
    read_answer,
    read_choices,
    read_pixels,
    read_plain,
    read_spans,
    read_translation,
    read_words,
    read_writing,
)
from potstill.data.sources import languages_apart, open_source, race_apart
from potstill.errors import InputError

__all__ = ["BETWEEN", "Columns", "Form", "Label", "Row", "Span", "Table", "open_table"]

READ = {
    "text": read_plain,
    "words": read_words,
    "answers": read_spans,
    "choices": read_choices,
    "pixels": read_pixels,
    "translation": read_translation,
    "writing": read_writing,
}


class Row(NamedTuple):
    """A text, perhaps with a second one. Other forms put their parts in the same places:

    words: text is the words with BETWEEN between them, label a tag per word.
    answers: text is the question, pair the context, label the answers in it.
    choices: text is the passage ("" if there is none), pair the question with each candidate and BETWEEN between them,
    label the letter of the right one.
    pixels: text has a character for each pixel, chr(0) to chr(255).
    translation: pair is the text in the other language, label "" where there is one; without it they are "" and None.
    writing: text is the prompt ("" of running text), pair what is to be written, label as above.
    """

    line: int  # 1-based, on which the row begins; Parquet, data sets, SQuAD, folders: number of the record
    text: str
    pair: str | None
    label: Label | None  # as written, in canonical text; None: unlabelled
    answer: tuple[float, ...] | None  # the teacher's logits (of probabilities their logarithm), (classes or choices,)


@dataclass(frozen=True)
class Table:
    """Rows to be read as often as wanted, and what is known of them beforehand."""

    source: str  # as the user gave it
    columns: Columns  # what was guessed is filled in; pair and label are None where there are none
    answers: AnswerColumns | None = field(repr=False)
    kind: str  # of the file: the same bytes are other rows as CSV and as lines of text
    fingerprint: str  # xxh3-128 of the file's bytes before they were read; data sets: their own
    digest: Callable[[], str] = field(repr=False)  # the same, of the bytes as they are now
    records: Callable[[], Records] = field(repr=False)
    form: Form = "text"
    choices: int = 0  # candidates of every row; 0 where there are none
    shape: Shape | None = None  # channels, height and width of every image
    unread_label: str | None = None  # a column with a usual name for labels, where rows are texts to be written

    @property
    def has_answers(self) -> bool:
        return self.answers is not None

    @property
    def answer_labels(self) -> tuple[str, ...] | None:
        """Classes the answers are for, if columns name them; None: in the order of the labels."""
        return self.answers.labels if self.answers else None

    def rows(self) -> Iterator[Row]:
        classes = self.choices
        for line, record in self.records():
            where = str(record.get(PLACE, f"{self.source}:{line}"))
            answer = read_answer(record, self.answers, where) if self.answers else None
            if answer is not None:
                classes = classes or len(answer)
                if len(answer) != classes:
                    others = f"there are {classes} candidates" if self.choices else f"earlier ones have {classes}"
                    todo = f"write one number per {'candidate' if self.choices else 'class'} in every row"
                    raise InputError(f"{where}: the answer has {len(answer)} numbers, {others}; {todo}")
            text, pair, label = READ[self.form](record, self.columns, where)
            if self.choices and (found := candidates_in(pair)) != self.choices:
                reason = f"there are {found} candidates, the first row has {self.choices}"
                raise InputError(f"{where}: {reason}; write the same number in every row")
            yield Row(line, self.columns.before + text, pair, label, answer)


def first_record(records: Records, source: str) -> tuple[int, dict[str, object]]:
    for first in records:
        return first
    raise InputError(f"{source}:1: there are no rows; write at least one")


def paragraphs(records: Records, column: str) -> Records:
    """Running text: what is empty stands between paragraphs and is no row."""
    for line, record in records:
        value = record.get(column)
        if not isinstance(value, str) or value.strip():
            yield line, record


def both_languages(languages: list[str], columns: Columns, where: str) -> Columns:
    if len(languages) > 2:
        todo = f"say from which to which, as in --text {languages[0]} --pair {languages[1]}"
        raise InputError(f"{where}: there are {len(languages)} languages, {', '.join(languages)}; {todo}")
    return replace(columns, text=languages[0], pair=languages[1] if len(languages) == 2 else None)


def candidates_in(pair: str | None) -> int:
    return (pair or "").count(BETWEEN) + 1


def open_table(
    source: str | Path,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    need_label: bool = False,
    form: Form | None = None,
) -> Table:
    """A file, two files with a line for each other (FIRST,SECOND), a folder of `datasets.save_to_disk` (DIR or
    DIR:SPLIT) or of RACE, or a data set of the Hub (NAME[:CONFIG]:SPLIT). Without a form it is found by the columns'
    names and the first record. Of texts to be translated or written, the label that is needed is that text."""
    source = str(source)

    def knows(names: list[str]) -> bool:
        for possible in [form] if form else get_args(Form):
            try:
                return bool(resolve(possible, names, columns, False, ""))
            except InputError:
                pass
        return False

    try:
        opened = open_source(source, knows)
        if opened.images and form in (None, "text"):
            form = "pixels"
    except OSError as error:  # no permission, a name too long for the file system
        raise InputError(f"{source}: cannot be read ({error.strerror}); check the path and its permissions") from None
    if form not in ("text", "pixels", *GENERATED):
        opened = race_apart(opened, source)
    if form is None:
        look = worth_a_look(opened.names, columns)
        form = find_form(opened.names, columns, first_record(opened.records(look), source)[1] if look else {})
    if form == "translation":
        opened, languages = languages_apart(opened, source)
        if languages and columns.text is None and columns.pair is None:
            columns = both_languages(languages, columns, f"{source}:1")
    resolved, answers = resolve(form, opened.names, columns, need_label, f"{source}:1", opened.hint)
    wanted = [resolved.text, resolved.pair, *resolved.label_columns, *resolved.choice_columns]
    wanted += [*(answers.columns if answers else ()), *(BESIDE_GOLD if form == "answers" else ())]
    needed = [name for name in dict.fromkeys(wanted) if name in opened.names]
    if form == "pixels" and resolved.text not in opened.images:
        there = f"; name one of {', '.join(opened.images)} by --text" if opened.images else "; give a file of images"
        raise InputError(f"{source}:1: {resolved.text!r} holds no images{there}")
    shape = opened.images.get(str(resolved.text))

    def records() -> Records:
        found = opened.records(needed)
        return paragraphs(found, str(resolved.pair)) if form == "writing" and resolved.text is None else found

    left = first_of(usual_names(opened.names), LABELS, (resolved.text, resolved.pair)) if form in GENERATED else None
    told = (source, resolved, answers, opened.kind, opened.fingerprint, opened.digest)
    table = Table(*told, records, form, shape=shape, unread_label=left)
    line, record = first_record(table.records(), source)
    if form != "choices":
        return table
    _, pair, _ = read_choices(record, resolved, str(record.get(PLACE, f"{source}:{line}")))
    return replace(table, choices=candidates_in(pair))
