"""Images with a label."""

from __future__ import annotations

from dataclasses import replace

from potstill.data.columns import LABELS, Columns, Names, first_of
from potstill.data.formats.reading import Opened
from potstill.data.forms.base import RowForm
from potstill.data.records import Parts, Values, read_label
from potstill.data.row import pixels_to_text

IMAGES = ("images", "image", "pixels", "x", "data", "arr_0")
IMAGE_LABELS = (*LABELS, "targets", "y", "arr_1")


class Pixels(RowForm):
    """text: image, packed; label: class, classes or number"""

    needed = (("text", "images"),)
    one_text = True
    label_columns = True
    teacher_answers = True
    images = True

    def find(self, names: Names, wanted: Columns) -> Columns:
        text = wanted.text or first_of(names, IMAGES)
        return replace(wanted, text=text, label=wanted.label or first_of(names, IMAGE_LABELS, (text,)))

    def read(self, values: Values, columns: Columns) -> Parts:
        pixels = values[str(columns.text)]
        assert isinstance(pixels, bytes)  # `open_table` takes only columns of images
        return pixels_to_text(pixels), None, read_label(values, columns)

    def problem_of(self, opened: Opened, columns: Columns) -> str:
        if columns.text in opened.images:
            return ""
        todo = f"name one of {', '.join(opened.images)} with --text" if opened.images else "give a file of images"
        return f"{columns.text!r} does not contain images; {todo}"
