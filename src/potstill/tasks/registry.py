"""Which tasks there are: by the word that the user types, by the form of the rows, by the model's config."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from potstill.data.row import TASK_WORDS, Form
from potstill.models.heads import head_of_class
from potstill.tasks.answer import QuestionAnswering
from potstill.tasks.choose import MultipleChoice
from potstill.tasks.classify import TextClassification
from potstill.tasks.classify_images import ImageClassification, ImageMultiLabelClassification, ImageRegression
from potstill.tasks.multilabel import MultiLabelClassification
from potstill.tasks.regress import Regression
from potstill.tasks.tag import TokenClassification
from potstill.tasks.task import Task
from potstill.tasks.translate import Translation
from potstill.tasks.write import LanguageModelling

if TYPE_CHECKING:
    from potstill.recipe.schema import TaskName
    from potstill.signals import Outcome

TASKS: dict[TaskName, type[Task]] = {
    task.name: task
    for task in (
        TextClassification,
        MultiLabelClassification,
        Regression,
        TokenClassification,
        QuestionAnswering,
        MultipleChoice,
        Translation,
        LanguageModelling,
    )
}
EVERY: tuple[type[Task], ...] = (*TASKS.values(), ImageClassification, ImageMultiLabelClassification, ImageRegression)


def task_class(form: Form, outcome: Outcome | None = None) -> type[Task]:
    """Return the task that reads rows of this form; without an outcome, the first one that does."""
    return next(task for task in EVERY if task.form == form and outcome in (None, task.outcome))


def form_of(config: Any) -> Form:
    """Return the form of the rows that a model with this config reads, by its class name; texts if that says nothing."""
    head = head_of_class(str((getattr(config, "architectures", None) or [""])[0]))
    return next((form for form, words in TASK_WORDS.items() if words.head == head), "text")
