"""Which tasks there are: by the word that the user types, by the form of the rows, by the model's config."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from potstill.models.heads import head_of_class
from potstill.recipe.task_words import TASK_WORDS, Form
from potstill.tasks.classify_images import ImageClassification, ImageMultiLabelClassification, ImageRegression
from potstill.tasks.task import Task

if TYPE_CHECKING:
    from potstill.recipe.schema import TaskName
    from potstill.signals import Outcome


def _task_of_file(name: str) -> type[Task]:
    """Return the task of the file tasks/NAME.py."""
    values = vars(import_module(f"potstill.tasks.{name}")).values()
    (task,) = (value for value in values if isinstance(value, type) and vars(value).get("name") == name)
    assert issubclass(task, Task)
    return task


TASKS: dict[TaskName, type[Task]] = {name: _task_of_file(name) for name in TASK_WORDS}
EVERY: tuple[type[Task], ...] = (*TASKS.values(), ImageClassification, ImageMultiLabelClassification, ImageRegression)


def task_class(form: Form, outcome: Outcome | None = None) -> type[Task]:
    """Return the task that reads rows of this form; without an outcome, the first one that does."""
    return next(task for task in EVERY if task.form == form and outcome in (None, task.outcome))


def task_of(config: Any) -> type[Task]:
    """Return the first task for models with the head that a config names; text classification if it names none."""
    head = head_of_class(str((getattr(config, "architectures", None) or [""])[0]))
    return next((task for task in EVERY if task.head == head), TASKS["classify"])
