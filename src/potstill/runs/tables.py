"""Open the files of a data set, and check that they can be read together."""

from __future__ import annotations

from dataclasses import replace

from potstill.data.pixel_reader import describe_size
from potstill.data.pools import Say
from potstill.data.rows import Columns, Table, open_table
from potstill.data.running_text import open_running_text
from potstill.errors import InputError
from potstill.models.student import Student
from potstill.recipe.schema import Data
from potstill.recipe.task_words import Form
from potstill.tasks.mask import MaskedLanguageModelling
from potstill.tasks.registry import TASKS, task_class, task_of
from potstill.tasks.task import Task

NAMED = 5  # columns in a message

Tables = dict[str, Table]
"""The opened files of a data set: "train" (without it, dev once more), then "dev" if there is one, then the tests."""


def open_tables(data: Data, teacher: Student | None, say: Say) -> Tables:
    """Open the files of a data set, and check that their rows have the same shape."""
    columns = Columns(
        data.text,
        data.pair,
        tuple(data.label) if isinstance(data.label, list) else data.label,
        data.separator,
        f">>{data.language}<< " if data.language else "",
        tuple(data.choices) if isinstance(data.choices, list) else data.choices,
    )
    form = row_form(data, teacher)
    # without a dev file, rows of train need a translation to be scored by
    dev_from_train = form is not None and task_class(form).two_stacks and not data.dev
    if (first := data.train or data.dev) is None:  # without train, dev shows which form the unlabelled texts have
        problem = "there are only texts without labels, so none can be dev"
        raise InputError(f"{', '.join(data.pools)}: {problem}; give labelled rows with --dev, or with --train")
    train = open_one(data, first, columns, form, say, dev_from_train)
    if data.task is None and form and train.unread_label:
        unread = f"the labels in {train.unread_label!r} are not read, since the teacher is made for {task_class(form).words.rows}"
        say(f"{train.source}: {unread}; give a classifier as the teacher to learn them")
    if train.unread and train.form == "text":
        say(unread_columns(train))
    files = {**({"dev": data.dev} if data.dev else {}), **data.test}
    others = {name: open_one(data, path, columns, train.form, say) for name, path in files.items()}
    for other in others.values():
        refuse_different_rows(train, other)
    return {"train": train, **others}


def unread_columns(table: Table) -> str:
    """A second text under an unusual name would otherwise be missed in silence."""
    read, unread = (", ".join(map(repr, names[:NAMED])) for names in (table.columns.names, table.unread))
    more = f" and {len(table.unread) - NAMED} more" if len(table.unread) > NAMED else ""
    return f"{table.source}: the columns {read} are read, {unread}{more} not; --text, --pair and --label name others"


def open_one(data: Data, source: str, columns: Columns, form: Form | None, say: Say, need_label: bool = False) -> Table:
    """Open a source of rows. Running text may be a folder of files."""
    if data.task is not None and TASKS[data.task].own_targets and form == "text":
        return open_running_text(source, columns, say)
    return open_table(source, columns, need_label, form)


def row_form(data: Data, teacher: Student | None) -> Form | None:
    """The form of the rows where the task or a generative teacher decides it; None: the columns decide."""
    if data.task:
        return TASKS[data.task].form
    if teacher is not None and (kind := task_of(teacher.model.config)).generates:
        return kind.form  # two columns of texts could be anything
    return None


def refuse_different_rows(train: Table, other: Table) -> None:
    if other.choices != train.choices:
        counts = (
            f"{other.source} has {other.choices} candidates for each question and {train.source} has {train.choices}"
        )
        raise InputError(f"{counts}; give the same number in both")
    if other.shape and train.shape and other.shape != train.shape:
        sizes = f"images of {describe_size(other.shape)} and {train.source} of {describe_size(train.shape)}"
        raise InputError(f"{other.source} has {sizes}; give images of one size")
    if (other.columns.pair is None) != (train.columns.pair is None):
        problem = f"only one of {other.source} and {train.source} has a second text"
        raise InputError(f"{problem}; name the columns with --text and --pair")


def cut_in_windows(data: Data, task: Task) -> bool:
    """Whether the text is cut in windows, which pairs of texts that follow each other always are."""
    return data.windows or task.follows


def refuse_windows(data: Data, task: Task, train: Table) -> None:
    if cut_in_windows(data, task) and (not task.own_targets or task.generates or train.columns.pair is not None):
        problem = "windows are cut from running text, one text in a row, for task 'mask'"
        raise InputError(f"{train.source}: {problem}; omit windows, or give such texts")


def with_masks(task: Task, data: Data) -> Task:
    """The task with what the data set says of its masks."""
    wanted = [name for name in ("whole_words", "masks") if getattr(data, name)]
    if not wanted:
        return task
    if not isinstance(task, MaskedLanguageModelling):
        raise InputError(f"{wanted[0]} is for masked tokens, and the task is '{task.name}'; omit it")
    return replace(task, whole_words=data.whole_words, masks=data.masks)
