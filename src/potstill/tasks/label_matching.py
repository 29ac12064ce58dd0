"""Which task a data set is, and which label is which class: decided by the model, the rows and the user's options."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from potstill.data.examples import Examples
from potstill.data.formats.reading import ImageShape
from potstill.data.label_names import class_index, column_order, loose_spelling, match_indices, match_spellings
from potstill.data.pixel_reader import describe_size
from potstill.data.row import Label
from potstill.data.rows import Table
from potstill.errors import InputError
from potstill.recipe.task_words import Form
from potstill.tasks.classify import F1_OF, TextClassification
from potstill.tasks.registry import EVERY, TASKS, task_class, task_of
from potstill.tasks.regress import NUMBER
from potstill.tasks.task import Task

if TYPE_CHECKING:
    from potstill.recipe.schema import TaskName
    from potstill.signals import Outcome

MOST_LABELS = 10_000  # different ones, each a class


def make_task(
    name: TaskName | None,
    model_config: Any | None,
    row_labels: Iterable[Label],
    labels: Sequence[str] | None,
    source: str,
    form: Form = "text",
    choices: int = 0,
    shape: ImageShape | None = None,
    *,
    label_map: Mapping[str, str] | None = None,
) -> tuple[Task, str]:
    """Return the task, and one sentence that says how labels were matched to classes.

    `row_labels`: the labels in the rows of `source`. If a model has a head (`model_config`), the classes are its `id2label`:
    labels match by name, else in another spelling where that is unambiguous, else all of them by index. Without a model
    (fine-tuning) the labels in the rows are the classes. `labels`: the user's names of the classes, which override both.
    `label_map`: for some labels, the name or number of their class. `choices`: candidates of each question. `shape`: of the
    images in the rows; None: as the model has it.
    """
    row_labels = list(row_labels)
    kind = task_of_rows(name, form)
    if model_config is not None and (fits := task_of(model_config)).head != kind.head:
        # texts without labels may be for any task that reads texts: the model decides
        if name is not None or fits.form != form or row_labels:
            problem = f"{source}: the rows are {kind.words.rows}, but the model needs {fits.words.rows}"
            other_task = (
                f", or write --task {fits.name}" if name is None and fits.form == form and fits.own_targets else ""
            )
            raise InputError(f"{problem}; give these, or another model{other_task}")
        kind = fits
    if not kind.labels_are_classes:
        if label_map:
            raise InputError(f"label_map is for classes, but the rows are {kind.words.rows}; omit it")
        return kind.without_labels(choices, source)
    fields: dict[str, Any] = {"shape": _image_shape(shape, model_config, source)} if kind.images else {}
    outcome = _outcome(name, model_config, row_labels, kind)
    kind = next(task for task in EVERY if task.head == kind.head and task.outcome == outcome)
    if kind.outcome == "value":
        if label_map:
            raise InputError("label_map is for classes, but numbers are predicted; omit it")
        return kind(("value",), **fields), "numbers are predicted"
    if len(row_labels) > MOST_LABELS:
        todo = "name the column of the labels with --label, or write --task regress if they are numbers to predict"
        raise InputError(f"{source}: there are more than {MOST_LABELS:,} different labels, which is the limit; {todo}")
    names, numbers, sentence = _match(row_labels, labels, model_config, source, label_map or {})
    return kind(names, numbers, **fields), sentence


def _image_shape(shape: ImageShape | None, model_config: Any | None, source: str) -> ImageShape | None:
    if model_config is not None and shape not in (None, model_config.shape):
        sizes = f"the images have {describe_size(shape)}, the model reads {describe_size(model_config.shape)}"
        raise InputError(f"{source}: {sizes}; give images of that size, or another model")
    return shape if model_config is None else tuple(model_config.shape)


def _match(
    row_labels: Sequence[Label],
    labels: Sequence[str] | None,
    model_config: Any | None,
    source: str,
    label_map: Mapping[str, str],
) -> tuple[tuple[str, ...], dict[str, int], str]:
    """Return the names of the classes, the class of each label, and a sentence that says how they were matched."""
    every = {str(name) for label in row_labels for name in (label if isinstance(label, tuple) else (label,))}
    mapped = {_label_in_rows(label, every, source): name for label, name in label_map.items()}
    seen = sorted(every - mapped.keys(), key=_numerically)
    if model_config is not None:
        own = _model_labels(model_config, source)
        names = _checked(labels, own) if labels else own
    else:
        # a class is one of the labels, or a new one
        alike = {name: _spelled_like(name, seen) for name in mapped.values()}
        mapped = {label: alike[name][0] if len(alike[name]) == 1 else name for label, name in mapped.items()}
        names = tuple(labels or sorted({*seen, *mapped.values()}, key=_numerically))
        if len(names) < 2:
            raise InputError(f"{source}: the labels are {list(names)}; training needs at least two different ones")
    if labels and len(set(labels)) < len(labels):
        raise InputError(f"--labels {','.join(labels)}: a name occurs twice; give each class a name of its own")
    numbers = {label: number for number, label in reversed(list(enumerate(names)))}
    same = {label: _class_number(name, names) for label, name in mapped.items()}
    mapping = "".join(f"; {label} is {names[number]}" for label, number in same.items())
    numbers |= match_spellings(seen, numbers)
    unmatched = [label for label in seen if label not in numbers]
    if unmatched and (indices := match_indices(seen, len(names), source)):
        numbers |= {str(number): number for number in range(len(names))} | indices
        pairs = ", ".join(f"{number} = {label}" for number, label in enumerate(names[:100]))
        return names, numbers | same, f"labels matched by number: {pairs}{mapping}"
    # LABEL_0, LABEL_1 … are what Hugging Face writes if the classes have no names
    if unmatched and all(name == f"LABEL_{number}" for number, name in enumerate(names)):
        reason = f"the labels {unmatched[:5]} are names, but the teacher's classes have none"
        todo = f"write them in the order of its outputs, as in --labels {','.join(seen[: len(names)])}"
        raise InputError(f"{source}: {reason}; {todo}")
    return names, numbers | same, f"labels matched by name: {', '.join(names[:12])}{mapping}"


def task_of_rows(name: TaskName | None, form: Form) -> type[Task]:
    """Return the task that the user names, or else the first one that reads rows of this form."""
    return TASKS[name] if name is not None and TASKS[name].form == form else task_class(form)


def labels_of(table: Table, name: TaskName | None = None) -> list[Label]:
    """Return the different labels of the rows; for tag sequences, the different tags. Some tasks have no labels."""
    labels: set[Label] = set()
    kind = task_of_rows(name, table.form)
    if table.columns.label is None or not kind.labels_are_classes:
        return []
    for row in table.rows():
        label: Any = row.label
        if isinstance(label, tuple):  # each label of a set by itself: a few labels may form many sets
            labels |= set(label if kind.label_lists else ((name,) for name in label) if label else [()])
        elif label is not None:
            labels.add(label)
        if len(labels) > MOST_LABELS:
            break
    return list(labels)


def with_positive(task: Task, name: str | None, labelled: Examples) -> Task:
    """Return the task with the class whose F1 is reported: the one the user names by label or number, else the rarer one."""
    two = isinstance(task, TextClassification) and any(metric.startswith(F1_OF) for metric in task.metrics)
    if name is not None:
        classes = {**match_spellings([name], task.numbers), **task.numbers}
        number = classes.get(name, int(name) if name in ("0", "1") else None)
        if not two or number is None:
            todo = f"write one of {', '.join(task.labels)}" if two else "omit it: there are not two classes"
            raise InputError(f"positive = '{name}' is not a class of this task; {todo}")
        return replace(task, positive=number)  # type: ignore[call-arg]
    if not two or not len(labelled):
        return task
    ones = float(task.golds(labelled).mean())
    return replace(task, positive=0) if ones > 0.5 else task  # type: ignore[call-arg]


def _spelled_like(name: str, names: Collection[str]) -> list[str]:
    """Return the name itself if it is there, otherwise all other spellings of it."""
    return [name] if name in names else [other for other in names if loose_spelling(other) == loose_spelling(name)]


def _label_in_rows(label: str, labels: set[str], source: str) -> str:
    """Return the label of the rows that the user means."""
    alike = _spelled_like(label, labels) if labels else [label]
    if len(alike) != 1:
        names = ", ".join(sorted(labels)[:20])
        raise InputError(f"label_map: '{label}' is not a label of {source}; write one of {names}")
    return alike[0]


def _class_number(name: str, names: tuple[str, ...]) -> int:
    """Return the number of a class by its name or, if no name is like it, by its number."""
    alike, number = _spelled_like(name, names), class_index(name)
    if len(alike) == 1:
        return names.index(alike[0])
    if alike or number is None or number >= len(names):
        raise InputError(f"label_map: there is no class '{name}'; write one of {', '.join(names[:20])}, or its number")
    return number


def _model_labels(model_config: Any, source: str) -> tuple[str, ...]:
    names = [model_config.id2label.get(number) for number in range(model_config.num_labels)]
    if None in names:
        named = ", ".join(f"{number} = {name}" for number, name in list(model_config.id2label.items())[:20])
        todo = f"name the classes from 0 to {len(names) - 1} in id2label of its config.json"
        raise InputError(f"{source}: the model has {len(names)} classes, but its config names {named}; {todo}")
    return tuple(map(str, names))


def _checked(labels: Sequence[str], own: tuple[str, ...]) -> tuple[str, ...]:
    if len(labels) != len(own):
        counts = f"--labels names {len(labels)} classes, but the teacher has {len(own)}"
        raise InputError(f"{counts}: {', '.join(own)}; write one name for each, in that order")
    order = column_order(own, labels)
    if order is not None and order != list(range(len(own))):
        raise InputError(f"--labels has the teacher's names in another order; write {','.join(own)}, or omit --labels")
    return tuple(labels)


def _outcome(name: TaskName | None, model_config: Any | None, row_labels: Sequence[Label], kind: type[Task]) -> Outcome:
    if name is not None and TASKS[name].head == TASKS["classify"].head:
        return TASKS[name].outcome
    label_sets = any(isinstance(label, tuple) for label in row_labels)
    if kind.label_lists or (kind.images and model_config is None and not label_sets):
        return "class"
    if model_config is not None:
        problem = model_config.problem_type
        named = next((task.outcome for task in TASKS.values() if problem and task.problem == problem), None)
        return named or ("value" if model_config.num_labels == 1 else "class")
    if label_sets:
        return "classes"
    numbers = [label for label in row_labels if isinstance(label, str) and _is_quantity(label)]
    whole = all(float(label).is_integer() for label in numbers)
    # 3.8 is a value and 3 is a class; but many different whole numbers are counts or ratings, which are values too
    all_numbers = len(numbers) == len(row_labels) > 0
    return "value" if all_numbers and (not whole or len(row_labels) > 30) else "class"


def _is_quantity(label: str) -> bool:
    """Numbers with leading zeros, and numbers with more digits than a float holds, are codes and not quantities."""
    digits = label.lstrip("+-").partition(".")[0]
    coded = digits.isdecimal() and (len(digits) > 15 or (digits.startswith("0") and len(digits) > 1))
    return NUMBER.match(label) is not None and not coded


def _numerically(label: str) -> tuple[int, float, str]:
    return (0, float(label), label) if NUMBER.match(label) else (1, 0.0, label)
