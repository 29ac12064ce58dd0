"""What every form of rows has: how its columns are found, how a record is read, and what messages say."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

from potstill.data.columns import LABELS, Columns, Names, first_of, first_pair_of, text_columns
from potstill.data.formats.reading import Opened, Records
from potstill.data.records import Parts, Values
from potstill.data.row import Row

FirstValues = Mapping[str, object]
"""Values of the first record by column name; only of columns that decide the form."""


class RowForm(ABC):
    """A form of rows. A file of this folder has one subclass; its name is the name of the form."""

    name: ClassVar[str]  # that of the file
    order: ClassVar[int] = 0  # forms are recognised in this order; 0: never by the columns of a table
    deciding: ClassVar[tuple[str, ...]] = ()  # usual columns whose value in the first record decides the form
    also_deciding: ClassVar[tuple[str, ...]] = ()  # and those that are looked at if one of these is there
    needed: ClassVar[
        tuple[tuple[str, str], ...]
    ] = ()  # option and description of the parts without which there is no row
    target: ClassVar[str] = "labels"  # in messages
    target_part: ClassVar[Literal["label", "pair"]] = "label"  # "pair": the second text is the target
    header: ClassVar[str] = "text,label"  # an example of a table's first line
    one_text: ClassVar[bool] = False  # there is no second text
    second_needs_first: ClassVar[bool] = False  # the column of the second text is named only beside that of the first
    label_columns: ClassVar[bool] = False  # the labels may be columns of 0 and 1
    teacher_answers: ClassVar[bool] = False  # further columns may hold a teacher's logits or probabilities
    candidates: ClassVar[bool] = False  # every row has the same number of candidates
    questions: ClassVar[bool] = False  # passages of RACE are read question by question
    images: ClassVar[bool] = False  # the rows are images, of a file that says so
    separate_target: ClassVar[bool] = False  # rows that only a teacher answers have no second text
    beside: ClassVar[tuple[str, ...]] = ()  # columns that are read too if they are there

    def is_form_of(self, columns: Sequence[str], names: Names, wanted: Columns, first: FirstValues) -> bool:
        """Tell whether a table with these columns has rows of this form. `names`: the columns by their lower case."""
        return False

    @abstractmethod
    def find(self, names: Names, wanted: Columns) -> Columns:
        """Return the columns that the user named, and those with usual names."""

    @abstractmethod
    def read(self, values: Values, columns: Columns) -> Parts:
        """Return text, second text and label of a record. Errors do not say where it is."""

    def also_missing(self, columns: Columns) -> list[tuple[str, str]]:
        """Return option and description of what is missing besides `needed`."""
        return []

    def instead(self, option: str, names: Sequence[str], columns: Columns) -> str:
        """Return what to write instead of naming a missing column with its option; "" for that."""
        return ""

    def doubt(self, names: Names, wanted: Columns, columns: Columns) -> str:
        """Return why columns that were found probably mean something else, and what to write instead; "" if not."""
        return ""

    def split_column(self, opened: Opened, source: str) -> tuple[Opened, list[str]]:
        """Return the source, and the columns into which one of its columns was split."""
        return opened, []

    def choose_split(self, made: list[str], columns: Columns) -> Columns:
        """Return the columns to read where one column was split and the user named none."""
        return columns

    def problem_of(self, opened: Opened, columns: Columns) -> str:
        """Return why a source does not hold such rows, and what to write instead; "" if it does."""
        return ""

    def records(self, records: Records, columns: Columns) -> Records:
        """Return the records that are rows."""
        return records

    def count_candidates(self, row: Row) -> int:
        return 0


def has_target_alone(names: Names, wanted: Columns, usual: Sequence[tuple[str, str]]) -> bool:
    """Tell whether the columns hold a text and its target, by these names, but neither a plain text nor a label."""
    if text_columns(names, wanted).text or wanted.pair or wanted.label:
        return False
    _, target = first_pair_of(names, usual)
    return target is not None and not first_of(names, LABELS, (target,))
