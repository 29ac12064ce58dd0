"""Which tasks there are, by the word that the user types, by the form of the rows, and by the model's head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from potstill.data.row import Form
from potstill.models.heads import head_named
from potstill.signals import Outcome
from potstill.tasks.answer import Answering
from potstill.tasks.choose import Choosing
from potstill.tasks.classify_images import Pixels
from potstill.tasks.tag import Tagging
from potstill.tasks.task import NAMES, Task, TaskName
from potstill.tasks.translate import Translating
from potstill.tasks.write import Writing

OUTCOMES: dict[str, Outcome] = {name: outcome for outcome, name in NAMES.items()}
KINDS: dict[TaskName, type[Task]] = {
    "tag": Tagging,
    "answer": Answering,
    "choose": Choosing,
    "translate": Translating,
    "write": Writing,
}
FORMS: dict[str, Form] = {name: KINDS[name].form if name in KINDS else "text" for name in (*OUTCOMES, *KINDS)}
WHAT: dict[Form, str] = {
    "text": "texts with a label",
    "words": "words with tags",
    "answers": "questions with answers in a context",
    "choices": "questions with candidates",
    "pixels": "images with a label",
    "translation": "texts with their translation",
    "writing": "texts to be written",
}
EVERY: tuple[type[Task], ...] = (Task, *KINDS.values(), Pixels)
OF_FORM: dict[Form, type[Task]] = {kind.form: kind for kind in EVERY}


def kind_of(config: Any) -> type[Task]:
    """The task that a model with this config is made for, by the name of its class."""
    head = head_named(str((getattr(config, "architectures", None) or [""])[0]))
    return next((kind for kind in OF_FORM.values() if head == kind.head), Task)


def named(name: TaskName, labels: Sequence[str]) -> Task:
    """A task that was made before, by what was written down of it."""
    if name in KINDS:
        return KINDS[name]("span" if name == "answer" else "class", tuple(labels))
    return Task(OUTCOMES[name], tuple(labels))
