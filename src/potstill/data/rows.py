"""Rows of text, label and perhaps a teacher's answer, out of text files, Parquet and Hugging Face data sets.

Reading is strict: "NA" and "null" are texts, nothing is skipped or repaired silently, and an error names file and line.
Large files are streamed and never held in memory. Only NUL and lone surrogates, which cannot be text, are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from potstill.data.columns import (
    BESIDE_ANSWERS,
    GENERATED,
    AnswerColumns,
    Columns,
    detect_form,
    resolve_columns,
    unread_label,
)
from potstill.data.formats.parallel import split_languages
from potstill.data.formats.race import split_questions
from potstill.data.formats.reading import ImageShape, Record, Records
from potstill.data.records import READERS, read_answer
from potstill.data.row import Row, split_parts
from potstill.data.sources import locate
from potstill.errors import InputError
from potstill.recipe.task_words import Form

HELD_CHARACTERS = 2**24  # of a table that is held in memory after its first reading

__all__ = ["Columns", "Row", "Table", "open_table"]


@dataclass(frozen=True)
class Table:
    """Rows that can be read any number of times, and what is known about them beforehand."""

    source: str  # as the user wrote it
    columns: Columns  # all columns that were found; pair and label are None if there are none
    answers: AnswerColumns | None = field(repr=False)
    kind: str  # of the file: the same bytes are different rows as CSV and as lines of text
    fingerprint: str  # xxh3-128 of the file's bytes before they were read; data sets have their own
    digest: Callable[[], str] = field(repr=False)  # computes the fingerprint of the bytes as they are now
    records: Callable[[], Records] = field(repr=False)
    form: Form = "text"
    choices: int = 0  # candidates of every row; 0 if there are none
    shape: ImageShape | None = None  # of every image
    unread_label: str | None = None  # a column with a usual name for labels that rows with target texts do not use
    _held: list[list[Row]] = field(default_factory=list, init=False, repr=False)  # all rows, once they were read

    @property
    def answer_labels(self) -> tuple[str, ...] | None:
        """The classes of the teacher's answers if their columns name them; None: they are in the order of the labels."""
        return self.answers.labels if self.answers else None

    def rows(self) -> Iterator[Row]:
        """Yield every row. Small tables are read and parsed once, large ones are streamed each time."""
        if self._held:
            yield from self._held[0]
            return
        held: list[Row] = []
        size = 0
        for row in self._rows():
            size += len(row.text) + len(row.pair or "")
            if size <= HELD_CHARACTERS:
                held.append(row)
            yield row
        if size <= HELD_CHARACTERS:
            self._held.append(held)

    def _rows(self) -> Iterator[Row]:
        classes = self.choices
        for record in self.records():
            try:
                row = self.read(record)
                classes = classes or len(row.answer or ())
                if row.answer is not None and len(row.answer) != classes:
                    others = f"there are {classes} candidates" if self.choices else f"earlier ones have {classes}"
                    todo = f"write one number per {'candidate' if self.choices else 'class'} in every row"
                    raise InputError(f"the answer has {len(row.answer)} numbers, {others}; {todo}")
                if self.choices and (candidates := len(split_parts(str(row.pair)))) != self.choices:
                    reason = f"there are {candidates} candidates, the first row has {self.choices}"
                    raise InputError(f"{reason}; write the same number in every row")
            except InputError as error:
                raise InputError(f"{record.where(self.source)}: {error}") from None
            yield row

    def read(self, record: Record) -> Row:
        answer = read_answer(record.values, self.answers) if self.answers else None
        text, pair, label = READERS[self.form](record.values, self.columns)
        return Row(record.line, self.columns.before + text, pair, label, answer)


def open_table(
    source: str | Path,
    columns: Columns = Columns(),  # noqa: B008 (frozen)
    need_label: bool = False,
    form: Form | None = None,
) -> Table:
    """Open a source of rows and find its form and columns.

    A source is a file, two files of translated lines (FIRST,SECOND), a folder of `datasets.save_to_disk` (DIR or
    DIR:SPLIT) or of RACE, or a data set of the Hub (NAME[:CONFIG]:SPLIT). Without `form` the column names and the first
    record decide it. `need_label` refuses a table without labels, or without target texts if they are the targets.
    """
    source = str(source)
    try:
        opened = locate(source)()
    except OSError as error:  # no permission, a name too long for the file system
        raise InputError(f"{source}: cannot be read ({error.strerror}); check the path and its permissions") from None
    if opened.images and form in (None, "text"):
        form = "pixels"
    if form not in ("text", "pixels", *GENERATED):
        opened = split_questions(opened, source)
    if form is None:
        form = detect_form(opened.names, columns, lambda names: _first_record(opened.records(names), source).values)
    languages: list[str] = []
    if form == "translation":
        opened, languages = split_languages(opened, source)
    try:
        if languages and columns.text is None and columns.pair is None:
            columns = _language_columns(languages, columns)
        columns, answers = resolve_columns(form, opened.names, columns, need_label, opened.hint)
        if form == "pixels" and columns.text not in opened.images:
            todo = f"name one of {', '.join(opened.images)} with --text" if opened.images else "give a file of images"
            raise InputError(f"{columns.text!r} does not contain images; {todo}")
    except InputError as error:
        raise InputError(f"{source}:1: {error}") from None
    wanted = [*columns.names, *(answers.columns if answers else ()), *(BESIDE_ANSWERS if form == "answers" else ())]
    needed = [name for name in dict.fromkeys(wanted) if name in opened.names]

    def records() -> Records:
        every = opened.records(needed)
        return _paragraphs(every, str(columns.pair)) if form == "writing" and columns.text is None else every

    table = Table(source, columns, answers, opened.kind, opened.fingerprint, opened.digest, records, form)
    _first_record(table.records(), source)  # refuses a table without rows
    if form == "choices":
        table = replace(table, choices=len(split_parts(str(next(table.rows()).pair))))
    if form in GENERATED:
        table = replace(table, unread_label=unread_label(opened.names, columns))
    return replace(table, shape=opened.images.get(str(columns.text)))


def _first_record(records: Records, source: str) -> Record:
    for record in records:
        return record
    raise InputError(f"{source}:1: there are no rows; write at least one")


def _paragraphs(records: Records, column: str) -> Records:
    """Skip the empty texts between the paragraphs of running text."""
    for record in records:
        value = record.values.get(column)
        if not isinstance(value, str) or value.strip():
            yield record


def _language_columns(languages: list[str], columns: Columns) -> Columns:
    if len(languages) > 2:
        todo = f"name two of them, as in --text {languages[0]} --pair {languages[1]}"
        raise InputError(f"there are {len(languages)} languages, {', '.join(languages)}; {todo}")
    return replace(columns, text=languages[0], pair=languages[1] if len(languages) == 2 else None)
