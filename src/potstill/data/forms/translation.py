"""Texts with their translation, or with any other text to be written for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from potstill.data.columns import TEXTS, Columns, Names, first_of, first_pair_of, text_columns
from potstill.data.formats.parallel import LANGUAGES, split_languages
from potstill.data.formats.reading import Opened
from potstill.data.forms.base import FirstValues, RowForm, has_target_alone
from potstill.data.records import Parts, Values, read_target, read_text
from potstill.data.row import HAS_TARGET
from potstill.errors import InputError

CERTAIN_TRANSLATIONS = (("source", "target"), ("src", "tgt"), ("src", "trg"))  # recognised without --task
TRANSLATIONS = (*CERTAIN_TRANSLATIONS, ("source", "translation"), ("src", "translation"), ("text", "translation"))


class Translation(RowForm):
    """text: text; pair: translation, "" if none; label: HAS_TARGET if there is one"""

    order = 4
    deciding = (LANGUAGES,)
    needed = (("text", "source texts"),)
    target = "translations"
    target_part = "pair"
    header = "source,target"
    second_needs_first = True
    separate_target = True

    def is_form_of(self, columns: Sequence[str], names: Names, wanted: Columns, first: FirstValues) -> bool:
        languages = isinstance(first.get(names.get(LANGUAGES, "")), dict)
        if languages and text_columns(names, wanted).text not in columns:
            return True
        return has_target_alone(names, wanted, CERTAIN_TRANSLATIONS)

    def find(self, names: Names, wanted: Columns) -> Columns:
        """Without a second column the texts have no translation yet."""
        if wanted.text is not None:
            return wanted
        text, pair = first_pair_of(names, TRANSLATIONS)
        return replace(wanted, text=text or first_of(names, ("source", "src", *TEXTS)), pair=pair)

    def instead(self, option: str, names: Sequence[str], columns: Columns) -> str:
        if option == "--pair":
            if others := [name[:60] for name in names if name != columns.text][:20]:
                either = " or ".join([", ".join(others[:-1]), others[-1]] if others[1:] else others)
                raise InputError(f"the column of the translations is missing; name it with --pair: {either}")
            return "give two files of translated lines, as in train.en,train.de"
        if len(names) > 1 and not any(" " in name for name in names):
            return f"name them and their translations, as in --text {names[0]} --pair {names[1]}"
        return ""

    def read(self, values: Values, columns: Columns) -> Parts:
        text = read_text(values, columns.text)
        if columns.pair is None:
            return text, "", None
        if not text.strip():
            raise InputError(f"{columns.text!r} is empty, with nothing to translate; write the text, or delete the row")
        target = read_target(values, columns.pair)
        return text, target, HAS_TARGET if target else None

    def split_column(self, opened: Opened, source: str) -> tuple[Opened, list[str]]:
        """One column may hold {"en": ..., "de": ...}."""
        return split_languages(opened, source)

    def choose_split(self, made: list[str], columns: Columns) -> Columns:
        if not made or columns.text is not None or columns.pair is not None:
            return columns
        if len(made) > 2:
            todo = f"name two of them, as in --text {made[0]} --pair {made[1]}"
            raise InputError(f"there are {len(made)} languages, {', '.join(made)}; {todo}")
        return replace(columns, text=made[0], pair=made[1] if len(made) == 2 else None)
