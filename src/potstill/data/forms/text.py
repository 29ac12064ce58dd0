"""A text, or a pair of texts, with perhaps a class, several classes or a number."""

from __future__ import annotations

from potstill.data.columns import Columns, Names, text_columns
from potstill.data.forms.base import RowForm
from potstill.data.records import Parts, Values, read_label, read_text


class Text(RowForm):
    """text: text; pair: second text or None; label: class, classes or number"""

    needed = (("text", "text"),)
    second_needs_first = True
    label_columns = True
    teacher_answers = True

    def find(self, names: Names, wanted: Columns) -> Columns:
        return text_columns(names, wanted)

    def read(self, values: Values, columns: Columns) -> Parts:
        pair = None if columns.pair is None else read_text(values, columns.pair)
        return read_text(values, columns.text), pair, read_label(values, columns)
