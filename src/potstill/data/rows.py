"""Rows of text, label and perhaps a teacher's answer, out of text files, Parquet and Hugging Face data sets.

Reading is strict: "NA" and "null" are texts, nothing is skipped or repaired silently, and an error names file and line.
Files are streamed and never held in memory. Only NUL and lone surrogates, which cannot be text, are replaced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

from potstill.data.columns import (
    BESIDE_ANSWERS,
    GENERATED,
    LABELS,
    AnswerColumns,
    Columns,
    columns_to_inspect,
    detect_form,
    first_of,
    names_by_lower_case,
    resolve_columns,
)
from potstill.data.formats.opened import ImageShape, Opened, Record, Records
from potstill.data.formats.parallel import split_languages
from potstill.data.formats.race import split_questions
from potstill.data.records import READERS, read_answer, read_choices
from potstill.data.row import Form, Row, split_parts
from potstill.data.sources import open_source
from potstill.errors import InputError

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

    @property
    def has_answers(self) -> bool:
        return self.answers is not None

    @property
    def answer_labels(self) -> tuple[str, ...] | None:
        """The classes of the teacher's answers if their columns name them; None: they are in the order of the labels."""
        return self.answers.labels if self.answers else None

    def rows(self) -> Iterator[Row]:
        classes = self.choices
        for record in self.records():
            where = record.where(self.source)
            answer = read_answer(record.values, self.answers, where) if self.answers else None
            if answer is not None:
                classes = classes or len(answer)
                if len(answer) != classes:
                    others = f"there are {classes} candidates" if self.choices else f"earlier ones have {classes}"
                    todo = f"write one number per {'candidate' if self.choices else 'class'} in every row"
                    raise InputError(f"{where}: the answer has {len(answer)} numbers, {others}; {todo}")
            text, pair, label = READERS[self.form](record.values, self.columns, where)
            if self.choices and (candidates := len(split_parts(str(pair)))) != self.choices:
                reason = f"there are {candidates} candidates, the first row has {self.choices}"
                raise InputError(f"{where}: {reason}; write the same number in every row")
            yield Row(record.line, self.columns.before + text, pair, label, answer)


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
    opened = _open(source, columns, form)
    if opened.images and form in (None, "text"):
        form = "pixels"
    if form not in ("text", "pixels", *GENERATED):
        opened = split_questions(opened, source)
    if form is None:
        inspected = columns_to_inspect(opened.names, columns)
        values = _first_record(opened.records(inspected), source).values if inspected else {}
        form = detect_form(opened.names, columns, values)
    if form == "translation":
        opened, languages = split_languages(opened, source)
        if languages and columns.text is None and columns.pair is None:
            columns = _language_columns(languages, columns, f"{source}:1")
    resolved, answers = resolve_columns(form, opened.names, columns, need_label, f"{source}:1", opened.hint)
    if form == "pixels" and resolved.text not in opened.images:
        todo = f"name one of {', '.join(opened.images)} with --text" if opened.images else "give a file of images"
        raise InputError(f"{source}:1: {resolved.text!r} does not contain images; {todo}")
    wanted = [resolved.text, resolved.pair, *resolved.label_columns, *resolved.choice_columns]
    wanted += [*(answers.columns if answers else ()), *(BESIDE_ANSWERS if form == "answers" else ())]
    needed = [name for name in dict.fromkeys(wanted) if name in opened.names]

    def records() -> Records:
        every = opened.records(needed)
        return _paragraphs(every, str(resolved.pair)) if form == "writing" and resolved.text is None else every

    table = Table(source, resolved, answers, opened.kind, opened.fingerprint, opened.digest, records, form)
    first = _first_record(table.records(), source)
    if form == "choices":
        _, pair, _ = read_choices(first.values, resolved, first.where(source))
        table = replace(table, choices=len(split_parts(str(pair))))
    if form in GENERATED:
        used = (resolved.text, resolved.pair)
        table = replace(table, unread_label=first_of(names_by_lower_case(opened.names), LABELS, used))
    return replace(table, shape=opened.images.get(str(resolved.text)))


def _open(source: str, columns: Columns, form: Form | None) -> Opened:
    def knows(names: list[str]) -> bool:
        """Tell whether a form can be read from columns of these names."""
        for possible in [form] if form else get_args(Form):
            try:
                return bool(resolve_columns(possible, names, columns, False, ""))
            except InputError:
                pass
        return False

    try:
        return open_source(source, knows)
    except OSError as error:  # no permission, a name too long for the file system
        raise InputError(f"{source}: cannot be read ({error.strerror}); check the path and its permissions") from None


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


def _language_columns(languages: list[str], columns: Columns, where: str) -> Columns:
    if len(languages) > 2:
        todo = f"name two of them, as in --text {languages[0]} --pair {languages[1]}"
        raise InputError(f"{where}: there are {len(languages)} languages, {', '.join(languages)}; {todo}")
    return replace(columns, text=languages[0], pair=languages[1] if len(languages) == 2 else None)
