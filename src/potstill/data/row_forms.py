"""Which form the rows of a table have, and which columns hold their parts.

What the user does not name is found by usual column names. `potstill.data.forms` has the forms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pkgutil import iter_modules

from potstill.data import forms
from potstill.data.columns import (
    PAIRS,
    TEXTS,
    AnswerColumns,
    Columns,
    check_names,
    find_answers,
    list_names,
    names_by_lower_case,
)
from potstill.data.forms.base import RowForm
from potstill.errors import InputError
from potstill.recipe.task_words import Form


def _forms() -> dict[Form, RowForm]:
    found: dict[Form, RowForm] = {}
    for module in iter_modules(forms.__path__):
        values = vars(import_module(f"{forms.__name__}.{module.name}")).values()
        for value in values:
            if isinstance(value, type) and issubclass(value, RowForm) and value.__module__.endswith(f".{module.name}"):
                value.name = module.name
                if value is not RowForm:
                    found[module.name] = value()
    return found


FORMS = _forms()
RECOGNISED = sorted((form for form in FORMS.values() if form.order), key=lambda form: form.order)


def detect_form(
    columns: Sequence[str], wanted: Columns, first_values: Callable[[list[str]], Mapping[str, object]]
) -> Form:
    """Return the form of the rows, by the names of the columns and the values of some columns in the first record.

    `first_values` reads these values. It is called only if the names alone do not decide.
    """
    first: Mapping[str, object] = {}
    deciding = {name for form in RECOGNISED for name in form.deciding}
    if wanted.text or any(name.lower() in deciding for name in columns):
        deciding |= {name for form in RECOGNISED for name in form.also_deciding}
        deciding |= {*TEXTS, *(text for text, _ in PAIRS)}
        asked = {wanted.text, *wanted.label_columns}
        first = first_values([name for name in columns if name.lower() in deciding or name in asked])
    names = names_by_lower_case(columns)
    return next((form.name for form in RECOGNISED if form.is_form_of(columns, names, wanted, first)), "text")


def resolve_columns(
    form: Form, names: Sequence[str], wanted: Columns, need_label: bool = False, hint: str = ""
) -> tuple[Columns, AnswerColumns | None]:
    """Find the columns that the user did not name; look for a teacher's answers in the remaining ones.

    Errors do not say which table it is. `hint` ends the error if no column has a usual name.
    """
    check_names(names, wanted, hint)
    kind = FORMS[form]
    if kind.second_needs_first and wanted.pair is not None and wanted.text is None:
        raise InputError("--pair names the second text, but the first is not named; add --text NAME")
    if kind.one_text and wanted.pair is not None:
        raise InputError(f"--pair names a second text, but rows of {form} have only one; omit --pair")
    if not kind.label_columns and isinstance(wanted.label, tuple):
        raise InputError("--label names several columns, which only texts can have; name one")
    if kind.target_part == "pair" and wanted.label is not None:
        raise InputError(f"rows of {form} have a text in place of a label; name it with --pair, and omit --label")
    by_lower_case = names_by_lower_case(names, wanted.label_columns)
    columns = kind.find(by_lower_case, wanted)
    if doubt := kind.doubt(by_lower_case, wanted, columns):
        raise InputError(doubt)
    refuse_missing(kind, names, columns, need_label, hint)
    if not kind.teacher_answers:
        return columns, None
    return columns, find_answers([name for name in names if name not in columns.names])


def refuse_missing(form: RowForm, names: Sequence[str], columns: Columns, need_label: bool, hint: str) -> None:
    """Refuse a table without a column that the form needs."""
    missing = [(f"--{part}", what) for part, what in form.needed if not getattr(columns, part)]
    missing += form.also_missing(columns)
    if need_label and not getattr(columns, form.target_part):
        missing.append((f"--{form.target_part}", form.target))
    if not missing:
        return
    option, what = missing[0]
    todo = form.instead(option, names, columns) or f"name it with {option} NAME"
    if option == "--text":
        todo += hint.replace("text,label", form.header)
    raise InputError(f"no column has a usual name for {what}, {list_names(names)}; {todo}")
