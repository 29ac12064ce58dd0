"""Rows of text, label and perhaps a teacher's answer, out of text files, Parquet and Hugging Face data sets.

Reading is strict: "NA" and "null" are texts, nothing is skipped or repaired silently, and an error names file and line.
Large files are streamed and never held in memory. Only NUL and lone surrogates, which cannot be text, are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from potstill.data.columns import AnswerColumns, Columns, unread_label
from potstill.data.formats.race import split_questions
from potstill.data.formats.reading import ImageShape, Record, Records
from potstill.data.records import read_answer
from potstill.data.row import Row, split_parts
from potstill.data.row_forms import FORMS, detect_form, resolve_columns
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
    unread: tuple[str, ...] = ()  # columns that nothing is taken from
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
            else:
                held.clear()
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
        text, pair, label = FORMS[self.form].read(record.values, self.columns)
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
        form = next(name for name, each in FORMS.items() if each.images)
    if form is None or FORMS[form].questions:
        opened = split_questions(opened, source)
    if form is None:
        form = detect_form(opened.names, columns, lambda names: _first_record(opened.records(names), source).values)
    kind = FORMS[form]
    opened, made = kind.split_column(opened, source)
    try:
        columns, answers = resolve_columns(
            form, opened.names, kind.choose_split(made, columns), need_label, opened.hint
        )
        if problem := kind.problem_of(opened, columns):
            raise InputError(problem)
    except InputError as error:
        raise InputError(f"{source}:1: {error}") from None
    wanted = [*columns.names, *(answers.columns if answers else ()), *kind.beside]
    needed = [name for name in dict.fromkeys(wanted) if name in opened.names]

    def records() -> Records:
        return kind.records(opened.records(needed), columns)

    table = Table(source, columns, answers, opened.kind, opened.fingerprint, opened.digest, records, form)
    _first_record(table.records(), source)  # refuses a table without rows
    if kind.candidates:
        table = replace(table, choices=kind.count_candidates(next(table.rows())))
    if kind.target_part == "pair":
        table = replace(table, unread_label=unread_label(opened.names, columns))
    unread = () if opened.images else tuple(name for name in opened.names if name not in needed)
    return replace(table, shape=opened.images.get(str(columns.text)), unread=unread)


def _first_record(records: Records, source: str) -> Record:
    for record in records:
        return record
    raise InputError(f"{source}:1: there are no rows; write at least one")
