"""Which task it is, and which label is which class: asked of the model, the rows and the user, and said aloud."""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from potstill.data.columns import MOST_CHOICES
from potstill.data.formats.opened import ImageShape
from potstill.data.label_names import class_index, column_order, loose_spelling, match_indices, match_spellings
from potstill.data.pixel_reader import describe_size
from potstill.data.row import Form, Label
from potstill.data.rows import Table
from potstill.errors import InputError
from potstill.signals import Outcome
from potstill.tasks.answer import Answering
from potstill.tasks.choose import Choosing
from potstill.tasks.classify_images import Pixels
from potstill.tasks.generate import Generating
from potstill.tasks.registry import OF_FORM, OUTCOMES, WHAT, kind_of
from potstill.tasks.tag import Tagging
from potstill.tasks.task import LOOKS_LIKE_A_NUMBER, PROBLEMS, Task, TaskName
from potstill.tasks.translate import Translating
from potstill.tasks.write import Writing

MOST_LABELS = 10_000  # different ones, of which each is a class
MOST_SHOWN = 100


def make_task(
    name: TaskName | None,
    model_config: Any | None,
    found: Iterable[Label],
    labels: Sequence[str] | None,
    source: str,
    form: Form = "text",
    choices: int = 0,
    shape: ImageShape | None = None,
    *,
    label_map: Mapping[str, str] | None = None,
) -> tuple[Task, str]:
    """The task, and one sentence that says how labels were matched to classes.

    Where a model has a head (`model_config`), its `id2label` rules: names match by name, else in another spelling where that is
    unambiguous, else all labels by index. Where none
    has (fine-tuning), the labels found in the training rows are the classes. `labels` overrides both. `label_map` says
    of some labels in the rows which class they are, by its name or number. Of images, `shape` is that of the rows;
    without rows it is the model's.
    """
    found = list(found)
    kind = OF_FORM[form]
    if model_config is not None and kind_of(model_config) is not kind:
        fits = WHAT[kind_of(model_config).form]
        raise InputError(
            f"{source}: the rows are {WHAT[form]}, but the model is made for {fits}; give a model of this task, or {fits}"
        )
    if label_map and kind in (Answering, Choosing, Translating, Writing):
        raise InputError(f"label_map is for classes, but the rows are {WHAT[form]}; leave it out here")
    if kind is Answering:
        return Answering("span", ("start", "end")), "answers are looked for in the context"
    if issubclass(kind, Generating):
        return kind("class", ()), "texts are written"
    if kind is Choosing:
        if not 2 <= choices <= MOST_CHOICES:
            raise InputError(f"{source}: a question has {choices} candidates; give from 2 to {MOST_CHOICES}")
        letters = tuple(string.ascii_uppercase[:choices])
        numbers = {letter: number for number, letter in enumerate(letters)}
        return Choosing("class", letters, numbers), f"one of {choices} candidates is chosen"
    if kind is Pixels and model_config is not None:
        if shape not in (None, model_config.shape):
            told = f"the images have {describe_size(shape)}, the model reads {describe_size(model_config.shape)}"
            raise InputError(f"{source}: {told}; give images of that size, or another model")
        shape = model_config.shape
    more: dict[str, Any] = {"shape": shape} if kind is Pixels else {}
    single = not any(isinstance(one, tuple) for one in found)
    plain = kind is Tagging or (kind is Pixels and model_config is None and single)
    outcome = OUTCOMES[name] if name in OUTCOMES else "class" if plain else _outcome(model_config, found)
    if outcome == "value":
        if label_map:
            raise InputError("label_map is for classes, but numbers are predicted; leave it out here")
        return kind("value", ("value",), **more), "numbers are predicted"
    if len(found) > MOST_LABELS:
        todo = "name the column of the labels with --label, or write --task regress if they are numbers to predict"
        raise InputError(
            f"{source}: there are more than {MOST_LABELS:,} different labels, the most that can be; {todo}"
        )
    each = {str(one) for label in found for one in (label if isinstance(label, tuple) else (label,))}
    mapped = {_label_of(ours, each, source): theirs for ours, theirs in (label_map or {}).items()}
    seen = sorted(each - mapped.keys(), key=_numerically)
    if model_config is not None:
        given = _names_of(model_config, source)
        names = _checked(labels, given) if labels else given
    else:
        mapped = {ours: _class_among(theirs, seen) for ours, theirs in mapped.items()}
        names = tuple(labels or sorted({*seen, *mapped.values()}, key=_numerically))
        if len(names) < 2:
            raise InputError(
                f"{source}: the labels are {list(names)}; at least two different ones are needed to learn from"
            )
    if labels and len(set(labels)) < len(labels):
        raise InputError(f"--labels {','.join(labels)}: a name stands twice; give each class a name of its own")
    numbers = {label: number for number, label in reversed(list(enumerate(names)))}
    same = {ours: _class_number(theirs, names) for ours, theirs in mapped.items()}
    shown = "".join(f"; {ours} is {names[number]}" for ours, number in same.items())
    numbers |= match_spellings(seen, numbers)
    left = [label for label in seen if label not in numbers]
    if left and (counted := match_indices(seen, len(names), source)):
        numbers |= {str(number): number for number in range(len(names))} | counted
        each_number = ", ".join(f"{number} = {label}" for number, label in enumerate(names[:MOST_SHOWN]))
        return kind(outcome, names, numbers | same, **more), f"labels matched by number: {each_number}{shown}"
    if left and is_placeholder(names):
        raise InputError(
            f"{source}: the labels {left[:5]} are names, but the teacher's classes have none; write them in the order of its "
            f"outputs, as in --labels {','.join(seen[: len(names)])}"
        )
    return kind(outcome, names, numbers | same, **more), f"labels matched by name: {', '.join(names[:12])}{shown}"


def _label_of(asked: str, labels: set[str], source: str) -> str:
    """The label of the rows that the user means."""
    if asked in labels or not labels:
        return asked
    alike = [label for label in labels if loose_spelling(label) == loose_spelling(asked)]
    if len(alike) != 1:
        known = ", ".join(sorted(labels)[:20])
        raise InputError(f"label_map: '{asked}' is no label of {source}; write one of {known}")
    return alike[0]


def _class_among(name: str, labels: Sequence[str]) -> str:
    """The class that the user means, where the labels are the classes: one of them, or a new one."""
    alike = [label for label in labels if loose_spelling(label) == loose_spelling(name)]
    return alike[0] if name not in labels and len(alike) == 1 else name


def _class_number(name: str, names: tuple[str, ...]) -> int:
    """A class by its name or, where no name is like it, its number."""
    if name in names:
        return names.index(name)
    alike = [number for number, one in enumerate(names) if loose_spelling(one) == loose_spelling(name)]
    if len(alike) == 1:
        return alike[0]
    number = class_index(name)
    if not alike and number is not None and number < len(names):
        return number
    raise InputError(f"label_map: there is no class '{name}'; write one of {', '.join(names[:20])}, or its number")


def _names_of(model_config: Any, source: str) -> tuple[str, ...]:
    names = [model_config.id2label.get(number) for number in range(model_config.num_labels)]
    if None in names:
        known = ", ".join(f"{number} = {name}" for number, name in list(model_config.id2label.items())[:20])
        todo = f"name the classes from 0 to {len(names) - 1} in id2label of its config.json"
        raise InputError(f"{source}: the model has {len(names)} classes, but its config names {known}; {todo}")
    return tuple(map(str, names))


def is_placeholder(names: Sequence[str]) -> bool:
    """True for the LABEL_0, LABEL_1 … that Hugging Face writes where nobody gave names."""
    return all(name == f"LABEL_{number}" for number, name in enumerate(names))


def _checked(labels: Sequence[str], given: tuple[str, ...]) -> tuple[str, ...]:
    if len(labels) != len(given):
        raise InputError(
            f"--labels names {len(labels)} classes, but the teacher has {len(given)}: {', '.join(given)}; write one name for each, in that order"
        )
    same = column_order(given, labels)
    if same is not None and same != list(range(len(given))):
        raise InputError(
            f"--labels has the teacher's names in another order; its order is {','.join(given)}: write that, or leave --labels away"
        )
    return tuple(labels)


def _outcome(model_config: Any | None, found: Sequence[Label]) -> Outcome:
    if model_config is not None:
        for outcome, problem in PROBLEMS.items():
            if model_config.problem_type == problem:
                return outcome
        return "value" if model_config.num_labels == 1 else "class"
    if any(isinstance(label, tuple) for label in found):
        return "classes"
    numbers = [label for label in found if isinstance(label, str) and _is_counted(label)]
    whole = all(float(label).is_integer() for label in numbers)
    # 3.8 is a value and 3 a class; whole numbers of many kinds are counts or ratings, which are values too
    return "value" if len(numbers) == len(found) and found and (not whole or len(found) > 30) else "class"


def _is_counted(label: str) -> bool:
    """Numbers with zeros in front, and those longer than a float holds, are the codes of something."""
    digits = label.lstrip("+-").partition(".")[0]
    coded = digits.isdecimal() and (len(digits) > 15 or (digits.startswith("0") and len(digits) > 1))
    return LOOKS_LIKE_A_NUMBER.match(label) is not None and not coded


def _numerically(label: str) -> tuple[int, float, str]:
    return (0, float(label), label) if LOOKS_LIKE_A_NUMBER.match(label) else (1, 0.0, label)


def labels_of(table: Table) -> list[Label]:
    """Different ones; of sequences of tags, the different tags. Answers and candidates have none."""
    found: set[Label] = set()
    if table.columns.label is None or table.form in ("answers", "choices", "translation", "writing"):
        return []
    for row in table.rows():
        label: Any = row.label
        if isinstance(label, tuple):  # of sets of labels each by itself: there may be many sets of few labels
            found |= set(label if table.form == "words" else ((one,) for one in label) if label else [()])
        elif label is not None:
            found.add(label)
        if len(found) > MOST_LABELS:
            break
    return list(found)
